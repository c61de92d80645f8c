//! Subresources that only pods have: binding to a node, eviction.

use bytes::Bytes;
use ferrovirt_schema::Cause;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Call, budget, decode, delete, update};
use crate::admission::{self, Operation};
use crate::http::body::{self, Body};
use crate::object::{self, at, field_map, items_mut, text};
use crate::status::{ApiError, Subject};
use crate::storage;

/// Fields of a pod's spec that may change, and nothing else may.
const CHANGES: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Rules of pods beyond their schema.
pub fn validate(pod: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    if at(pod, &["spec", "containers"]).and_then(Value::as_array).is_none_or(Vec::is_empty) {
        causes.push(Cause::required("spec.containers", ""));
    }
    for list in ["containers", "initContainers"] {
        let mut names: Vec<&str> = Vec::new();
        for (index, container) in at(pod, &["spec", list]).and_then(Value::as_array).into_iter().flatten().enumerate() {
            let name = text(container, &["name"]);
            if name.is_empty() {
                causes.push(Cause::required(format!("spec.{list}[{index}].name"), ""));
            } else if names.contains(&name) {
                causes.push(Cause::duplicate(format!("spec.{list}[{index}].name"), &json!(name)));
            }
            names.push(name);
        }
    }
    if old.is_none() {
        if at(pod, &["spec", "ephemeralContainers"]).and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
            causes.push(Cause::forbidden("spec.ephemeralContainers", "cannot be set on create"));
        }
        causes.extend(super::pod_rules::validate(pod));
    }
    if let Some(old) = old {
        causes.extend(deadline_faults(pod, old));
        if frozen(old, old) != frozen(pod, old) {
            causes.push(Cause::forbidden("spec", CHANGES));
        }
    }
    causes
}

/// A deadline may come, and come nearer.
fn deadline_faults(pod: &Value, old: &Value) -> Option<Cause> {
    let field = "spec.activeDeadlineSeconds";
    let seconds = |pod: &Value| at(pod, &["spec", "activeDeadlineSeconds"]).and_then(Value::as_i64);
    let before = seconds(old)?;
    match seconds(pod) {
        Some(now) if now > before => {
            Some(Cause::invalid(field, &json!(now), "must be less than or equal to previous value"))
        }
        Some(_) => None,
        None => Some(Cause::invalid(field, &Value::Null, "must not update from a positive integer to nil value")),
    }
}

/// The part of a pod's spec that cannot change. Nodes are assigned by [`bind`].
fn frozen(pod: &Value, old: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    for list in ["containers", "initContainers"] {
        items_mut(&mut spec, list).filter_map(Value::as_object_mut).for_each(|container| {
            container.remove("image");
        });
    }
    let before = at(old, &["spec", "tolerations"]).and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(map) = spec.as_object_mut() {
        for key in ["activeDeadlineSeconds", "schedulingGates"] {
            map.remove(key);
        }
        if at(old, &["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64).is_some_and(|s| s < 0) {
            map.remove("terminationGracePeriodSeconds");
        }
        // Additions fall out of the comparison; what was there has to stay.
        let now = map.remove("tolerations").and_then(|t| t.as_array().cloned()).unwrap_or_default();
        let kept: Vec<Value> = before.into_iter().filter(|t| now.contains(t)).collect();
        map.insert("tolerations".into(), kept.into());
    }
    spec
}

/// What a subresource is told has to be about the pod that it is told.
fn check_name(call: &Call, object: &Value, kind: &str) -> Result<(), ApiError> {
    if object::name(object) == call.name() {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("name in URL does not match name in {kind} object")))
}

fn done(code: StatusCode) -> Response<Body> {
    body::json(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code.as_u16()}),
    )
}

/// The scheduler's word: this pod runs on that node.
pub async fn bind(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let (binding, _) = decode::any(call, &bytes)?;
    check_name(call, &binding, "Binding")?;
    let kind = text(&binding, &["target", "kind"]);
    if !matches!(kind, "" | "Node") {
        let supported = [json!("Node"), json!("<empty>")];
        let cause = Cause::not_supported("target.kind", &json!(kind), &supported);
        let subject = Subject { group: "", kind: "Binding", name: call.name() };
        return Err(ApiError::invalid(subject, &[cause]));
    }
    let node = text(&binding, &["target", "name"]).to_owned();
    if node.is_empty() {
        return Err(ApiError::bad_request("target.name: Required value"));
    }
    let uid = text(&binding, &["metadata", "uid"]);
    let call = call.without_subresource();
    let subject = || call.resource.subject(call.name());
    update::modify_internal(&call, |pod| {
        let actual = text(pod, &["metadata", "uid"]);
        if !uid.is_empty() && uid != actual {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}");
            return Err(ApiError::conflict(subject(), &why));
        }
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

/// Deletes the pod as an eviction asks, if its disruption budget allows it.
pub async fn evict(call: &Call, bytes: Bytes) -> Result<Response<Body>, ApiError> {
    let (mut eviction, _) = decode::any(call, &bytes)?;
    admission::mutate(call, Operation::Create, &mut eviction, None).await?;
    check_name(call, &eviction, "Eviction")?;
    admission::validate(call, Operation::Create, Some(&eviction), None).await?;
    let options = eviction.get("deleteOptions").cloned().unwrap_or_else(|| json!({}));
    let mut call = call.without_subresource();
    call.headers.remove(http::header::CONTENT_TYPE);
    let key = storage::key(&call.resource, call.namespace(), call.name());
    let pod = call.server.store.get(&call.resource.storage, &key).ok_or_else(|| call.not_found())?;
    // Counts as gone from now on, until it is marked or the deletion was refused: webhooks may take their time over that, and
    // nobody else waits for them.
    let _granted = budget::grant(&call, &pod)?;
    delete::delete(&call, options.to_string().into()).await?;
    Ok(done(StatusCode::CREATED))
}
