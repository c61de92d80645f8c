//! list: selection, chunks, and the promise of a consistent snapshot across chunks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::select::Selection;
use super::{Call, respond};
use crate::crd::conversion;
use crate::http::body::Body;
use crate::http::negotiate::{Encoding, Shape};
use crate::status::ApiError;
use crate::storage::Entry;

/// How long the rest of a chunked list can be fetched (etcd's compaction interval upstream).
const SNAPSHOT_TTL: Duration = Duration::from_secs(300);
const MAX_SNAPSHOTS: usize = 64;

type Items = Arc<[Arc<Entry>]>;

/// What a `continue` token holds.
#[derive(Serialize, Deserialize)]
struct Token {
    v: String,
    /// Revision of the snapshot.
    rv: u64,
    /// The last key that was sent.
    ns: String,
    name: String,
    /// The snapshot is gone and the client agreed to go on with the present state.
    #[serde(default)]
    inconsistent: bool,
}

/// Lists that were sent in part. Entries are shared with the store, so a snapshot costs one pointer per object.
#[derive(Default)]
pub struct Snapshots {
    kept: Mutex<VecDeque<Snapshot>>,
}

struct Snapshot {
    resource: Arc<str>,
    namespace: Option<String>,
    revision: u64,
    until: Instant,
    items: Items,
}

impl Snapshots {
    fn keep(&self, resource: &Arc<str>, namespace: Option<&str>, revision: u64, items: &Items) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        kept.retain(|s| s.until > now);
        if kept.iter().any(|s| s.is(resource, namespace, revision)) {
            return;
        }
        if kept.len() >= MAX_SNAPSHOTS {
            kept.pop_front();
        }
        kept.push_back(Snapshot {
            resource: resource.clone(),
            namespace: namespace.map(str::to_owned),
            revision,
            until: now + SNAPSHOT_TTL,
            items: items.clone(),
        });
    }

    fn find(&self, resource: &Arc<str>, namespace: Option<&str>, revision: u64) -> Option<Items> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        kept.iter().find(|s| s.until > now && s.is(resource, namespace, revision)).map(|s| s.items.clone())
    }
}

impl Snapshot {
    fn is(&self, resource: &Arc<str>, namespace: Option<&str>, revision: u64) -> bool {
        self.revision == revision && self.resource == *resource && self.namespace.as_deref() == namespace
    }
}

/// A page of a list.
struct Page {
    revision: u64,
    entries: Vec<Arc<Entry>>,
    next: Option<String>,
    remaining: Option<usize>,
}

pub async fn list(call: &Call) -> Result<Response<Body>, ApiError> {
    super::options::check_list(call)?;
    let selection = Selection::of(call)?;
    let page = page(call, &selection).await?;
    let mut meta = json!({"resourceVersion": page.revision.to_string()});
    if let Some(next) = &page.next {
        meta["continue"] = next.as_str().into();
    }
    if let Some(remaining) = page.remaining {
        meta["remainingItemCount"] = remaining.into();
    }
    respond::check_include(call)?;
    if call.accept.shape == Shape::PartialMetadata {
        return Err(ApiError::not_acceptable_because(format!(
            "you requested PartialObjectMetadata, but the requested object is a list ({})",
            call.resource.list_kind
        )));
    }
    let bytes = document(call, meta, &page.entries)?;
    respond::encoded(call, StatusCode::OK, bytes)
}

/// The list document, written item by item: as values, all of them together would take many times the room of their bytes.
fn document(call: &Call, meta: Value, entries: &[Arc<Entry>]) -> Result<Bytes, ApiError> {
    let (head, field) = match call.accept.shape {
        Shape::Table => (respond::table_head(call, meta, true), "rows"),
        Shape::PartialMetadata | Shape::PartialMetadataList => {
            let api_version = format!("meta.k8s.io/{}", call.accept.meta_version);
            (json!({"kind": "PartialObjectMetadataList", "apiVersion": api_version, "metadata": meta}), "items")
        }
        Shape::Object => {
            (json!({"kind": call.resource.list_kind, "apiVersion": call.api_version(), "metadata": meta}), "items")
        }
    };
    let head = head.to_string();
    let size: usize = match call.accept.shape {
        Shape::Object => entries.iter().map(|entry| entry.bytes.len() + 1).sum(),
        _ => 0,
    };
    let mut bytes = BytesMut::with_capacity(size + 256);
    bytes.put_slice(head.strip_suffix('}').unwrap_or(&head).as_bytes());
    bytes.put_slice(format!(",\"{field}\":[").as_bytes());
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            bytes.put_u8(b',');
        }
        let object = respond::entry(&call.resource, call.version(), entry)?;
        match call.accept.shape {
            Shape::Object => match kindless(&object).filter(|_| !call.resource.custom) {
                Some(rest) => {
                    bytes.put_u8(b'{');
                    bytes.put_slice(rest);
                }
                None => bytes.put_slice(&object),
            },
            Shape::Table => bytes.put_slice(respond::row(call, &respond::parse(&object)?).to_string().as_bytes()),
            _ => respond::put_partial(call, &object, &mut bytes)?,
        }
    }
    bytes.put_slice(b"]}");
    debug_assert!(call.accept.encoding != Encoding::Protobuf || !call.resource.custom);
    Ok(bytes.freeze())
}

/// A built-in object in a list does not say again what the list says: what follows its apiVersion and kind.
fn kindless(object: &[u8]) -> Option<&[u8]> {
    let rest = object.strip_prefix(b"{\"apiVersion\":\"")?;
    let rest = &rest[rest.iter().position(|b| *b == b'"')?..];
    let rest = rest.strip_prefix(b"\",\"kind\":\"")?;
    rest[rest.iter().position(|b| *b == b'"')?..].strip_prefix(b"\",")
}

async fn page(call: &Call, selection: &Selection) -> Result<Page, ApiError> {
    let limit = call.query.number::<i64>("limit")?.filter(|l| *l > 0).map(|l| usize::try_from(l).unwrap_or(usize::MAX));
    call.query.number::<i64>("timeoutSeconds")?;
    let token = match call.query.get("continue") {
        "" => None,
        text => Some(decode_token(text)?),
    };
    if token.is_some() && !matches!(call.query.get("resourceVersion"), "" | "0") {
        return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
    }
    let namespace = call.namespace();
    let resource = &call.resource.storage;
    let present = || {
        let list = call.server.store.list(resource, namespace);
        (list.revision, Items::from(list.items))
    };
    let (revision, items) = match &token {
        Some(token) if !token.inconsistent => match call.server.snapshots.find(resource, namespace, token.rv) {
            Some(items) => (token.rv, items),
            None => return Err(expired_token(token)),
        },
        Some(_) => present(),
        None => match exact_revision(call)? {
            Some(wanted) => match call.server.snapshots.find(resource, namespace, wanted) {
                Some(items) => (wanted, items),
                None => {
                    let (revision, items) = present();
                    // Nothing of this resource is newer than asked: the present state is the one asked for.
                    if revision != wanted && items.iter().any(|e| e.revision > wanted) {
                        return Err(ApiError::expired("The resourceVersion for the provided list is too old."));
                    }
                    (wanted.min(revision), items)
                }
            },
            None => present(),
        },
    };
    // Selectors speak of the version that was asked for. The snapshot stays as it is stored.
    let stored = items.clone();
    let items = match call.resource.conversion {
        None => items,
        Some(_) => {
            let version = call.api_version();
            conversion::entries(&call.server, &call.resource, &version, items.to_vec()).await?.into()
        }
    };
    let start = token.as_ref().map_or(0, |t| {
        items.partition_point(|e| (e.key.namespace.as_ref(), e.key.name.as_ref()) <= (t.ns.as_str(), t.name.as_str()))
    });
    let all = selection.is_everything();
    let mut entries: Vec<Arc<Entry>> = Vec::new();
    let mut more = false;
    for entry in items[start..].iter().filter(|e| all || selection.matches(e)) {
        if limit.is_some_and(|l| entries.len() >= l) {
            more = true;
            break;
        }
        entries.push(entry.clone());
    }
    let next = match entries.last() {
        Some(last) if more => {
            call.server.snapshots.keep(resource, namespace, revision, &stored);
            Some(encode_token(&Token {
                v: "meta.k8s.io/v1".into(),
                rv: revision,
                ns: last.key.namespace.to_string(),
                name: last.key.name.to_string(),
                inconsistent: false,
            }))
        }
        _ => None,
    };
    let remaining = (next.is_some() && all).then(|| items.len() - start - entries.len());
    Ok(Page { revision, entries, next, remaining })
}

/// The revision of `resourceVersionMatch=Exact`; also refuses revisions from the future.
fn exact_revision(call: &Call) -> Result<Option<u64>, ApiError> {
    let wanted = match call.query.get("resourceVersion") {
        "" => None,
        text => Some(text.parse::<u64>().map_err(|_| {
            ApiError::bad_request(format!("resourceVersion: Invalid value: {text:?}: must be a number"))
        })?),
    };
    match call.query.get("resourceVersionMatch") {
        "" | "NotOlderThan" | "Exact" => {}
        other => {
            return Err(ApiError::bad_request(format!("resourceVersionMatch: Unsupported value: {other:?}")));
        }
    }
    let Some(wanted) = wanted else {
        return Ok(None);
    };
    check_not_ahead(call, wanted)?;
    Ok((call.query.get("resourceVersionMatch") == "Exact").then_some(wanted))
}

pub fn check_not_ahead(call: &Call, wanted: u64) -> Result<(), ApiError> {
    let current = call.server.store.revision();
    if wanted <= current {
        return Ok(());
    }
    let mut error = ApiError::timeout(format!("Too large resource version: {wanted}, current: {current}"));
    error.body["details"] = json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}], "retryAfterSeconds": 1,
    });
    Err(error)
}

fn encode_token(token: &Token) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(token).unwrap_or_default())
}

fn decode_token(text: &str) -> Result<Token, ApiError> {
    URL_SAFE_NO_PAD
        .decode(text)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .ok_or_else(|| ApiError::bad_request("continue key is not valid"))
}

/// 410, with a token to go on from the present state.
fn expired_token(token: &Token) -> ApiError {
    let mut error = ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    let fresh =
        Token { v: token.v.clone(), rv: token.rv, ns: token.ns.clone(), name: token.name.clone(), inconsistent: true };
    error.body["metadata"]["continue"] = encode_token(&fresh).into();
    error
}
