//! Affinity, spreading and the like, which the launcher's pod gets as they are: Kubernetes would refuse the pod, and nobody
//! looks there.
//!
//! Paths begin at the instance's spec, as upstream's do: its `affinity` is left out of them. Upstream leaves node selectors,
//! tolerations and priority classes to the pod; here they get what Kubernetes says of a pod's.

use std::collections::BTreeMap;

use ferrovirt_api::v1::VirtualMachineInstanceSpec;
use ferrovirt_schema::names;
use k8s_openapi::{
    api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, Toleration, WeightedPodAffinityTerm},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use super::Findings;

pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    if let Some(affinity) = &spec.affinity {
        if let Some(node) = &affinity.node_affinity {
            let field = format!("{path}.nodeAffinity");
            if let Some(required) = &node.required_during_scheduling_ignored_during_execution {
                let field = format!("{field}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
                if required.node_selector_terms.is_empty() {
                    missing(found, field.clone(), "must have at least one node selector term");
                }
                for (index, term) in required.node_selector_terms.iter().enumerate() {
                    node_term(term, &format!("{field}[{index}]"), found);
                }
            }
            let preferred = node.preferred_during_scheduling_ignored_during_execution.as_deref().unwrap_or_default();
            for (index, term) in preferred.iter().enumerate() {
                let field = format!("{field}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
                weight(term.weight, &field, found);
                node_term(&term.preference, &format!("{field}.preference"), found);
            }
        }
        if let Some(pod) = &affinity.pod_affinity {
            pod_terms(
                pod.required_during_scheduling_ignored_during_execution.as_deref().unwrap_or_default(),
                pod.preferred_during_scheduling_ignored_during_execution.as_deref().unwrap_or_default(),
                &format!("{path}.podAffinity"),
                found,
            );
        }
        if let Some(pod) = &affinity.pod_anti_affinity {
            pod_terms(
                pod.required_during_scheduling_ignored_during_execution.as_deref().unwrap_or_default(),
                pod.preferred_during_scheduling_ignored_during_execution.as_deref().unwrap_or_default(),
                &format!("{path}.podAntiAffinity"),
                found,
            );
        }
    }
    spreading(spec, &format!("{path}.topologySpreadConstraints"), found);
    labels(&spec.node_selector, &format!("{path}.nodeSelector"), found);
    for (index, toleration) in spec.tolerations.iter().enumerate() {
        tolerance(toleration, &format!("{path}.tolerations[{index}]"), found);
    }
    if !spec.priority_class_name.is_empty() {
        for problem in names::dns_subdomain(&spec.priority_class_name) {
            wrong(found, format!("{path}.priorityClassName"), &spec.priority_class_name, problem);
        }
    }
}

/// Keys and values that an object's labels can have.
pub(super) fn labels(labels: &BTreeMap<String, String>, field: &str, found: &mut Findings) {
    for (key, value) in labels {
        label_name(key, field, found);
        for problem in names::label_value(value) {
            wrong(found, field.to_owned(), value, problem);
        }
    }
}

fn tolerance(toleration: &Toleration, field: &str, found: &mut Findings) {
    let text = |word: &Option<String>| word.clone().unwrap_or_default();
    let (key, operator, value) = (text(&toleration.key), text(&toleration.operator), text(&toleration.value));
    let effect = text(&toleration.effect);
    if key.is_empty() && operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        wrong(found, format!("{field}.operator"), &operator, detail);
    }
    if !key.is_empty() {
        label_name(&key, &format!("{field}.key"), found);
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        wrong(found, format!("{field}.effect"), &effect, detail);
    }
    match operator.as_str() {
        "" | "Equal" => {
            let problems = names::label_value(&value);
            if !problems.is_empty() {
                wrong(found, format!("{field}.operator"), &value, problems.join(";"));
            }
        }
        "Exists" if value.is_empty() => {}
        "Exists" => {
            wrong(found, format!("{field}.operator"), &value, "value must be empty when `operator` is 'Exists'");
        }
        _ => unsupported(found, format!("{field}.operator"), &operator, &["Equal", "Exists"]),
    }
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if !effect.is_empty() && !effects.contains(&effect.as_str()) {
        unsupported(found, format!("{field}.effect"), &effect, &effects);
    }
}

fn unsupported(found: &mut Findings, field: String, value: &str, supported: &[&str]) {
    let supported: Vec<String> = supported.iter().map(|word| format!("{word:?}")).collect();
    let message = format!("{field}: Unsupported value: {value:?}: supported values: {}", supported.join(", "));
    found.unsupported(field, message);
}

fn wrong(found: &mut Findings, field: String, value: impl std::fmt::Debug, detail: impl std::fmt::Display) {
    let message = format!("{field}: Invalid value: {value:?}: {detail}");
    found.invalid(field, message);
}

fn missing(found: &mut Findings, field: String, detail: &str) {
    let message = format!("{field}: Required value: {detail}");
    found.invalid(field, message);
}

fn weight(weight: i32, field: &str, found: &mut Findings) {
    if !(1..=100).contains(&weight) {
        wrong(found, format!("{field}.weight"), weight, "must be in the range 1-100");
    }
}

fn node_term(term: &NodeSelectorTerm, field: &str, found: &mut Findings) {
    for (index, requirement) in term.match_expressions.iter().flatten().enumerate() {
        expression(requirement, &format!("{field}.matchExpressions[{index}]"), found);
    }
    for (index, requirement) in term.match_fields.iter().flatten().enumerate() {
        node_field(requirement, &format!("{field}.matchFields[{index}]"), found);
    }
}

fn expression(requirement: &NodeSelectorRequirement, field: &str, found: &mut Findings) {
    let values = requirement.values.as_deref().unwrap_or_default();
    let at = format!("{field}.values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            missing(found, at, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            found.invalid(at.clone(), format!("{at}: Forbidden: {detail}"));
        }
        "Gt" | "Lt" if values.len() != 1 => {
            missing(found, at, "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => wrong(found, format!("{field}.operator"), other, "not a valid selector operator"),
    }
    label_name(&requirement.key, &format!("{field}.key"), found);
}

fn node_field(requirement: &NodeSelectorRequirement, field: &str, found: &mut Findings) {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.len() != 1 => missing(
            found,
            format!("{field}.values"),
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        ),
        "In" | "NotIn" => {}
        other => wrong(found, format!("{field}.operator"), other, "not a valid selector operator"),
    }
    if requirement.key != "metadata.name" {
        return wrong(found, format!("{field}.key"), &requirement.key, "not a valid field selector key");
    }
    for (index, value) in values.iter().enumerate() {
        for problem in names::dns_subdomain(value) {
            wrong(found, format!("{field}.values[{index}]"), value, problem);
        }
    }
}

fn pod_terms(required: &[PodAffinityTerm], preferred: &[WeightedPodAffinityTerm], field: &str, found: &mut Findings) {
    for (index, term) in required.iter().enumerate() {
        pod_term(term, &format!("{field}.requiredDuringSchedulingIgnoredDuringExecution[{index}]"), found);
    }
    for (index, term) in preferred.iter().enumerate() {
        let field = format!("{field}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
        weight(term.weight, &field, found);
        pod_term(&term.pod_affinity_term, &format!("{field}.podAffinityTerm"), found);
    }
}

fn pod_term(term: &PodAffinityTerm, field: &str, found: &mut Findings) {
    selector(term.label_selector.as_ref(), &format!("{field}.labelSelector"), found);
    selector(term.namespace_selector.as_ref(), &format!("{field}.namespaceSelector"), found);
    for namespace in term.namespaces.iter().flatten() {
        for problem in names::dns_label(namespace) {
            wrong(found, format!("{field}.namespace"), namespace, problem);
        }
    }
    let key = format!("{field}.topologyKey");
    if term.topology_key.is_empty() {
        missing(found, key.clone(), "can not be empty");
    }
    label_name(&term.topology_key, &key, found);
}

fn selector(selector: Option<&LabelSelector>, field: &str, found: &mut Findings) {
    let Some(selector) = selector else { return };
    for (key, value) in selector.match_labels.iter().flatten() {
        let field = format!("{field}.matchLabels");
        label_name(key, &field, found);
        for problem in names::label_value(value) {
            wrong(found, field.clone(), value, problem);
        }
    }
    for (index, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let field = format!("{field}.matchExpressions[{index}]");
        let values = requirement.values.as_deref().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                missing(found, format!("{field}.values"), "must be specified when `operator` is 'In' or 'NotIn'")
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let at = format!("{field}.values");
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                found.invalid(at.clone(), format!("{at}: Forbidden: {detail}"));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => wrong(found, format!("{field}.operator"), other, "not a valid selector operator"),
        }
        label_name(&requirement.key, &format!("{field}.key"), found);
        for (index, value) in values.iter().enumerate() {
            for problem in names::label_value(value) {
                wrong(found, format!("{field}.values[{index}]"), value, problem);
            }
        }
    }
}

fn label_name(key: &str, field: &str, found: &mut Findings) {
    for problem in names::label_key(key) {
        wrong(found, field.to_owned(), key, problem);
    }
}

fn spreading(spec: &VirtualMachineInstanceSpec, base: &str, found: &mut Findings) {
    let constraints = &spec.topology_spread_constraints;
    for (index, constraint) in constraints.iter().enumerate() {
        let field = format!("{base}[{index}]");
        if constraint.max_skew <= 0 {
            wrong(found, format!("{field}.maxSkew"), constraint.max_skew, "must be greater than zero");
        }
        let key = format!("{field}.topologyKey");
        if constraint.topology_key.is_empty() {
            missing(found, key, "can not be empty");
        } else {
            label_name(&constraint.topology_key, &key, found);
        }
        if !["DoNotSchedule", "ScheduleAnyway"].contains(&constraint.when_unsatisfiable.as_str()) {
            let at = format!("{field}.whenUnsatisfiable");
            let message = format!(
                "{at}: Unsupported value: {:?}: supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
                constraint.when_unsatisfiable
            );
            found.invalid(at, message);
        }
        selector(constraint.label_selector.as_ref(), &format!("{base}.labelSelector"), found);
        let again = constraints.iter().skip(index + 1).any(|other| {
            other.topology_key == constraint.topology_key && other.when_unsatisfiable == constraint.when_unsatisfiable
        });
        if again {
            let at = format!("{field}.{{topologyKey, whenUnsatisfiable}}");
            let message = format!(
                "{at}: Duplicate value: \"{{{}, {}}}\"",
                constraint.topology_key, constraint.when_unsatisfiable
            );
            found.invalid(at, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(spec: Value) -> Vec<(String, String)> {
        let mut found = Findings::default();
        check(&serde_json::from_value(spec).expect("a spec"), "spec", &mut found);
        found.0.into_iter().map(|cause| (cause.field, cause.message)).collect()
    }

    #[test]
    fn what_would_make_the_pod_impossible_is_told_with_its_field() {
        let rows = [
            (json!({ "nodeSelector": { "no key": "x" } }), "spec.nodeSelector", "Invalid value: \"no key\": name part"),
            (json!({ "nodeSelector": { "a/b/c": "x" } }), "spec.nodeSelector", "a valid label key"),
            (json!({ "nodeSelector": { "zone": "a b" } }), "spec.nodeSelector", "Invalid value: \"a b\""),
            (json!({ "nodeSelector": { "zone": "x".repeat(64) } }), "spec.nodeSelector", "63"),
            (
                json!({ "tolerations": [{}] }),
                "spec.tolerations[0].operator",
                "operator must be Exists when `key` is empty",
            ),
            (json!({ "tolerations": [{ "key": "a b" }] }), "spec.tolerations[0].key", "name part"),
            (
                json!({ "tolerations": [{ "key": "a", "operator": "Like" }] }),
                "spec.tolerations[0].operator",
                "Unsupported value: \"Like\": supported values: \"Equal\", \"Exists\"",
            ),
            (
                json!({ "tolerations": [{ "key": "a", "operator": "Exists", "value": "b" }] }),
                "spec.tolerations[0].operator",
                "value must be empty",
            ),
            (json!({ "tolerations": [{ "key": "a", "value": "b c" }] }), "spec.tolerations[0].operator", "\"b c\""),
            (
                json!({ "tolerations": [{ "key": "a", "effect": "NoRun" }] }),
                "spec.tolerations[0].effect",
                "Unsupported value: \"NoRun\"",
            ),
            (
                json!({ "tolerations": [{ "key": "a", "effect": "NoSchedule", "tolerationSeconds": 3 }] }),
                "spec.tolerations[0].effect",
                "effect must be 'NoExecute'",
            ),
            (json!({ "priorityClassName": "Very High" }), "spec.priorityClassName", "RFC 1123"),
        ];
        for (spec, field, words) in rows {
            let found = found(spec.clone());
            assert_eq!(found.len(), 1, "{spec}: {found:?}");
            assert!(found.iter().all(|(at, message)| at == field && message.contains(words)), "{spec}: {found:?}");
        }
    }

    #[test]
    fn what_kubernetes_takes_is_taken() {
        let spec = json!({
            "nodeSelector": { "kubernetes.io/hostname": "node-1", "empty": "" },
            "tolerations": [{ "operator": "Exists" }, { "key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 3 }],
            "priorityClassName": "system-node-critical", "schedulerName": "my-scheduler",
        });
        assert_eq!(found(spec), []);
    }
}
