//! Server-side apply: who set which field, and what follows from it.
//!
//! Every write names a manager. `managedFields` records for each the fields it set: an applier owns what its last
//! configuration said ([`apply`]), any other writer what it changed ([`track_update`]). To apply is to merge the
//! configuration into the object, to take out what the same manager applied before and nobody else owns, and to refuse
//! where another manager owns a field with another value, unless forced.
//!
//! ```text
//!  live ----merge----> merged ----remove what is no longer applied----> result
//!    ^                   |
//!    +---- changed? -----+---> owned by others: conflict, or taken over by force
//! ```
//!
//! The sets are kept as if all versions of a resource had the same shape; a resource with converting versions has to
//! convert before it calls.

mod field_set;
mod managers;
mod merge;
mod walk;

use serde_json::Value;

pub use field_set::FieldSet;

use crate::cause::{Cause, CauseKind};
use crate::patch::depth;
use crate::structural::{MAX_DEPTH, Schema};
use managers::{Entry, Operation};

/// Who writes, through which version of the API, and when (RFC 3339; this crate has no clock).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manager {
    pub name: String,
    pub api_version: String,
    pub subresource: Option<String>,
    pub time: String,
}

/// A field that another manager owns with another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// As shown to users, e.g. `"kubectl-edit" using apps/v1`.
    pub manager: String,
    /// E.g. `.spec.containers[name="a"].image`.
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// 409; see [`ApplyError::causes`].
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// 400.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// 400.
    #[error("the applied configuration is not an object")]
    NotAnObject,
    /// 400.
    #[error("the object nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

impl ApplyError {
    /// `Status.details.causes` of a conflict.
    pub fn causes(&self) -> Vec<Cause> {
        let ApplyError::Conflicts(conflicts) = self else {
            return Vec::new();
        };
        let cause = |c: &Conflict| Cause {
            kind: CauseKind::FieldManagerConflict,
            field: c.path.clone(),
            message: format!("conflict with {}", c.manager),
        };
        conflicts.iter().map(cause).collect()
    }
}

/// Applies a configuration and returns the new object with its `managedFields`.
///
/// What the endpoint does not let a client set (such as `status` on the main resource) has to be out of `applied`
/// already, since everything in it becomes owned. Nulls in it count as absent.
pub fn apply(
    schema: &Schema,
    live: Option<&Value>,
    applied: &Value,
    manager: &Manager,
    force: bool,
) -> Result<Value, ApplyError> {
    if !applied.is_object() {
        return Err(ApplyError::NotAnObject);
    }
    if applied.pointer("/metadata/managedFields").and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
        return Err(ApplyError::ManagedFields);
    }
    if depth(applied, 0) > MAX_DEPTH || live.is_some_and(|live| depth(live, 0) > MAX_DEPTH) {
        return Err(ApplyError::TooDeep);
    }
    let node = Some(&*schema.root);
    let nothing = Value::Object(serde_json::Map::new());
    let live = live.unwrap_or(&nothing);
    let mut entries = managers::read(live);
    let live = without_managed_fields(live);
    let applied = without_nulls(&without_managed_fields(applied));

    let wanted = tracked(walk::fields_of(node, &applied, 0));
    let mine = entries.iter().position(|e| e.is_of(manager, Operation::Apply)).map(|at| entries.remove(at));
    let before = mine.as_ref().map(|e| e.fields.clone()).unwrap_or_default();

    let merged = merge::merge(node, &live, &applied, 0);
    let touched = walk::changed(node, &live, &merged, 0);
    let mut conflicts = Vec::new();
    for entry in &mut entries {
        let contested = entry.fields.common(&touched);
        if contested.is_empty() {
            continue;
        }
        if force {
            entry.fields = entry.fields.without(&contested);
        } else {
            let shown = entry.shown();
            conflicts.extend(contested.paths().into_iter().map(|path| Conflict { manager: shown.clone(), path }));
        }
    }
    if !conflicts.is_empty() {
        return Err(ApplyError::Conflicts(conflicts));
    }

    let mut kept = wanted.clone();
    entries.iter().for_each(|entry| kept.add(&entry.fields));
    let gone = before.without(&wanted);
    let mut result = merge::remove(node, &merged, &gone, &kept, 0).unwrap_or(nothing);
    for entry in &mut entries {
        entry.fields = walk::existing(&entry.fields, node, &result, 0);
    }
    // A repeated apply must not make a new revision, so the time only moves with the content.
    let time = match mine {
        Some(old) if old.fields == wanted && result == live && old.api_version == manager.api_version => old.time,
        _ => manager.time.clone(),
    };
    entries.push(Entry {
        manager: manager.name.clone(),
        operation: Operation::Apply,
        api_version: manager.api_version.clone(),
        subresource: manager.subresource.clone().unwrap_or_default(),
        time,
        fields: wanted,
    });
    managers::write(&mut result, entries);
    Ok(result)
}

/// Records in `new` what a create, update or patch changed. `new` is the object about to be stored.
///
/// The writer owns what it added or changed, others lose that, and fields that are gone belong to nobody.
pub fn track_update(schema: &Schema, old: Option<&Value>, new: &mut Value, manager: &Manager) {
    if depth(new, 0) > MAX_DEPTH || old.is_some_and(|old| depth(old, 0) > MAX_DEPTH) {
        return;
    }
    let node = Some(&*schema.root);
    // A writer may send `managedFields` to move ownership; leaving them out changes nothing.
    let mut entries = managers::read(new);
    if managers::is_reset(new) {
        entries = Vec::new();
    } else if entries.is_empty()
        && let Some(old) = old
    {
        entries = managers::read(old);
    }
    let after = without_managed_fields(new);
    let before = old.map_or_else(|| Value::Object(serde_json::Map::new()), without_managed_fields);

    let touched = tracked(walk::changed(node, &before, &after, 0));
    let mine = entries.iter().position(|e| e.is_of(manager, Operation::Update)).map(|at| entries.remove(at));
    for entry in &mut entries {
        entry.fields = walk::existing(&entry.fields.without(&touched), node, &after, 0);
    }
    let had = mine.as_ref().map(|e| e.fields.clone()).unwrap_or_default();
    let mut fields = had.clone();
    fields.add(&touched);
    let fields = walk::existing(&fields, node, &after, 0);
    let time = match mine {
        Some(old) if touched.is_empty() && fields == had => old.time,
        _ => manager.time.clone(),
    };
    entries.push(Entry {
        manager: manager.name.clone(),
        operation: Operation::Update,
        api_version: manager.api_version.clone(),
        subresource: manager.subresource.clone().unwrap_or_default(),
        time,
        fields,
    });
    managers::write(new, entries);
}

/// Leaves out what the server itself sets and nobody owns.
fn tracked(mut set: FieldSet) -> FieldSet {
    set.own = false;
    set.children.remove("f:apiVersion");
    set.children.remove("f:kind");
    if let Some(metadata) = set.children.get_mut("f:metadata") {
        metadata.own = false;
        for name in [
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "generation",
            "managedFields",
            "resourceVersion",
        ] {
            metadata.children.remove(&format!("f:{name}"));
        }
        if metadata.is_empty() {
            set.children.remove("f:metadata");
        }
    }
    set
}

fn without_managed_fields(object: &Value) -> Value {
    let mut out = object.clone();
    if let Some(Value::Object(metadata)) = out.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    out
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, v)| !v.is_null());
            Value::Object(kept.map(|(name, v)| (name.clone(), without_nulls(v))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager, one.path);
    }
    let mut managers: Vec<&str> = conflicts.iter().map(|c| c.manager.as_str()).collect();
    managers.sort_unstable();
    managers.dedup();
    let mut lines = Vec::new();
    for manager in managers {
        lines.push(format!("conflicts with {manager}:"));
        lines.extend(conflicts.iter().filter(|c| c.manager == manager).map(|c| format!("- {}", c.path)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}
