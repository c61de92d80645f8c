//! The last steps of every write: checks that all writes share, the store, and what follows from a change.

use bytes::Bytes;
use ferrovirt_schema::{Cause, CauseKind, structural};
use ferrovirt_store::{Change, CommitError, Expect};
use serde_json::Value;

use super::effects::{self, Kept};
use super::{Call, metadata, respond, strategy};
use crate::admission;
use crate::crd::conversion;
use crate::registry::Resource;
use crate::status::ApiError;
use crate::storage::{self, Encoded, Entry};

/// What came of a conditional write.
pub enum Outcome {
    Done(Bytes),
    /// Somebody else was faster.
    Conflict,
}

/// Schema, metadata and kind-specific validation.
pub fn validate(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let resource: &Resource = &call.resource;
    let name = crate::object::name(object);
    let mut causes = metadata::validate(resource, object, old);
    let schema = call.version().schema();
    let mut from_schema = match old {
        Some(old) if resource.custom => structural::validate_update(&schema, object, old),
        _ => structural::validate(&schema, object),
    };
    if !resource.custom {
        // Where built-in lists hold something once, the rules of their kind say so, if anything does.
        from_schema.retain(|c| c.kind != CauseKind::FieldValueDuplicate);
        if super::rarer_rules::complete(&resource.kind) {
            from_schema.retain(|c| c.kind != CauseKind::FieldValueRequired);
        }
        // An empty text is none where rules look for it, and they say so themselves.
        if matches!(resource.kind.as_str(), "RoleBinding" | "ClusterRoleBinding") {
            from_schema.retain(|c| c.kind != CauseKind::FieldValueRequired || !c.field.starts_with("roleRef"));
        }
        // Structs that Go always has are there with nothing in them, and nobody asks for more: a node's endpoints, for one.
        if resource.kind == "Node" {
            from_schema.retain(|c| c.kind != CauseKind::FieldValueRequired || !c.field.starts_with("status."));
        }
        // A wrong type does not get past decoding upstream, which is a 400 and not a 422.
        if let Some(cause) = from_schema.iter().find(|c| c.kind == CauseKind::FieldValueTypeInvalid) {
            if call.verb == "patch" && super::patch::Kind::of(call).is_ok_and(|kind| kind != super::patch::Kind::Apply)
            {
                return Err(super::patch::unfit(object, &cause.to_string()));
            }
            return Err(ApiError::bad_request(format!(
                "{kind} in version \"{}\" cannot be handled as a {kind}: {cause}",
                call.target.version,
                kind = resource.kind
            )));
        }
    }
    // Rules are written for objects that have the shape of the schema. Values that it does not allow do no harm to them.
    let misshapen = from_schema.iter().any(|cause| {
        matches!(
            cause.kind,
            CauseKind::FieldValueNotSupported
                | CauseKind::FieldValueRequired
                | CauseKind::FieldValueTooLong
                | CauseKind::FieldValueTooMany
                | CauseKind::FieldValueTypeInvalid
        )
    });
    causes.extend(from_schema);
    if let Some(rules) = &call.version().rules {
        if misshapen {
            let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            causes.push(Cause::invalid("<nil>", &Value::Null, why));
        } else {
            causes.extend(rules.check(object, old));
        }
    }
    for cause in strategy::validate(call, object, old) {
        // What the schema misses, too, is said once.
        let same = |c: &Cause| c.field == cause.field && c.kind == CauseKind::FieldValueRequired;
        if cause.kind != CauseKind::FieldValueRequired || !causes.iter().any(same) {
            causes.push(cause);
        }
    }
    if resource.group == "apps" && !resource.custom {
        // The pods of a workload are looked at after it, and what has changed after that.
        let daemons = resource.kind == "DaemonSet";
        causes.retain(|c| !(daemons && c.field == "spec.selector" && c.kind == CauseKind::FieldValueRequired));
        causes.sort_by_key(|c| {
            let changed = c.field == "spec" || c.message.ends_with("field is immutable");
            match (c.field.contains(".template.spec."), changed) {
                (false, true) if daemons => 0,
                (false, false) => 1,
                (true, _) => 2,
                (false, true) => 3,
            }
        });
    }
    refuse(call, name, &causes)
}

fn refuse(call: &Call, name: &str, causes: &[Cause]) -> Result<(), ApiError> {
    if causes.is_empty() { Ok(()) } else { Err(ApiError::invalid(call.resource.kind_subject(name), causes)) }
}

/// The stored form of an object that is in the request's version.
pub async fn encode(call: &Call, object: &Value) -> Result<Encoded, ApiError> {
    if call.resource.conversion.is_some() {
        let storage = call.resource.storage_api_version();
        let stored = conversion::value(&call.server, &call.resource, object, &storage).await?;
        return storage::encode(&stored, &storage);
    }
    if call.version().renames.is_empty() && call.version().reshape.is_none() {
        return storage::encode(object, &call.resource.storage_api_version());
    }
    let mut stored = object.clone();
    respond::convert_to_storage(&call.resource, call.version(), &mut stored);
    storage::encode(&stored, &call.resource.storage_api_version())
}

/// Stores a new object, if its namespace and its kind are still there to stay: since they were looked at, webhooks had time.
pub async fn insert(call: &Call, object: &Value, dry_run: bool, kept: Kept) -> Result<Outcome, ApiError> {
    let encoded = encode(call, object).await?;
    let key = storage::key(&call.resource, call.namespace(), crate::object::name(object));
    if dry_run {
        return Ok(match call.server.store.get(&call.resource.storage, &key) {
            Some(_) => Outcome::Conflict,
            None => Outcome::Done(storage::spliced(&encoded, None)),
        });
    }
    let write = storage::write(&call.resource, key, Expect::Absent, Change::Put(encoded));
    match effects::commit(call, write, admission::lifecycle_conditions(call), kept).await {
        Ok(entry) => Ok(Outcome::Done(entry.bytes.clone())),
        Err(CommitError::Conflict { .. }) => Ok(Outcome::Conflict),
        Err(CommitError::Unmet) => Err(admission::lifecycle_refusal(call, object)),
        Err(error) => Err(storage::store_error(&error)),
    }
}

/// Stores the successor of an entry; a successor that is equal is not stored.
pub async fn replace(
    call: &Call,
    entry: &Entry,
    object: &Value,
    dry_run: bool,
    kept: Kept,
) -> Result<Outcome, ApiError> {
    let encoded = encode(call, object).await?;
    if dry_run || storage::same(entry, &encoded) {
        return Ok(Outcome::Done(storage::spliced(&encoded, Some(entry.revision))));
    }
    let write =
        storage::write(&call.resource, entry.key.clone(), Expect::Revision(entry.revision), Change::Put(encoded));
    match effects::commit(call, write, Vec::new(), kept).await {
        Ok(entry) => Ok(Outcome::Done(entry.bytes.clone())),
        Err(CommitError::Conflict { .. }) => Ok(Outcome::Conflict),
        Err(error) => Err(storage::store_error(&error)),
    }
}

/// Removes an entry for good. `last` is what watchers see of it.
pub async fn remove(call: &Call, entry: &Entry, last: &Value, dry_run: bool) -> Result<Outcome, ApiError> {
    let encoded = encode(call, last).await?;
    if dry_run {
        return Ok(Outcome::Done(storage::spliced(&encoded, Some(entry.revision))));
    }
    let change = Change::Delete { last: encoded };
    let write = storage::write(&call.resource, entry.key.clone(), Expect::Revision(entry.revision), change);
    match effects::commit(call, write, Vec::new(), Kept::default()).await {
        Ok(entry) => Ok(Outcome::Done(entry.bytes.clone())),
        Err(CommitError::Conflict { current: None }) => Err(call.not_found()),
        Err(CommitError::Conflict { .. }) => Ok(Outcome::Conflict),
        Err(error) => Err(storage::store_error(&error)),
    }
}
