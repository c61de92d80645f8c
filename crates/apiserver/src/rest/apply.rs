//! Server-side apply.

use bytes::Bytes;
use ferrovirt_schema::apply::{self as ssa, ApplyError};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Call, create, decode, respond, update};
use crate::http::body::Body;
use crate::object::{self, at};
use crate::status::ApiError;
use crate::storage;

pub async fn apply(call: &Call, bytes: &Bytes) -> Result<Response<Body>, ApiError> {
    let manager = update::manager(call);
    if call.query.get("fieldManager").is_empty() {
        return Err(ApiError::bad_request(
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ));
    }
    let force = call.query.flag("force");
    let applied = configuration(call, bytes)?;
    let schema = call.version().schema();
    let refused = |error: ApplyError| refusal(call, error);
    let key = storage::key(&call.resource, call.namespace(), call.name());
    if call.server.store.get(&call.resource.storage, &key).is_none() {
        if !call.subresource().is_empty() {
            return Err(call.not_found());
        }
        let fresh = ssa::apply(&schema, None, &applied, &manager, force).map_err(refused)?;
        let stored = create::create_object(call, fresh).await?;
        return respond::object(call, StatusCode::CREATED, &stored);
    }
    let stored =
        update::modify(call, true, |old| ssa::apply(&schema, Some(old), &applied, &manager, force).map_err(refused))
            .await?;
    respond::object(call, StatusCode::OK, &stored)
}

/// The applied configuration: YAML or JSON, of the right kind and name.
fn configuration(call: &Call, bytes: &Bytes) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))?;
    let (mut applied, mut faults) = if text.trim_start().starts_with('{') {
        decode::json_with_duplicates(bytes).map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))?
    } else {
        let value: Value =
            serde_saphyr::from_str(text).map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))?;
        (value, Vec::new())
    };
    if applied["apiVersion"] != call.api_version() || applied["kind"] != call.resource.kind {
        return Err(ApiError::bad_request(format!(
            "the applied configuration is {} {}, the URL is for {} {}",
            applied["apiVersion"],
            applied["kind"],
            call.api_version(),
            call.resource.kind
        )));
    }
    if at(&applied, &["metadata", "managedFields"]).is_some_and(|m| m.as_array().is_some_and(|a| !a.is_empty())) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    match object::name(&applied) {
        "" => {
            object::metadata(&mut applied).insert("name".into(), call.name().into());
        }
        name if name != call.name() => {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                call.name()
            )));
        }
        _ => {}
    }
    super::metadata::check_namespace(call, &mut applied)?;
    faults.extend(decode::prune(call, &mut applied));
    decode::report(call, &faults, |faults| {
        ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: strict decoding error: {faults}",
            call.target.version,
            kind = call.resource.kind
        ))
    })?;
    Ok(applied)
}

fn refusal(call: &Call, error: ApplyError) -> ApiError {
    let message = error.to_string();
    if !matches!(error, ApplyError::Conflicts(_)) {
        return ApiError::bad_request(message);
    }
    let mut refused = ApiError::new(409, "Conflict", message);
    let causes = error.causes();
    let causes: Vec<Value> =
        causes.iter().map(|c| json!({"reason": c.kind.as_str(), "message": c.message, "field": c.field})).collect();
    refused.body["details"] =
        json!({"name": call.name(), "group": call.resource.group, "kind": call.resource.plural, "causes": causes});
    refused
}
