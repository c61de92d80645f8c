//! What `install` and `uninstall` do to a cluster, with words on what they wait for.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Node},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
    runtime::wait::await_condition,
};
use serde_json::{Value, json};

use super::{manifests::CHOICES, version::Installed};
use crate::up::objects::NAMESPACE;

const MANAGER: &str = "ferrovirt";
const DEADLINE: Duration = Duration::from_secs(300);
/// The kinds of an installation's objects that have no namespace.
const CLUSTER_KINDS: &[&str] = &[
    "APIService",
    "CDIConfig",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "Namespace",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

pub struct Cluster {
    client: Client,
}

/// An embedded host is Ferrovirt already: its own parts would be replaced by pods that it cannot run, or taken away under it.
pub async fn refuse_embedded(client: &Client, command: &str) -> Result<()> {
    let version = client.apiserver_version().await?.git_version;
    if !is_embedded(&version) {
        return Ok(());
    }
    bail!(
        "`ferrovirt {command}` is for Kubernetes clusters, and the API that answers is an embedded Ferrovirt host ({version}). \
         Name the cluster's kubeconfig with --kubeconfig; the host itself is started and ended by `ferrovirt up` and `ferrovirt down`"
    )
}

fn is_embedded(git_version: &str) -> bool {
    git_version.contains("+ferrovirt")
}

impl Cluster {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// What is on the cluster, if anything.
    pub async fn installed(&self) -> Result<Option<Installed>> {
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), NAMESPACE);
        let Some(found) = deployments.get_opt("virt-controller").await? else { return Ok(None) };
        let label = |name: &str| found.labels().get(name).cloned().unwrap_or_default();
        Ok(Some(Installed {
            version: label("app.kubernetes.io/version"),
            manager: label("app.kubernetes.io/managed-by"),
        }))
    }

    /// The values that were chosen at the installation.
    pub async fn choices(&self) -> Result<Option<String>> {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), NAMESPACE);
        Ok(maps.get_opt(CHOICES).await?.and_then(|map| map.data?.remove("values.yaml")))
    }

    /// Takes from nodes what their agents said about them.
    pub async fn forget_nodes(&self) -> Result<()> {
        let nodes = Api::<Node>::all(self.client.clone());
        for node in nodes.list(&ListParams::default()).await? {
            let nulls = |names: &mut dyn Iterator<Item = &String>| -> serde_json::Map<String, Value> {
                names.filter(|name| ours(name)).map(|name| (name.clone(), Value::Null)).collect()
            };
            let (labels, annotations) = (nulls(&mut node.labels().keys()), nulls(&mut node.annotations().keys()));
            if labels.is_empty() && annotations.is_empty() {
                continue;
            }
            let name = node.name_any();
            let patch = json!({ "metadata": { "labels": labels, "annotations": annotations } });
            nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            let capacity = node.status.and_then(|status| status.capacity).unwrap_or_default();
            let capacity = nulls(&mut capacity.keys());
            let patch = json!({ "status": { "capacity": capacity, "allocatable": capacity } });
            nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Ok(())
    }

    pub async fn apply(&self, objects: &[Value]) -> Result<()> {
        for object in objects {
            let (api, name, label) = self.api(object);
            // What these objects say is ours to say, whoever changed them since.
            let params = PatchParams::apply(MANAGER).force();
            api.patch(&name, &params, &Patch::Apply(object)).await.with_context(|| format!("{label} was refused"))?;
        }
        Ok(())
    }

    pub async fn delete(&self, objects: &[Value]) -> Result<()> {
        let mut gone = vec![];
        for object in objects.iter().rev() {
            let (api, name, label) = self.api(object);
            match api.delete(&name, &DeleteParams::background()).await {
                Ok(_) => gone.push((api, name, label)),
                // A kind that is not defined any more has no objects.
                Err(kube::Error::Api(answer)) if answer.is_not_found() => {}
                Err(error) => return Err(error).with_context(|| format!("{label} cannot be deleted")),
            }
        }
        for (api, name, label) in gone {
            within(&label, await_condition(api, &name, |object: Option<&DynamicObject>| object.is_none())).await?;
        }
        Ok(())
    }

    pub async fn wait_for_definitions(&self, definitions: &[Value]) -> Result<()> {
        for definition in definitions {
            let (api, name, label) = self.api(definition);
            within(&label, await_condition(api, &name, |o: Option<&DynamicObject>| holds(o, "Established"))).await?;
        }
        Ok(())
    }

    pub async fn wait_for_components(&self, components: &[Value], registration: &[Value]) -> Result<()> {
        for object in components.iter().chain(registration) {
            let (api, name, label) = self.api(object);
            let ready: fn(Option<&DynamicObject>) -> bool = match object["kind"].as_str() {
                Some("Deployment") => deployment_ready,
                Some("DaemonSet") => daemon_set_ready,
                Some("APIService") => |object| holds(object, "Available"),
                _ => continue,
            };
            eprintln!("waiting for {label}");
            if let Err(error) = within(&label, await_condition(api, &name, ready)).await {
                return Err(error.context(self.explain(&name).await));
            }
        }
        Ok(())
    }

    /// Deletes VMs, then what is left of instances, and waits until both are gone.
    pub async fn delete_machines(&self) -> Result<()> {
        for kind in ["VirtualMachine", "VirtualMachineInstanceReplicaSet", "VirtualMachineInstance"] {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", kind));
            let all = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
            let list = match all.list(&ListParams::default()).await {
                Ok(list) => list,
                Err(kube::Error::Api(answer)) if answer.is_not_found() => continue,
                Err(error) => return Err(error.into()),
            };
            for object in list {
                let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
                let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), &namespace, &resource);
                match api.delete(&name, &DeleteParams::foreground()).await {
                    Err(kube::Error::Api(answer)) if answer.is_not_found() => continue,
                    other => drop(other?),
                }
                let label = format!("{} {namespace}/{name}", kind.to_lowercase());
                within(&label, await_condition(api, &name, |object: Option<&DynamicObject>| object.is_none())).await?;
            }
        }
        Ok(())
    }

    /// What the pods of a component say about why they do not run.
    async fn explain(&self, component: &str) -> String {
        let pods = Api::<k8s_openapi::api::core::v1::Pod>::namespaced(self.client.clone(), NAMESPACE);
        let params = ListParams::default().labels(&format!("kubevirt.io={component}"));
        let mut reasons = vec![];
        for pod in pods.list(&params).await.map(|list| list.items).unwrap_or_default() {
            let status = pod.status.unwrap_or_default();
            let phase = status.phase.unwrap_or_default();
            let containers = status.container_statuses.unwrap_or_default().into_iter();
            let waiting = containers
                .filter_map(|c| c.state?.waiting)
                .map(|w| format!("{}: {}", w.reason.unwrap_or_default(), w.message.unwrap_or_default()));
            let why: Vec<String> = waiting.collect();
            reasons.push(format!("pod {} is {phase} {}", pod.metadata.name.unwrap_or_default(), why.join("; ")));
        }
        match reasons.is_empty() {
            true => format!("{component} does not run, and has no pods"),
            false => format!("{component} does not run: {}", reasons.join(", ")),
        }
    }

    fn api(&self, object: &Value) -> (Api<DynamicObject>, String, String) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        let name = text(&object["metadata"]["name"]);
        let label = format!("{} {name}", kind.to_lowercase());
        let api = match CLUSTER_KINDS.contains(&kind.as_str()) {
            true => Api::all_with(self.client.clone(), &resource),
            false => {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or(NAMESPACE);
                Api::namespaced_with(self.client.clone(), namespace, &resource)
            }
        };
        (api, name, label)
    }
}

/// True for labels, annotations and resources that a node agent writes.
fn ours(name: &str) -> bool {
    name.split('/').next().is_some_and(|prefix| prefix == "kubevirt.io" || prefix.ends_with(".kubevirt.io"))
}

async fn within<T, E>(label: &str, condition: impl Future<Output = Result<T, E>>) -> Result<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
    match tokio::time::timeout(DEADLINE, condition).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error).with_context(|| format!("cannot watch {label}")),
        Err(_) => bail!("waited {} s for {label}", DEADLINE.as_secs()),
    }
}

/// True if a condition of the object is `True`.
fn holds(object: Option<&DynamicObject>, condition: &str) -> bool {
    let conditions = object.and_then(|object| object.data["status"]["conditions"].as_array());
    conditions.into_iter().flatten().any(|c| c["type"] == condition && c["status"] == "True")
}

fn deployment_ready(object: Option<&DynamicObject>) -> bool {
    rolled_out(object, |object| object.data["spec"]["replicas"].as_i64(), "updatedReplicas", "availableReplicas")
}

fn daemon_set_ready(object: Option<&DynamicObject>) -> bool {
    let wanted = |object: &DynamicObject| object.data["status"]["desiredNumberScheduled"].as_i64();
    rolled_out(object, wanted, "updatedNumberScheduled", "numberAvailable")
}

/// The newest version of the object was seen by its controller, and all its pods are of that version and available.
fn rolled_out(
    object: Option<&DynamicObject>,
    wanted: impl Fn(&DynamicObject) -> Option<i64>,
    updated: &str,
    available: &str,
) -> bool {
    let Some(object) = object else { return false };
    let status = &object.data["status"];
    let number = |key: &str| status[key].as_i64().unwrap_or(0);
    let wanted = wanted(object).unwrap_or(0);
    let seen = status["observedGeneration"].as_i64() == object.metadata.generation;
    seen && wanted > 0 && number(updated) >= wanted && number(available) >= wanted
}
