//! The three ways a client changes a document without sending all of it.
//!
//! A patch that fails leaves the document as it was.

mod json;
mod strategic;

use serde_json::{Map, Value};

pub use json::json_patch;
pub use strategic::strategic_merge;

use crate::structural::MAX_DEPTH;

/// Why a patch was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself makes no sense: a 400.
    #[error("{0}")]
    Malformed(String),
    /// 413 in Kubernetes.
    #[error("The allowed maximum operations in a JSON patch is {max}, got {got}")]
    TooManyOperations { max: usize, got: usize },
    #[error("{0}: missing value")]
    Missing(String),
    #[error("testing value {0} failed: test failed")]
    TestFailed(String),
    #[error("{0}: invalid index referenced")]
    Index(String),
    #[error("Unable to complete the copy, the accumulated size increase of copy is {0}, exceeding the limit")]
    CopyLimit(usize),
    #[error("{0}")]
    Strategic(String),
    #[error("the document would nest deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

impl PatchError {
    /// Whether the patch could not even be read, as opposed to not fitting the document.
    pub fn is_malformed(&self) -> bool {
        matches!(self, PatchError::Malformed(_) | PatchError::TooManyOperations { .. })
    }
}

/// RFC 7386: objects are merged, null removes, everything else replaces.
pub fn merge_patch(document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    if depth(patch, 0) > MAX_DEPTH {
        return Err(PatchError::TooDeep);
    }
    merge(document, patch);
    Ok(())
}

fn merge(document: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *document = patch.clone();
        return;
    };
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    let Value::Object(fields) = document else {
        return;
    };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}

/// How deep a value nests. Stops counting past the limit, and so never recurses deeper than that.
pub(crate) fn depth(value: &Value, above: usize) -> usize {
    if above > MAX_DEPTH {
        return above;
    }
    match value {
        Value::Array(list) => list.iter().map(|v| depth(v, above + 1)).max().unwrap_or(above + 1),
        Value::Object(fields) => fields.values().map(|v| depth(v, above + 1)).max().unwrap_or(above + 1),
        _ => above,
    }
}
