//! Admission: built-in rules, then mutating policies and webhooks, then (after validation) validating ones.

pub mod addresses;
pub mod growth;
pub mod limits;
pub mod maker;
mod matching;
pub mod pod_security;
pub mod pods;
pub mod policy;
pub mod quota;
pub mod rights;
mod webhook;

use std::sync::atomic::Ordering;

use ferrovirt_store::{Condition, Key};
use serde_json::{Value, json};

use crate::object::{default, items_mut, text};
use crate::registry::Special;
use crate::rest::Call;
use crate::status::ApiError;
use crate::storage::{Entry, ObjectMeta};

pub use policy::Policies;
use webhook::review;
pub use webhook::{Webhooks, check as check_webhooks};

/// Namespaces the system itself needs.
const PROTECTED: &[&str] = &["default", "kube-system", "kube-public"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// A kind that is going away takes no new objects.
pub fn kind_lifecycle(call: &Call) -> Result<(), ApiError> {
    if !call.resource.custom {
        return Ok(());
    }
    let key = ferrovirt_store::Key::new("", call.resource.qualified());
    let going = call.server.store.get(crate::crd::STORAGE, &key).is_some_and(|e| e.meta.deleting);
    if going {
        return Err(ApiError::new(
            405,
            "MethodNotAllowed",
            "create not allowed while custom resource definition is terminating",
        ));
    }
    Ok(())
}

/// Objects are only created in namespaces that exist and stay.
pub fn namespace_lifecycle(call: &Call, object: &Value) -> Result<(), ApiError> {
    let Some(namespace) = call.namespace() else {
        return Ok(());
    };
    let not_found = || ApiError::not_found(crate::status::Subject { group: "", kind: "namespaces", name: namespace });
    let entry = call.server.store.get("namespaces", &ferrovirt_store::Key::new("", namespace)).ok_or_else(not_found)?;
    if !entry.meta.deleting {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut error = ApiError::forbidden(call.resource.subject(crate::object::name(object)), &why);
    error.body["details"]["causes"] = json!([{
        "reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"), "field": "metadata.namespace",
    }]);
    Err(error)
}

fn stays(entry: Option<&Entry>) -> bool {
    entry.is_some_and(|entry| !entry.meta.deleting)
}

/// What has to be true still when a new object is stored.
pub fn lifecycle_conditions(call: &Call) -> Vec<Condition<ObjectMeta>> {
    let condition =
        |resource: &str, name: &str| Condition { resource: resource.into(), key: Key::new("", name), holds: stays };
    let namespace = call.namespace().map(|name| condition("namespaces", name));
    let kind = call.resource.custom.then(|| condition(crate::crd::STORAGE, &call.resource.qualified()));
    namespace.into_iter().chain(kind).collect()
}

/// Why the conditions did not hold.
pub fn lifecycle_refusal(call: &Call, object: &Value) -> ApiError {
    match kind_lifecycle(call).and_then(|()| namespace_lifecycle(call, object)) {
        Err(error) => error,
        // Gone when it mattered, and back since; or the kind is gone for good.
        Ok(()) => ApiError::conflict(
            call.resource.subject(crate::object::name(object)),
            "its namespace or its kind was replaced meanwhile; try again",
        ),
    }
}

/// What the system itself cannot do without.
pub fn protect(call: &Call) -> Result<(), ApiError> {
    if addresses::is_kept(call) {
        return Err(ApiError::forbidden(call.resource.subject(call.name()), "this service may not be deleted"));
    }
    if call.resource.special == Special::Namespace && PROTECTED.contains(&call.name()) {
        return Err(ApiError::forbidden(call.resource.subject(call.name()), "this namespace may not be deleted"));
    }
    Ok(())
}

/// Runs the mutating policies and webhooks that match, in order. A webhook that asks for it is called again when one after
/// it changed the object.
pub async fn mutate(
    call: &Call,
    operation: Operation,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    if !call.server.serving.load(Ordering::Acquire) {
        return Ok(());
    }
    policy::mutate(call, operation, object, old)?;
    if call.resource.special == Special::Webhook {
        return Ok(());
    }
    let hooks = call.server.webhooks.load(&call.server);
    let mut last_change = None;
    for (index, hook) in hooks.mutating.iter().enumerate() {
        if let Some(changed) = webhook::call(call, hook, operation, Some(object), old).await?
            && changed != *object
        {
            *object = changed;
            last_change = Some(index);
        }
    }
    let Some(last_change) = last_change else { return Ok(()) };
    for hook in hooks.mutating.iter().take(last_change).filter(|h| h.reinvoked) {
        if let Some(changed) = webhook::call(call, hook, operation, Some(object), old).await? {
            *object = changed;
        }
    }
    Ok(())
}

/// Runs the validating policies and webhooks that match. `object` is None for deletions.
pub async fn validate(
    call: &Call,
    operation: Operation,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    if !call.server.serving.load(Ordering::Acquire) {
        return Ok(());
    }
    policy::validate(call, operation, object, old)?;
    if call.resource.special == Special::Webhook {
        return Ok(());
    }
    let hooks = call.server.webhooks.load(&call.server);
    if operation == Operation::Delete {
        for hook in &hooks.mutating {
            webhook::call(call, hook, operation, object, old).await?;
        }
    }
    for hook in &hooks.validating {
        webhook::call(call, hook, operation, object, old).await?;
    }
    Ok(())
}

/// Defaults of webhook configurations.
pub fn defaults(configuration: &mut Value) {
    let mutating = text(configuration, &["kind"]) == "MutatingWebhookConfiguration";
    for hook in items_mut(configuration, "webhooks") {
        default(hook, "failurePolicy", "Fail");
        default(hook, "matchPolicy", "Equivalent");
        default(hook, "namespaceSelector", json!({}));
        default(hook, "objectSelector", json!({}));
        default(hook, "timeoutSeconds", 10);
        if mutating {
            default(hook, "reinvocationPolicy", "Never");
        }
        if let Some(service) = hook.get_mut("clientConfig").and_then(|c| c.get_mut("service")) {
            default(service, "port", 443);
        }
        for rule in items_mut(hook, "rules") {
            default(rule, "scope", "*");
        }
    }
}

/// The labels of the namespace an object lives in; for a namespace, its own.
fn namespace_labels(call: &Call, object: Option<&Value>) -> Option<std::collections::BTreeMap<String, String>> {
    if call.resource.special == Special::Namespace {
        let labels = object.and_then(|o| crate::object::at(o, &["metadata", "labels"])).cloned().unwrap_or_default();
        return Some(serde_json::from_value(labels).unwrap_or_default());
    }
    let namespace = call.namespace()?;
    let entry = call.server.store.get("namespaces", &ferrovirt_store::Key::new("", namespace))?;
    Some(entry.meta.labels().clone())
}
