//! What the agent says of its node: labels and a heartbeat. Its devices are the kubelet's to count.

use std::{collections::BTreeMap, fs, sync::Arc, time::Duration};

use ferrovirt_api::names;
use ferrovirt_machine::node_facts::{self, NodeFacts};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{Context, Host, cpus, hypervisors};

const HEARTBEAT: Duration = Duration::from_secs(60);
/// Until the node object exists and the first write went through.
const RETRY: Duration = Duration::from_millis(200);

/// Keeps the node's labels and heartbeat fresh. Never returns.
pub(crate) async fn keep(context: Arc<Context>) {
    let nodes = Api::<Node>::all(context.client.clone());
    let name = context.config.node_name.clone();
    let mut hypervisors = context.config.hypervisors.clone();
    let mut facts = context.config.facts.clone();
    loop {
        let told = facts.borrow_and_update().clone();
        // What an agent before this one found out stays until there is something better.
        let is_guess = told == NodeFacts::assumed(Host::ARCH);
        let mut wanted = told.labels(&context.obsolete_models());
        wanted.extend(realtime().then(|| (names::REALTIME_LABEL.to_owned(), "true".to_owned())));
        let (hypervisor_labels, hypervisor_annotations) = {
            let found = hypervisors.borrow_and_update();
            hypervisors::labels_and_annotations(&found)
        };
        let gives_cpus = cpus::are_given(&context.config.kubelet_root);
        let mut patch = json!({ "metadata": {
            "labels": {
                names::CPU_MANAGER: gives_cpus.to_string(),
                names::DEPRECATED_CPU_MANAGER: gives_cpus.to_string(),
                names::NODE_SCHEDULABLE: "true",
                format!("{}{}", names::VM_ARCH_LABEL, context.host.arch): "true",
            },
            "annotations": { names::VIRT_HANDLER_HEARTBEAT: Timestamp::now().to_string() },
        }});
        for (key, value) in hypervisor_labels {
            patch["metadata"]["labels"][key] = value;
        }
        for (key, value) in hypervisor_annotations {
            patch["metadata"]["annotations"][key] = value;
        }
        let written = match nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(node) => match labels_patch(&node, &wanted, is_guess) {
                Some(patch) => nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await,
                None => Ok(node),
            },
            Err(error) => Err(error),
        };
        match written {
            Ok(_) => tokio::select! {
                () = tokio::time::sleep(HEARTBEAT) => {}
                Ok(()) = hypervisors.changed() => {}
                Ok(()) = facts.changed() => {}
                () = cpus::changed(&context.config.kubelet_root, gives_cpus) => {}
            },
            Err(error) => {
                tracing::debug!(%error, "cannot update the node object yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// What makes the node's labels say what it can run, and nothing that it no longer can, unless that `is_guess`. None if they do, or if
/// the node's owner writes them.
fn labels_patch(node: &Node, wanted: &BTreeMap<String, String>, is_guess: bool) -> Option<Value> {
    let skipped =
        node.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(names::LABELLER_SKIP_NODE_ANNOTATION));
    if skipped {
        return None;
    }
    let none = BTreeMap::new();
    let there = node.metadata.labels.as_ref().unwrap_or(&none);
    let ours = |label: &str| node_facts::is_ours(label) || label == names::REALTIME_LABEL;
    let stale = there.keys().filter(|label| !is_guess && ours(label) && !wanted.contains_key(*label));
    let mut labels: serde_json::Map<String, Value> = stale.map(|label| (label.clone(), Value::Null)).collect();
    let missing = wanted.iter().filter(|(label, value)| there.get(*label) != Some(*value));
    labels.extend(missing.map(|(label, value)| (label.clone(), json!(value))));
    (!labels.is_empty()).then(|| json!({ "metadata": { "labels": labels } }))
}

/// Whether the kernel lets a process run in real time for as long as it likes.
fn realtime() -> bool {
    fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").is_ok_and(|text| text.trim() == "-1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_follow_what_the_node_can_run() {
        let node = |labels: Value, annotations: Value| -> Node {
            serde_json::from_value(json!({ "metadata": { "labels": labels, "annotations": annotations } })).unwrap()
        };
        let wanted = BTreeMap::from([("cpu-model.node.kubevirt.io/Penryn".to_owned(), "true".to_owned())]);
        let before = json!({ "cpu-model.node.kubevirt.io/EPYC": "true", "kubevirt.io/realtime": "true", "mine": "x" });
        let patch = labels_patch(&node(before.clone(), json!({})), &wanted, false).unwrap();
        assert_eq!(
            patch["metadata"]["labels"],
            json!({ "cpu-model.node.kubevirt.io/EPYC": null, "kubevirt.io/realtime": null,
                "cpu-model.node.kubevirt.io/Penryn": "true" })
        );
        let after = json!({ "cpu-model.node.kubevirt.io/Penryn": "true", "mine": "x" });
        assert_eq!(labels_patch(&node(after, json!({})), &wanted, false), None);
        let guess = labels_patch(&node(before.clone(), json!({})), &wanted, true).unwrap();
        assert_eq!(guess["metadata"]["labels"], json!({ "cpu-model.node.kubevirt.io/Penryn": "true" }));
        let skip = json!({ names::LABELLER_SKIP_NODE_ANNOTATION: "" });
        assert_eq!(labels_patch(&node(before, skip), &wanted, false), None);
    }
}
