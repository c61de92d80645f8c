//! Webhooks: their configurations, and one call of one of them.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use ferrovirt_schema::patch::json_patch;
use ferrovirt_schema::selector::LabelSelector;
use http::{Method, Request, header};
use serde_json::{Value, json};

use super::Operation;
use super::matching::Rule;
use crate::http::body;
use crate::object::{at, strings, text};
use crate::rest::{Call, convert};
use crate::server::{Handler, Server};
use crate::status::ApiError;
use crate::storage::parse;

#[derive(Debug)]
pub struct Webhook {
    name: String,
    service: Option<(String, String)>,
    path: String,
    pub rules: Vec<Rule>,
    pub equivalent: bool,
    pub namespace_selector: LabelSelector,
    pub object_selector: LabelSelector,
    ignore_failure: bool,
    timeout: Duration,
    side_effects: bool,
}

/// All configured webhooks in the order they are called: by configuration name.
#[derive(Debug, Default)]
pub struct Loaded {
    pub mutating: Vec<Webhook>,
    pub validating: Vec<Webhook>,
}

#[derive(Debug, Default)]
pub struct Webhooks {
    loaded: RwLock<Option<Arc<Loaded>>>,
}

impl Webhooks {
    pub fn invalidate(&self) {
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub fn load(&self, server: &Server) -> Arc<Loaded> {
        if let Some(loaded) = &*self.loaded.read().unwrap_or_else(PoisonError::into_inner) {
            return loaded.clone();
        }
        let mut slot = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(|| {
            let read = |plural: &str| -> Vec<Webhook> {
                let list = server.store.list(&format!("admissionregistration.k8s.io/{plural}"), None);
                let configurations = list.items.iter().filter_map(|e| parse(e).ok());
                configurations
                    .flat_map(|c| c["webhooks"].as_array().into_iter().flatten().map(Webhook::read).collect::<Vec<_>>())
                    .collect()
            };
            Arc::new(Loaded {
                mutating: read("mutatingwebhookconfigurations"),
                validating: read("validatingwebhookconfigurations"),
            })
        })
        .clone()
    }
}

impl Webhook {
    fn read(hook: &Value) -> Self {
        let selector = |key: &str| match hook.get(key) {
            Some(value) if value.is_object() => {
                LabelSelector::from_json(value).unwrap_or_else(|_| LabelSelector::everything())
            }
            _ => LabelSelector::everything(),
        };
        let rules = hook["rules"].as_array().into_iter().flatten().map(|rule| Rule {
            operations: strings(rule.get("operations")),
            groups: strings(rule.get("apiGroups")),
            versions: strings(rule.get("apiVersions")),
            resources: strings(rule.get("resources")),
            scope: text(rule, &["scope"]).to_owned(),
        });
        let service = at(hook, &["clientConfig", "service"]);
        Self {
            name: text(hook, &["name"]).to_owned(),
            service: service.map(|s| (text(s, &["namespace"]).to_owned(), text(s, &["name"]).to_owned())),
            path: service.map(|s| text(s, &["path"]).to_owned()).unwrap_or_default(),
            rules: rules.collect(),
            equivalent: hook["matchPolicy"] != "Exact",
            namespace_selector: selector("namespaceSelector"),
            object_selector: selector("objectSelector"),
            ignore_failure: hook["failurePolicy"] == "Ignore",
            timeout: Duration::from_secs(hook["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30)),
            side_effects: !matches!(text(hook, &["sideEffects"]), "None" | "NoneOnDryRun" | ""),
        }
    }
}

/// Asks one webhook. Returns the object it changed, if it did.
pub async fn call(
    call: &Call,
    hook: &Webhook,
    version: &str,
    operation: Operation,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<Option<Value>, ApiError> {
    let dry_run = call.dry_run()?;
    if dry_run && hook.side_effects {
        return Err(ApiError::bad_request(format!("admission webhook \"{}\" does not support dry run", hook.name)));
    }
    let uid = uuid::Uuid::new_v4().to_string();
    let review = review(call, &uid, version, operation, object, old, dry_run);
    let answer = match hook.service.as_ref().and_then(|(namespace, name)| call.server.in_process(namespace, name)) {
        Some(handler) => ask(&handler, hook, &review).await,
        None => Err("the service it names is not served by this process".to_owned()),
    };
    let response = match answer {
        Ok(answer) => answer["response"].clone(),
        Err(why) if hook.ignore_failure => {
            tracing::warn!(webhook = hook.name, why, "webhook failed, its policy is to ignore that");
            return Ok(None);
        }
        Err(why) => {
            return Err(ApiError::internal(format!(
                "failed calling webhook \"{}\": failed to call webhook: {why}",
                hook.name
            )));
        }
    };
    for warning in strings(response.get("warnings")) {
        call.warn(warning);
    }
    if response["allowed"] != true {
        return Err(denial(&hook.name, &response["status"]));
    }
    match (object, response["patch"].as_str()) {
        (Some(object), Some(patch)) => patched(call, hook, version, object, patch).map(Some),
        _ => Ok(None),
    }
}

fn patched(call: &Call, hook: &Webhook, version: &str, object: &Value, patch: &str) -> Result<Value, ApiError> {
    let broken = |why: &dyn std::fmt::Display| {
        ApiError::internal(format!("admission webhook \"{}\" sent a patch that does not apply: {why}", hook.name))
    };
    let decoded = base64::engine::general_purpose::STANDARD.decode(patch).map_err(|e| broken(&e))?;
    let patch: Value = serde_json::from_slice(&decoded).map_err(|e| broken(&e))?;
    let mut changed = in_version(call, version, object);
    json_patch(&mut changed, &patch).map_err(|e| broken(&e))?;
    convert(&call.resource, call.version(), &mut changed);
    Ok(changed)
}

fn in_version(call: &Call, version: &str, object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(version) = call.resource.version(version).filter(|v| v.name != call.version().name) {
        convert(&call.resource, version, &mut object);
    }
    object
}

fn review(
    call: &Call,
    uid: &str,
    version: &str,
    operation: Operation,
    object: Option<&Value>,
    old: Option<&Value>,
    dry_run: bool,
) -> Value {
    let resource = &call.resource;
    let kind = |version: &str| json!({"group": resource.group, "version": version, "kind": resource.kind});
    let plural = |version: &str| json!({"group": resource.group, "version": version, "resource": resource.plural});
    let requested = &call.version().name;
    let name = match call.name() {
        "" => object.map(crate::object::name).unwrap_or_default(),
        name => name,
    };
    let options = match operation {
        Operation::Create => "CreateOptions",
        Operation::Update if call.verb == "patch" => "PatchOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
    };
    let mut request = json!({
        "uid": uid, "kind": kind(version), "resource": plural(version),
        "requestKind": kind(requested), "requestResource": plural(requested),
        "name": name, "operation": operation.as_str(), "userInfo": call.user.to_json(),
        "object": object.map(|o| in_version(call, version, o)), "oldObject": old.map(|o| in_version(call, version, o)),
        "dryRun": dry_run, "options": {"kind": options, "apiVersion": "meta.k8s.io/v1"},
    });
    if let Some(namespace) = call.namespace() {
        request["namespace"] = namespace.into();
    }
    if !call.subresource().is_empty() {
        request["subResource"] = call.subresource().into();
        request["requestSubResource"] = call.subresource().into();
    }
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})
}

async fn ask(handler: &Handler, hook: &Webhook, review: &Value) -> Result<Value, String> {
    let path = if hook.path.is_empty() { "/" } else { &hook.path };
    let seconds = hook.timeout.as_secs();
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("{path}?timeout={seconds}s"))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .body(body::full(review.to_string()))
        .map_err(|e| e.to_string())?;
    let answer = async {
        let response = handler(request).await;
        let status = response.status();
        let bytes = body::read(response.into_body()).await.map_err(|e| e.message().to_owned())?;
        if !status.is_success() {
            return Err(format!("it answered {status}: {}", String::from_utf8_lossy(&bytes)));
        }
        serde_json::from_slice(&bytes).map_err(|e| e.to_string())
    };
    tokio::time::timeout(hook.timeout, answer).await.map_err(|_| format!("no answer within {seconds}s"))?
}

/// The webhook's own status, with its name in front of the message.
fn denial(name: &str, status: &Value) -> ApiError {
    let mut body = if status.is_object() { status.clone() } else { json!({}) };
    let denied = format!("admission webhook \"{name}\" denied the request");
    let message = match (text(status, &["message"]), text(status, &["reason"])) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let code = status["code"].as_u64().filter(|c| *c >= 400).unwrap_or(400);
    for (key, value) in [
        ("kind", json!("Status")),
        ("apiVersion", json!("v1")),
        ("status", json!("Failure")),
        ("message", json!(message)),
        ("code", json!(code)),
    ] {
        body[key] = value;
    }
    crate::object::default(&mut body, "metadata", json!({}));
    ApiError::from_status(body)
}
