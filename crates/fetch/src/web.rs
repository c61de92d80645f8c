//! An image on a web server, as a [`Source`]: any part by a range request, or one stream that mends itself.
//!
//! A stream that breaks goes on where it broke, as long as the server still has the same content. A server that ends too early
//! again and again at the same place, or says another length than it has, is found out.

use std::io::{self, Read};
use std::time::Duration;

use bytes::Bytes;
use ferrovirt_disks::image::Source;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_RANGE, LAST_MODIFIED, RANGE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::http::{Client, HttpError, next_chunk};

/// Pieces between the network and the reader. With a piece of up to some 100 KiB this bounds the memory of a stream.
const QUEUE: usize = 32;
/// Attempts without a single new byte before a stream gives up.
const ATTEMPTS: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// What the server said about the image at first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub length: Option<u64>,
    pub ranges: bool,
    /// Tells this content from another at the same place: an entity tag or a date.
    pub validator: Option<String>,
}

pub struct WebSource {
    client: Client,
    url: String,
    headers: HeaderMap,
    facts: Facts,
    runtime: Handle,
}

impl WebSource {
    /// Asks the server what it has. Must be called in a runtime; reading happens outside of it.
    pub async fn open(client: Client, url: &str, headers: HeaderMap) -> Result<Self, HttpError> {
        let mut probe = headers.clone();
        probe.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
        let (_, answer) = client.send(&Method::GET, url, &probe).await?;
        let status = answer.status();
        let facts = match status {
            StatusCode::PARTIAL_CONTENT => {
                Facts { length: range_total(answer.headers()), ranges: true, validator: validator(&answer) }
            }
            // Some servers answer an empty file, or one of a byte, so.
            StatusCode::RANGE_NOT_SATISFIABLE => Facts { length: Some(0), ranges: true, validator: validator(&answer) },
            status if status.is_success() => {
                let ranges = answer.headers().get(ACCEPT_RANGES).is_some_and(|value| value == "bytes");
                Facts {
                    length: header_number(answer.headers(), &CONTENT_LENGTH),
                    ranges,
                    validator: validator(&answer),
                }
            }
            status => return Err(HttpError::Status { url: url.to_owned(), status }),
        };
        Ok(Self { client, url: url.to_owned(), headers, facts, runtime: Handle::current() })
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    fn request_headers(&self, from: u64, until: Option<u64>) -> HeaderMap {
        let mut headers = self.headers.clone();
        if from > 0 || until.is_some() {
            let range = format!("bytes={from}-{}", until.map(|until| until.to_string()).unwrap_or_default());
            headers.extend(HeaderValue::from_str(&range).map(|value| (RANGE, value)));
            let strong = self.facts.validator.as_ref().filter(|validator| !validator.starts_with("W/"));
            if let Some(Ok(value)) = strong.map(|validator| HeaderValue::from_str(validator)) {
                headers.insert(IF_RANGE, value);
            }
        }
        headers
    }

    /// Opens a stream at an offset; the server must still have the same content.
    async fn open_at(&self, from: u64, until: Option<u64>) -> Result<Incoming, WebError> {
        let headers = self.request_headers(from, until);
        let (_, answer) = self.client.send(&Method::GET, &self.url, &headers).await?;
        let ranged = from > 0 || until.is_some();
        match (ranged, answer.status()) {
            (true, StatusCode::PARTIAL_CONTENT) => {
                if range_total(answer.headers()) != self.facts.length {
                    return Err(WebError::Changed);
                }
                Ok(answer.into_body())
            }
            // A whole answer to a part's question: no ranges, or other content.
            (true, StatusCode::OK) if self.facts.ranges => Err(WebError::Changed),
            (true, StatusCode::OK) => Err(WebError::NoRanges),
            (false, status) if status.is_success() => Ok(answer.into_body()),
            (_, status) => Err(HttpError::Status { url: self.url.clone(), status }.into()),
        }
    }

    async fn pump(&self, from: u64, sender: mpsc::Sender<io::Result<Bytes>>) {
        let mut at = from;
        let mut failures = 0;
        let mut pause = FIRST_PAUSE;
        let mut early = false;
        while failures < ATTEMPTS {
            let before = at;
            let broken = match self.open_at(at, None).await {
                Ok(mut body) => self.drain(&mut body, &mut at, &sender).await,
                Err(error) => Err(error),
            };
            let error = match broken {
                Ok(()) if self.facts.length.is_none_or(|length| at >= length) => return,
                Ok(()) => {
                    early = true;
                    WebError::Early
                }
                Err(WebError::Deserted) => return,
                Err(error) => error,
            };
            if at > before {
                (failures, pause) = (0, FIRST_PAUSE);
            } else {
                failures += 1;
            }
            let resumable = error.is_transient() && (self.facts.ranges || at == 0);
            if !resumable {
                let _ = sender.send(Err(self.describe(error, early, at))).await;
                return;
            }
            tracing::info!(url = self.url, at, %error, "the transfer broke; going on");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
            if failures >= ATTEMPTS {
                let _ = sender.send(Err(self.describe(error, early, at))).await;
            }
        }
    }

    /// A server that stays away may come back; one that ends too early every time has no more.
    fn describe(&self, error: WebError, early: bool, at: u64) -> io::Error {
        let ended = early
            || matches!(&error, WebError::Early)
            || matches!(&error, WebError::Http(HttpError::Broken { .. }) if at > 0);
        let kind = match &error {
            WebError::Changed | WebError::NoRanges => io::ErrorKind::ConnectionAborted,
            _ if ended => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::ConnectionReset,
        };
        io::Error::new(kind, error)
    }

    async fn drain(
        &self,
        body: &mut Incoming,
        at: &mut u64,
        sender: &mpsc::Sender<io::Result<Bytes>>,
    ) -> Result<(), WebError> {
        while let Some(chunk) = next_chunk(body, &self.url).await? {
            *at += chunk.len() as u64;
            sender.send(Ok(chunk)).await.map_err(|_| WebError::Deserted)?;
        }
        Ok(())
    }

    async fn part(&self, offset: u64, length: usize) -> Result<Vec<u8>, WebError> {
        let mut body = self.open_at(offset, Some(offset + length as u64 - 1)).await?;
        let mut bytes = Vec::with_capacity(length);
        while let Some(chunk) = next_chunk(&mut body, &self.url).await? {
            bytes.extend_from_slice(&chunk);
        }
        if bytes.len() < length { Err(WebError::Early) } else { Ok(bytes) }
    }
}

impl Source for WebSource {
    fn length(&self) -> Option<u64> {
        self.facts.length
    }

    fn seekable(&self) -> bool {
        self.facts.ranges && self.facts.length.is_some()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        if self.facts.length.is_some_and(|length| offset + buffer.len() as u64 > length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            match self.runtime.block_on(self.part(offset, buffer.len())) {
                Ok(bytes) => {
                    buffer.copy_from_slice(bytes.get(..buffer.len()).unwrap_or_default());
                    return Ok(());
                }
                Err(error) if attempt < ATTEMPTS && error.is_transient() => {
                    std::thread::sleep(pause);
                    pause *= 2;
                }
                Err(error) => return Err(self.describe(error, false, offset)),
            }
        }
        Ok(())
    }

    fn stream(&self, from: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let again = Self {
            client: self.client.clone(),
            url: self.url.clone(),
            headers: self.headers.clone(),
            facts: self.facts.clone(),
            runtime: self.runtime.clone(),
        };
        self.runtime.spawn(async move { again.pump(from, sender).await });
        Ok(Box::new(Chunks { receiver, rest: Bytes::new() }))
    }
}

/// Pieces from a task as a blocking reader.
pub struct Chunks {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    rest: Bytes,
}

impl Chunks {
    pub fn new(receiver: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self { receiver, rest: Bytes::new() }
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receiver.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.rest = piece?,
            }
        }
        let length = self.rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.rest.split_to(length));
        Ok(length)
    }
}

#[derive(Debug, thiserror::Error)]
enum WebError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the server ended before the length that it had announced")]
    Early,
    #[error("the image on the server changed during the transfer")]
    Changed,
    #[error("the server cannot go on in the middle of the image")]
    NoRanges,
    #[error("nobody reads any more")]
    Deserted,
}

impl WebError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Http(error) => error.is_transient(),
            Self::Early => true,
            _ => false,
        }
    }
}

/// `Name: value` as users write headers.
pub fn parse_header(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    Some((name.trim().parse().ok()?, HeaderValue::from_str(value.trim()).ok()?))
}

fn range_total(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?.1.parse().ok()
}

fn header_number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn validator(answer: &Response<Incoming>) -> Option<String> {
    let headers = answer.headers();
    headers.get(ETAG).or_else(|| headers.get(LAST_MODIFIED))?.to_str().ok().map(ToOwned::to_owned)
}
