//! patch: JSON, merge, strategic merge, apply.

use bytes::Bytes;
use ferrovirt_schema::{Cause, patch as patches};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Call, decode, metadata, respond, update};
use crate::http::body::Body;
use crate::http::negotiate;
use crate::object::{self, text};
use crate::status::{ApiError, Subject};

const ALL: &str = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml";
const CUSTOM: &str = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl Kind {
    pub fn of(call: &Call) -> Result<Self, ApiError> {
        match negotiate::content_type(&call.headers) {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" if !call.resource.custom => Ok(Self::Strategic),
            "application/apply-patch+yaml" | "application/apply-patch+json" => Ok(Self::Apply),
            _ if call.resource.custom => Err(ApiError::unsupported_media(CUSTOM)),
            _ => Err(ApiError::unsupported_media(ALL).without_subject()),
        }
    }
}

pub async fn patch(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let kind = Kind::of(call)?;
    if kind == Kind::Apply {
        return super::apply::apply(call, &bytes).await;
    }
    let (patch, duplicates) = decode::json_with_duplicates(&bytes)
        .map_err(|e| ApiError::bad_request(format!("error decoding patch: {e}")))?;
    // A patch that names a resourceVersion is conditional; any other is tried again on the newer object.
    let conditional = !text(&patch, &["metadata", "resourceVersion"]).is_empty();
    let stored = update::modify(call, !conditional, |old| {
        let mut new = old.clone();
        apply_patch(call, kind, &patch, &mut new)?;
        check_identity(call, old, &mut new)?;
        if new["metadata"]["managedFields"].as_array().is_some_and(Vec::is_empty) {
            new["metadata"]["managedFields"] = json!([{}]);
        }
        let mut faults = duplicates.clone();
        faults.extend(decode::prune(call, &mut new));
        decode::report(call, &faults, |faults| {
            let shown: String = String::from_utf8_lossy(&bytes).into_owned();
            let cause = Cause::invalid("patch", &json!(shown), format!("strict decoding error: {faults}"));
            let mut error = ApiError::invalid(call.resource.kind_subject(""), &[cause]);
            error.body["message"] =
                format!(" \"\" is invalid: patch: Invalid value: {shown:?}: strict decoding error: {faults}").into();
            if let Some(details) = error.body["details"].as_object_mut() {
                details.remove("kind");
                details.remove("group");
            }
            error
        })?;
        Ok(new)
    })
    .await?;
    respond::object(call, StatusCode::OK, &stored).await
}

/// Changes `object` as the patch says.
pub fn apply_patch(call: &Call, kind: Kind, patch: &Value, object: &mut Value) -> Result<(), ApiError> {
    let result = match kind {
        Kind::Json => with_whole_object(call, object, |object| patches::json_patch(object, patch)),
        Kind::Merge | Kind::Apply => patches::merge_patch(object, patch),
        Kind::Strategic => patches::strategic_merge(&call.version().schema(), object, patch),
    };
    result.map_err(|error| {
        let message = error.to_string();
        match kind {
            // A failed test or a missing path: the patch was understood, the object does not fit it.
            Kind::Json if patch.as_array().is_some_and(|ops| ops.iter().all(Value::is_object)) => ApiError::new(
                422,
                "Invalid",
                format!("the server rejected our request due to an error in our request: {message}"),
            )
            .without_subject(),
            _ => ApiError::bad_request(message),
        }
    })
}

/// Built-in objects that can have a status have one even if it is empty, and JSON patches may add to it.
fn with_whole_object<T>(call: &Call, object: &mut Value, change: impl FnOnce(&mut Value) -> T) -> T {
    if call.resource.custom || !call.version().status || object.get("status").is_some() {
        return change(object);
    }
    object::field_map(object, "status");
    let result = change(object);
    if let Some(map) = object.as_object_mut()
        && map.get("status").is_some_and(|status| status.as_object().is_some_and(serde_json::Map::is_empty))
    {
        map.remove("status");
    }
    result
}

/// A patch cannot turn the object into another one.
fn check_identity(call: &Call, old: &Value, new: &mut Value) -> Result<(), ApiError> {
    if !new.is_object() {
        return Err(ApiError::bad_request("the patch leaves no object"));
    }
    metadata::check_namespace(call, new)?;
    let name = object::name(new);
    if name != object::name(old) {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.name()
        )));
    }
    for key in ["apiVersion", "kind"] {
        if new[key] != old[key] {
            if !call.resource.custom {
                return Err(unfit(new, &format!("{key} cannot be changed")));
            }
            new[key] = old[key].clone();
        }
    }
    Ok(())
}

/// What a patch makes of a built-in object does not decode.
pub fn unfit(object: &Value, why: &str) -> ApiError {
    let cause = Cause::invalid("patch", &json!(object.to_string()), why);
    let mut error = ApiError::invalid(Subject { group: "", kind: "", name: "" }, &[cause]);
    error.body["message"] = format!(" \"\" is invalid: patch: Invalid value: {:?}: {why}", object.to_string()).into();
    error
}
