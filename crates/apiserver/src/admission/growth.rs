//! Claims grow only where their class lets them, as upstream's `PersistentVolumeClaimResize` has it.

use ferrovirt_schema::Quantity;
use ferrovirt_store::Key;
use serde_json::Value;

use crate::object::{name, text};
use crate::rest::Call;
use crate::status::ApiError;
use crate::storage::parse;

const CLASSES: &str = "storage.k8s.io/storageclasses";

/// Refuses a change by which a claim asks for more than its class gives. An unbound claim's size cannot be changed at all.
pub fn check(call: &Call, old: &Value, new: &Value) -> Result<(), ApiError> {
    let is_claim = call.resource.group.is_empty() && call.resource.plural == "persistentvolumeclaims";
    if !is_claim || !call.subresource().is_empty() {
        return Ok(());
    }
    let size = |claim: &Value| Quantity::parse(text(claim, &["spec", "resources", "requests", "storage"])).ok();
    let grows = matches!((size(old), size(new)), (Some(old), Some(new)) if new > old);
    if !grows || lets_grow(call, old, new) {
        return Ok(());
    }
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    Err(ApiError::forbidden(call.resource.subject(name(new)), why))
}

fn lets_grow(call: &Call, old: &Value, new: &Value) -> bool {
    let class = text(new, &["spec", "storageClassName"]);
    if class.is_empty() || class != text(old, &["spec", "storageClassName"]) {
        return false;
    }
    let class = call.server.store.get(CLASSES, &Key::new("", class)).and_then(|entry| parse(&entry).ok());
    class.is_some_and(|class| class["allowVolumeExpansion"] == true)
}
