//! Resource quotas: refuses what would exceed one.

use serde_json::Value;

use crate::object::name;
use crate::quota::{Asked, Room};
use crate::rest::Call;
use crate::status::ApiError;

/// Asks the quotas of the namespace. The caller keeps the room until the object is stored, or cannot be.
pub async fn admit(call: &Call, object: &Value, old: Option<&Value>) -> Result<Option<Room>, ApiError> {
    let Some(namespace) = call.namespace().filter(|_| call.subresource().is_empty()) else {
        return Ok(None);
    };
    // Events have two names and are counted once, whichever is used.
    let snapshot = call.server.registry.snapshot();
    let owner = snapshot.iter().find(|r| r.storage == call.resource.storage && !r.shares_storage());
    let resource = owner.filter(|_| call.resource.shares_storage()).unwrap_or(&call.resource);
    let asked = Asked { resource, object, old };
    let room = call.server.quotas.reserve(&call.server, namespace, asked).await;
    room.map_err(|why| ApiError::forbidden(call.resource.subject(name(object)), &why))
}
