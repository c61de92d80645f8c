//! The pods that try hypervisors: one for each node and each hypervisor that the `KubeVirt` object lists, with the image and the
//! rights of every launcher of that hypervisor. It ends after a moment and stays, for its node's agent to read.
//!
//! A pod's name follows from all that its result depends on, so another image or another kernel means another try.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use ferrovirt_api::{names, v1::KubeVirt};
use ferrovirt_machine::hypervisor::{Hypervisor, drivers};
use ferrovirt_plan::pod::launcher_image;
use futures::{FutureExt, StreamExt, stream};
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, PostParams},
    runtime::{
        WatchStreamExt,
        reflector::{self, Store},
        watcher,
    },
};
use serde_json::json;

use super::{PROBE_APP, TRIED_LABEL, is_listed};

/// What failed is tried again after so long: somebody may have loaded a module, or replaced an image under the same name.
const AGAIN: SignedDuration = SignedDuration::from_mins(30);
/// How often it is looked whether something is to be tried again, if nothing else changes.
const LOOK: Duration = Duration::from_secs(60);
const USER: u32 = 107;

/// What decides about the tries.
struct Observed {
    kubevirts: Store<KubeVirt>,
    nodes: Store<Node>,
    pods: Store<Pod>,
}

impl Observed {
    /// Before all three were read everything would look superfluous.
    fn is_known(&self) -> bool {
        self.kubevirts.wait_until_ready().now_or_never().is_some()
            && self.nodes.wait_until_ready().now_or_never().is_some()
            && self.pods.wait_until_ready().now_or_never().is_some()
    }
}

/// One try.
struct Try {
    node: String,
    driver: &'static dyn Hypervisor,
    image: String,
    /// As a machine would have it: what the hypervisor can do depends on it.
    device: Option<&'static str>,
}

#[derive(Default)]
struct Actions {
    create: Vec<(String, Try)>,
    delete: Vec<String>,
}

/// Makes the pods, and removes those that nothing depends on any more. Never returns.
pub async fn keep(client: Client, namespace: String, launcher: String) {
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let ours = watcher::Config::default().labels(&format!("{}={PROBE_APP}", names::APP_LABEL));
    let able = watcher::Config::default().labels(&format!("{}=true", names::NODE_SCHEDULABLE));
    let (kubevirts, kubevirt_changes) = follow(Api::namespaced(client.clone(), &namespace), Default::default(), |_| ());
    let (nodes, node_changes) = follow(Api::<Node>::all(client), able, forget);
    let (probes, probe_changes) = follow(pods.clone(), ours, |_| ());
    let observed = Observed { kubevirts, nodes, pods: probes };
    let looks = stream::repeat(()).then(|()| tokio::time::sleep(LOOK));
    let mut changes =
        stream::select_all([kubevirt_changes, node_changes, probe_changes, looks.boxed()]).ready_chunks(64);
    while changes.next().await.is_some() {
        if !observed.is_known() {
            continue;
        }
        let Some(kubevirt) = observed.kubevirts.state().into_iter().next() else { continue };
        let actions = plan(&kubevirt, &observed.nodes.state(), &observed.pods.state(), &launcher, Timestamp::now());
        for name in actions.delete {
            if let Err(error) = pods.delete(&name, &DeleteParams::default().grace_period(0)).await {
                tracing::debug!(pod = name, %error, "cannot remove a try of a hypervisor yet");
            }
        }
        for (name, attempt) in actions.create {
            let made = match attempt.pod(&name, &kubevirt) {
                Ok(pod) => pods.create(&PostParams::default(), &pod).await.map(|_| ()),
                Err(error) => Err(kube::Error::SerdeError(error)),
            };
            match made {
                Ok(()) => {}
                // One that is on its way, or that the cache does not show yet.
                Err(kube::Error::Api(answer)) if answer.code == 409 => {}
                Err(error) => tracing::warn!(pod = name, node = attempt.node, %error, "cannot try a hypervisor"),
            }
        }
    }
}

/// All objects of a kind, and a stream that has an item when something changed.
fn follow<K>(api: Api<K>, which: watcher::Config, forget: fn(&mut K)) -> (Store<K>, stream::BoxStream<'static, ()>)
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let changes = watcher(api, which).default_backoff().modify(forget).reflect(writer);
    let changes = changes.map(|change| {
        if let Err(error) = change {
            tracing::warn!(%error, "cannot watch what decides which hypervisors to try; trying again");
        }
    });
    (store, changes.boxed())
}

/// Of a node only its name, its kernel and its devices matter, and there may be thousands.
fn forget(node: &mut Node) {
    let status = node.status.take().unwrap_or_default();
    node.spec = None;
    node.metadata.managed_fields = None;
    node.metadata.annotations = None;
    node.metadata.labels = None;
    node.status = Some(k8s_openapi::api::core::v1::NodeStatus {
        node_info: status.node_info,
        allocatable: status.allocatable,
        ..Default::default()
    });
}

fn plan<N, P>(kubevirt: &KubeVirt, nodes: &[N], pods: &[P], launcher: &str, now: Timestamp) -> Actions
where
    N: AsRef<Node>,
    P: AsRef<Pod>,
{
    let mut wanted: BTreeMap<String, Try> = BTreeMap::new();
    for node in nodes.iter().map(AsRef::as_ref) {
        for driver in drivers().filter(|driver| is_listed(kubevirt, *driver) && has_device(node, *driver)) {
            let image = launcher_image(launcher, driver.name());
            let device = driver.device().filter(|device| offers(node, device));
            let attempt = Try { node: node.name_any(), driver, image, device };
            wanted.insert(attempt.name(node), attempt);
        }
    }
    let mut actions = Actions::default();
    for pod in pods.iter().map(AsRef::as_ref) {
        let name = pod.name_any();
        // One that is being deleted is made anew when it is gone.
        let keeps = wanted.remove(&name).is_some() && !failed_before(pod, now - AGAIN);
        if !keeps && pod.metadata.deletion_timestamp.is_none() {
            actions.delete.push(name);
        }
    }
    actions.create = wanted.into_iter().collect();
    actions
}

/// Whether to try at all: a node's agent says itself that a device is missing.
fn has_device(node: &Node, driver: &dyn Hypervisor) -> bool {
    driver.needed_device().is_none_or(|device| offers(node, device))
}

fn offers(node: &Node, device: &str) -> bool {
    let allocatable = node.status.iter().flat_map(|status| status.allocatable.iter().flatten());
    allocatable.into_iter().any(|(name, number)| name == device && number.0 != "0")
}

fn failed_before(pod: &Pod, time: Timestamp) -> bool {
    let failed = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Failed");
    failed && pod.metadata.creation_timestamp.as_ref().is_some_and(|created| created.0 < time)
}

impl Try {
    fn name(&self, node: &Node) -> String {
        let kernel = node.status.as_ref().and_then(|status| status.node_info.as_ref()).map(|info| &info.kernel_version);
        let mut hasher = DefaultHasher::new();
        (&self.node, &node.metadata.uid, &self.image, kernel, self.device).hash(&mut hasher);
        format!("{PROBE_APP}-{}-{:08x}", self.driver.name(), hasher.finish() & 0xffff_ffff)
    }

    /// The same image, user and rights as a machine of this hypervisor has.
    fn pod(&self, name: &str, kubevirt: &KubeVirt) -> serde_json::Result<Pod> {
        let (pod_security, security) = match self.driver.runs_privileged() {
            true => (json!({ "runAsUser": 0, "runAsGroup": 0 }), json!({ "privileged": true })),
            false => (
                json!({
                    "runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": true, "fsGroup": USER,
                    "seccompProfile": { "type": "RuntimeDefault" },
                }),
                json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } }),
            ),
        };
        let devices = self.device.map_or(json!({}), |device| json!({ device: "1" }));
        let mut requests = devices.clone();
        requests["cpu"] = json!("5m");
        requests["memory"] = json!("32Mi");
        serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "labels": { names::APP_LABEL: PROBE_APP, TRIED_LABEL: self.driver.name() },
                // It goes with the installation.
                "ownerReferences": kubevirt.owner_ref(&()).into_iter().collect::<Vec<_>>(),
            },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "securityContext": pod_security,
                "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{ "matchFields": [
                        { "key": "metadata.name", "operator": "In", "values": [self.node] },
                    ] }],
                } } },
                // A machine may tolerate whatever there is.
                "tolerations": [{ "operator": "Exists" }],
                "containers": [{
                    "name": "probe",
                    "image": self.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/usr/bin/ferrovirt-launcher", "probe", "--hypervisor", self.driver.name()],
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": security,
                    "resources": { "limits": devices, "requests": requests },
                    "volumeMounts": [{ "name": "libvirt-runtime", "mountPath": "/var/run/libvirt" }],
                }],
                "volumes": [{ "name": "libvirt-runtime", "emptyDir": {} }],
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const LAUNCHER: &str = "launcher:1";

    fn kubevirt(hypervisors: &[&str]) -> KubeVirt {
        let entries: Vec<Value> = hypervisors.iter().map(|name| json!({ "name": name })).collect();
        serde_json::from_value(json!({
            "metadata": { "name": "kubevirt", "namespace": "kubevirt", "uid": "1" },
            "spec": { "configuration": { "hypervisors": entries } },
        }))
        .unwrap()
    }

    fn node(name: &str, kernel: &str) -> Box<Node> {
        let mut info = serde_json::to_value(k8s_openapi::api::core::v1::NodeSystemInfo::default()).unwrap();
        info["kernelVersion"] = json!(kernel);
        serde_json::from_value(json!({ "metadata": { "name": name }, "status": { "nodeInfo": info } })).unwrap()
    }

    fn pod(name: &str, phase: &str, created: Timestamp) -> Box<Pod> {
        let metadata = json!({ "name": name, "creationTimestamp": created });
        serde_json::from_value(json!({ "metadata": metadata, "status": { "phase": phase } })).unwrap()
    }

    fn created(actions: &Actions) -> Vec<(&str, &str, &str)> {
        actions.create.iter().map(|(_, it)| (it.node.as_str(), it.driver.name(), it.image.as_str())).collect()
    }

    #[test]
    fn each_node_tries_what_is_listed_once() {
        let (none, now): (&[Box<Pod>], _) = (&[], Timestamp::UNIX_EPOCH);
        let listed = kubevirt(&["kvm", "lxc", "cloud-hypervisor"]);
        let nodes = [node("a", "6"), node("b", "6")];
        let first = plan(&listed, &nodes, none, LAUNCHER, now);
        let mut tried = created(&first);
        tried.sort_unstable();
        let expected = ["a", "b"].map(|node| [(node, "lxc", "launcher-lxc:1"), (node, "qemu-kvm", LAUNCHER)]);
        assert_eq!(tried, expected.concat(), "nothing that needs a device which is not there");

        let pods: Vec<_> = first.create.iter().map(|(name, _)| pod(name, "Succeeded", now)).collect();
        let later = now + AGAIN + AGAIN;
        let second = plan(&listed, &nodes, &pods, LAUNCHER, later);
        assert!(second.create.is_empty() && second.delete.is_empty());

        for changed in [
            plan(&listed, &nodes, &pods, "launcher:2", later),
            plan(&listed, &[node("a", "7"), node("b", "7")], &pods, LAUNCHER, later),
        ] {
            assert_eq!((changed.create.len(), changed.delete.len()), (4, 4));
        }
        let fewer = plan(&kubevirt(&[]), &nodes, &pods, LAUNCHER, later);
        assert_eq!((fewer.create.len(), fewer.delete.len()), (0, 2));
    }

    #[test]
    fn what_failed_is_tried_again_after_a_while() {
        let (none, now): (&[Box<Pod>], _) = (&[], Timestamp::UNIX_EPOCH);
        let (listed, nodes) = (kubevirt(&[]), [node("a", "6")]);
        let name = plan(&listed, &nodes, none, LAUNCHER, now).create[0].0.clone();
        let failed = [pod(&name, "Failed", now)];
        assert!(plan(&listed, &nodes, &failed, LAUNCHER, now + AGAIN).delete.is_empty());
        let late = plan(&listed, &nodes, &failed, LAUNCHER, now + AGAIN + SignedDuration::from_secs(1));
        assert_eq!((late.delete, late.create.len()), (vec![name], 0), "made again when it is gone");
    }

    #[test]
    fn a_try_has_the_rights_of_a_launcher_and_its_node() {
        for driver in drivers() {
            let attempt = Try { node: "a".into(), driver, image: "x:1".into(), device: driver.needed_device() };
            let pod = serde_json::to_value(attempt.pod("n", &kubevirt(&[])).unwrap()).unwrap();
            let container = &pod["spec"]["containers"][0];
            assert_eq!(container["securityContext"]["privileged"] == json!(true), driver.runs_privileged());
            assert!(pod["spec"]["affinity"].to_string().contains("\"a\""));
            assert_eq!(pod["metadata"]["ownerReferences"][0]["kind"], "KubeVirt");
        }
    }
}
