//! Request and response bodies.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::Value;

use crate::status::ApiError;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

/// The largest request body, the limit of kube-apiserver.
pub const MAX_BODY: usize = 3 * 1024 * 1024;
/// How long a client may take to send a request body (upstream's limit for a whole request).
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// What bodies that are still arriving may take together, so that slow clients cannot fill the memory. The first part of
/// each is free: small requests are always taken.
const MAX_ARRIVING: usize = 128 << 20;
pub const FREE: usize = 64 << 10;
/// Responses below this size are not worth compressing (upstream's threshold).
const GZIP_FROM: usize = 128 * 1024;

pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub fn empty() -> Body {
    full(Bytes::new())
}

/// The whole body, or 413; 408 for a client that does not get it across in time.
pub async fn read(body: Body) -> Result<Bytes, ApiError> {
    read_within(body, BODY_TIMEOUT).await
}

async fn read_within(body: Body, limit: Duration) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(limit, collect(body)).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::new(408, "Timeout", "the request body did not arrive in time")),
    }
}

/// The part of [`MAX_ARRIVING`] that one body has.
#[derive(Default)]
struct Share(usize);

static ARRIVING: AtomicUsize = AtomicUsize::new(0);

impl Share {
    /// Makes room for a body of `length` bytes in all.
    fn grow(&mut self, length: usize) -> Result<(), ApiError> {
        let more = length.saturating_sub(FREE).saturating_sub(self.0);
        if more > 0 && ARRIVING.fetch_add(more, Relaxed) + more > MAX_ARRIVING {
            ARRIVING.fetch_sub(more, Relaxed);
            return Err(ApiError::too_many_requests("too many large requests are arriving, please try again later"));
        }
        self.0 += more;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        ARRIVING.fetch_sub(self.0, Relaxed);
    }
}

async fn collect(mut body: Body) -> Result<Bytes, ApiError> {
    let mut share = Share::default();
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::bad_request(format!("cannot read the request body: {error}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if first.len() + rest.len() + data.len() > MAX_BODY {
            return Err(ApiError::too_large());
        }
        share.grow(first.len() + rest.len() + data.len())?;
        // Most bodies are one frame, which needs no copy.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// The whole body of a response of our own, however large.
pub async fn read_all(body: Body) -> Result<Bytes, ApiError> {
    body.collect().await.map(|c| c.to_bytes()).map_err(|e| ApiError::internal(e.to_string()))
}

pub fn respond(status: StatusCode, content_type: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

pub fn json(status: StatusCode, value: &Value) -> Response<Body> {
    respond(status, "application/json", value.to_string())
}

pub fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", text)
}

pub fn error(error: &ApiError) -> Response<Body> {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(status, &error.body);
    if let Some(seconds) = error.body["details"]["retryAfterSeconds"].as_u64() {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// Compresses a large body when the client asked for it.
pub fn compress(request_headers: &HeaderMap, response: &mut Response<Body>, bytes: Bytes) {
    let asked = request_headers
        .get(header::ACCEPT_ENCODING)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| v.split(',').any(|e| e.trim().split(';').next() == Some("gzip")));
    if !asked || bytes.len() < GZIP_FROM {
        *response.body_mut() = full(bytes);
        return;
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::with_capacity(bytes.len() / 8), flate2::Compression::fast());
    match encoder.write_all(&bytes).and_then(|()| encoder.finish()) {
        Ok(packed) => {
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
            *response.body_mut() = full(packed);
        }
        Err(_) => *response.body_mut() = full(bytes),
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    fn frames(count: usize, then_hang: bool) -> Body {
        let sent = stream::iter((0..count).map(|_| Ok(Frame::data(Bytes::from(vec![b'x'; 1024])))));
        match then_hang {
            true => StreamBody::new(sent.chain(stream::pending())).boxed_unsync(),
            false => StreamBody::new(sent).boxed_unsync(),
        }
    }

    #[tokio::test]
    async fn bodies_end_in_time_and_in_size() {
        assert_eq!(read(frames(3, false)).await.unwrap().len(), 3072);
        assert_eq!(read_within(frames(3, true), Duration::from_millis(1)).await.unwrap_err().code, 408);
        assert_eq!(read(frames(MAX_BODY, true)).await.unwrap_err().code, 413);
    }

    #[test]
    fn what_arrives_slowly_is_bounded() {
        let mut shares = Vec::new();
        let refused = loop {
            let mut share = Share::default();
            if let Err(error) = share.grow(MAX_BODY) {
                break error;
            }
            shares.push(share);
        };
        assert_eq!((refused.code, shares.len()), (429, MAX_ARRIVING / (MAX_BODY - FREE)));
        assert!(Share::default().grow(FREE).is_ok(), "small ones are always taken");
        drop(shares);
        assert!(Share::default().grow(MAX_BODY).is_ok());
    }
}
