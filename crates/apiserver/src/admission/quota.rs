//! Resource quotas: refuses what would exceed one.

use serde_json::Value;

use crate::object::name;
use crate::quota::{self, Amounts};
use crate::rest::Call;
use crate::status::ApiError;

/// Held until the object is stored, so that two writes never share the last of a quota.
pub type Turn<'a> = Option<tokio::sync::MutexGuard<'a, ()>>;

/// Checks the quotas of the namespace. The caller keeps the turn until the commit is done.
pub async fn admit<'a>(call: &'a Call, object: &Value, old: Option<&Value>) -> Result<Turn<'a>, ApiError> {
    let Some(namespace) = call.namespace().filter(|_| call.subresource().is_empty()) else {
        return Ok(None);
    };
    if call.server.store.count(quota::STORAGE) == 0 {
        return Ok(None);
    }
    let turn = call.server.quotas.turn.lock().await;
    let quotas = quota::quotas(&call.server, namespace);
    let delta = added(call, object, old);
    if quotas.is_empty() || delta.is_empty() {
        return Ok(None);
    }
    for quota in quotas.iter().filter(|q| quota::in_scope(q, &call.resource, object)) {
        if !quota::hard(quota).keys().any(|limit| delta.contains_key(limit) || is_compute_of_pod(call, limit)) {
            continue;
        }
        let used = quota::used(&call.server, namespace, quota);
        if let Some(why) = quota::refusal(&call.resource, quota, &used, object, &delta) {
            return Err(ApiError::forbidden(call.resource.subject(name(object)), &why));
        }
    }
    Ok(Some(turn))
}

/// A pod that mentions no CPU adds none, but a quota of CPU wants it mentioned.
fn is_compute_of_pod(call: &Call, limit: &str) -> bool {
    call.resource.special == crate::registry::Special::Pod && (limit.ends_with("cpu") || limit.ends_with("memory"))
}

/// What the write adds. An update adds the difference.
fn added(call: &Call, object: &Value, old: Option<&Value>) -> Amounts {
    let mut delta = quota::usage(&call.resource, object);
    if let Some(old) = old {
        for (name, before) in quota::usage(&call.resource, old) {
            if let Some(now) = delta.get_mut(&name) {
                *now = now.minus(before);
            }
        }
    }
    delta.retain(|_, more| *more > ferrovirt_schema::Quantity::ZERO);
    delta
}
