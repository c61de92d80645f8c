//! watch: a stream of events, one JSON document a line.
//!
//! A stream pulls from the store's event ring at the speed of its client; a slow client loses its place (410), never the writer.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use ferrovirt_store::{Event, EventKind, Watcher};
use futures::StreamExt as _;
use futures::stream;
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::select::Selection;
use super::{Call, respond};
use crate::crd::conversion;
use crate::http::body::{self, Body};
use crate::http::negotiate::{Encoding, PROTOBUF, Shape};
use crate::status::ApiError;
use crate::storage::{Entry, ObjectMeta};

/// Upstream's bookmark period.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// Without `timeoutSeconds`, a watch ends after this time, so that clients spread over restarts.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Events that are ready together travel in one frame.
const BATCH_BYTES: usize = 64 * 1024;

pub async fn watch(call: &Call) -> Result<Response<Body>, ApiError> {
    super::options::check_list(call)?;
    let selection = Selection::of(call)?;
    let store = &call.server.store;
    let resource = &call.resource.storage;
    let namespace = call.namespace();
    let bookmarks = call.query.flag("allowWatchBookmarks");
    let send_initial = match call.query.get("sendInitialEvents") {
        "" => None,
        text => Some(text != "false"),
    };
    let asked = match call.query.get("resourceVersion") {
        "" | "0" => None,
        text => Some(
            text.parse::<u64>()
                .map_err(|_| ApiError::bad_request(format!("Invalid value: {text:?}: not a resourceVersion")))?,
        ),
    };
    if let Some(revision) = asked {
        super::list::check_not_ahead(call, revision)?;
    }
    let from_start = send_initial == Some(true) || (send_initial.is_none() && asked.is_none());
    let (initial, watcher, revision) = if from_start {
        let (list, watcher) = store.watch_list(resource, namespace);
        (list.items, Ok(watcher), list.revision)
    } else {
        let watcher = store.watch(resource, asked);
        (Vec::new(), watcher, asked.unwrap_or_else(|| store.revision()))
    };
    let watcher = match watcher {
        Ok(watcher) => watcher,
        // The stream opens and says so itself, as upstream does.
        Err(gone) => return Ok(gone_response(call, asked.unwrap_or_default(), gone.oldest)),
    };
    let watcher = match namespace {
        Some(namespace) => watcher.in_namespace(namespace),
        None => watcher,
    };
    let initial = conversion::entries(&call.server, &call.resource, &call.api_version(), initial).await?;
    let timeout =
        call.query.number::<u64>("timeoutSeconds")?.filter(|t| *t > 0).map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let state = State {
        encoder: Encoder::of(call),
        selection,
        watcher,
        initial: initial.into_iter(),
        initial_end: (send_initial == Some(true) && bookmarks).then_some(revision),
        bookmarks,
        deadline: Box::pin(tokio::time::sleep(timeout)),
        bookmark: Box::pin(tokio::time::sleep(BOOKMARK_PERIOD)),
        stopped: Box::pin(call.stop.clone().cancelled_owned()),
        ended: false,
    };
    let stream = stream::unfold(state, |mut state| async move {
        let frame = state.next().await?;
        Some((Ok(Frame::data(frame)), state))
    });
    Ok(stream_response(call, StreamBody::new(stream.boxed()).boxed_unsync()))
}

fn stream_response(call: &Call, stream: Body) -> Response<Body> {
    let content_type = match call.accept.encoding {
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        _ => "application/json",
    };
    let mut response = body::respond(StatusCode::OK, content_type, Bytes::new());
    *response.body_mut() = stream;
    response
}

fn gone_response(call: &Call, asked: u64, oldest: u64) -> Response<Body> {
    let status = ApiError::expired(format!("too old resource version: {asked} ({oldest})"));
    let event = Encoder::of(call).event("ERROR", &status.body);
    stream_response(call, body::full(event))
}

struct State {
    encoder: Encoder,
    selection: Selection,
    watcher: Watcher<ObjectMeta>,
    initial: std::vec::IntoIter<Arc<Entry>>,
    /// After the initial events, a bookmark with this revision says that they were all.
    initial_end: Option<u64>,
    bookmarks: bool,
    // Kept from event to event: to register each of them anew costs more than to send the event.
    deadline: Pin<Box<Sleep>>,
    bookmark: Pin<Box<Sleep>>,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: bool,
}

impl State {
    /// The next frame, or None at the end of the watch.
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut frame = BytesMut::new();
        for entry in self.initial.by_ref() {
            if self.selection.matches(&entry) {
                frame.put(self.encoder.entry("ADDED", &entry));
            }
            if frame.len() >= BATCH_BYTES {
                return Some(frame.freeze());
            }
        }
        if let Some(revision) = self.initial_end.take() {
            frame.put(self.encoder.bookmark(revision, true));
        }
        if !frame.is_empty() {
            return Some(frame.freeze());
        }
        loop {
            tokio::select! {
                event = self.watcher.next() => match event {
                    Ok(event) => {
                        self.take(&mut frame, event).await;
                        self.drain(&mut frame).await;
                    }
                    Err(gone) => {
                        self.ended = true;
                        return Some(self.too_old(gone.oldest));
                    }
                },
                () = self.bookmark.as_mut(), if self.bookmarks => {
                    self.bookmark.as_mut().reset(Instant::now() + BOOKMARK_PERIOD);
                    frame.put(self.encoder.bookmark(self.watcher.progress(), false));
                }
                () = self.deadline.as_mut() => {
                    self.ended = true;
                    return self.bookmarks.then(|| self.encoder.bookmark(self.watcher.progress(), false));
                }
                () = self.stopped.as_mut() => return None,
            }
            if !frame.is_empty() {
                return Some(frame.freeze());
            }
        }
    }

    async fn drain(&mut self, frame: &mut BytesMut) {
        while frame.len() < BATCH_BYTES {
            match self.watcher.try_next() {
                Ok(Some(event)) => self.take(frame, event).await,
                // Gone is told by the next call.
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Brings an event into the version of the watch, and adds it.
    async fn take(&mut self, frame: &mut BytesMut, event: Arc<Event<ObjectMeta>>) {
        let call = &self.encoder.call;
        if call.resource.conversion.is_none() {
            return self.add(frame, &event);
        }
        let entries = std::iter::once(event.entry.clone()).chain(event.previous.clone()).collect();
        let version = call.api_version();
        match conversion::entries(&call.server, &call.resource, &version, entries).await {
            Ok(mut entries) => {
                let mut event = Event::clone(&event);
                event.previous = event.previous.and_then(|_| entries.pop());
                event.entry = entries.pop().unwrap_or(event.entry);
                self.add(frame, &event);
            }
            Err(error) => {
                frame.put(self.encoder.event("ERROR", &error.body));
                self.ended = true;
            }
        }
    }

    /// An object that enters or leaves the selection is added or deleted, whatever happened to it.
    fn add(&mut self, frame: &mut BytesMut, event: &Event<ObjectMeta>) {
        let is = self.selection.is_everything()
            || (event.kind != EventKind::Deleted && self.selection.matches(&event.entry));
        let was = match &event.previous {
            _ if self.selection.is_everything() => event.kind != EventKind::Added,
            Some(previous) => self.selection.matches(previous),
            None => false,
        };
        let name = match (event.kind, was, is) {
            (EventKind::Deleted, true, _) => "DELETED",
            (EventKind::Deleted, false, _) | (_, false, false) => return,
            (_, false, true) => "ADDED",
            (_, true, true) => "MODIFIED",
            (_, true, false) => "DELETED",
        };
        // Who selects objects has never seen one like that: it is told as it was, at the revision of the change.
        match &event.previous {
            Some(previous) if was && !is && event.kind != EventKind::Deleted => {
                frame.put(self.encoder.left(previous, event.revision));
            }
            _ => frame.put(self.encoder.entry(name, &event.entry)),
        }
    }

    fn too_old(&mut self, oldest: u64) -> Bytes {
        let status = ApiError::expired(format!("too old resource version: {} ({oldest})", self.watcher.progress()));
        self.encoder.event("ERROR", &status.body)
    }
}

/// How events of one watch are written.
struct Encoder {
    /// A call without its request: what converting and table making need.
    call: Call,
    /// The next Table event carries the column definitions.
    columns: bool,
}

impl Encoder {
    fn of(call: &Call) -> Self {
        let call = call.about(call.target.clone());
        Self { call, columns: true }
    }

    fn entry(&mut self, name: &str, entry: &Entry) -> Bytes {
        let bytes = match respond::entry(&self.call.resource, self.call.version(), entry) {
            Ok(bytes) => bytes,
            Err(error) => return self.event("ERROR", &error.body),
        };
        if self.call.accept.shape == Shape::Object && self.call.accept.encoding == Encoding::Json {
            let mut line = BytesMut::with_capacity(bytes.len() + 40);
            line.put_slice(b"{\"type\":\"");
            line.put_slice(name.as_bytes());
            line.put_slice(b"\",\"object\":");
            line.put_slice(&bytes);
            line.put_slice(b"}\n");
            return line.freeze();
        }
        match respond::parse(&bytes) {
            Ok(value) => {
                let shaped = self.shaped(value);
                self.event(name, &shaped)
            }
            Err(error) => self.event("ERROR", &error.body),
        }
    }

    /// An object that the selection no longer has.
    fn left(&mut self, previous: &Entry, revision: u64) -> Bytes {
        let bytes = respond::entry(&self.call.resource, self.call.version(), previous);
        match bytes.and_then(|bytes| respond::parse(&bytes)) {
            Ok(mut value) => {
                value["metadata"]["resourceVersion"] = revision.to_string().into();
                let shaped = self.shaped(value);
                self.event("DELETED", &shaped)
            }
            Err(error) => self.event("ERROR", &error.body),
        }
    }

    fn bookmark(&mut self, revision: u64, initial_end: bool) -> Bytes {
        let mut object = json!({
            "kind": self.call.resource.kind, "apiVersion": self.call.api_version(),
            "metadata": {"resourceVersion": revision.to_string()},
        });
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let shaped = match self.call.accept.shape {
            Shape::Table => respond::table(&self.call, &[], object["metadata"].clone(), false),
            _ => self.shaped(object),
        };
        self.event("BOOKMARK", &shaped)
    }

    fn shaped(&mut self, object: Value) -> Value {
        match self.call.accept.shape {
            Shape::Object => object,
            Shape::Table => {
                let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                let with_columns = std::mem::take(&mut self.columns);
                respond::table(&self.call, std::slice::from_ref(&object), meta, with_columns)
            }
            Shape::PartialMetadata | Shape::PartialMetadataList => respond::partial(&self.call, &object),
        }
    }

    fn event(&self, name: &str, object: &Value) -> Bytes {
        if self.call.accept.encoding == Encoding::Protobuf {
            return self.protobuf_event(name, object).unwrap_or_default();
        }
        format!("{}\n", json!({"type": name, "object": object})).into()
    }

    /// A length-prefixed `WatchEvent` whose object is itself an envelope.
    fn protobuf_event(&self, name: &str, object: &Value) -> Option<Bytes> {
        let raw = respond::protobuf(object)
            .map_err(|e| tracing::warn!(error = e.message(), "cannot encode a watch event as {PROTOBUF}"))
            .ok()?;
        let mut message = BytesMut::with_capacity(raw.len() + 32);
        // WatchEvent { 1: type, 2: RawExtension { 1: raw } }
        put_field(&mut message, 1, name.as_bytes());
        let mut extension = BytesMut::with_capacity(raw.len() + 8);
        put_field(&mut extension, 1, &raw);
        put_field(&mut message, 2, &extension);
        let mut framed = BytesMut::with_capacity(message.len() + 4);
        framed.put_u32(u32::try_from(message.len()).ok()?);
        framed.put_slice(&message);
        Some(framed.freeze())
    }
}

/// A length-delimited protobuf field.
fn put_field(buffer: &mut BytesMut, number: u8, bytes: &[u8]) {
    buffer.put_u8(number << 3 | 2);
    let mut length = bytes.len();
    while length >= 0x80 {
        buffer.put_u8((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    buffer.put_u8(length as u8);
    buffer.put_slice(bytes);
}
