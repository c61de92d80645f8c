//! What objects use of a quota, and whether a quota has room for more.
//!
//! Use is counted once from what is stored and kept up from there with the store's own events ([`Ledger`]); `status.used` is a
//! report of it, not its source.

mod ledger;
mod scope;

use std::collections::{BTreeMap, BTreeSet};

use ferrovirt_schema::Quantity;
use serde_json::Value;

use crate::object::{at, text};
use crate::registry::{Resource, Snapshot};

pub use ledger::{Asked, Ledger, Room};
pub use scope::is_terminating;

pub const STORAGE: &str = "resourcequotas";

/// Amounts by resource name, such as `pods` or `requests.cpu`.
pub type Amounts = BTreeMap<String, Quantity>;

/// Names of quota resources that count objects of built-in kinds.
const COUNTED: &[&str] = &[
    "pods",
    "services",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "resourcequotas",
    "replicationcontrollers",
];

/// Whether two objects of a resource may use different amounts.
fn differs_by_content(resource: &Resource) -> bool {
    resource.group.is_empty() && matches!(resource.plural.as_str(), "pods" | "services" | "persistentvolumeclaims")
}

/// What one object uses, by every name a quota may have for it.
pub fn usage(resource: &Resource, object: &Value) -> Amounts {
    let one = Quantity::whole(1);
    let mut used = Amounts::new();
    used.insert(format!("count/{}", resource.qualified()), one);
    if !resource.group.is_empty() {
        return used;
    }
    match resource.plural.as_str() {
        // A pod that has ended only counts as an object.
        "pods" if matches!(text(object, &["status", "phase"]), "Succeeded" | "Failed") => {}
        "pods" => {
            used.insert("pods".into(), one);
            used.extend(pod_usage(object));
        }
        "services" => {
            used.insert("services".into(), one);
            let kind = text(object, &["spec", "type"]);
            let unasked = at(object, &["spec", "allocateLoadBalancerNodePorts"]) == Some(&Value::Bool(false));
            let ports = at(object, &["spec", "ports"]).and_then(Value::as_array).into_iter().flatten();
            let ports = ports
                .filter(|port| kind == "NodePort" || !unasked || port["nodePort"].as_i64().is_some_and(|n| n != 0))
                .count();
            if kind == "LoadBalancer" {
                used.insert("services.loadbalancers".into(), one);
            }
            if matches!(kind, "NodePort" | "LoadBalancer") {
                used.insert("services.nodeports".into(), Quantity::whole(i64::try_from(ports).unwrap_or(i64::MAX)));
            }
        }
        "persistentvolumeclaims" => {
            let asked = amount(object, &["spec", "resources", "requests", "storage"]);
            // What an expansion has taken already is not given back by asking for less.
            let storage = asked.max(amount(object, &["status", "allocatedResources", "storage"]));
            used.insert("persistentvolumeclaims".into(), one);
            used.insert("requests.storage".into(), storage);
            let class = text(object, &["spec", "storageClassName"]);
            if !class.is_empty() {
                let prefix = format!("{class}.storageclass.storage.k8s.io");
                used.insert(format!("{prefix}/persistentvolumeclaims"), one);
                used.insert(format!("{prefix}/requests.storage"), storage);
            }
        }
        plural if COUNTED.contains(&plural) => {
            used.insert(plural.to_owned(), one);
        }
        _ => {}
    }
    used
}

/// Requests and limits of a pod, by the names that quotas have for them.
fn pod_usage(pod: &Value) -> Amounts {
    let mut used = Amounts::new();
    let overhead = amounts(at(pod, &["spec", "overhead"]));
    for (kind, prefix) in [("requests", "requests."), ("limits", "limits.")] {
        let mut total = pod_total(pod, kind);
        for (name, amount) in &overhead {
            match total.get_mut(name) {
                Some(sum) => *sum = sum.plus(*amount),
                None if kind == "requests" => drop(total.insert(name.clone(), *amount)),
                None => {}
            }
        }
        for (name, amount) in total {
            let plain =
                matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
            if kind == "requests" && plain {
                used.insert(name.clone(), amount);
            }
            used.insert(format!("{prefix}{name}"), amount);
        }
    }
    used
}

/// What a pod asks for in all, without its overhead: its containers together with the sidecars, or what one of its init
/// containers needs beside the sidecars before it, if that is more. What the pod says for itself counts if it is more than that:
/// what containers ask for, they get.
pub fn pod_total(pod: &Value, kind: &str) -> Amounts {
    let of = |holder: &Value| amounts(at(holder, &["resources", kind]));
    let add = |total: &mut Amounts, more: &Amounts| {
        for (name, amount) in more {
            total.entry(name.clone()).and_modify(|sum| *sum = sum.plus(*amount)).or_insert(*amount);
        }
    };
    let raise = |total: &mut Amounts, other: Amounts| {
        for (name, amount) in other {
            total.entry(name).and_modify(|most| *most = amount.max(*most)).or_insert(amount);
        }
    };
    let mut total = Amounts::new();
    containers(pod, "containers").for_each(|container| add(&mut total, &of(container)));
    let (mut sidecars, mut before) = (Amounts::new(), Amounts::new());
    for container in containers(pod, "initContainers") {
        let own = of(container);
        if text(container, &["restartPolicy"]) == "Always" {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            raise(&mut before, sidecars.clone());
        } else {
            let mut beside = sidecars.clone();
            add(&mut beside, &own);
            raise(&mut before, beside);
        }
    }
    raise(&mut total, before);
    for (name, amount) in amounts(at(pod, &["spec", "resources", kind])) {
        if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
            total.entry(name).and_modify(|most| *most = amount.max(*most)).or_insert(amount);
        }
    }
    total
}

pub fn containers<'a>(pod: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    at(pod, &["spec", list]).and_then(Value::as_array).into_iter().flatten()
}

/// Limits of compute resources make their mention in every container a duty, unless the pod speaks for all of them.
fn unspecified(hard: &Amounts, pod: &Value) -> Vec<String> {
    let whole = |kind: &str| !amounts(at(pod, &["spec", "resources", kind])).is_empty();
    if whole("requests") || whole("limits") {
        return Vec::new();
    }
    let mut missing = Vec::new();
    for name in hard.keys() {
        let (kind, resource) = match name.split_once('.') {
            Some(("requests", resource)) => ("requests", resource),
            Some(("limits", resource)) => ("limits", resource),
            _ => ("requests", name.as_str()),
        };
        if !matches!(resource, "cpu" | "memory") {
            continue;
        }
        let silent: BTreeSet<&str> = containers(pod, "containers")
            .chain(containers(pod, "initContainers"))
            .filter(|c| at(c, &["resources", kind, resource]).is_none())
            .map(|c| text(c, &["name"]))
            .collect();
        if !silent.is_empty() {
            let silent: Vec<&str> = silent.into_iter().collect();
            missing.push(format!("{name} for: {}", silent.join(",")));
        }
    }
    missing
}

/// Whether objects of a resource can use something of this name.
fn concerns(resource: &Resource, name: &str) -> bool {
    if let Some(counted) = name.strip_prefix("count/") {
        return counted == resource.qualified();
    }
    if !resource.group.is_empty() {
        return false;
    }
    match resource.plural.as_str() {
        "pods" => is_compute(name) || name == "pods",
        "services" => name == "services" || name.starts_with("services."),
        "persistentvolumeclaims" => {
            name == "requests.storage" || name.ends_with("persistentvolumeclaims") || name.contains(".storageclass.")
        }
        plural => plural == name,
    }
}

fn is_compute(name: &str) -> bool {
    let compute = name.starts_with("requests.") || name.starts_with("limits.");
    let plain = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    plain || (compute && name != "requests.storage")
}

fn known(snapshot: &Snapshot, name: &str) -> bool {
    snapshot.iter().any(|r| r.namespaced && concerns(r, name)) || name == "replicationcontrollers"
}

pub fn amounts(map: Option<&Value>) -> Amounts {
    let entries = map.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), Quantity::from_json(value).ok()?))).collect()
}

fn amount(object: &Value, path: &[&str]) -> Quantity {
    at(object, path).and_then(|v| Quantity::from_json(v).ok()).unwrap_or(Quantity::ZERO)
}
