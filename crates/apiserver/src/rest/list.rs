//! list: selection, chunks, and the promise of a consistent snapshot across chunks.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use ferrovirt_store::{Key, List, Pin};
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::select::Selection;
use super::{Call, respond};
use crate::crd::conversion;
use crate::http::body::Body;
use crate::http::negotiate::{Encoding, Shape};
use crate::status::ApiError;
use crate::storage::{Entry, ObjectMeta, Store};

/// How long the rest of a chunked list can be fetched (etcd's compaction interval upstream).
const TTL: Duration = Duration::from_secs(300);
/// Lists of one resource that begin within this time share a pin: the oldest of them has all that the others need.
const STEP: Duration = Duration::from_secs(5);

/// What a `continue` token holds.
#[derive(Serialize, Deserialize)]
struct Token {
    v: String,
    /// Revision of the first page.
    rv: u64,
    /// The last key that was sent.
    ns: String,
    name: String,
    /// The revision is gone and the client agreed to go on with the present state.
    #[serde(default)]
    inconsistent: bool,
}

/// The revisions at which lists were sent in part. The store keeps what happened since, as far as there is room; nothing is kept
/// by client or by list. Who comes when it is gone is told so, as upstream tells after a compaction.
#[derive(Default)]
pub struct Begun {
    by_resource: Mutex<HashMap<Arc<str>, VecDeque<Held>>>,
}

struct Held {
    _pin: Pin<ObjectMeta>,
    since: Instant,
    until: Instant,
}

impl Begun {
    /// The rest of a list of this revision will be asked for.
    fn keep(&self, store: &Store, resource: &Arc<str>, revision: u64, now: Instant) {
        let mut by_resource = self.by_resource.lock().unwrap_or_else(PoisonError::into_inner);
        let held = by_resource.entry(resource.clone()).or_default();
        match held.back_mut().filter(|last| now < last.since + STEP) {
            Some(last) => last.until = now + TTL,
            None => held.push_back(Held { _pin: store.pin(resource, revision), since: now, until: now + TTL }),
        }
    }

    /// Lets go of what nobody may ask for any more. Called now and then, for lists may never be asked for again.
    pub fn prune(&self, now: Instant) {
        let mut by_resource = self.by_resource.lock().unwrap_or_else(PoisonError::into_inner);
        by_resource.retain(|_, held| {
            held.retain(|held| held.until > now);
            !held.is_empty()
        });
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
    let List { revision, items } = items(call, token.as_ref())?;
    // Selectors of fields speak of the version that was asked for. All else is as it is stored.
    let early = selection.needs_object();
    let items = if early { converted(call, items).await? } else { items };
    let all = selection.is_everything();
    let total = items.len();
    let mut matching = items.into_iter().filter(|entry| all || selection.matches(entry));
    let entries: Vec<Arc<Entry>> = matching.by_ref().take(limit.unwrap_or(usize::MAX)).collect();
    let more = matching.next().is_some();
    let next = entries.last().filter(|_| more).map(|last| {
        call.server.begun.keep(&call.server.store, &call.resource.storage, revision, Instant::now());
        encode_token(&Token {
            v: "meta.k8s.io/v1".into(),
            rv: revision,
            ns: last.key.namespace.to_string(),
            name: last.key.name.to_string(),
            inconsistent: false,
        })
    });
    let remaining = (more && all).then(|| total - entries.len());
    let entries = if early { entries } else { converted(call, entries).await? };
    Ok(Page { revision, entries, next, remaining })
}

async fn converted(call: &Call, entries: Vec<Arc<Entry>>) -> Result<Vec<Arc<Entry>>, ApiError> {
    match call.resource.conversion {
        None => Ok(entries),
        Some(_) => conversion::entries(&call.server, &call.resource, &call.api_version(), entries).await,
    }
}

/// What there is to choose from: the present state, or that of the revision that the client means.
fn items(call: &Call, token: Option<&Token>) -> Result<List<ObjectMeta>, ApiError> {
    let (store, namespace, resource) = (&call.server.store, call.namespace(), &call.resource.storage);
    match token {
        Some(token) => {
            let after = Key::new(token.ns.as_str(), token.name.as_str());
            if token.inconsistent {
                let mut list = store.list(resource, namespace);
                list.items.retain(|entry| entry.key > after);
                return Ok(list);
            }
            // A revision that is still to come is no better known than one that is forgotten.
            store.list_at(resource, namespace, token.rv, Some(&after)).map_err(|_| expired_token(token))
        }
        None => match exact_revision(call)? {
            Some(wanted) => store
                .list_at(resource, namespace, wanted, None)
                .map_err(|_| ApiError::expired("The resourceVersion for the provided list is too old.")),
            None => Ok(store.list(resource, namespace)),
        },
    }
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
