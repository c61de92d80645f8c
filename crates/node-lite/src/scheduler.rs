//! Which node a pod goes to. Pure: nodes and pods in, a decision out, with the wording of the upstream scheduler.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Taint, Toleration};

use crate::resources::{self, Amounts};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Bind {
        node: String,
    },
    /// The text for the condition and the event.
    Unschedulable {
        message: String,
    },
}

pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// True for a pod that waits for this scheduler.
pub fn is_waiting(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    spec.node_name.as_deref().unwrap_or_default().is_empty()
        && pod.metadata.deletion_timestamp.is_none()
        && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
        && !matches!(phase, Some("Succeeded" | "Failed"))
        && matches!(spec.scheduler_name.as_deref(), None | Some("" | DEFAULT_SCHEDULER))
}

/// Decides for one pod. `used` is by node name.
pub fn decide(pod: &Pod, nodes: &[&Node], used: &BTreeMap<String, Amounts>) -> Decision {
    let Some(spec) = &pod.spec else {
        return Decision::Unschedulable { message: "the pod has no spec".to_owned() };
    };
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let none = Amounts::new();
    for node in nodes {
        let name = node.metadata.name.clone().unwrap_or_default();
        let found = obstacles(spec, node, used.get(&name).unwrap_or(&none));
        if found.is_empty() {
            return Decision::Bind { node: name };
        }
        for reason in found {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let total = nodes.len();
    let list: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let message = match list.is_empty() {
        true => "no nodes available to schedule pods".to_owned(),
        false => format!("0/{total} nodes are available: {}.", list.join(", ")),
    };
    Decision::Unschedulable { message }
}

/// Why the pod cannot go there; empty when it can.
fn obstacles(spec: &PodSpec, node: &Node, used: &Amounts) -> Vec<String> {
    let node_spec = node.spec.clone().unwrap_or_default();
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    if node_spec.unschedulable == Some(true) && !tolerates_cordon(tolerations) {
        return vec!["node(s) were unschedulable".to_owned()];
    }
    if !matches_selector(spec, node) {
        return vec!["node(s) didn't match Pod's node affinity/selector".to_owned()];
    }
    for taint in node_spec.taints.iter().flatten() {
        let repels = matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        if repels && !tolerations.iter().any(|toleration| tolerates(toleration, taint)) {
            return vec!["node(s) had untolerated taint(s)".to_owned()];
        }
    }
    let mut allocatable = resources::amounts(node.status.as_ref().and_then(|status| status.allocatable.as_ref()));
    let mut wanted = resources::requests(spec);
    let own = allocatable.get("cpu").copied().unwrap_or(0) / 1000 - 1;
    allocatable.insert(resources::OWN_CPUS.to_owned(), own);
    wanted.extend(resources::own_cpus(spec));
    wanted.insert("pods".to_owned(), 1);
    let mut out = Vec::new();
    for (name, amount) in wanted {
        let free = allocatable.get(&name).copied().unwrap_or(0) - used.get(&name).copied().unwrap_or(0);
        if amount > 0 && amount > free {
            out.push(if name == "pods" { "Too many pods".to_owned() } else { format!("Insufficient {name}") });
        }
    }
    out
}

fn tolerates_cordon(tolerations: &[Toleration]) -> bool {
    let taint = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Default::default()
    };
    tolerations.iter().any(|toleration| tolerates(toleration, &taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && (key == taint.key || (key.is_empty() && exists))
        && (exists || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default())
}

fn matches_selector(spec: &PodSpec, node: &Node) -> bool {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let selector_fits = spec.node_selector.iter().flatten().all(|(name, value)| labels.get(name) == Some(value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let affinity_fits = required
        .is_none_or(|required| required.node_selector_terms.iter().any(|term| matches_term(term, labels, node)));
    selector_fits && affinity_fits
}

fn matches_term(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    // A term without any requirement matches nothing.
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|wanted| matches(wanted, labels.get(&wanted.key).map(String::as_str)))
        && fields.iter().all(|wanted| {
            let value = node.metadata.name.as_deref().filter(|_| wanted.key == "metadata.name");
            matches(wanted, value)
        })
}

fn matches(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let compare = |order: std::cmp::Ordering| {
        let number = value.and_then(|value| value.parse::<i64>().ok());
        let bound = values.first().and_then(|bound| bound.parse::<i64>().ok());
        matches!((number, bound), (Some(number), Some(bound)) if number.cmp(&bound) == order)
    };
    match wanted.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(std::cmp::Ordering::Greater),
        "Lt" => compare(std::cmp::Ordering::Less),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(more: Value) -> Node {
        let mut value = json!({
            "metadata": {"name": "n1", "labels": {"kubernetes.io/os": "linux", "cores": "8"}},
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "2"}},
        });
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    fn pod(spec: Value) -> Pod {
        let mut base = json!({"containers": [{"name": "c"}]});
        base.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": base})).unwrap()
    }

    fn asking(requests: Value) -> Value {
        json!({"containers": [{"name": "c", "resources": {"requests": requests}}]})
    }

    fn affinity(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]}}}})
    }

    #[test]
    fn decisions() {
        let taint = json!({"spec": {"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}});
        let selector = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
        let cases = [
            (json!({}), json!({}), "n1"),
            (asking(json!({"cpu": "1500m"})), json!({}), "n1"),
            (asking(json!({"memory": "1Gi"})), json!({}), "0/1 nodes are available: 1 Insufficient memory."),
            (
                asking(json!({"memory": "2Gi", "cpu": "3", "devices.kubevirt.io/kvm": "1"})),
                json!({}),
                "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient devices.kubevirt.io/kvm, \
                 1 Insufficient memory.",
            ),
            (json!({"nodeSelector": {"kubernetes.io/os": "linux"}}), json!({}), "n1"),
            (json!({"nodeSelector": {"kubevirt.io/schedulable": "true"}}), json!({}), selector),
            (affinity("cores", "Gt", &["4"]), json!({}), "n1"),
            (affinity("cores", "Lt", &["4"]), json!({}), selector),
            (affinity("cores", "In", &["4", "8"]), json!({}), "n1"),
            (affinity("cores", "NotIn", &["8"]), json!({}), selector),
            (affinity("gpu", "DoesNotExist", &[]), json!({}), "n1"),
            (affinity("gpu", "Exists", &[]), json!({}), selector),
            (
                json!({}),
                json!({"spec": {"unschedulable": true}}),
                "0/1 nodes are available: 1 node(s) were unschedulable.",
            ),
            (json!({}), taint.clone(), "0/1 nodes are available: 1 node(s) had untolerated taint(s)."),
            (json!({"tolerations": [{"key": "a", "operator": "Exists"}]}), taint.clone(), "n1"),
            (
                json!({"tolerations": [{"key": "a", "value": "c"}]}),
                taint,
                "0/1 nodes are available: 1 node(s) had untolerated taint(s).",
            ),
        ];
        let used = BTreeMap::from([("n1".to_owned(), Amounts::from([("memory".into(), 1024), ("pods".into(), 1)]))]);
        for (spec, more, expected) in cases {
            let node = node(more.clone());
            let shown = match decide(&pod(spec.clone()), &[&node], &used) {
                Decision::Bind { node } => node,
                Decision::Unschedulable { message } => message,
            };
            assert_eq!(shown, expected, "{spec} {more}");
        }
        let full = BTreeMap::from([("n1".to_owned(), Amounts::from([("pods".into(), 2)]))]);
        assert_eq!(
            decide(&pod(json!({})), &[&node(json!({}))], &full),
            Decision::Unschedulable { message: "0/1 nodes are available: 1 Too many pods.".into() }
        );
        assert_eq!(
            decide(&pod(json!({})), &[], &full),
            Decision::Unschedulable { message: "no nodes available to schedule pods".into() }
        );
    }

    #[test]
    fn only_pods_of_this_scheduler_wait() {
        for (spec, expected) in [
            (json!({}), true),
            (json!({"schedulerName": "default-scheduler"}), true),
            (json!({"schedulerName": "other"}), false),
            (json!({"nodeName": "n1"}), false),
            (json!({"schedulingGates": [{"name": "wait"}]}), false),
        ] {
            assert_eq!(is_waiting(&pod(spec.clone())), expected, "{spec}");
        }
    }
}
