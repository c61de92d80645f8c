//! The scale subresource: an `autoscaling/v1` Scale over paths that the CRD names.

use bytes::Bytes;
use ferrovirt_schema::Cause;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::patch::Kind;
use super::{Call, decode, patch as patching, respond, update};
use crate::http::body::Body;
use crate::object::text;
use crate::registry::Scale;
use crate::status::ApiError;
use crate::storage;

pub async fn get(call: &Call) -> Result<Response<Body>, ApiError> {
    let key = storage::key(&call.resource, call.namespace(), call.name());
    let entry = call.server.store.get(&call.resource.storage, &key).ok_or_else(|| call.not_found())?;
    let entry = call.converted(entry).await?;
    answer(call, &storage::parse(&entry)?)
}

pub async fn update(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let (wanted, _) = decode::any(call, &bytes)?;
    change(call, |_| Ok(wanted.clone())).await
}

pub async fn patch(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let kind = Kind::of(call)?;
    let patch = super::parse_json(&bytes)?;
    change(call, |scale| {
        let mut new = scale.clone();
        patching::apply_patch(call, kind, &patch, &mut new)?;
        Ok(new)
    })
    .await
}

async fn change(call: &Call, make: impl Fn(&Value) -> Result<Value, ApiError>) -> Result<Response<Body>, ApiError> {
    let paths = paths(call)?;
    let main = call.without_subresource();
    let stored = update::modify(&main, true, |object| {
        let wanted = make(&to_scale(paths, object))?;
        let version = text(&wanted, &["metadata", "resourceVersion"]);
        if !version.is_empty() && version != text(object, &["metadata", "resourceVersion"]) {
            return Err(ApiError::modified(call.resource.subject(call.name())));
        }
        let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            let cause = Cause::invalid(".spec.replicas", &json!(replicas), "should be a non-negative integer");
            return Err(ApiError::invalid(call.resource.kind_subject(call.name()), &[cause]));
        }
        let mut new = object.clone();
        set(&mut new, &paths.spec_replicas, replicas.into());
        Ok(new)
    })
    .await?;
    answer(call, &respond::parse(&stored)?)
}

fn paths(call: &Call) -> Result<&Scale, ApiError> {
    call.version().scale.as_ref().ok_or_else(ApiError::no_route)
}

fn answer(call: &Call, object: &Value) -> Result<Response<Body>, ApiError> {
    respond::encoded(call, StatusCode::OK, to_scale(paths(call)?, object).to_string().into())
}

fn to_scale(paths: &Scale, object: &Value) -> Value {
    let meta = &object["metadata"];
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"], "creationTimestamp": meta["creationTimestamp"],
        },
        "spec": {"replicas": lookup(object, &paths.spec_replicas).and_then(Value::as_i64).unwrap_or(0)},
        "status": {"replicas": lookup(object, &paths.status_replicas).and_then(Value::as_i64).unwrap_or(0)},
    });
    if let Some(selector) = paths.selector.as_ref().and_then(|p| lookup(object, p)).map(selector_text) {
        scale["status"]["selector"] = selector.into();
    }
    scale
}

/// A selector as text. Built-in kinds have a label selector, or a plain map; custom ones have text already.
fn selector_text(selector: &Value) -> String {
    if let Some(text) = selector.as_str() {
        return text.to_owned();
    }
    let pair = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    let map = |value: &Value| value.as_object().into_iter().flatten().map(pair).collect::<Vec<_>>();
    if selector.get("matchLabels").is_none() && selector.get("matchExpressions").is_none() {
        return map(selector).join(",");
    }
    let mut terms = map(&selector["matchLabels"]);
    for term in selector["matchExpressions"].as_array().into_iter().flatten() {
        let (key, values) = (text(term, &["key"]), crate::object::strings(term.get("values")).join(","));
        terms.push(match text(term, &["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    terms.join(",")
}

fn lookup<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').filter(|p| !p.is_empty()).try_fold(object, |value, key| value.get(key))
}

fn set(object: &mut Value, path: &str, value: Value) {
    let mut slot = object;
    for key in path.split('.').filter(|p| !p.is_empty()) {
        if !slot.is_object() {
            *slot = json!({});
        }
        slot = &mut slot[key];
    }
    *slot = value;
}
