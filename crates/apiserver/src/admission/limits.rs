//! Limit ranges: defaults for containers that ask for nothing, and bounds for those that do.

use ferrovirt_schema::Quantity;
use serde_json::{Value, json};

use crate::object::{at, default, default_in, items_mut, name, text};
use crate::quota::{Amounts, amounts, containers};
use crate::registry::Special;
use crate::rest::Call;
use crate::status::ApiError;
use crate::storage::parse;

const STORAGE: &str = "limitranges";

/// The limits of all ranges in the namespace of a pod or claim.
fn limits(call: &Call) -> Vec<Value> {
    let ranged = call.resource.special == Special::Pod || call.resource.plural == "persistentvolumeclaims";
    let (true, Some(namespace)) = (ranged && call.server.store.count(STORAGE) > 0, call.namespace()) else {
        return Vec::new();
    };
    let ranges = call.server.store.list(STORAGE, Some(namespace)).items;
    let limits = ranges.iter().filter_map(|e| parse(e).ok()).filter_map(|mut r| match r["spec"]["limits"].take() {
        Value::Array(limits) => Some(limits),
        _ => None,
    });
    limits.flatten().collect()
}

/// Fills what containers of a new pod leave open.
pub fn fill(call: &Call, object: &mut Value) {
    if call.resource.special != Special::Pod {
        return;
    }
    for limit in limits(call).iter().filter(|l| text(l, &["type"]) == "Container") {
        let Some(spec) = object.get_mut("spec") else { return };
        for list in ["containers", "initContainers"] {
            for container in items_mut(spec, list) {
                default(container, "resources", json!({}));
                for (from, to) in [("defaultRequest", "requests"), ("default", "limits")] {
                    for (resource, amount) in limit[from].as_object().into_iter().flatten() {
                        default_in(container, "resources", to, json!({}));
                        if let Some(resources) = container.get_mut("resources") {
                            default_in(resources, to, resource, amount.clone());
                        }
                    }
                }
            }
        }
    }
}

/// Refuses what is out of bounds, with all reasons.
pub fn check(call: &Call, object: &Value) -> Result<(), ApiError> {
    let mut faults = Vec::new();
    for limit in limits(call) {
        let kind = text(&limit, &["type"]);
        match (kind, call.resource.special == Special::Pod) {
            ("Container", true) => {
                for container in containers(object, "containers").chain(containers(object, "initContainers")) {
                    let of = |key: &str| amounts(at(container, &["resources", key]));
                    faults.extend(out_of_bounds(&limit, kind, &of("requests"), &of("limits")));
                }
            }
            ("Pod", true) => {
                let sum = |key: &str| {
                    let mut total = Amounts::new();
                    for container in containers(object, "containers") {
                        for (name, amount) in amounts(at(container, &["resources", key])) {
                            total.entry(name).and_modify(|t| *t = t.plus(amount)).or_insert(amount);
                        }
                    }
                    total
                };
                faults.extend(out_of_bounds(&limit, kind, &sum("requests"), &sum("limits")));
            }
            ("PersistentVolumeClaim", false) => {
                let requests = amounts(at(object, &["spec", "resources", "requests"]));
                faults.extend(out_of_bounds(&limit, kind, &requests, &requests));
            }
            _ => {}
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    let why = if faults.len() == 1 { faults.remove(0) } else { format!("[{}]", faults.join(", ")) };
    Err(ApiError::forbidden(call.resource.subject(name(object)), &why))
}

fn out_of_bounds(limit: &Value, kind: &str, requests: &Amounts, limits: &Amounts) -> Vec<String> {
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
        match (requests.get(&resource), limits.get(&resource)) {
            (Some(request), Some(limit)) if *request > Quantity::ZERO => {
                let actual = limit.as_f64() / request.as_f64();
                if actual > ratio.as_f64() {
                    faults.push(format!("{start}, but provided ratio is {actual:.6}"));
                }
            }
            (_, None) => faults.push(format!("{start}, but no limit is specified or limit is 0")),
            _ => faults.push(format!("{start}, but no request is specified or request is 0")),
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
