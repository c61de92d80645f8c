//! Rules of built-in kinds beyond their published schemas. Each looks at one object and its predecessor, nothing else.

use base64::Engine as _;
use ferrovirt_schema::{Cause, Quantity, names};
use serde_json::{Value, json};

use super::amount_rules;
use crate::object::{at, strings, text};
use crate::registry::Resource;

const RBAC: &str = "rbac.authorization.k8s.io";

/// All data of a ConfigMap or Secret together.
const MAX_DATA: usize = 1024 * 1024;
/// Priorities above this belong to the system.
const MAX_USER_PRIORITY: i64 = 1_000_000_000;
const SYSTEM_PRIORITY_PREFIX: &str = "system-";

/// Fields that never change: kind and path.
const IMMUTABLE: &[(&str, &[&str])] = &[
    ("StorageClass", &["provisioner"]),
    ("StorageClass", &["parameters"]),
    ("StorageClass", &["reclaimPolicy"]),
    ("StorageClass", &["volumeBindingMode"]),
    ("PriorityClass", &["value"]),
    ("PriorityClass", &["preemptionPolicy"]),
    ("RuntimeClass", &["handler"]),
    ("VolumeAttributesClass", &["driverName"]),
    ("VolumeAttributesClass", &["parameters"]),
    ("VolumeAttachment", &["spec"]),
    ("ControllerRevision", &["data"]),
    ("Secret", &["type"]),
    ("EndpointSlice", &["addressType"]),
    ("ResourceClaim", &["spec"]),
    ("ResourceClaimTemplate", &["spec"]),
    ("CertificateSigningRequest", &["spec"]),
    ("IPAddress", &["spec"]),
    ("CSIStorageCapacity", &["nodeTopology"]),
    ("CSIStorageCapacity", &["storageClassName"]),
    ("IngressClass", &["spec", "controller"]),
    ("CSIDriver", &["spec", "attachRequired"]),
    ("CSIDriver", &["spec", "volumeLifecycleModes"]),
];

/// Fields that must say something: kind and path.
const REQUIRED: &[(&str, &[&str])] = &[
    ("StorageClass", &["provisioner"]),
    ("RuntimeClass", &["handler"]),
    ("VolumeAttributesClass", &["driverName"]),
    ("EndpointSlice", &["addressType"]),
    ("FlowSchema", &["spec", "priorityLevelConfiguration", "name"]),
    ("PriorityLevelConfiguration", &["spec", "type"]),
    ("CronJob", &["spec", "schedule"]),
    ("IngressClass", &["spec", "controller"]),
    ("IPAddress", &["spec", "parentRef"]),
];

pub fn validate(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let kind = resource.kind.as_str();
    let mut causes = Vec::new();
    for (_, path) in REQUIRED.iter().filter(|(k, _)| *k == kind) {
        let missing = at(object, path).is_none_or(|v| v.is_null() || v.as_str() == Some(""));
        if missing {
            causes.push(Cause::required(path.join("."), ""));
        }
    }
    if let Some(old) = old {
        for (_, path) in IMMUTABLE.iter().filter(|(k, _)| *k == kind) {
            if at(object, path) != at(old, path) {
                let value = at(object, path).cloned().unwrap_or_default();
                causes.push(match (kind, path.join(".")) {
                    ("PriorityClass", field) if field == "value" => {
                        Cause::forbidden(field, "may not be changed in an update.")
                    }
                    (_, field) => Cause::invalid(field, &value, "field is immutable"),
                });
            }
        }
    }
    match kind {
        "ConfigMap" => causes.extend(data(object, &["data", "binaryData"])),
        "Secret" => {
            causes.extend(data(object, &["data"]));
            causes.extend(secret_type(object));
        }
        "PriorityClass" => causes.extend(priority_class(object)),
        "PersistentVolumeClaim" => causes.extend(claim(object, old)),
        "PersistentVolume" => causes.extend(volume(object, old)),
        "LimitRange" => causes.extend(amount_rules::limit_range(object)),
        "ResourceQuota" => causes.extend(amount_rules::quota(object)),
        "StorageClass" => causes.extend(storage_class(object)),
        "Role" | "ClusterRole" => causes.extend(role(object)),
        "Event" => causes.extend(event(object)),
        "Namespace" => causes.extend(namespace(object)),
        "PodDisruptionBudget" => causes.extend(budget(object)),
        "EndpointSlice" => causes.extend(slice(object)),
        "Endpoints" => causes.extend(endpoints(object)),
        "RoleBinding" | "ClusterRoleBinding" => causes.extend(binding(object)),
        "Lease" => causes.extend(lease(object)),
        "Ingress" => causes.extend(ingress(object)),
        // What must not change is told first here.
        "IngressClass" => causes.reverse(),
        kind => {
            let changed = std::mem::replace(&mut causes, super::rarer_rules::validate(kind, object));
            causes.extend(changed);
        }
    }
    causes
}

fn items<'a>(object: &'a Value, path: &[&str]) -> impl Iterator<Item = (usize, &'a Value)> {
    at(object, path).and_then(Value::as_array).into_iter().flatten().enumerate()
}

/// Keys are file names in the volumes that show them.
fn data(object: &Value, fields: &[&str]) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut size = 0;
    for field in fields {
        for (key, value) in object[*field].as_object().into_iter().flatten() {
            let text = value.as_str().unwrap_or_default();
            size += if *field == "data" && fields.len() > 1 { text.len() } else { text.len() / 4 * 3 };
            let faults = names::config_key(key);
            causes
                .extend(faults.into_iter().map(|fault| Cause::invalid(format!("{field}[{key}]"), &json!(key), fault)));
            if *field == "binaryData" && object["data"].get(key).is_some() {
                causes.push(Cause::invalid(format!("data[{key}]"), &json!(key), "duplicate of key present in data"));
            }
        }
    }
    if size > MAX_DATA {
        causes.push(Cause::too_long("", MAX_DATA as u64));
    }
    causes
}

fn secret_type(secret: &Value) -> Vec<Cause> {
    let required = |keys: &[&str]| -> Vec<Cause> {
        let missing = keys.iter().filter(|k| secret["data"].get(**k).is_none());
        missing.map(|k| Cause::required(format!("data[{k}]"), "")).collect()
    };
    match text(secret, &["type"]) {
        "kubernetes.io/tls" => required(&["tls.crt", "tls.key"]),
        "kubernetes.io/ssh-auth" => required(&["ssh-privatekey"]),
        "kubernetes.io/basic-auth" => {
            let any = ["username", "password"].iter().any(|k| secret["data"].get(*k).is_some());
            if any { Vec::new() } else { required(&["username", "password"]) }
        }
        kind @ ("kubernetes.io/dockerconfigjson" | "kubernetes.io/dockercfg") => {
            let key = if kind.ends_with("json") { ".dockerconfigjson" } else { ".dockercfg" };
            let content = text(secret, &["data", key]);
            let decoded = base64::engine::general_purpose::STANDARD.decode(content).unwrap_or_default();
            match secret["data"].get(key) {
                None => required(&[key]),
                Some(_) if serde_json::from_slice::<Value>(&decoded).is_err() => {
                    vec![Cause::invalid(format!("data[{key}]"), &json!("<secret contents redacted>"), "invalid JSON")]
                }
                Some(_) => Vec::new(),
            }
        }
        "kubernetes.io/service-account-token" => {
            let account = text(secret, &["metadata", "annotations", "kubernetes.io/service-account.name"]);
            if account.is_empty() {
                vec![Cause::required("metadata.annotations[kubernetes.io/service-account.name]", "")]
            } else {
                Vec::new()
            }
        }
        _ => Vec::new(),
    }
}

fn priority_class(class: &Value) -> Vec<Cause> {
    let name = crate::object::name(class);
    let value = class["value"].as_i64().unwrap_or(0);
    let known = [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
    if name.starts_with(SYSTEM_PRIORITY_PREFIX) {
        if known.contains(&(name, value)) {
            return Vec::new();
        }
        return vec![Cause::forbidden(
            "metadata.name",
            "priority class names with 'system-' prefix are reserved for system use only",
        )];
    }
    if value > MAX_USER_PRIORITY {
        return vec![Cause::forbidden(
            "value",
            &format!("maximum allowed value of a user defined priority is {MAX_USER_PRIORITY}"),
        )];
    }
    match text(class, &["preemptionPolicy"]) {
        "" | "Never" | "PreemptLowerPriority" => Vec::new(),
        other => vec![Cause::not_supported(
            "preemptionPolicy",
            &json!(other),
            &[json!("Never"), json!("PreemptLowerPriority")],
        )],
    }
}

fn access_modes(object: &Value) -> Vec<Cause> {
    let modes = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let mut causes = Vec::new();
    if items(object, &["spec", "accessModes"]).next().is_none() {
        causes.push(Cause::required("spec.accessModes", "at least 1 access mode is required"));
    }
    for (_, mode) in items(object, &["spec", "accessModes"]) {
        if !mode.as_str().is_some_and(|m| modes.contains(&m)) {
            causes.push(Cause::not_supported("spec.accessModes", mode, &modes.map(|m| json!(m))));
        }
    }
    causes
}

/// A claim keeps its spec, but for the volume it is bound to, and from then on the size it asks for and its class of attributes.
fn claim(claim: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = access_modes(claim);
    let storage = ["spec", "resources", "requests", "storage"];
    match at(claim, &storage).filter(|amount| !amount.is_null()) {
        None => causes.push(Cause::required("spec.resources[storage]", "")),
        Some(amount) if Quantity::from_json(amount).is_ok_and(|amount| amount <= Quantity::ZERO) => {
            causes.push(Cause::invalid("spec.resources[storage]", amount, "must be greater than zero"));
        }
        Some(_) => {}
    }
    if let Some(old) = old {
        let bound = text(old, &["status", "phase"]) == "Bound";
        let fixed = |claim: &Value| {
            let mut spec = claim.get("spec").cloned().unwrap_or_default();
            if let Some(map) = spec.as_object_mut() {
                // What is asked for before there is a volume is what a volume is looked for by.
                for key in ["resources", "volumeAttributesClassName"].iter().filter(|_| bound) {
                    map.remove(*key);
                }
                // Bound once, by the binder; and a class may be filled in later.
                for key in ["volumeName", "storageClassName"] {
                    if text(old, &["spec", key]).is_empty() {
                        map.remove(key);
                    }
                }
            }
            spec
        };
        if fixed(claim) != fixed(old) {
            causes.push(Cause::forbidden(
                "spec",
                "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
            ));
        }
    }
    causes
}

fn storage_class(class: &Value) -> Vec<Cause> {
    let known: [(&str, &[&str]); 2] =
        [("reclaimPolicy", &["Delete", "Retain"]), ("volumeBindingMode", &["Immediate", "WaitForFirstConsumer"])];
    let mut causes = Vec::new();
    for (key, values) in known {
        let value = text(class, &[key]);
        if !value.is_empty() && !values.contains(&value) {
            let values: Vec<Value> = values.iter().map(|value| json!(value)).collect();
            causes.push(Cause::not_supported(key, &json!(value), &values));
        }
    }
    causes
}

/// A rule is about resources or, for the whole cluster, about paths.
fn role(role: &Value) -> Vec<Cause> {
    let namespaced = text(role, &["kind"]) == "Role";
    let mut causes = Vec::new();
    for (index, rule) in items(role, &["rules"]) {
        let field = |key: &str| format!("rules[{index}].{key}");
        let has = |key: &str| !strings(rule.get(key)).is_empty();
        if !has("verbs") {
            causes.push(Cause::required(field("verbs"), "verbs must contain at least one value"));
        }
        if has("nonResourceURLs") {
            if namespaced {
                let fault = "namespaced rules cannot apply to non-resource URLs";
                causes.push(Cause::invalid(field("nonResourceURLs"), &rule["nonResourceURLs"], fault));
            }
            if ["apiGroups", "resources", "resourceNames"].into_iter().any(has) {
                let fault = "rules cannot apply to both regular resources and non-resource URLs";
                causes.push(Cause::invalid(field("nonResourceURLs"), &rule["nonResourceURLs"], fault));
            }
            continue;
        }
        if !has("apiGroups") {
            causes.push(Cause::required(field("apiGroups"), "resource rules must supply at least one api group"));
        }
        if !has("resources") {
            causes.push(Cause::required(field("resources"), "resource rules must supply at least one resource"));
        }
    }
    causes
}

/// An event lies in the namespace of what it is about, if that has one.
fn event(event: &Value) -> Option<Cause> {
    // In its own group the field has another name.
    let key = if event.get("regarding").is_some() { "regarding" } else { "involvedObject" };
    let (about, own) = (text(event, &[key, "namespace"]), text(event, &["metadata", "namespace"]));
    let elsewhere = if about.is_empty() { own != "default" } else { about != own };
    elsewhere.then(|| Cause::invalid(format!("{key}.namespace"), &json!(about), "does not match event.namespace"))
}

fn namespace(namespace: &Value) -> Vec<Cause> {
    let deleting = at(namespace, &["metadata", "deletionTimestamp"]).is_some_and(Value::is_string);
    let phase = text(namespace, &["status", "phase"]);
    let fault = match (deleting, phase) {
        (false, "Active" | "") | (true, "Terminating" | "") => return Vec::new(),
        (false, _) => "may only be 'Active' if `deletionTimestamp` is empty",
        (true, _) => "may only be 'Terminating' if `deletionTimestamp` is not empty",
    };
    vec![Cause::invalid("status.Phase", &json!(phase), fault)]
}

fn volume(volume: &Value, old: Option<&Value>) -> Vec<Cause> {
    const SOURCES: &[&str] = &["hostPath", "local", "nfs", "iscsi", "csi", "fc", "rbd", "cephfs", "glusterfs"];
    /// What a volume has beside the place where it lies.
    const BESIDE: &[&str] = &[
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    ];
    let mut causes = access_modes(volume);
    if at(volume, &["spec", "capacity", "storage"]).is_none_or(Value::is_null) {
        causes.push(Cause::required("spec.capacity", ""));
        let given = volume["spec"]["capacity"].as_object().into_iter().flatten().next().map(|(name, _)| json!(name));
        causes.push(Cause::not_supported("spec.capacity", &given.unwrap_or_default(), &[json!("storage")]));
    }
    let sourced = volume["spec"].as_object().into_iter().flatten();
    if !sourced.into_iter().any(|(key, value)| !BESIDE.contains(&key.as_str()) && !value.is_null()) {
        causes.push(Cause::required("spec", "must specify a volume type"));
    }
    let Some(old) = old else {
        return causes;
    };
    if SOURCES.iter().any(|source| at(volume, &["spec", source]) != at(old, &["spec", source])) {
        causes.push(Cause::forbidden(
            "spec.persistentvolumesource",
            "spec.persistentvolumesource is immutable after creation",
        ));
    }
    if at(volume, &["spec", "volumeMode"]) != at(old, &["spec", "volumeMode"]) {
        causes.push(Cause::invalid("spec.volumeMode", &volume["spec"]["volumeMode"], "field is immutable"));
    }
    causes
}

fn budget(budget: &Value) -> Vec<Cause> {
    let set = |key: &str| at(budget, &["spec", key]).is_some_and(|v| !v.is_null());
    let mut causes = Vec::new();
    if set("minAvailable") && set("maxUnavailable") {
        causes.push(Cause::invalid("spec", &budget["spec"], "minAvailable and maxUnavailable cannot be both set"));
    }
    for key in ["minAvailable", "maxUnavailable"] {
        let value = &budget["spec"][key];
        let good = match value {
            Value::Null => true,
            Value::Number(number) => number.as_i64().is_some_and(|n| n >= 0),
            Value::String(share) => share.strip_suffix('%').is_some_and(|n| n.parse::<u32>().is_ok_and(|n| n <= 100)),
            _ => false,
        };
        if !good {
            causes.push(Cause::invalid(format!("spec.{key}"), value, "must be a number, or a percentage up to 100%"));
        }
    }
    causes
}

fn slice(slice: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let kinds = ["FQDN", "IPv4", "IPv6"];
    let kind = text(slice, &["addressType"]);
    if !kind.is_empty() && !kinds.contains(&kind) {
        causes.push(Cause::not_supported("addressType", &json!(kind), &kinds.map(|k| json!(k))));
    }
    for (index, endpoint) in items(slice, &["endpoints"]) {
        let addresses = items(endpoint, &["addresses"]).count();
        if addresses == 0 {
            causes.push(Cause::required(format!("endpoints[{index}].addresses"), "must contain at least 1 address"));
        }
        for (position, address) in items(endpoint, &["addresses"]) {
            let text = address.as_str().unwrap_or_default();
            let good = match kind {
                "IPv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
                "IPv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
                _ => true,
            };
            if !good {
                let field = format!("endpoints[{index}].addresses[{position}]");
                causes.push(Cause::invalid(field, address, format!("must be a valid {kind} address")));
            }
        }
    }
    causes
}

fn endpoints(endpoints: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (subset_index, subset) in items(endpoints, &["subsets"]) {
        for list in ["addresses", "notReadyAddresses"] {
            for (index, address) in items(subset, &[list]) {
                let ip = text(address, &["ip"]);
                if ip.parse::<std::net::IpAddr>().is_err() {
                    let field = format!("subsets[{subset_index}].{list}[{index}].ip");
                    causes.push(Cause::invalid(
                        field,
                        &json!(ip),
                        "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                    ));
                }
            }
        }
    }
    causes
}

fn binding(binding: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let group = text(binding, &["roleRef", "apiGroup"]);
    if group != RBAC {
        causes.push(Cause::not_supported("roleRef.apiGroup", &json!(group), &[json!(RBAC)]));
    }
    let (kind, everywhere) = (text(binding, &["roleRef", "kind"]), text(binding, &["kind"]) == "ClusterRoleBinding");
    // A role of a namespace gives nothing outside of it.
    let kinds: &[Value] = if everywhere { &[json!("ClusterRole")] } else { &[json!("ClusterRole"), json!("Role")] };
    if !kinds.iter().any(|known| known == kind) {
        causes.push(Cause::not_supported("roleRef.kind", &json!(kind), kinds));
    }
    if text(binding, &["roleRef", "name"]).is_empty() {
        causes.push(Cause::required("roleRef.name", ""));
    }
    for (index, subject) in items(binding, &["subjects"]) {
        causes.extend(subject_faults(subject, &format!("subjects[{index}]"), everywhere));
    }
    causes
}

fn subject_faults(subject: &Value, field: &str, everywhere: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    let (name, group) = (text(subject, &["name"]), text(subject, &["apiGroup"]));
    if name.is_empty() {
        causes.push(Cause::required(format!("{field}.name"), ""));
    }
    match text(subject, &["kind"]) {
        "ServiceAccount" => {
            if !name.is_empty() {
                let faults = names::dns_subdomain(name).into_iter();
                causes.extend(faults.map(|fault| Cause::invalid(format!("{field}.name"), &json!(name), fault)));
            }
            if !group.is_empty() {
                causes.push(Cause::not_supported(format!("{field}.apiGroup"), &json!(group), &[json!("")]));
            }
            if everywhere && text(subject, &["namespace"]).is_empty() {
                causes.push(Cause::required(format!("{field}.namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != RBAC {
                causes.push(Cause::not_supported(format!("{field}.apiGroup"), &json!(group), &[json!(RBAC)]));
            }
        }
        kind => {
            let kinds = [json!("Group"), json!("ServiceAccount"), json!("User")];
            causes.push(Cause::not_supported(format!("{field}.kind"), &json!(kind), &kinds));
        }
    }
    causes
}

fn lease(lease: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let positive = |key: &str, least: i64| at(lease, &["spec", key]).and_then(Value::as_i64).is_some_and(|n| n < least);
    if positive("leaseDurationSeconds", 1) {
        causes.push(Cause::invalid(
            "spec.leaseDurationSeconds",
            &lease["spec"]["leaseDurationSeconds"],
            "must be greater than 0",
        ));
    }
    if positive("leaseTransitions", 0) {
        causes.push(Cause::invalid(
            "spec.leaseTransitions",
            &lease["spec"]["leaseTransitions"],
            "must be greater than or equal to 0",
        ));
    }
    causes
}

fn ingress(ingress: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let backend = at(ingress, &["spec", "defaultBackend"]).is_some_and(|b| !b.is_null());
    if !backend && items(ingress, &["spec", "rules"]).next().is_none() {
        causes.push(Cause::invalid("spec", &json!([]), "either `defaultBackend` or `rules` must be specified"));
    }
    for (index, rule) in items(ingress, &["spec", "rules"]) {
        let host = text(rule, &["host"]);
        if !host.is_empty() && !names::dns_subdomain(host.trim_start_matches("*.")).is_empty() {
            causes.push(Cause::invalid(format!("spec.rules[{index}].host"), &json!(host), "must be a DNS name"));
        }
        for (position, path) in items(rule, &["http", "paths"]) {
            let kind = text(path, &["pathType"]);
            let path = text(path, &["path"]);
            if matches!(kind, "Exact" | "Prefix") && !path.starts_with('/') {
                let field = format!("spec.rules[{index}].http.paths[{position}].path");
                causes.push(Cause::invalid(field, &json!(path), "must be an absolute path"));
            }
        }
    }
    causes
}
