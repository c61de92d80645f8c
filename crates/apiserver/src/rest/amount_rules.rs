//! What may be counted and by how much: limits of ranges, quotas, and resources of containers.

use ferrovirt_schema::{Cause, Quantity, names};
use serde_json::{Value, json};

use crate::object::{at, strings, text};
use crate::quota::amounts;

/// What a container may ask for by a plain name.
const OF_CONTAINERS: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];
/// What a quota may limit beside those, `requests.`, `limits.` and `count/`.
const OF_QUOTAS: [&str; 11] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
    "storage",
    "resourceclaims",
];
/// The scopes that are about pods as a whole, which say nothing by values.
const SCOPES: [&str; 5] = ["BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "Terminating"];
const NOT_STANDARD: &str = "must be a standard resource type or fully qualified";
const NOT_WHOLE: &str = "must be an integer";

fn is_whole(amount: Quantity) -> bool {
    // An amount of a thousandth or more that is whole is written without a unit below one.
    !matches!(amount.to_string().chars().last(), Some('m' | 'u' | 'n'))
}

fn is_qualified(name: &str) -> bool {
    name.contains('/') && names::label_key(name).is_empty()
}

/// The resources of a container: what it asks for and what it may use at most.
pub fn of_container(field: &str, resources: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for list in ["limits", "requests"] {
        for (name, amount) in amounts(resources.get(list)) {
            let field = format!("{field}.{list}[{name}]");
            let plain = OF_CONTAINERS.contains(&name.as_str()) || name.starts_with("hugepages-");
            if !plain && !is_qualified(&name) {
                causes.push(Cause::invalid(field.clone(), &json!(name), NOT_STANDARD));
                causes.push(Cause::invalid(field, &json!(name), "must be a standard resource for containers"));
            } else if amount < Quantity::ZERO {
                let fault = "must be greater than or equal to 0";
                causes.push(Cause::invalid(field, &json!(amount.to_string()), fault));
            } else if !plain && !is_whole(amount) {
                causes.push(Cause::invalid(field, &json!(amount.to_string()), NOT_WHOLE));
            }
        }
    }
    let limits = amounts(resources.get("limits"));
    for (resource, request) in amounts(resources.get("requests")) {
        if let Some(limit) = limits.get(&resource).filter(|limit| request > **limit) {
            let fault = format!("must be less than or equal to {resource} limit of {limit}");
            causes.push(Cause::invalid(format!("{field}.requests"), &json!(request.to_string()), fault));
        }
    }
    causes
}

pub fn limit_range(range: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut seen = Vec::new();
    let limits = at(range, &["spec", "limits"]).and_then(Value::as_array);
    for (index, limit) in limits.into_iter().flatten().enumerate() {
        let kind = text(limit, &["type"]);
        if seen.contains(&kind) {
            causes.push(Cause::duplicate(format!("spec.limits[{index}].type"), &json!(kind)));
        }
        seen.push(kind);
        for key in ["default", "defaultRequest"] {
            if kind == "Pod" && !amounts(limit.get(key)).is_empty() {
                let fault = "may not be specified when `type` is 'Pod'";
                causes.push(Cause::forbidden(format!("spec.limits[{index}].{key}"), fault));
            }
        }
        let (min, max) = (amounts(limit.get("min")), amounts(limit.get("max")));
        for (name, min) in &min {
            if max.get(name).is_some_and(|max| min > max) {
                let field = format!("spec.limits[{index}].min[{name}]");
                causes.push(Cause::invalid(field, &json!(min.to_string()), "min value is greater than max value"));
            }
        }
    }
    causes
}

pub fn quota(quota: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let hard = amounts(at(quota, &["spec", "hard"]));
    for (name, amount) in &hard {
        let field = format!("spec.hard[{name}]");
        let of = |prefix: &str| name.strip_prefix(prefix);
        let compute = of("requests.").or_else(|| of("limits.")).unwrap_or(name);
        let computes = OF_CONTAINERS.contains(&compute) || compute.starts_with("hugepages-") || compute == "storage";
        let known = computes || OF_QUOTAS.contains(&name.as_str());
        if !known && !is_qualified(name) && !is_qualified(compute) {
            causes.push(Cause::invalid(field.clone(), &json!(name), NOT_STANDARD));
            causes.push(Cause::invalid(field.clone(), &json!(name), "must be a standard resource for quota"));
        }
        if *amount < Quantity::ZERO {
            let fault = "must be greater than or equal to 0";
            causes.push(Cause::invalid(field.clone(), &json!(amount.to_string()), fault));
        }
        // Objects and devices are counted; the rest is measured.
        if known && !computes && !is_whole(*amount) {
            causes.push(Cause::invalid(field, &json!(amount.to_string()), NOT_WHOLE));
        }
    }
    causes.extend(scopes(quota, hard.keys().map(String::as_str)));
    causes
}

fn scopes<'a>(quota: &Value, limited: impl Iterator<Item = &'a str>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let scopes = strings(at(quota, &["spec", "scopes"]));
    let has = |name: &str| scopes.iter().any(|scope| scope == name);
    // A pod of the least quality asks for nothing that could be counted.
    if has("BestEffort") && limited.into_iter().any(|name| name != "pods") {
        causes.push(Cause::invalid("spec.scopes", &json!(scopes), "unsupported scope applied to resource"));
    }
    if (has("BestEffort") && has("NotBestEffort")) || (has("Terminating") && has("NotTerminating")) {
        causes.push(Cause::invalid("spec.scopes", &json!(scopes), "conflicting scopes"));
    }
    let expressions = at(quota, &["spec", "scopeSelector", "matchExpressions"]).and_then(Value::as_array);
    for expression in expressions.into_iter().flatten() {
        let operator = text(expression, &["operator"]);
        if SCOPES.contains(&text(expression, &["scopeName"])) && operator != "Exists" {
            causes.push(Cause::invalid(
                "spec.scopeSelector.matchExpressions.operator",
                &json!(operator),
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
            ));
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(causes: Vec<Cause>, fields: &[&str]) {
        let found: Vec<String> = causes.into_iter().map(|cause| cause.field).collect();
        assert_eq!(found, fields);
    }

    #[test]
    fn containers_ask_for_known_things_in_whole_numbers() {
        for (resources, fields) in [
            (
                json!({"limits": {"cpu": "1500m", "memory": "1Gi", "hugepages-2Mi": "4Mi", "devices.kubevirt.io/kvm": 1}}),
                &[][..],
            ),
            (json!({"limits": {"nonsense": 1}}), &["r.limits[nonsense]", "r.limits[nonsense]"]),
            (json!({"requests": {"example.com/dev": "1.5"}}), &["r.requests[example.com/dev]"]),
            (json!({"requests": {"cpu": -1}}), &["r.requests[cpu]"]),
            (json!({"requests": {"cpu": 2}, "limits": {"cpu": 1}}), &["r.requests"]),
        ] {
            check(of_container("r", &resources), fields);
        }
    }

    #[test]
    fn quotas_limit_known_things() {
        let cases = [
            (
                json!({"hard": {"pods": 1, "requests.cpu": "500m", "count/virtualmachines.kubevirt.io": 3, "limits.memory": "1Gi"}}),
                &[][..],
            ),
            (
                json!({"hard": {"requests.storage": "1Gi", "gold.storageclass.storage.k8s.io/requests.storage": "1Gi"}}),
                &[],
            ),
            (json!({"hard": {"requests.example.com/gpu": 1, "example.com/gpu": 1, "services.nodeports": 0}}), &[]),
            (json!({"hard": {"nonsense": 1}}), &["spec.hard[nonsense]", "spec.hard[nonsense]"]),
            (json!({"hard": {"pods": "1.5"}}), &["spec.hard[pods]"]),
            (json!({"hard": {"pods": -1}}), &["spec.hard[pods]"]),
            (json!({"hard": {"pods": 1}, "scopes": ["BestEffort", "NotBestEffort"]}), &["spec.scopes"]),
            (json!({"hard": {"requests.cpu": 1}, "scopes": ["BestEffort"]}), &["spec.scopes"]),
            (
                json!({"hard": {"pods": 1}, "scopeSelector": {"matchExpressions": [{"scopeName": "Terminating", "operator": "In"}]}}),
                &["spec.scopeSelector.matchExpressions.operator"],
            ),
        ];
        for (spec, fields) in cases {
            check(quota(&json!({"spec": spec})), fields);
        }
    }

    #[test]
    fn ranges_fit_together() {
        for (limits, fields) in [
            (json!([{"type": "Pod", "max": {"cpu": 1}}, {"type": "Container", "default": {"cpu": 1}}]), &[][..]),
            (json!([{"type": "Pod", "default": {"cpu": 1}}]), &["spec.limits[0].default"]),
            (json!([{"type": "Pod"}, {"type": "Pod"}]), &["spec.limits[1].type"]),
            (json!([{"type": "Pod", "min": {"cpu": 2}, "max": {"cpu": 1}}]), &["spec.limits[0].min[cpu]"]),
        ] {
            check(limit_range(&json!({"spec": {"limits": limits}})), fields);
        }
    }
}
