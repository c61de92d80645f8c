//! Webhooks: their configurations, and one call of one of them.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use ferrovirt_schema::Cause;
use ferrovirt_schema::patch::json_patch;
use serde_json::{Value, json};

use super::Operation;
use super::matching::Match;
use super::policy::{CONDITION_VARIABLES, Expression, Scene, condition_faults, conditions_hold};
use crate::http::outbound::Destination;
use crate::object::{strings, text};
use crate::rest::{Call, convert};
use crate::server::Server;
use crate::status::ApiError;
use crate::storage::parse;

#[derive(Debug)]
pub struct Webhook {
    name: String,
    destination: Destination,
    scope: Match,
    /// Name and expression. A fault of one fails the webhook.
    conditions: Result<Vec<(String, Expression)>, String>,
    ignore_failure: bool,
    timeout: Duration,
    side_effects: bool,
    /// Called again when a later webhook changed the object.
    pub reinvoked: bool,
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
        let conditions = hook["matchConditions"].as_array().into_iter().flatten().map(|condition| {
            let expression = Expression::parse(text(condition, &["expression"]), CONDITION_VARIABLES)?;
            Ok((text(condition, &["name"]).to_owned(), expression))
        });
        Self {
            name: text(hook, &["name"]).to_owned(),
            destination: Destination::read(&hook["clientConfig"]),
            scope: Match::of_webhook(hook),
            conditions: conditions.collect(),
            ignore_failure: hook["failurePolicy"] == "Ignore",
            timeout: Duration::from_secs(hook["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30)),
            side_effects: !matches!(text(hook, &["sideEffects"]), "None" | "NoneOnDryRun" | ""),
            reinvoked: hook["reinvocationPolicy"] == "IfNeeded",
        }
    }
}

/// What is wrong with a webhook configuration.
pub fn check(configuration: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, hook) in configuration["webhooks"].as_array().into_iter().flatten().enumerate() {
        let at = |field: &str| format!("webhooks[{index}].{field}");
        if text(hook, &["name"]).split('.').count() < 3 {
            let name = &hook["name"];
            causes.push(Cause::invalid(
                at("name"),
                name,
                "should be a domain with at least three segments separated by dots",
            ));
        }
        let seconds = hook["timeoutSeconds"].as_u64().unwrap_or(10);
        if !(1..=30).contains(&seconds) {
            causes.push(Cause::invalid(
                at("timeoutSeconds"),
                &json!(seconds),
                "the timeout value must be between 1 and 30 seconds",
            ));
        }
        let client = &hook["clientConfig"];
        if client["url"].is_string() == client["service"].is_object() {
            causes.push(Cause::required(at("clientConfig"), "exactly one of url or service is required"));
        }
        let url = text(client, &["url"]);
        if !url.is_empty() && !url.starts_with("https://") {
            causes.push(Cause::invalid(at("clientConfig.url"), &json!(url), "'https' is the only allowed URL scheme"));
        }
        causes.extend(condition_faults(&hook["matchConditions"], &at("matchConditions")));
    }
    causes
}

/// Asks one webhook, if it wants to know. Returns the object it changed, if it did.
pub async fn call(
    call: &Call,
    hook: &Webhook,
    operation: Operation,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<Option<Value>, ApiError> {
    let Some(version) = hook.scope.matches(call, operation, object, old) else {
        return Ok(None);
    };
    let version = version.as_str();
    let wanted = match &hook.conditions {
        Ok(conditions) if conditions.is_empty() => Ok(true),
        Ok(conditions) => conditions_hold(&Scene { call, operation, object, old, version }.context(), conditions),
        Err(fault) => Err(fault.clone()),
    };
    match wanted {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(_) if hook.ignore_failure => return Ok(None),
        Err(why) => return Err(ApiError::forbidden(call.resource.subject(call.name()), &why)),
    }
    let dry_run = call.dry_run()?;
    if dry_run && hook.side_effects {
        return Err(ApiError::bad_request(format!("admission webhook \"{}\" does not support dry run", hook.name)));
    }
    let uid = uuid::Uuid::new_v4().to_string();
    let review = review(call, &uid, version, operation, object, old, dry_run);
    let response = match hook.destination.ask(&call.server, &review, hook.timeout).await {
        Ok(answer) if answer["response"]["uid"].as_str().is_some_and(|u| u != uid) => {
            return Err(failed(hook, "its answer is for another request"));
        }
        Ok(answer) => answer["response"].clone(),
        Err(why) if hook.ignore_failure => {
            tracing::warn!(webhook = hook.name, why, "webhook failed, its policy is to ignore that");
            return Ok(None);
        }
        Err(why) => return Err(failed(hook, &why)),
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

fn failed(hook: &Webhook, why: &str) -> ApiError {
    ApiError::internal(format!("failed calling webhook \"{}\": failed to call webhook: {why}", hook.name))
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

/// The question to a webhook; expressions of policies see its request too.
pub fn review(
    call: &Call,
    uid: &str,
    version: &str,
    operation: Operation,
    object: Option<&Value>,
    old: Option<&Value>,
    dry_run: bool,
) -> Value {
    let resource = &call.resource;
    let kind = |version: &str| match call.subresource() {
        // What is sent there is of another kind than what it is about.
        "eviction" => json!({"group": "policy", "version": "v1", "kind": "Eviction"}),
        _ => json!({"group": resource.group, "version": version, "kind": resource.kind}),
    };
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
