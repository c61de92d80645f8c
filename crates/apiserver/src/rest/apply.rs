//! Server-side apply.

use bytes::Bytes;
use ferrovirt_schema::apply::{self as ssa, ApplyError};
use ferrovirt_schema::{Cause, structural};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Call, create, decode, respond, update};
use crate::http::body::Body;
use crate::object::{self, at};
use crate::status::ApiError;
use crate::storage;

pub async fn apply(call: &Call, bytes: &Bytes) -> Result<Response<Body>, ApiError> {
    let manager = update::manager(call);
    let force = call.query.flag("force");
    let applied = configuration(call, bytes)?;
    let schema = call.version().schema();
    let refused = refusal;
    let key = storage::key(&call.resource, call.namespace(), call.name());
    if call.server.store.get(&call.resource.storage, &key).is_none() {
        if !call.subresource().is_empty() {
            return Err(call.not_found());
        }
        let mut fresh = ssa::apply(&schema, None, &applied, &manager, force).map_err(refused)?;
        decode::tidy(call, &mut fresh);
        // Whoever names a version or an object means one that was there.
        object::metadata(&mut fresh).remove("resourceVersion");
        if let Some(uid) =
            at(&fresh, &["metadata", "uid"]).filter(|uid| uid.as_str().is_some_and(|uid| !uid.is_empty()))
        {
            let cause = Cause::invalid("metadata.uid", uid, "field is immutable");
            return Err(ApiError::invalid(call.resource.kind_subject(call.name()), &[cause]));
        }
        let stored = create::create_object(call, fresh).await?;
        return respond::object(call, StatusCode::CREATED, &stored).await;
    }
    let stored =
        update::modify(call, true, |old| ssa::apply(&schema, Some(old), &applied, &manager, force).map_err(refused))
            .await?;
    respond::object(call, StatusCode::OK, &stored).await
}

/// The applied configuration: YAML or JSON, of the right kind and name.
fn configuration(call: &Call, bytes: &Bytes) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))?;
    let (mut applied, faults) = if text.trim_start().starts_with('{') {
        decode::json_with_duplicates(bytes).map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))?
    } else {
        decode::yaml_with_duplicates(text).map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))?
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
    let unknown = structural::prune(&call.version().schema(), &mut applied);
    decode::report(call, &faults, |faults| {
        ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: strict decoding error: {faults}",
            call.target.version,
            kind = call.resource.kind
        ))
    })?;
    if unknown.is_empty() { Ok(applied) } else { Err(undeclared(call, &applied, &unknown)) }
}

/// Nobody can own a field that the schema does not have, whatever the client thinks of unknown fields.
fn undeclared(call: &Call, applied: &Value, unknown: &[String]) -> ApiError {
    let each: Vec<String> = unknown.iter().map(|path| format!(".{path}: field not declared in schema")).collect();
    let faults = if each.len() == 1 { each.concat() } else { format!("errors:\n  {}", each.join("\n  ")) };
    let namespace = call.namespace().map(|n| format!("{n}/")).unwrap_or_default();
    let (api_version, kind, name) = (call.api_version(), &call.resource.kind, object::name(applied));
    // Upstream has no better code than 500 for it; who sent it is at fault.
    ApiError::bad_request(format!(
        "failed to create typed patch object ({namespace}{name}; {api_version}, Kind={kind}): {faults}"
    ))
}

fn refusal(error: ApplyError) -> ApiError {
    let message = error.to_string();
    if !matches!(error, ApplyError::Conflicts(_)) {
        return ApiError::bad_request(message);
    }
    let mut refused = ApiError::new(409, "Conflict", message);
    let causes = error.causes();
    let causes: Vec<Value> =
        causes.iter().map(|c| json!({"reason": c.kind.as_str(), "message": c.message, "field": c.field})).collect();
    refused.body["details"] = json!({"causes": causes});
    refused
}
