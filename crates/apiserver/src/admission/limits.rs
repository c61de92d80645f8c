//! Limit ranges: defaults for containers that ask for nothing, and bounds for those that do.

use std::collections::BTreeMap;

use ferrovirt_schema::Quantity;
use serde_json::{Value, json};

use crate::object::{at, default, default_in, items_mut, name, text};
use crate::quota::{Amounts, amounts, containers, pod_total};
use crate::registry::Special;
use crate::rest::Call;
use crate::status::ApiError;
use crate::storage::parse;

const STORAGE: &str = "limitranges";

/// The limits of each range in the namespace of a pod or claim.
fn ranges(call: &Call) -> Vec<Vec<Value>> {
    let ranged = call.resource.special == Special::Pod
        || (call.resource.group.is_empty() && call.resource.plural == "persistentvolumeclaims");
    let (true, Some(namespace)) = (ranged && call.server.store.count(STORAGE) > 0, call.namespace()) else {
        return Vec::new();
    };
    let ranges = call.server.store.list(STORAGE, Some(namespace)).items;
    let limits = ranges.iter().filter_map(|e| parse(e).ok()).filter_map(|mut r| match r["spec"]["limits"].take() {
        Value::Array(limits) => Some(limits),
        _ => None,
    });
    limits.collect()
}

/// Says on a pod what a range filled in, as upstream does.
const FILLED: &str = "kubernetes.io/limit-ranger";

/// Fills what containers of a new pod leave open.
pub fn fill(call: &Call, object: &mut Value) {
    if call.resource.special != Special::Pod {
        return;
    }
    for limits in ranges(call) {
        let filled = fill_from(&limits, object);
        if !filled.is_empty() {
            let meta = crate::object::metadata(object);
            let annotations = meta.entry("annotations").or_insert_with(|| json!({}));
            if annotations.is_null() {
                *annotations = json!({});
            }
            if let Some(map) = annotations.as_object_mut() {
                map.insert(FILLED.into(), format!("LimitRanger plugin set: {}", filled.join("; ")).into());
            }
        }
    }
}

/// Fills from the limits of one range, and says what.
fn fill_from(limits: &[Value], pod: &mut Value) -> Vec<String> {
    let mut filled = Vec::new();
    let Some(spec) = pod.get_mut("spec") else { return filled };
    let defaults = |from: &str| -> BTreeMap<String, Value> {
        let of_containers = limits.iter().filter(|l| text(l, &["type"]) == "Container");
        let all = of_containers.filter_map(|l| l[from].as_object()).flatten();
        all.map(|(resource, amount)| (resource.clone(), amount.clone())).collect()
    };
    let both = [("request", "requests", defaults("defaultRequest")), ("limit", "limits", defaults("default"))];
    for (list, noun) in [("containers", "container"), ("initContainers", "init container")] {
        for container in items_mut(spec, list) {
            default(container, "resources", json!({}));
            let name = text(container, &["name"]).to_owned();
            for (word, kind, amounts) in &both {
                let mut set = Vec::new();
                for (resource, amount) in amounts {
                    default_in(container, "resources", kind, json!({}));
                    if at(container, &["resources", kind, resource]).is_none_or(Value::is_null) {
                        set.push(resource.as_str());
                    }
                    if let Some(resources) = container.get_mut("resources") {
                        default_in(resources, kind, resource, amount.clone());
                    }
                }
                if !set.is_empty() {
                    filled.push(format!("{} {word} for {noun} {name}", set.join(", ")));
                }
            }
        }
    }
    filled
}

/// A claim that changes is held to the bounds, too: it may have been enlarged. What containers of a pod ask for cannot change, and
/// what is going away is left alone.
pub fn check_update(call: &Call, old: &Value, new: &Value) -> Result<(), ApiError> {
    let going = at(old, &["metadata", "deletionTimestamp"]).is_some_and(Value::is_string);
    if call.resource.special == Special::Pod || going || !call.subresource().is_empty() {
        return Ok(());
    }
    check(call, new)
}

/// Refuses what is out of bounds, with all reasons.
pub fn check(call: &Call, object: &Value) -> Result<(), ApiError> {
    for limits in ranges(call) {
        let mut faults = faults(&limits, call.resource.special == Special::Pod, object);
        if !faults.is_empty() {
            let why = if faults.len() == 1 { faults.remove(0) } else { format!("[{}]", faults.join(", ")) };
            return Err(ApiError::forbidden(call.resource.subject(name(object)), &why));
        }
    }
    Ok(())
}

/// What of a pod or a claim is out of the bounds of one range.
fn faults(limits: &[Value], is_pod: bool, object: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for limit in limits {
        let kind = text(limit, &["type"]);
        match (kind, is_pod) {
            ("Container", true) => {
                for container in containers(object, "containers").chain(containers(object, "initContainers")) {
                    let of = |key: &str| amounts(at(container, &["resources", key]));
                    faults.extend(out_of_bounds(limit, kind, &of("requests"), &of("limits")));
                }
            }
            ("Pod", true) => {
                let (requests, limits) = (pod_total(object, "requests"), pod_total(object, "limits"));
                faults.extend(out_of_bounds(limit, kind, &requests, &limits));
            }
            // Of a claim, only what it requests counts.
            ("PersistentVolumeClaim", false) => {
                let requests = amounts(at(object, &["spec", "resources", "requests"]));
                faults.extend(below(limit, kind, &requests, &Amounts::new()));
                for (resource, max) in amounts(limit.get("max")) {
                    let start = format!("maximum {resource} usage per {kind} is {max}");
                    match requests.get(&resource) {
                        None => faults.push(format!("{start}.  No request is specified")),
                        Some(request) if *request > max => faults.push(format!("{start}, but request is {request}")),
                        Some(_) => {}
                    }
                }
            }
            _ => {}
        }
    }
    faults
}

fn below(limit: &Value, kind: &str, requests: &Amounts, limits: &Amounts) -> Vec<String> {
    let mut faults = Vec::new();
    for (resource, min) in amounts(limit.get("min")) {
        let start = format!("minimum {resource} usage per {kind} is {min}");
        match (requests.get(&resource), limits.get(&resource)) {
            (None, _) => faults.push(format!("{start}.  No request is specified")),
            (Some(request), _) if *request < min => faults.push(format!("{start}, but request is {request}")),
            (_, Some(limit)) if *limit < min => faults.push(format!("{start}, but limit is {limit}")),
            _ => {}
        }
    }
    faults
}

fn out_of_bounds(limit: &Value, kind: &str, requests: &Amounts, limits: &Amounts) -> Vec<String> {
    let mut faults = below(limit, kind, requests, limits);
    for (resource, max) in amounts(limit.get("max")) {
        let start = format!("maximum {resource} usage per {kind} is {max}");
        match (requests.get(&resource), limits.get(&resource)) {
            (_, None) => faults.push(format!("{start}.  No limit is specified")),
            (_, Some(limit)) if *limit > max => faults.push(format!("{start}, but limit is {limit}")),
            (Some(request), _) if *request > max => faults.push(format!("{start}, but request is {request}")),
            _ => {}
        }
    }
    for (resource, ratio) in amounts(limit.get("maxLimitRequestRatio")) {
        let start = format!("{resource} max limit to request ratio per {kind} is {ratio}");
        let positive = |amounts: &Amounts| amounts.get(&resource).copied().filter(|amount| *amount > Quantity::ZERO);
        match (positive(requests), positive(limits)) {
            (None, _) => faults.push(format!("{start}, but no request is specified or request is 0")),
            (_, None) => faults.push(format!("{start}, but no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                let actual = limit.as_f64() / request.as_f64();
                if actual > ratio.as_f64() {
                    faults.push(format!("{start}, but provided ratio is {actual:.6}"));
                }
            }
        }
    }
    faults
}

/// Defaults of limit ranges themselves: a maximum is also the limit, and a limit is also the request.
pub fn defaults(range: &mut Value) {
    let Some(spec) = range.get_mut("spec") else { return };
    for limit in items_mut(spec, "limits").filter(|l| text(l, &["type"]) == "Container") {
        for (to, sources) in [("default", ["max"].as_slice()), ("defaultRequest", &["default", "min"])] {
            for source in sources {
                for (resource, amount) in limit[*source].as_object().cloned().into_iter().flatten() {
                    default(limit, to, json!({}));
                    default_in(limit, to, &resource, amount);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: Value, init: Value) -> Value {
        json!({"spec": {"containers": containers, "initContainers": init}})
    }

    fn sized(name: &str, requests: Value, limits: Value) -> Value {
        json!({"name": name, "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn bounds_are_told_in_upstreams_words() {
        let claim = |storage: &str| json!({"spec": {"resources": {"requests": {"storage": storage}}}});
        let of_claims =
            json!([{"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}]);
        let of_pods = json!([{"type": "Pod", "max": {"cpu": "2"}}]);
        let ratio = json!([{"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}]);
        let mut sidecar = sized("s", json!({"cpu": "1"}), json!({"cpu": "1"}));
        sidecar["restartPolicy"] = "Always".into();
        let main = || json!([sized("c", json!({"cpu": "1"}), json!({"cpu": "1"}))]);
        let init = |cpu: &str| sized("i", json!({"cpu": cpu}), json!({"cpu": cpu}));
        let own = {
            let mut own = pod(main(), json!([]));
            own["spec"]["resources"] = json!({"limits": {"cpu": "3"}});
            own
        };
        for (limits, object, expected) in [
            (&of_claims, claim("1Gi"), ""),
            (&of_claims, claim("1"), "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1"),
            (&of_claims, claim("3Gi"), "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
            (&of_pods, pod(main(), json!([])), ""),
            (&of_pods, pod(main(), json!([init("3")])), "maximum cpu usage per Pod is 2, but limit is 3"),
            // Init containers run one after the other, before the others; sidecars beside all that follow.
            (&of_pods, pod(main(), json!([init("2"), init("2")])), ""),
            (&of_pods, pod(main(), json!([sidecar, init("2")])), "maximum cpu usage per Pod is 2, but limit is 3"),
            (&of_pods, pod(main(), json!([init("2"), sidecar])), ""),
            (&of_pods, own, "maximum cpu usage per Pod is 2, but limit is 3"),
            (
                &ratio,
                pod(json!([sized("c", json!({"cpu": "1"}), json!({"cpu": "3"}))]), json!([])),
                "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
            ),
            (
                &ratio,
                pod(json!([sized("c", json!({}), json!({"cpu": "3"}))]), json!([])),
                "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
            ),
        ] {
            let found = faults(limits.as_array().unwrap(), object["spec"].get("containers").is_some(), &object);
            assert_eq!(found.join("|"), expected, "{limits} {object}");
        }
    }

    #[test]
    fn what_is_filled_in_is_said() {
        let limits =
            json!([{"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}}]);
        let mut object =
            pod(json!([sized("c", json!({}), json!({"memory": "2Gi"})), {"name": "d"}]), json!([{"name": "i"}]));
        let filled = fill_from(limits.as_array().unwrap(), &mut object);
        assert_eq!(
            filled.join("; "),
            "cpu request for container c; cpu limit for container c; cpu request for container d; \
             cpu, memory limit for container d; cpu request for init container i; cpu, memory limit for init container i"
        );
        assert_eq!(
            object["spec"]["containers"][0]["resources"],
            json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "2Gi"}})
        );
        assert!(fill_from(limits.as_array().unwrap(), &mut object).is_empty());
    }
}
