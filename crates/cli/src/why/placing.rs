//! Why no node takes a pod: what it asks for, beside what the nodes have.

use std::collections::BTreeSet;

use ferrovirt_api::quantity::Quantity;
use serde_json::Value;

use super::explain::{Facts, Finding, finding};
use crate::guest::size;

/// The label of a node that says which machine code it runs.
const ARCHITECTURE: &str = "kubernetes.io/arch";
/// Nodes whose agent takes VMs.
const SCHEDULABLE: &str = "kubevirt.io/schedulable";

pub(super) fn explain(facts: &Facts, pod: &Value, about: &str, message: &str) -> Finding {
    if let Some(found) = never(facts, pod, about) {
        return found.stuck();
    }
    let next = if message.contains("devices.kubevirt.io/kvm") {
        "no node offers /dev/kvm: use machines with hardware virtualization, or allow emulation (`useEmulation` in the KubeVirt object)"
            .to_owned()
    } else if message.contains("Insufficient memory") {
        "the nodes are full: stop other machines, ask for less memory, or add a node".to_owned()
    } else if message.contains("Insufficient cpu") {
        "the nodes are full: stop other machines, ask for fewer CPUs, or add a node".to_owned()
    } else if message.contains("taint") {
        "tolerate the taint in spec.template.spec.tolerations, or take it off a node".to_owned()
    } else if message.contains("node affinity") || message.contains("node selector") || message.contains("nodeSelector")
    {
        let command = facts.kubectl("get nodes --show-labels");
        format!("no node has the labels that the VM asks for: compare spec.template.spec.nodeSelector with `{command}`")
    } else if message.contains("persistentvolumeclaim") || message.contains("PersistentVolumeClaim") {
        format!("a volume cannot be where the VM could run; see `{}`", facts.kubectl("describe pvc"))
    } else {
        format!("see `{}`", facts.kubectl("describe nodes"))
    };
    finding(about, format!("no node takes it: {message}"), next).stuck()
}

/// What no node has, however empty it is.
fn never(facts: &Facts, pod: &Value, about: &str) -> Option<Finding> {
    // Who may not see the nodes cannot be told what they have.
    if facts.nodes.is_empty() {
        return None;
    }
    if let Some(found) = labels(facts, pod, about) {
        return Some(found);
    }
    let bytes = |quantity: Quantity| size(quantity.as_bytes());
    let (wanted, most) = (asked(pod, "memory"), largest(&facts.nodes, "memory")?);
    if wanted > most {
        let message = format!("asks for {} of memory; the largest node has {}", bytes(wanted), bytes(most));
        let next = format!(
            "ask for less in spec.template.spec.domain.memory.guest: less than {}, because the machine around a guest takes some, too",
            bytes(most)
        );
        return Some(finding(about, message, next));
    }
    let (wanted, most) = (asked(pod, "cpu"), largest(&facts.nodes, "cpu")?);
    if wanted > most {
        let message = format!("asks for {wanted} CPUs; the largest node has {most}");
        return Some(finding(about, message, "ask for fewer CPUs in spec.template.spec.domain"));
    }
    None
}

/// The first label of the pod's selector that no node has.
fn labels(facts: &Facts, pod: &Value, about: &str) -> Option<Finding> {
    let wanted = pod["spec"]["nodeSelector"].as_object()?;
    let lacking = |name: &str, value: &str| {
        !facts.nodes.iter().any(|node| node["metadata"]["labels"][name].as_str().unwrap_or_default() == value)
    };
    let mut missing: Vec<(&str, &str)> = wanted
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)))
        .filter(|(name, value)| lacking(name, value))
        .collect();
    // What the owner wrote says more than what was derived from it.
    missing.sort_by_key(|(name, _)| *name != ARCHITECTURE);
    let (name, value) = *missing.first()?;
    Some(match name {
        ARCHITECTURE => {
            let known: BTreeSet<&str> =
                facts.nodes.iter().filter_map(|node| node["metadata"]["labels"][ARCHITECTURE].as_str()).collect();
            let known: Vec<&str> = known.into_iter().collect();
            finding(
                about,
                format!("no node has architecture {value}; there are {}", known.join(", ")),
                "correct spec.template.spec.architecture and use an image for it, or add such a node",
            )
        }
        SCHEDULABLE => finding(
            about,
            "no node takes VMs: the agent of none of them answers",
            "see whether virt-handler runs: `ferrovirt status` here, `kubectl -n kubevirt get pods` on a cluster",
        ),
        _ => finding(
            about,
            format!("no node has the label {name}={value}"),
            facts.kubectl(format!("get nodes -L {name}"))
                + " shows what they have; correct what the VM asks for, or label a node",
        ),
    })
}

/// What all containers of a pod ask for together. Those that run before the others count as the largest of them.
fn asked(pod: &Value, resource: &str) -> Quantity {
    let of = |container: &Value| quantity(&container["resources"]["requests"][resource]);
    let list = |key: &str| pod["spec"][key].as_array().cloned().unwrap_or_default();
    let together = list("containers").iter().map(of).fold(Quantity::default(), |sum, one| sum + one);
    let before = list("initContainers").iter().map(of).max().unwrap_or_default();
    let overhead = quantity(&pod["spec"]["overhead"][resource]);
    together.max(before) + overhead
}

fn largest(nodes: &[Value], resource: &str) -> Option<Quantity> {
    nodes.iter().map(|node| quantity(&node["status"]["allocatable"][resource])).max().filter(|most| !most.is_zero())
}

fn quantity(value: &Value) -> Quantity {
    Quantity::parse(value.as_str().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nodes() -> Vec<Value> {
        let node = |name: &str, memory: &str, cpu: &str| {
            json!({
                "metadata": { "name": name, "labels": { ARCHITECTURE: "amd64", "disk": "ssd" } },
                "status": { "allocatable": { "memory": memory, "cpu": cpu } },
            })
        };
        vec![node("small", "4Gi", "2"), node("large", "23Gi", "8")]
    }

    #[test]
    fn what_no_node_has_is_named_with_what_they_have() {
        let pod = |selector: Value, memory: &str, cpu: &str| {
            let requests = json!({ "memory": memory, "cpu": cpu });
            json!({ "spec": { "nodeSelector": selector, "containers": [{ "resources": { "requests": requests } }] } })
        };
        let full = "0/2 nodes are available: 2 Insufficient memory.";
        let rows = [
            (
                pod(json!({}), "100Gi", "1"),
                "asks for 100.0 GiB of memory; the largest node has 23.0 GiB",
                "memory.guest",
            ),
            (pod(json!({}), "1Gi", "9"), "asks for 9 CPUs; the largest node has 8", "fewer"),
            (pod(json!({}), "22Gi", "1"), "no node takes it: 0/2", "the nodes are full"),
            (
                pod(json!({ ARCHITECTURE: "arm64", "disk": "tape" }), "1Gi", "1"),
                "no node has architecture arm64; there are amd64",
                "spec.architecture",
            ),
            (pod(json!({ "disk": "tape" }), "1Gi", "1"), "no node has the label disk=tape", "get nodes -L disk"),
            (pod(json!({ SCHEDULABLE: "true" }), "1Gi", "1"), "no node takes VMs", "virt-handler"),
        ];
        let facts = Facts { nodes: nodes(), ..Default::default() };
        for (pod, message, next) in rows {
            let found = explain(&facts, &pod, "pod/x", full);
            assert!(found.message.starts_with(message), "{found:?}");
            assert!(found.next.as_deref().unwrap_or_default().contains(next), "{found:?}");
            assert_eq!(found.outlook, super::super::explain::Outlook::Stuck);
        }
        // Who may not see the nodes gets the scheduler's words.
        let blind = explain(&Facts::default(), &pod(json!({}), "100Gi", "1"), "pod/x", full);
        assert!(blind.message.contains(full), "{blind:?}");
    }

    #[test]
    fn a_pod_asks_for_its_containers_together_and_for_the_largest_before_them() {
        let container = |memory: &str| json!({ "resources": { "requests": { "memory": memory } } });
        let spec = |before: &[&str], together: &[&str]| {
            let list = |all: &[&str]| all.iter().map(|memory| container(memory)).collect::<Vec<_>>();
            json!({ "spec": { "initContainers": list(before), "containers": list(together), "overhead": { "memory": "1Mi" } } })
        };
        for (before, together, expected) in
            [(&["9Mi"][..], &["1Mi", "2Mi"][..], "10Mi"), (&["1Mi", "2Mi"], &["4Mi", "4Mi"], "9Mi"), (&[], &[], "1Mi")]
        {
            assert_eq!(asked(&spec(before, together), "memory"), Quantity::parse(expected).unwrap());
        }
    }
}
