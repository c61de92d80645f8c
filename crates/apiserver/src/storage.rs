//! Objects in the store: their encoding, and what is kept parsed beside the bytes.
//!
//! The encoding puts `apiVersion`, `kind` and `metadata` first and `resourceVersion` last in the metadata. So the store can
//! splice the revision, and another version of the same kind is served by exchanging the first few bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use ferrovirt_store::{Change, CommitError, Durability, Expect, Key, Meta, Write};
use serde::Deserialize;
use serde_json::Value;

use crate::http::body::MAX_BODY;
use crate::registry::Resource;
use crate::status::ApiError;

pub type Store = ferrovirt_store::Store<ObjectMeta>;
pub type Entry = ferrovirt_store::Entry<ObjectMeta>;
pub type Encoded = ferrovirt_store::Value<ObjectMeta>;

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// What selectors, garbage collection and deletion need of an object without parsing it.
#[derive(Debug, Clone, Default)]
pub struct ObjectMeta {
    pub uid: Arc<str>,
    pub deleting: bool,
    labels: Option<Arc<BTreeMap<String, String>>>,
    owners: Option<Arc<[Owner]>>,
    finalizers: Option<Arc<[String]>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Owner {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub controller: Option<bool>,
    pub block_owner_deletion: Option<bool>,
}

impl ObjectMeta {
    pub fn labels(&self) -> &BTreeMap<String, String> {
        self.labels.as_deref().unwrap_or(&NO_LABELS)
    }

    pub fn owners(&self) -> &[Owner] {
        self.owners.as_deref().unwrap_or_default()
    }

    pub fn finalizers(&self) -> &[String] {
        self.finalizers.as_deref().unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct Outline {
    metadata: MetadataOutline,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct MetadataOutline {
    uid: String,
    labels: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<Owner>>,
    finalizers: Option<Vec<String>>,
    deletion_timestamp: Option<String>,
}

impl From<MetadataOutline> for ObjectMeta {
    fn from(outline: MetadataOutline) -> Self {
        Self {
            uid: outline.uid.into(),
            deleting: outline.deletion_timestamp.is_some(),
            labels: outline.labels.filter(|l| !l.is_empty()).map(Arc::new),
            owners: outline.owner_references.filter(|o| !o.is_empty()).map(Into::into),
            finalizers: outline.finalizers.filter(|f| !f.is_empty()).map(Into::into),
        }
    }
}

impl Meta for ObjectMeta {
    type Error = serde_json::Error;

    fn from_bytes(_resource: &str, bytes: &[u8]) -> Result<Self, Self::Error> {
        serde_json::from_slice::<Outline>(bytes).map(|o| o.metadata.into())
    }
}

/// Stored objects nest no deeper, so that they can always be read again, also inside of lists and events: the JSON parser
/// stops at 128 levels.
const MAX_DEPTH: usize = 120;

/// Encodes an object in the version it is stored in.
pub fn encode(object: &Value, api_version: &str) -> Result<Encoded, ApiError> {
    if !nests_within(object, MAX_DEPTH) {
        return Err(ApiError::bad_request(format!("the object nests deeper than {MAX_DEPTH} levels")));
    }
    let meta = MetadataOutline::deserialize(&object["metadata"])
        .map_err(|e| ApiError::bad_request(format!("metadata: {e}")))?
        .into();
    let mut head = BytesMut::with_capacity(512);
    head.put_slice(b"{\"apiVersion\":");
    put(&mut head, &Value::from(api_version))?;
    head.put_slice(b",\"kind\":");
    put(&mut head, &object["kind"])?;
    head.put_slice(b",\"metadata\":{");
    for (key, value) in object["metadata"].as_object().into_iter().flatten() {
        if key != "resourceVersion" {
            put_key(&mut head, key)?;
            put(&mut head, value)?;
            head.put_u8(b',');
        }
    }
    head.put_slice(b"\"resourceVersion\":\"");
    let mut tail = BytesMut::with_capacity(512);
    tail.put_slice(b"\"}");
    for (key, value) in object.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            tail.put_u8(b',');
            put_key(&mut tail, key)?;
            put(&mut tail, value)?;
        }
    }
    tail.put_u8(b'}');
    // No request is larger, but patches could grow an object step by step.
    if head.len() + tail.len() > MAX_BODY {
        return Err(ApiError::too_large());
    }
    Ok(Encoded { head: head.freeze(), tail: tail.freeze(), meta })
}

fn nests_within(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|v| nests_within(v, levels - 1)),
        Value::Object(map) => levels > 0 && map.values().all(|v| nests_within(v, levels - 1)),
        _ => true,
    }
}

fn put(buffer: &mut BytesMut, value: &Value) -> Result<(), ApiError> {
    serde_json::to_writer(buffer.writer(), value).map_err(|e| ApiError::internal(e.to_string()))
}

fn put_key(buffer: &mut BytesMut, key: &str) -> Result<(), ApiError> {
    serde_json::to_writer((&mut *buffer).writer(), key).map_err(|e| ApiError::internal(e.to_string()))?;
    buffer.put_u8(b':');
    Ok(())
}

/// True if storing `encoded` over `entry` would change nothing but the revision.
pub fn same(entry: &Entry, encoded: &Encoded) -> bool {
    let digits = entry.revision.to_string();
    let bytes = &entry.bytes;
    bytes.len() == encoded.head.len() + digits.len() + encoded.tail.len()
        && bytes.starts_with(&encoded.head)
        && bytes.ends_with(&encoded.tail)
}

/// What the object would look like stored, for dry runs.
pub fn spliced(encoded: &Encoded, revision: Option<u64>) -> Bytes {
    let mut bytes = BytesMut::with_capacity(encoded.head.len() + encoded.tail.len() + 20);
    match revision {
        Some(revision) => {
            bytes.put_slice(&encoded.head);
            bytes.put_slice(revision.to_string().as_bytes());
            bytes.put_slice(&encoded.tail);
        }
        None => {
            // Without the member that would hold the revision.
            let key = b"\"resourceVersion\":\"".len();
            let head = &encoded.head[..encoded.head.len() - key];
            bytes.put_slice(head.strip_suffix(b",").unwrap_or(head));
            bytes.put_slice(&encoded.tail[1..]);
        }
    }
    bytes.freeze()
}

pub fn parse(entry: &Entry) -> Result<Value, ApiError> {
    serde_json::from_slice(&entry.bytes).map_err(|e| ApiError::internal(format!("stored object {}: {e}", entry.key)))
}

pub fn key(resource: &Resource, namespace: Option<&str>, name: &str) -> Key {
    Key::new(if resource.namespaced { namespace.unwrap_or_default() } else { "" }, name)
}

/// A write, with the durability of its resource.
pub fn write(resource: &Resource, key: Key, expect: Expect, change: Change<ObjectMeta>) -> Write<ObjectMeta> {
    let durability = if resource.relaxed { Durability::Relaxed } else { Durability::Synced };
    Write { resource: resource.storage.clone(), key, expect, durability, change }
}

/// Errors of the store other than conflicts, which callers handle.
pub fn store_error(error: &CommitError<ObjectMeta>) -> ApiError {
    match error {
        CommitError::Conflict { .. } | CommitError::Unmet => ApiError::internal("unexpected conflict in the store"),
        CommitError::Full(source) => {
            ApiError::new(507, "InsufficientStorage", format!("the store cannot write: {source}"))
        }
        CommitError::Closed => ApiError::unavailable("the server is shutting down"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn encoding_splices_the_revision() {
        let object = json!({"kind": "X", "apiVersion": "a/v2", "spec": {"b": 1}, "metadata": {"name": "n", "resourceVersion": "3", "labels": {"a": "b"}}});
        let encoded = encode(&object, "a/v1").unwrap();
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        assert_eq!(
            text(spliced(&encoded, Some(7))),
            r#"{"apiVersion":"a/v1","kind":"X","metadata":{"labels":{"a":"b"},"name":"n","resourceVersion":"7"},"spec":{"b":1}}"#
        );
        assert_eq!(
            text(spliced(&encoded, None)),
            r#"{"apiVersion":"a/v1","kind":"X","metadata":{"labels":{"a":"b"},"name":"n"},"spec":{"b":1}}"#
        );
        assert_eq!(encoded.meta.labels()["a"], "b");
    }
}
