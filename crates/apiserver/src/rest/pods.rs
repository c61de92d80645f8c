//! Subresources that only pods have: binding to a node, eviction.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Call, decode, delete, update};
use crate::http::body::{self, Body};
use crate::object::{self, at, field_map, text};
use crate::status::ApiError;

fn done(code: StatusCode) -> Response<Body> {
    body::json(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code.as_u16()}),
    )
}

/// The scheduler's word: this pod runs on that node.
pub async fn bind(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let (binding, _) = decode::any(call, &bytes)?;
    let node = text(&binding, &["target", "name"]).to_owned();
    if node.is_empty() {
        return Err(ApiError::bad_request("target.name: Required value"));
    }
    let call = call.without_subresource();
    let subject = || call.resource.subject(call.name());
    update::modify_internal(&call, |pod| {
        if at(pod, &["metadata", "deletionTimestamp"]).is_some_and(Value::is_string) {
            return Err(ApiError::conflict(
                subject(),
                &format!("pod {} is being deleted, cannot be assigned to a host", call.name()),
            ));
        }
        let assigned = text(pod, &["spec", "nodeName"]);
        if !assigned.is_empty() {
            return Err(ApiError::conflict(
                subject(),
                &format!("pod {} is already assigned to node \"{assigned}\"", call.name()),
            ));
        }
        let mut bound = pod.clone();
        field_map(&mut bound, "spec").insert("nodeName".into(), node.clone().into());
        object::set_condition(&mut bound, "PodScheduled", "True", "", "");
        if let Some(condition) = bound["status"]["conditions"]
            .as_array_mut()
            .and_then(|c| c.iter_mut().find(|c| c["type"] == "PodScheduled"))
            && let Some(map) = condition.as_object_mut()
        {
            map.remove("reason");
            map.remove("message");
        }
        Ok(bound)
    })
    .await?;
    Ok(done(StatusCode::CREATED))
}

/// Deletes the pod as an eviction asks. Budgets are the business of whoever asks, until they are enforced here.
pub async fn evict(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let (eviction, _) = decode::any(call, &bytes)?;
    let options = eviction.get("deleteOptions").cloned().unwrap_or_else(|| json!({}));
    let mut call = call.without_subresource();
    call.headers.remove(http::header::CONTENT_TYPE);
    delete::delete(&call, options.to_string().into()).await?;
    Ok(done(StatusCode::CREATED))
}
