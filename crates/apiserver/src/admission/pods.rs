//! What a new pod gets from what it names: its priority, what its runtime adds, and the credentials of its account.

use serde_json::{Value, json};

use crate::object::{at, default_in, field_map, items_mut, text};
use crate::quota::amounts;
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
    tolerate_lost_nodes(pod);
    let account = account(call, pod)?;
    if let Some(secrets) = account["imagePullSecrets"].as_array().filter(|s| !s.is_empty()) {
        default_in(pod, "spec", "imagePullSecrets", secrets.clone());
    }
    mount_token(pod, &account);
    Ok(())
}

/// What a changed pod gets again.
pub fn refill(call: &Call, pod: &mut Value) {
    if call.resource.special == Special::Pod && call.target.subresource.is_none() && pod["spec"].is_object() {
        tolerate_lost_nodes(pod);
    }
}

/// The account that a pod runs as. A pod that names none may be there before its namespace's own account is.
fn account(call: &Call, pod: &Value) -> Result<Value, ApiError> {
    let name = text(pod, &["spec", "serviceAccountName"]);
    let namespace = call.namespace().unwrap_or_default();
    let key = ferrovirt_store::Key::new(namespace, name);
    match call.server.store.get("serviceaccounts", &key).and_then(|e| parse(&e).ok()) {
        Some(account) => Ok(account),
        None if name == "default" => Ok(Value::Null),
        None => {
            let why =
                format!("error looking up service account {namespace}/{name}: serviceaccount \"{name}\" not found");
            Err(ApiError::forbidden(call.resource.subject(crate::object::name(pod)), &why))
        }
    }
}

/// A pod outlives a node that is not heard of for five minutes, unless it says otherwise.
fn tolerate_lost_nodes(pod: &mut Value) {
    let spec = field_map(pod, "spec");
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    if tolerations.is_null() {
        *tolerations = json!([]);
    }
    let Some(tolerations) = tolerations.as_array_mut() else { return };
    for taint in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covers = |t: &Value| {
            let (key, effect) = (text(t, &["key"]), text(t, &["effect"]));
            (key.is_empty() || key == taint) && (effect.is_empty() || effect == "NoExecute")
        };
        if !tolerations.iter().any(covers) {
            tolerations
                .push(json!({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
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
    let value = found.as_ref().and_then(|c| c["value"].as_i64()).unwrap_or(0);
    let policy = match found.as_ref().map_or("", |c| text(c, &["preemptionPolicy"])) {
        "" => "PreemptLowerPriority",
        policy => policy,
    };
    let refuse = |why: String| Err(ApiError::forbidden(call.resource.subject(crate::object::name(pod)), &why));
    if let Some(given) = at(pod, &["spec", "priority"]).and_then(Value::as_i64).filter(|given| *given != value) {
        return refuse(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        ));
    }
    let given = text(pod, &["spec", "preemptionPolicy"]);
    if !given.is_empty() && given != policy {
        return refuse(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        ));
    }
    let spec = field_map(pod, "spec");
    if let Some(found) = &found {
        spec.insert("priorityClassName".into(), crate::object::name(found).into());
    }
    spec.insert("priority".into(), value.into());
    spec.insert("preemptionPolicy".into(), policy.into());
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
    let refuse = |why: &str| Err(ApiError::forbidden(call.resource.subject(crate::object::name(pod)), why));
    let mut overhead = None;
    if !name.is_empty() {
        let Some(found) = class(call, RUNTIME_CLASSES, &name) else {
            return refuse(&format!("pod rejected: RuntimeClass \"{name}\" not found"));
        };
        overhead = at(&found, &["overhead", "podFixed"]).filter(|fixed| fixed.is_object()).cloned();
    }
    // What a pod says of it itself counts for schedulers and quotas, so it may say nothing else.
    let given = amounts(at(pod, &["spec", "overhead"]));
    match overhead {
        None if given.is_empty() => {}
        None => return refuse("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"),
        Some(overhead) if given.is_empty() || given == amounts(Some(&overhead)) => {
            field_map(pod, "spec").insert("overhead".into(), overhead);
        }
        Some(_) => return refuse("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"),
    }
    Ok(())
}

/// A token of the pod's service account, the authority of this server and the namespace, unless pod or account opt out.
fn mount_token(pod: &mut Value, account: &Value) {
    let wanted = |object: &Value, path: &[&str]| at(object, path).and_then(Value::as_bool);
    let mount = wanted(pod, &["spec", "automountServiceAccountToken"])
        .or_else(|| wanted(account, &["automountServiceAccountToken"]))
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
