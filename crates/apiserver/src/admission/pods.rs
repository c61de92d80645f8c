//! What a new pod gets from what it names: its priority, what its runtime adds, and the credentials of its account.

use serde_json::{Value, json};

use crate::object::{at, field_map, items_mut, text};
use crate::registry::Special;
use crate::rest::Call;
use crate::status::ApiError;
use crate::storage::parse;

const PRIORITY_CLASSES: &str = "scheduling.k8s.io/priorityclasses";
/// Where programs in pods look for their credentials.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const RUNTIME_CLASSES: &str = "node.k8s.io/runtimeclasses";

pub fn fill(call: &Call, pod: &mut Value) -> Result<(), ApiError> {
    if call.resource.special != Special::Pod || !pod["spec"].is_object() {
        return Ok(());
    }
    priority(call, pod)?;
    runtime(call, pod)?;
    mount_token(call, pod);
    Ok(())
}

fn class(call: &Call, storage: &str, name: &str) -> Option<Value> {
    call.server.store.get(storage, &ferrovirt_store::Key::new("", name)).and_then(|e| parse(&e).ok())
}

fn priority(call: &Call, pod: &mut Value) -> Result<(), ApiError> {
    let name = text(pod, &["spec", "priorityClassName"]).to_owned();
    let found = if name.is_empty() { global(call) } else { class(call, PRIORITY_CLASSES, &name) };
    if found.is_none() && !name.is_empty() {
        let why = format!("no PriorityClass with name {name} was found");
        return Err(ApiError::forbidden(call.resource.subject(crate::object::name(pod)), &why));
    }
    let spec = field_map(pod, "spec");
    let Some(found) = found else {
        spec.entry("priority").or_insert(Value::from(0));
        return Ok(());
    };
    spec.insert("priorityClassName".into(), crate::object::name(&found).into());
    spec.insert("priority".into(), found["value"].clone());
    let policy = text(&found, &["preemptionPolicy"]);
    if !policy.is_empty() {
        spec.entry("preemptionPolicy").or_insert(policy.into());
    }
    Ok(())
}

/// The class of pods that name none; of several, the one with the lowest value.
fn global(call: &Call) -> Option<Value> {
    let classes = call.server.store.list(PRIORITY_CLASSES, None).items;
    let classes = classes.iter().filter_map(|e| parse(e).ok()).filter(|c| c["globalDefault"] == true);
    classes.min_by_key(|c| c["value"].as_i64().unwrap_or(0))
}

fn runtime(call: &Call, pod: &mut Value) -> Result<(), ApiError> {
    let name = text(pod, &["spec", "runtimeClassName"]).to_owned();
    if name.is_empty() {
        return Ok(());
    }
    let Some(found) = class(call, RUNTIME_CLASSES, &name) else {
        let why = format!("pod rejected: RuntimeClass \"{name}\" not found");
        return Err(ApiError::forbidden(call.resource.subject(crate::object::name(pod)), &why));
    };
    if let Some(overhead) = found["overhead"]["podFixed"].as_object() {
        field_map(pod, "spec").insert("overhead".into(), overhead.clone().into());
    }
    Ok(())
}

/// A token of the pod's service account, the authority of this server and the namespace, unless pod or account opt out.
fn mount_token(call: &Call, pod: &mut Value) {
    let wanted = |object: &Value, path: &[&str]| at(object, path).and_then(Value::as_bool);
    let account = text(pod, &["spec", "serviceAccountName"]).to_owned();
    let key = ferrovirt_store::Key::new(call.namespace().unwrap_or_default(), account.as_str());
    let account = call.server.store.get("serviceaccounts", &key).and_then(|e| parse(&e).ok()).unwrap_or_default();
    let mount = wanted(pod, &["spec", "automountServiceAccountToken"])
        .or_else(|| wanted(&account, &["automountServiceAccountToken"]))
        .unwrap_or(true);
    if !mount {
        return;
    }
    let Some(spec) = pod.get_mut("spec") else { return };
    let name = crate::rest::generate_name("kube-api-access-");
    let mut used = false;
    for list in ["containers", "initContainers"] {
        for container in items_mut(spec, list) {
            let has = |m: &Value| text(m, &["mountPath"]) == TOKEN_PATH;
            if container["volumeMounts"].as_array().is_some_and(|mounts| mounts.iter().any(has)) {
                continue;
            }
            let mount = json!({"name": name, "mountPath": TOKEN_PATH, "readOnly": true});
            match container["volumeMounts"].as_array_mut() {
                Some(mounts) => mounts.push(mount),
                None => container["volumeMounts"] = json!([mount]),
            }
            used = true;
        }
    }
    if !used {
        return;
    }
    let volume = json!({"name": name, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}});
    match spec["volumes"].as_array_mut() {
        Some(volumes) => volumes.push(volume),
        None => spec["volumes"] = json!([volume]),
    }
}
