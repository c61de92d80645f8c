//! The objects that a VM or an instance consists of, as a tree: what a backup has to take along.

use std::collections::BTreeMap;

use ferrovirt_api::v1::{
    AccessCredential, ObjectGraphNode, ObjectGraphOptions, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec,
};
use http::{Request, Response, StatusCode};
use k8s_openapi::api::core::v1::{Pod, TypedObjectReference};
use kube::{Api, api::ListParams};

use crate::{Body, VirtApi, answer, authorize::Target, endpoints::MACHINES, options, subresources};

const LABEL: &str = "kubevirt.io/dependency-type";
const LAUNCHERS: &str = "kubevirt.io=virt-launcher";

pub(crate) async fn handle(api: &VirtApi, request: Request<Body>, target: &Target<'_>) -> Response<Body> {
    match attempt(api, request, target).await {
        Ok(response) | Err(response) => response,
    }
}

async fn attempt(api: &VirtApi, request: Request<Body>, target: &Target<'_>) -> Result<Response<Body>, Response<Body>> {
    let options: ObjectGraphOptions = options::read(request).await?;
    let graph = if target.resource == MACHINES {
        let vms = Api::<VirtualMachine>::namespaced(api.client.clone(), target.namespace);
        let vm = vms.get(target.name).await.map_err(answer::from_kube)?;
        let pod = if vm.status.created { launcher(api, target).await? } else { None };
        of_machine(&vm, pod.as_deref())
    } else {
        let vmi = subresources::instance(api, target).await?;
        let pod = launcher(api, target).await?;
        of_instance(&vmi, pod.as_deref())
    };
    let value = serde_json::to_value(select(graph, &options)).map_err(|error| answer::internal(&error.to_string()))?;
    Ok(answer::json(StatusCode::OK, &value))
}

async fn launcher(api: &VirtApi, target: &Target<'_>) -> Result<Option<String>, Response<Body>> {
    let pods = Api::<Pod>::namespaced(api.client.clone(), target.namespace);
    let pods = pods.list(&ListParams::default().labels(LAUNCHERS)).await.map_err(answer::from_kube)?;
    let owned = |pod: &Pod| {
        let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
        owners.iter().any(|owner| owner.kind == "VirtualMachineInstance" && owner.name == target.name)
    };
    Ok(pods.items.into_iter().find(owned).and_then(|pod| pod.metadata.name))
}

fn of_machine(vm: &VirtualMachine, pod: Option<&str>) -> ObjectGraphNode {
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let name = vm.metadata.name.as_deref().unwrap_or_default();
    let mut root = node("kubevirt.io", "VirtualMachine", name, namespace);
    if vm.status.created {
        let mut vmi = node("kubevirt.io", "VirtualMachineInstance", name, namespace);
        vmi.children.extend(pod.map(|pod| node("", "Pod", pod, namespace)));
        root.children.push(vmi);
    }
    let matchers = [
        (
            vm.spec.instancetype.as_ref().map(|m| (m.kind.as_str(), m.name.as_str(), m.revision_name.as_str())),
            "Instancetype",
        ),
        (
            vm.spec.preference.as_ref().map(|m| (m.kind.as_str(), m.name.as_str(), m.revision_name.as_str())),
            "Preference",
        ),
    ];
    for (matcher, what) in matchers {
        let Some((kind, name, revision)) = matcher else { continue };
        let namespaced = kind.eq_ignore_ascii_case(&format!("VirtualMachine{what}"));
        let kind = if namespaced { format!("VirtualMachine{what}") } else { format!("VirtualMachineCluster{what}") };
        let mut child = node("instancetype.kubevirt.io", &kind, name, if namespaced { namespace } else { "" });
        if !revision.is_empty() {
            child.children.push(node("apps", "ControllerRevision", revision, namespace));
        }
        root.children.push(child);
    }
    if let Some(template) = &vm.spec.template {
        root.children.extend(of_spec(&template.spec, namespace));
    }
    root
}

fn of_instance(vmi: &VirtualMachineInstance, pod: Option<&str>) -> ObjectGraphNode {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let mut root = node("kubevirt.io", "VirtualMachineInstance", name, namespace);
    root.children.extend(pod.map(|pod| node("", "Pod", pod, namespace)));
    root.children.extend(of_spec(&vmi.spec, namespace));
    root
}

fn of_spec(spec: &VirtualMachineInstanceSpec, namespace: &str) -> Vec<ObjectGraphNode> {
    let mut nodes = vec![];
    let mut add = |kind: &str, name: &str| nodes.push(node("", kind, name, namespace));
    for credential in &spec.access_credentials {
        if let Some(secret) = secret_of(credential) {
            add("Secret", secret);
        }
    }
    for volume in &spec.volumes {
        if let Some(claim) = &volume.persistent_volume_claim {
            add("PersistentVolumeClaim", &claim.claim_name);
        }
        if let Some(map) = &volume.config_map {
            add("ConfigMap", &map.name);
        }
        if let Some(secret) = &volume.secret {
            add("Secret", &secret.secret_name);
        }
        if let Some(account) = &volume.service_account {
            add("ServiceAccount", &account.service_account_name);
        }
        let no_cloud = volume.cloud_init_no_cloud.as_ref();
        let drive = volume.cloud_init_config_drive.as_ref();
        let references = [
            no_cloud.and_then(|source| source.secret_ref.as_ref()),
            no_cloud.and_then(|source| source.network_data_secret_ref.as_ref()),
            drive.and_then(|source| source.secret_ref.as_ref()),
            drive.and_then(|source| source.network_data_secret_ref.as_ref()),
        ];
        for reference in references.into_iter().flatten() {
            add("Secret", &reference.name);
        }
    }
    for volume in spec.volumes.iter().filter_map(|volume| volume.data_volume.as_ref()) {
        let mut data = node("cdi.kubevirt.io", "DataVolume", &volume.name, namespace);
        data.children.push(node("", "PersistentVolumeClaim", &volume.name, namespace));
        nodes.push(data);
    }
    for network in spec.networks.iter().filter_map(|network| network.multus.as_ref()) {
        let (space, name) = network.network_name.split_once('/').unwrap_or((namespace, &network.network_name));
        nodes.push(node("k8s.cni.cncf.io", "NetworkAttachmentDefinition", name, space));
    }
    nodes
}

fn secret_of(credential: &AccessCredential) -> Option<&str> {
    let key = credential.ssh_public_key.as_ref().and_then(|key| key.source.secret.as_ref());
    let password = credential.user_password.as_ref().and_then(|password| password.source.secret.as_ref());
    key.or(password).map(|secret| secret.secret_name.as_str())
}

fn node(group: &str, kind: &str, name: &str, namespace: &str) -> ObjectGraphNode {
    let dependency = match kind {
        "DataVolume" | "PersistentVolumeClaim" => "storage",
        "Pod" | "VirtualMachine" | "VirtualMachineInstance" => "compute",
        "NetworkAttachmentDefinition" => "network",
        _ => "config",
    };
    ObjectGraphNode {
        object_reference: TypedObjectReference {
            api_group: Some(group.into()),
            kind: kind.into(),
            name: name.into(),
            namespace: Some(namespace.into()),
        },
        labels: BTreeMap::from([(LABEL.into(), dependency.into())]),
        ..Default::default()
    }
}

/// Leaves out what the caller does not want. The root stays.
fn select(mut node: ObjectGraphNode, options: &ObjectGraphOptions) -> ObjectGraphNode {
    let wanted = |child: &ObjectGraphNode| {
        let optional = child.optional == Some(true) && options.include_optional_nodes == Some(false);
        let labels = options.label_selector.as_ref().is_none_or(|selector| matches(selector, &child.labels));
        !optional && labels
    };
    node.children = node.children.into_iter().filter(wanted).map(|child| select(child, options)).collect();
    node
}

fn matches(
    selector: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector,
    labels: &BTreeMap<String, String>,
) -> bool {
    let exact = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let expressions = selector.match_expressions.iter().flatten().all(|expression| {
        let value = labels.get(&expression.key);
        let among = value.is_some_and(|value| expression.values.iter().flatten().any(|v| v == value));
        match expression.operator.as_str() {
            "In" => among,
            "NotIn" => !among,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => true,
        }
    });
    exact && expressions
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
