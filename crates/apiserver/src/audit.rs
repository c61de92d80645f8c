//! The audit log: one JSON line per request, in the format of `audit.k8s.io/v1`.
//!
//! Every request is recorded at the Metadata level when it is answered. Requests never wait for the disk: lines go through
//! a bounded queue, and what does not fit is counted and reported.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, Method, header};
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tokio::sync::mpsc;

use crate::authn::User;
use crate::http::body::Body;
use crate::http::request::RequestInfo;
use crate::rest::Annotations;

/// Lines that may wait for the disk.
const QUEUE: usize = 8192;

/// Where lines go. Without a file, nowhere.
#[derive(Default)]
pub struct Audit {
    lines: Option<mpsc::Sender<String>>,
    lost: AtomicU64,
}

/// What is known of a request before it is answered.
pub struct Record {
    event: Value,
}

impl Audit {
    /// Opens the log, to be continued. The writer ends when the server and the last request are gone.
    pub async fn open(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let file = tokio::fs::OpenOptions::new().create(true).append(true).open(path).await?;
        let (lines, queue) = mpsc::channel(QUEUE);
        tokio::spawn(write(BufWriter::new(file), queue));
        Ok(Self { lines: Some(lines), lost: AtomicU64::new(0) })
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
        Some(Record { event })
    }

    /// Writes a record with its answer.
    pub fn end(&self, record: Option<Record>, response: &http::Response<Body>) {
        let (Some(lines), Some(Record { mut event })) = (&self.lines, record) else {
            return;
        };
        event["responseStatus"] = json!({"metadata": {}, "code": response.status().as_u16()});
        if let Some(Annotations(annotations)) = response.extensions().get() {
            event["annotations"] = json!(annotations);
        }
        event["stageTimestamp"] = now().into();
        if lines.try_send(event.to_string()).is_err() {
            let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
            if lost.is_power_of_two() {
                tracing::warn!(lost, "the disk is too slow for the audit log; lines are lost");
            }
        }
    }
}

impl Record {
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

async fn write(mut file: BufWriter<tokio::fs::File>, mut queue: mpsc::Receiver<String>) {
    while let Some(line) = queue.recv().await {
        let mut result = put(&mut file, &line).await;
        while let (Ok(line), true) = (queue.try_recv(), result.is_ok()) {
            result = put(&mut file, &line).await;
        }
        if let Err(error) = result.and(file.flush().await) {
            tracing::warn!(%error, "cannot write to the audit log");
        }
    }
}

async fn put(file: &mut BufWriter<tokio::fs::File>, line: &str) -> io::Result<()> {
    file.write_all(line.as_bytes()).await?;
    file.write_all(b"\n").await
}
