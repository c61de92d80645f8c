//! What a node offers: the hypervisors that the `KubeVirt` object lists and that ran here when they were tried.

use std::collections::BTreeMap;

use ferrovirt_api::{names, v1::KubeVirt};
use ferrovirt_machine::{
    hypervisor::{DEFAULT, drivers},
    node_facts::NodeFacts,
};
use ferrovirt_node::Hypervisors;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{
    Api, Client, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::watch;

use super::{PROBE_APP, TRIED_LABEL, is_listed};
use crate::up::probe::complaint;

/// How the last try of each hypervisor ended; one that none was made of yet, or that goes on, is not in it.
type Tried = BTreeMap<String, Option<String>>;

enum Seen {
    KubeVirt(Box<KubeVirt>),
    Probe(Box<Pod>),
}

/// Follows the configuration and the tries for as long as the agent lives.
pub fn follow(
    client: Client,
    namespace: &str,
    node: &str,
    kvm: bool,
    assumed: NodeFacts,
) -> (watch::Receiver<Hypervisors>, watch::Receiver<NodeFacts>) {
    let (facts_sender, facts_receiver) = watch::channel(assumed);
    let mut tried = Tried::new();
    let mut kubevirt = KubeVirt::default();
    let (sender, receiver) = watch::channel(offered(&kubevirt, kvm, &tried));
    let kubevirts = watcher(Api::<KubeVirt>::namespaced(client.clone(), namespace), watcher::Config::default());
    let here = watcher::Config::default()
        .labels(&format!("{}={PROBE_APP}", names::APP_LABEL))
        .fields(&format!("spec.nodeName={node}"));
    let probes = watcher(Api::<Pod>::namespaced(client, namespace), here);
    let kubevirts = kubevirts.default_backoff().applied_objects().map(|seen| seen.map(|it| Seen::KubeVirt(it.into())));
    let probes = probes.default_backoff().applied_objects().map(|seen| seen.map(|it| Seen::Probe(it.into())));
    let mut seen = stream::select(kubevirts.boxed(), probes.boxed());
    tokio::spawn(async move {
        while let Some(next) = seen.next().await {
            match next {
                Ok(Seen::KubeVirt(changed)) => kubevirt = *changed,
                Ok(Seen::Probe(pod)) => {
                    if let Some(found) = facts(&pod) {
                        facts_sender.send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
                    }
                    drop(result(&pod).map(|(name, result)| tried.insert(name, result)));
                }
                Err(error) => tracing::warn!(%error, "cannot watch which hypervisors to offer; trying again"),
            }
            let now = offered(&kubevirt, kvm, &tried);
            sender.send_if_modified(|before| {
                let changed = *before != now;
                *before = now;
                changed
            });
        }
    });
    (receiver, facts_receiver)
}

fn offered(kubevirt: &KubeVirt, kvm: bool, tried: &Tried) -> Hypervisors {
    let obstacles = drivers().map(|driver| {
        let missing = driver.needed_device().filter(|_| !kvm);
        let obstacle = match (is_listed(kubevirt, driver), missing, tried.get(driver.name())) {
            (false, ..) => Some("the KubeVirt object does not list it in spec.configuration.hypervisors".into()),
            (true, Some(device), _) => Some(format!("it needs the device {device}, which this node does not have")),
            (true, None, Some(result)) => result.clone(),
            // So that the first machine need not wait for a try.
            (true, None, None) if driver.name() == DEFAULT => None,
            (true, None, None) => Some("whether it runs on this node was not tried to the end yet".into()),
        };
        (driver.name().to_owned(), obstacle)
    });
    obstacles.collect()
}

/// Which hypervisor a pod tried, and why it does not run here, if it does not. A try that goes on says nothing.
fn result(pod: &Pod) -> Option<(String, Option<String>)> {
    let name = pod.labels().get(TRIED_LABEL)?.clone();
    let status = pod.status.as_ref()?;
    let container = status.container_statuses.iter().flatten().next();
    let obstacle = match status.phase.as_deref()? {
        "Succeeded" => None,
        "Failed" => Some(last_words(container).unwrap_or_else(|| {
            let why = status.message.clone().or_else(|| status.reason.clone());
            why.unwrap_or_else(|| complaint(""))
        })),
        // Nobody has to wait for the default's try, so this is no news of it.
        _ if name == DEFAULT => return None,
        _ => Some(no_image(container)?),
    };
    Some((name, obstacle))
}

/// What a successful try of the default hypervisor said of its node.
fn facts(pod: &Pod) -> Option<NodeFacts> {
    let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Succeeded"))?;
    if pod.labels().get(TRIED_LABEL).map(String::as_str) != Some(DEFAULT) {
        return None;
    }
    let container = status.container_statuses.iter().flatten().next()?;
    let message = container.state.as_ref()?.terminated.as_ref()?.message.as_deref()?;
    serde_json::from_str(message).ok()
}

fn last_words(container: Option<&ContainerStatus>) -> Option<String> {
    let message = container?.state.as_ref()?.terminated.as_ref()?.message.as_deref()?;
    Some(complaint(message))
}

fn no_image(container: Option<&ContainerStatus>) -> Option<String> {
    let container = container?;
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    let image = &container.image;
    reason.contains("Image").then(|| format!("its launcher's image {image} cannot be had ({reason})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn listing(names: &[&str]) -> KubeVirt {
        let entries: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        serde_json::from_value(json!({ "spec": { "configuration": { "hypervisors": entries } } })).unwrap()
    }

    #[test]
    fn a_node_offers_what_is_listed_and_ran_there() {
        let runs = |listed: &[&str], kvm: bool, tried: &[(&str, Option<&str>)]| {
            let tried = tried.iter().map(|(name, result)| (name.to_string(), result.map(str::to_owned))).collect();
            let offered = offered(&listing(listed), kvm, &tried).into_iter();
            offered.filter(|(_, obstacle)| obstacle.is_none()).map(|(name, _)| name).collect::<Vec<_>>()
        };
        let (lxc, no_qemu) = (("lxc", None), ("qemu-kvm", Some("no driver")));
        assert_eq!(runs(&[], false, &[]), ["qemu-kvm"], "taken for granted");
        assert_eq!(runs(&["kvm"], false, &[]), ["qemu-kvm"]);
        assert!(runs(&["kvm"], true, &[no_qemu]).is_empty());
        assert!(runs(&["lxc"], false, &[]).is_empty(), "not tried yet");
        assert_eq!(runs(&["lxc"], false, &[lxc]), ["lxc"]);
        assert!(runs(&["lxc"], false, &[("lxc", Some("no driver"))]).is_empty());
        assert_eq!(runs(&["qemu-kvm", "lxc", "xen"], true, &[lxc]), ["lxc", "qemu-kvm"]);
        assert_eq!(runs(&[], true, &[lxc]), ["qemu-kvm"], "one that is not listed");
        let cloud = ("cloud-hypervisor", None);
        assert!(!runs(&["cloud-hypervisor"], false, &[cloud]).contains(&"cloud-hypervisor".to_owned()));
    }

    #[test]
    fn a_pod_says_how_the_try_ended() {
        let pod = |hypervisor: &str, status: Value| -> Pod {
            let labels = json!({ TRIED_LABEL: hypervisor });
            serde_json::from_value(json!({ "metadata": { "labels": labels }, "status": status })).unwrap()
        };
        let container = |state: Value| json!([{ "name": "probe", "image": "x:1", "imageID": "", "ready": false, "restartCount": 0, "state": state }]);
        let failed = json!({ "terminated": { "exitCode": 1, "message": "T ERROR ferrovirt_launcher: no driver\n" } });
        let waiting = json!({ "waiting": { "reason": "ErrImageNeverPull", "message": "none" } });
        let cases = [
            ("lxc", json!({ "phase": "Succeeded" }), Some(None)),
            ("lxc", json!({ "phase": "Failed", "containerStatuses": container(failed) }), Some(Some("no driver"))),
            ("lxc", json!({ "phase": "Failed", "reason": "OutOfcpu" }), Some(Some("OutOfcpu"))),
            ("lxc", json!({ "phase": "Pending" }), None),
            (
                "lxc",
                json!({ "phase": "Pending", "containerStatuses": container(waiting.clone()) }),
                Some(Some("its launcher's image x:1 cannot be had (ErrImageNeverPull)")),
            ),
            (DEFAULT, json!({ "phase": "Pending", "containerStatuses": container(waiting) }), None),
        ];
        for (hypervisor, status, expected) in cases {
            let found = result(&pod(hypervisor, status.clone()));
            let expected = expected.map(|why| (hypervisor.to_owned(), why.map(str::to_owned)));
            assert_eq!(found, expected, "{status}");
        }
    }

    #[test]
    fn a_successful_try_tells_what_the_node_can_run() {
        let said = NodeFacts { machine_types: vec!["q35".into()], ..NodeFacts::default() };
        let pod = |hypervisor: &str, phase: &str, message: &str| -> Pod {
            let state = json!({ "terminated": { "exitCode": 0, "message": message } });
            let container = json!({ "name": "probe", "image": "x:1", "imageID": "", "ready": false, "restartCount": 0, "state": state });
            let status = json!({ "phase": phase, "containerStatuses": [container] });
            serde_json::from_value(json!({ "metadata": { "labels": { TRIED_LABEL: hypervisor } }, "status": status }))
                .unwrap()
        };
        let text = said.to_text(4096).unwrap();
        assert_eq!(facts(&pod(DEFAULT, "Succeeded", &text)), Some(said));
        assert_eq!(facts(&pod("lxc", "Succeeded", &text)), None);
        assert_eq!(facts(&pod(DEFAULT, "Failed", &text)), None);
        assert_eq!(facts(&pod(DEFAULT, "Succeeded", "not told")), None);
    }
}
