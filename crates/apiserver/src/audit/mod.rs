//! The audit log: one JSON line per request, in the format of `audit.k8s.io/v1`.
//!
//! A request is recorded when it is answered, as the policy says; without one, all of them without their content. Requests
//! never wait for the disk: lines go through a bounded queue, and what does not fit is counted and reported. A record is one
//! line whatever clients send: JSON has no line ends of its own.

mod file;
mod policy;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, Method, header};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::authn::User;
use crate::http::body::{self, Body};
use crate::http::request::RequestInfo;
use crate::rest::Annotations;
use crate::status::ApiError;

use file::LogFile;
pub use file::Rotation;
use policy::Decision;
pub use policy::{Level, Policy, PolicyError};

/// Lines that may wait for the disk.
const QUEUE: usize = 8192;
/// Bytes of lines that may wait for the disk.
const QUEUE_BYTES: u64 = 64 << 20;
/// The largest answer whose content is logged.
const MAX_ANSWER: u64 = body::MAX_BODY as u64;

/// Where lines go. Without a file, nowhere.
#[derive(Default)]
pub struct Audit {
    lines: Option<mpsc::Sender<String>>,
    policy: Policy,
    waiting: Arc<AtomicU64>,
    lost: AtomicU64,
}

/// What is known of a request before it is answered.
pub struct Record {
    event: Value,
    decision: Decision,
}

impl Audit {
    /// Opens the log, to be continued. The writer ends when the server and the last request are gone.
    pub async fn open(path: Option<&Path>, rotation: Rotation, policy: Policy) -> io::Result<Self> {
        let Some(path) = path.map(Path::to_owned) else {
            return Ok(Self::default());
        };
        let opened = tokio::task::spawn_blocking(move || LogFile::open(&path, rotation));
        let file = opened.await.map_err(io::Error::other)??;
        let (lines, queue) = mpsc::channel(QUEUE);
        let waiting = Arc::new(AtomicU64::new(0));
        tokio::spawn(write(file, queue, waiting.clone()));
        Ok(Self { lines: Some(lines), policy, waiting, lost: AtomicU64::new(0) })
    }

    /// The start of a record; None if nothing is logged.
    pub fn begin(&self, method: &Method, uri: &http::Uri, headers: &HeaderMap, info: &RequestInfo) -> Option<Record> {
        self.lines.as_ref()?;
        let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let verb = if info.target.is_some() { info.verb.to_owned() } else { method.as_str().to_lowercase() };
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
            "auditID": uuid::Uuid::new_v4().to_string(), "stage": "ResponseComplete",
            "requestURI": uri.path_and_query().map_or("/", |p| p.as_str()), "verb": verb, "user": {},
            "userAgent": agent, "requestReceivedTimestamp": now(),
        });
        if let Some(target) = &info.target {
            let mut reference = json!({"resource": target.resource, "apiVersion": target.version});
            let parts = [
                ("namespace", target.namespace.as_deref()),
                ("name", target.name.as_deref()),
                ("apiGroup", Some(target.group.as_str())),
                ("subresource", target.subresource.as_deref()),
            ];
            for (key, value) in parts {
                if let Some(value) = value.filter(|v| !v.is_empty()) {
                    reference[key] = value.into();
                }
            }
            event["objectRef"] = reference;
        }
        let decision = Decision { level: Level::Metadata, omit_managed_fields: false };
        Some(Record { event, decision })
    }

    /// Decides what is logged, when it is known who asks. Reads the request's content if that is part of it.
    pub async fn decide(
        &self,
        record: &mut Option<Record>,
        user: &User,
        info: &RequestInfo,
        request: http::Request<Body>,
    ) -> Result<http::Request<Body>, ApiError> {
        let Some(known) = record else { return Ok(request) };
        let verb = known.event["verb"].as_str().unwrap_or_default();
        known.decision = self.policy.decide(user, info, verb);
        if known.decision.level == Level::None {
            *record = None;
            return Ok(request);
        }
        known.event["level"] = format!("{:?}", known.decision.level).into();
        let writes = matches!(info.verb, "create" | "update" | "patch" | "delete" | "deletecollection");
        if known.decision.level < Level::Request || !writes || request.headers().contains_key(header::UPGRADE) {
            return Ok(request);
        }
        let (parts, content) = request.into_parts();
        let bytes = body::read(content).await?;
        known.content("requestObject", &bytes);
        Ok(http::Request::from_parts(parts, body::full(bytes)))
    }

    /// Reads the answer's content if that is logged.
    pub async fn look(&self, record: &mut Option<Record>, response: http::Response<Body>) -> http::Response<Body> {
        use http_body::Body as _;
        let wanted = record.as_mut().filter(|record| record.decision.level == Level::RequestResponse);
        let (Some(record), Some(0..=MAX_ANSWER)) = (wanted, response.body().size_hint().exact()) else {
            return response;
        };
        let (parts, content) = response.into_parts();
        match body::read_all(content).await {
            Ok(bytes) => {
                record.content("responseObject", &bytes);
                http::Response::from_parts(parts, body::full(bytes))
            }
            Err(error) => body::error(&error),
        }
    }

    /// Writes a record with its answer.
    pub fn end(&self, record: Option<Record>, response: &http::Response<Body>) {
        let (Some(lines), Some(Record { mut event, .. })) = (&self.lines, record) else {
            return;
        };
        event["responseStatus"] = json!({"metadata": {}, "code": response.status().as_u16()});
        if let Some(Annotations(annotations)) = response.extensions().get() {
            event["annotations"] = json!(annotations);
        }
        event["stageTimestamp"] = now().into();
        let line = event.to_string();
        let length = line.len() as u64;
        let fits = self.waiting.fetch_add(length, Ordering::Relaxed) + length <= QUEUE_BYTES;
        if !fits || lines.try_send(line).is_err() {
            self.waiting.fetch_sub(length, Ordering::Relaxed);
            let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
            if lost.is_power_of_two() {
                tracing::warn!(lost, "the disk is too slow for the audit log; lines are lost");
            }
        }
    }
}

impl Record {
    fn content(&mut self, field: &str, bytes: &[u8]) {
        // Other formats than JSON are not shown: their readers would have to guess.
        let Ok(mut content) = serde_json::from_slice::<Value>(bytes) else { return };
        if self.decision.omit_managed_fields {
            let items = content.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten();
            items.for_each(forget_managed_fields);
            forget_managed_fields(&mut content);
        }
        self.event[field] = content;
    }

    /// Who asked, and as whom.
    pub fn user(&mut self, user: &User, acting: &User) {
        self.event["user"] = user.to_json();
        if acting != user {
            self.event["impersonatedUser"] = acting.to_json();
        }
    }
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

fn forget_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

async fn write(mut file: LogFile, mut queue: mpsc::Receiver<String>, waiting: Arc<AtomicU64>) {
    let mut lines = Vec::new();
    while queue.recv_many(&mut lines, QUEUE).await > 0 {
        let batch = std::mem::take(&mut lines);
        let bytes: usize = batch.iter().map(String::len).sum();
        let written = tokio::task::spawn_blocking(move || {
            let result = batch.iter().try_for_each(|line| file.put(line)).and_then(|()| file.flush());
            (file, result)
        });
        let Ok((back, result)) = written.await else { return };
        file = back;
        waiting.fetch_sub(bytes as u64, Ordering::Relaxed);
        if let Err(error) = result {
            tracing::warn!(%error, "cannot write to the audit log");
        }
    }
}
