//! What objects use of a quota, and whether a quota has room for more.
//!
//! Use is always counted from what is stored; `status.used` is a report, not a ledger. So it cannot drift, and writes that
//! add to a quota take turns from the count to the commit.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use ferrovirt_schema::{LabelSelector, Quantity};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::object::{at, strings, text};
use crate::registry::{Resource, Snapshot};
use crate::server::Server;
use crate::storage::{Entry, parse};

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

/// The namespaces whose quotas may report old numbers.
#[derive(Default)]
pub struct Dirty {
    namespaces: Mutex<HashSet<Arc<str>>>,
    notify: Notify,
    /// Puts writes that add to a quota in order.
    pub turn: tokio::sync::Mutex<()>,
}

impl Dirty {
    /// To be called after a committed change.
    pub fn touch(&self, server: &Server, entry: &Entry) {
        if entry.key.namespace.is_empty() || server.store.count(STORAGE) == 0 {
            return;
        }
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).insert(entry.key.namespace.clone());
        self.notify.notify_one();
    }

    /// Waits until there is something to count.
    pub async fn next(&self) -> HashSet<Arc<str>> {
        loop {
            let namespaces = std::mem::take(&mut *self.namespaces.lock().unwrap_or_else(PoisonError::into_inner));
            if !namespaces.is_empty() {
                return namespaces;
            }
            self.notify.notified().await;
        }
    }
}

/// The quotas of a namespace.
pub fn quotas(server: &Server, namespace: &str) -> Vec<Value> {
    if server.store.count(STORAGE) == 0 {
        return Vec::new();
    }
    server.store.list(STORAGE, Some(namespace)).items.iter().filter_map(|e| parse(e).ok()).collect()
}

pub fn hard(quota: &Value) -> Amounts {
    amounts(at(quota, &["spec", "hard"]))
}

/// What the stored objects of a namespace use of a quota: an amount for every limit it sets.
pub fn used(server: &Server, namespace: &str, quota: &Value) -> Amounts {
    let snapshot = server.registry.snapshot();
    let mut total: Amounts = hard(quota).into_keys().map(|name| (name, Quantity::ZERO)).collect();
    let resources: Vec<&Arc<Resource>> = snapshot
        .iter()
        .filter(|r| r.namespaced && !r.is_virtual() && !r.shares_storage() && total.keys().any(|n| concerns(r, n)))
        .collect();
    for resource in resources {
        for entry in server.store.list(&resource.storage, Some(namespace)).items {
            let Ok(object) = parse(&entry) else { continue };
            if !in_scope(quota, resource, &object) {
                continue;
            }
            for (name, amount) in usage(resource, &object) {
                total.entry(name).and_modify(|sum| *sum = sum.plus(amount));
            }
        }
    }
    // Names that nothing ever uses are reported all the same.
    total.retain(|name, _| known(&snapshot, name));
    total
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
            let ports = at(object, &["spec", "ports"]).and_then(Value::as_array).map_or(0, Vec::len);
            if kind == "LoadBalancer" {
                used.insert("services.loadbalancers".into(), one);
            }
            if matches!(kind, "NodePort" | "LoadBalancer") {
                used.insert("services.nodeports".into(), Quantity::whole(i64::try_from(ports).unwrap_or(i64::MAX)));
            }
        }
        "persistentvolumeclaims" => {
            let storage = amount(object, &["spec", "resources", "requests", "storage"]);
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

/// Requests and limits of a pod: the sum of its containers, or what its largest init container needs.
fn pod_usage(pod: &Value) -> Amounts {
    let mut used = Amounts::new();
    for (kind, prefix) in [("requests", "requests."), ("limits", "limits.")] {
        let mut total = Amounts::new();
        for container in containers(pod, "containers") {
            for (name, amount) in amounts(at(container, &["resources", kind])) {
                total.entry(name).and_modify(|sum| *sum = sum.plus(amount)).or_insert(amount);
            }
        }
        for container in containers(pod, "initContainers") {
            for (name, amount) in amounts(at(container, &["resources", kind])) {
                total.entry(name).and_modify(|sum| *sum = amount.max(*sum)).or_insert(amount);
            }
        }
        for (name, amount) in amounts(at(pod, &["spec", "overhead"])) {
            total.entry(name).and_modify(|sum| *sum = sum.plus(amount));
        }
        for (name, amount) in total {
            if kind == "requests" && matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
                used.insert(name.clone(), amount);
            }
            used.insert(format!("{prefix}{name}"), amount);
        }
    }
    used
}

pub fn containers<'a>(pod: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    at(pod, &["spec", list]).and_then(Value::as_array).into_iter().flatten()
}

/// Why a quota has no room for this, in upstream's words.
pub fn refusal(resource: &Resource, quota: &Value, used: &Amounts, object: &Value, delta: &Amounts) -> Option<String> {
    let hard = hard(quota);
    let name = crate::object::name(quota);
    if resource.group.is_empty() && resource.plural == "pods" {
        let missing = unspecified(&hard, object);
        if !missing.is_empty() {
            return Some(format!("failed quota: {name}: must specify {}", missing.join("; ")));
        }
    }
    let mut over: Vec<&str> = Vec::new();
    for (resource, more) in delta {
        let Some(limit) = hard.get(resource) else { continue };
        let now = used.get(resource).copied().unwrap_or(Quantity::ZERO);
        if now.plus(*more) > *limit {
            over.push(resource);
        }
    }
    if over.is_empty() {
        return None;
    }
    let show = |amounts: &Amounts| {
        let each = over.iter().map(|r| format!("{r}={}", amounts.get(*r).copied().unwrap_or(Quantity::ZERO)));
        each.collect::<Vec<_>>().join(",")
    };
    Some(format!("exceeded quota: {name}, requested: {}, used: {}, limited: {}", show(delta), show(used), show(&hard)))
}

/// Limits of compute resources make their mention in every container a duty.
fn unspecified(hard: &Amounts, pod: &Value) -> Vec<String> {
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
        let silent: Vec<&str> = containers(pod, "containers")
            .filter(|c| at(c, &["resources", kind, resource]).is_none())
            .map(|c| text(c, &["name"]))
            .collect();
        if !silent.is_empty() {
            missing.push(format!("{name} for: {}", silent.join(",")));
        }
    }
    missing
}

/// Whether a quota is about an object at all.
pub fn in_scope(quota: &Value, resource: &Resource, object: &Value) -> bool {
    let expressions = at(quota, &["spec", "scopeSelector", "matchExpressions"]).and_then(Value::as_array);
    let scopes = strings(at(quota, &["spec", "scopes"]))
        .into_iter()
        .map(|scope| json!({"scopeName": scope, "operator": "Exists"}));
    let mut conditions = scopes.chain(expressions.into_iter().flatten().cloned()).peekable();
    if conditions.peek().is_none() {
        return true;
    }
    if !resource.group.is_empty() || resource.plural != "pods" {
        return false;
    }
    let terminating = at(object, &["spec", "activeDeadlineSeconds"]).is_some_and(|v| !v.is_null());
    let best_effort = text(object, &["status", "qosClass"]) == "BestEffort";
    conditions.all(|condition| match text(&condition, &["scopeName"]) {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => best_effort,
        "NotBestEffort" => !best_effort,
        "PriorityClass" => {
            let class = text(object, &["spec", "priorityClassName"]);
            let expression = json!({"matchExpressions": [{
                "key": "c", "operator": condition["operator"], "values": condition["values"],
            }]});
            let mut labels = BTreeMap::new();
            if !class.is_empty() {
                labels.insert("c".to_owned(), class.to_owned());
            }
            LabelSelector::from_json(&expression).is_ok_and(|s| s.matches(&labels))
        }
        _ => false,
    })
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
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || (compute && name != "requests.storage")
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
