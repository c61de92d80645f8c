//! `ferrovirt preflight`: does the cluster have what Ferrovirt needs, and if not, what is to be done?

use anyhow::{Result, bail};
use clap::Args;
use k8s_openapi::api::{
    apps::v1::Deployment,
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::{ConfigMap, Node},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};

use crate::{client::ClientArgs, up::objects::NAMESPACE};

/// Image volumes are on by default from here on; before, `ImageVolume` is a feature gate of API server and kubelets.
const MINOR: u32 = 35;
/// Admission policies that know the node of a caller.
const LEAST_MINOR: u32 = 33;

#[derive(Args)]
pub struct PreflightArgs {
    #[command(flatten)]
    client: ClientArgs,
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    weight: Weight,
    text: String,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Weight {
    Good,
    /// Works, but not everything.
    Warning,
    /// Would not work.
    Bad,
}

use Weight::{Bad, Good, Warning};

fn finding(weight: Weight, text: impl Into<String>) -> Finding {
    Finding { weight, text: text.into() }
}

pub async fn preflight(arguments: PreflightArgs) -> Result<()> {
    let findings = look(&arguments.client.connect().await?).await?;
    for finding in &findings {
        let mark = match finding.weight {
            Good => "ok     ",
            Warning => "warning",
            Bad => "missing",
        };
        println!("{mark}  {}", finding.text);
    }
    match findings.iter().filter(|finding| finding.weight == Bad).count() {
        0 => Ok(()),
        count => bail!("{count} of {} checks failed; `ferrovirt install` would not work", findings.len()),
    }
}

/// The same before an installation: silent, unless something is wrong.
pub async fn require(client: &Client) -> Result<()> {
    let bad: Vec<String> =
        look(client).await?.into_iter().filter(|finding| finding.weight == Bad).map(|finding| finding.text).collect();
    match bad.is_empty() {
        true => Ok(()),
        false => bail!("this cluster lacks something:\n  {}", bad.join("\n  ")),
    }
}

async fn look(client: &Client) -> Result<Vec<Finding>> {
    let version = client.apiserver_version().await?;
    let mut findings = vec![version_finding(&version.major, &version.minor)];
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
    let proxy = maps.get_opt("extension-apiserver-authentication").await;
    findings.push(match proxy {
        Ok(Some(map)) if map.data.iter().flatten().any(|(key, _)| key == "requestheader-client-ca-file") => {
            finding(Good, "the API server can call aggregated APIs")
        }
        Ok(_) => finding(Bad, "the API server is not set up for aggregated APIs: it needs the flags --requestheader-* and --proxy-client-*"),
        Err(error) => finding(Warning, format!("cannot see whether the API server is set up for aggregated APIs: {error}")),
    });
    findings.extend(rights(client).await?);
    findings.push(other_kubevirt(client).await);
    match Api::<Node>::all(client.clone()).list(&ListParams::default()).await {
        Ok(nodes) => findings.extend(node_findings(&nodes.items)),
        Err(error) => findings.push(finding(Warning, format!("cannot look at the nodes: {error}"))),
    }
    Ok(findings)
}

fn version_finding(major: &str, minor: &str) -> Finding {
    let digits: String = minor.chars().take_while(char::is_ascii_digit).collect();
    match digits.parse::<u32>() {
        Ok(found) if major == "1" && found < LEAST_MINOR => finding(
            Bad,
            format!("Kubernetes {major}.{minor} is too old: {LEAST_MINOR} or newer is needed (1.{LEAST_MINOR})"),
        ),
        Ok(found) if major == "1" && found < MINOR => finding(
            Warning,
            format!(
                "Kubernetes {major}.{minor}: containerDisks are copied at every start (disable our feature gate ImageVolume), or open \
                 that of API server and kubelets"
            ),
        ),
        _ => finding(Good, format!("Kubernetes {major}.{minor}")),
    }
}

/// What `install` does that not everybody may do.
async fn rights(client: &Client) -> Result<Vec<Finding>> {
    let mut missing = vec![];
    for (group, resource) in [
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
        ("apiregistration.k8s.io", "apiservices"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        ("", "namespaces"),
    ] {
        let attributes = ResourceAttributes {
            group: Some(group.into()),
            resource: Some(resource.into()),
            verb: Some("create".into()),
            ..Default::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..Default::default() };
        let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(resource);
        }
    }
    Ok(vec![match missing.is_empty() {
        true => finding(Good, "you may create what an installation consists of"),
        false => finding(Bad, format!("you may not create {}; ask a cluster administrator", missing.join(", "))),
    }])
}

async fn other_kubevirt(client: &Client) -> Finding {
    match Api::<Deployment>::namespaced(client.clone(), NAMESPACE).get_opt("virt-operator").await {
        Ok(Some(_)) => finding(Bad, "KubeVirt is installed (deployment virt-operator): two cannot serve the same API"),
        Ok(None) => finding(Good, "no KubeVirt is in the way"),
        Err(error) => finding(Warning, format!("cannot see whether KubeVirt is installed: {error}")),
    }
}

fn node_findings(nodes: &[Node]) -> Vec<Finding> {
    let mut findings = vec![];
    let mut able = 0;
    for node in nodes {
        let name = node.name_any();
        let status = node.status.clone().unwrap_or_default();
        let info = status.node_info.unwrap_or_default();
        if info.operating_system != "linux" || info.architecture != "amd64" {
            findings.push(finding(
                Warning,
                format!("node {name} is {}/{}: VMs run on linux/amd64 only", info.operating_system, info.architecture),
            ));
            continue;
        }
        if let Some(problem) = runtime_problem(&info.container_runtime_version) {
            findings.push(finding(Warning, format!("node {name}: {problem}")));
        }
        let kvm = status.allocatable.iter().flatten().find(|(key, _)| *key == "devices.kubevirt.io/kvm");
        if kvm.is_some_and(|(_, number)| number.0 == "0") {
            findings.push(finding(
                Warning,
                format!("node {name} has no hardware virtualization; its VMs need --use-emulation, and are slow"),
            ));
        }
        able += 1;
    }
    findings.push(match able {
        0 => finding(Bad, "no node can run VMs: linux on amd64 is needed"),
        count => finding(Good, format!("{count} of {} nodes can run VMs", nodes.len())),
    });
    findings
}

/// Why containerDisks would not work with this container runtime.
fn runtime_problem(version: &str) -> Option<String> {
    let (name, version) = version.split_once("://")?;
    let mut numbers = version.trim_start_matches('v').split('.').map_while(|part| part.parse::<u32>().ok());
    let found = (numbers.next()?, numbers.next()?);
    let least = match name {
        "containerd" => (2, 1),
        "cri-o" => (1, 31),
        _ => return None,
    };
    (found < least).then(|| {
        format!(
            "{name} {version} has no image volumes: disable our feature gate ImageVolume, and containerDisks are copied at every \
             start, or use {name} {}.{} or newer",
            least.0, least.1
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_weighed() {
        for (minor, weight) in [("32", Bad), ("33", Warning), ("34+", Warning), ("35", Good), ("36+", Good)] {
            assert_eq!(version_finding("1", minor).weight, weight, "{minor}");
        }
        for (version, fine) in [
            ("containerd://1.7.22", false),
            ("containerd://2.0.3", false),
            ("containerd://2.1.0", true),
            ("containerd://v2.4.2", true),
            ("cri-o://1.30.1", false),
            ("cri-o://1.33.0", true),
            ("something", true),
        ] {
            assert_eq!(runtime_problem(version).is_none(), fine, "{version}");
        }
    }

    #[test]
    fn nodes_are_weighed() {
        let node = |os: &str, kvm: &str| -> Node {
            serde_json::from_value(serde_json::json!({
                "metadata": { "name": "n" },
                "status": {
                    "allocatable": { "devices.kubevirt.io/kvm": kvm },
                    "nodeInfo": {
                        "operatingSystem": os, "architecture": "amd64", "containerRuntimeVersion": "containerd://2.4.2",
                        "bootID": "", "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                        "osImage": "", "systemUUID": "",
                    },
                },
            }))
            .unwrap()
        };
        let weights = |nodes: &[Node]| node_findings(nodes).into_iter().map(|f| f.weight).collect::<Vec<_>>();
        assert_eq!(weights(&[node("linux", "110")]), [Good]);
        assert_eq!(weights(&[node("linux", "0")]), [Warning, Good]);
        assert_eq!(weights(&[node("windows", "0")]), [Warning, Bad]);
        assert_eq!(weights(&[]), [Bad]);
    }
}
