//! watch: a stream of events, one JSON document a line.
//!
//! A stream pulls from the store's event ring at the speed of its client; a slow client loses its place (410), never the writer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use ferrovirt_store::{Event, EventKind, Watcher};
use futures::future::BoxFuture;
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
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
    let events = Events {
        encoder: Encoder::of(call),
        selection,
        watcher,
        initial: initial.into_iter(),
        initial_end: (send_initial == Some(true) && bookmarks).then_some(revision),
        bookmarks,
        deadline: Box::pin(tokio::time::sleep(timeout)),
        bookmark: Box::pin(tokio::time::sleep(BOOKMARK_PERIOD)),
        stopped: Box::pin(call.stop.clone().cancelled_owned()),
        converting: None,
        waker: None,
        ended: false,
    };
    Ok(stream_response(call, events.boxed_unsync()))
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

/// The events of a watch, as a body. Written without `async`: an event is on its way to hundreds of watchers at once, and what
/// each of them looks at on the way is the time that it takes.
struct Events {
    encoder: Encoder,
    selection: Selection,
    watcher: Watcher<ObjectMeta>,
    initial: std::vec::IntoIter<Arc<Entry>>,
    /// After the initial events, a bookmark with this revision says that they were all.
    initial_end: Option<u64>,
    bookmarks: bool,
    deadline: Pin<Box<Sleep>>,
    bookmark: Pin<Box<Sleep>>,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    /// An event that a webhook brings into the version of the watch. Those after it wait.
    converting: Option<BoxFuture<'static, Result<Event<ObjectMeta>, ApiError>>>,
    /// Whom `deadline`, `bookmark` and `stopped` wake. As long as it is the same, they need not be polled.
    waker: Option<Waker>,
    ended: bool,
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = body::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, body::BoxError>>> {
        self.get_mut().poll(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl Events {
    /// The next frame, or None at the end of the watch.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.register(context);
        let mut lines = self.initial();
        if lines.len() == 0 && self.deadline.is_elapsed() {
            self.ended = true;
            return Poll::Ready(self.bookmarks.then(|| self.encoder.bookmark(self.watcher.progress(), false)));
        }
        while lines.len() < BATCH_BYTES && !self.ended {
            match self.poll_event(context) {
                Poll::Ready(Ok(event)) => self.add(&mut lines, &event),
                Poll::Ready(Err(last)) => {
                    self.ended = true;
                    lines.put(last);
                }
                Poll::Pending => break,
            }
        }
        if lines.len() == 0 && self.bookmarks && self.bookmark.is_elapsed() {
            self.bookmark.as_mut().reset(Instant::now() + BOOKMARK_PERIOD);
            self.waker = None;
            self.register(context);
            lines.put(self.encoder.bookmark(self.watcher.progress(), false));
        }
        if lines.len() > 0 {
            return Poll::Ready(Some(lines.into_bytes()));
        }
        if self.encoder.call.stop.is_cancelled() { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Lets what may end a silence wake this task. What it has to say is asked for elsewhere.
    fn register(&mut self, context: &mut Context<'_>) {
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            return;
        }
        self.waker = Some(context.waker().clone());
        let _ = self.deadline.as_mut().poll(context);
        let _ = self.bookmark.as_mut().poll(context);
        let _ = self.stopped.as_mut().poll(context);
    }

    /// What is left of the objects that were there before.
    fn initial(&mut self) -> Lines {
        let mut lines = Lines::default();
        for entry in self.initial.by_ref() {
            if self.selection.matches(&entry) {
                lines.put(self.encoder.entry("ADDED", &entry));
            }
            if lines.len() >= BATCH_BYTES {
                return lines;
            }
        }
        if let Some(revision) = self.initial_end.take() {
            lines.put(self.encoder.bookmark(revision, true));
        }
        lines
    }

    /// An event in the version of the watch, or what to say at its end.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Result<Arc<Event<ObjectMeta>>, Bytes>> {
        let mut converting = match self.converting.take() {
            Some(converting) => converting,
            None => match ready!(self.watcher.poll_next(context)) {
                Ok(event) if self.encoder.call.resource.conversion.is_none() => return Poll::Ready(Ok(event)),
                Ok(event) => convert(&self.encoder.call, event),
                Err(gone) => return Poll::Ready(Err(self.too_old(gone.oldest))),
            },
        };
        match converting.as_mut().poll(context) {
            Poll::Ready(Ok(event)) => Poll::Ready(Ok(Arc::new(event))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.encoder.event("ERROR", &error.body))),
            Poll::Pending => {
                self.converting = Some(converting);
                Poll::Pending
            }
        }
    }

    /// An object that enters or leaves the selection is added or deleted, whatever happened to it.
    fn add(&mut self, frame: &mut Lines, event: &Event<ObjectMeta>) {
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
            _ => frame.put(self.encoder.shared_entry(name, &event.entry)),
        }
    }

    fn too_old(&mut self, oldest: u64) -> Bytes {
        let status = ApiError::expired(format!("too old resource version: {} ({oldest})", self.watcher.progress()));
        self.encoder.event("ERROR", &status.body)
    }
}

fn convert(call: &Call, event: Arc<Event<ObjectMeta>>) -> BoxFuture<'static, Result<Event<ObjectMeta>, ApiError>> {
    let (server, resource, version) = (call.server.clone(), call.resource.clone(), call.api_version());
    Box::pin(async move {
        let mut event = Event::clone(&event);
        let entries = std::iter::once(event.entry.clone()).chain(event.previous.clone()).collect();
        let mut entries = conversion::entries(&server, &resource, &version, entries).await?;
        event.previous = event.previous.and_then(|_| entries.pop());
        event.entry = entries.pop().unwrap_or(event.entry);
        Ok(event)
    })
}

/// Lines that travel together. A single one, which is most, is not copied.
#[derive(Default)]
struct Lines {
    first: Bytes,
    rest: BytesMut,
}

impl Lines {
    fn put(&mut self, line: Bytes) {
        if self.first.is_empty() {
            self.first = line;
            return;
        }
        if self.rest.is_empty() {
            self.rest.reserve(self.first.len() + line.len());
            self.rest.put_slice(&self.first);
        }
        self.rest.put_slice(&line);
    }

    fn len(&self) -> usize {
        self.first.len().max(self.rest.len())
    }

    fn into_bytes(self) -> Bytes {
        if self.rest.is_empty() { self.first } else { self.rest.freeze() }
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

    /// As [`Self::entry`], for an event that others may watch, too.
    fn shared_entry(&mut self, name: &'static str, entry: &Entry) -> Bytes {
        // Only what follows from the revision: what a webhook answers does not.
        if !self.is_plain() || self.call.resource.conversion.is_some() {
            return self.entry(name, entry);
        }
        self.call.version().last_line.get_or_write(entry.revision, name, || self.plain(name, entry))
    }

    fn entry(&mut self, name: &str, entry: &Entry) -> Bytes {
        if self.is_plain() {
            return self.plain(name, entry);
        }
        let bytes = match respond::entry(&self.call.resource, self.call.version(), entry) {
            Ok(bytes) => bytes,
            Err(error) => return self.event("ERROR", &error.body),
        };
        match respond::parse(&bytes) {
            Ok(value) => {
                let shaped = self.shaped(value);
                self.event(name, &shaped)
            }
            Err(error) => self.event("ERROR", &error.body),
        }
    }

    /// Whether objects are sent as they are, in JSON.
    fn is_plain(&self) -> bool {
        self.call.accept.shape == Shape::Object && self.call.accept.encoding == Encoding::Json
    }

    fn plain(&self, name: &str, entry: &Entry) -> Bytes {
        let bytes = match respond::entry(&self.call.resource, self.call.version(), entry) {
            Ok(bytes) => bytes,
            Err(error) => return self.event("ERROR", &error.body),
        };
        let mut line = BytesMut::with_capacity(bytes.len() + 40);
        line.put_slice(b"{\"type\":\"");
        line.put_slice(name.as_bytes());
        line.put_slice(b"\",\"object\":");
        line.put_slice(&bytes);
        line.put_slice(b"}\n");
        line.freeze()
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
