//! As much of gRPC as a device plugin needs: calls with one message each way, and one with a stream of answers.

use std::convert::Infallible;

use anyhow::{Context, Result, bail};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;

/// Requests here are small; whoever sends more is not the kubelet.
const LIMIT: usize = 1 << 20;
const UNIMPLEMENTED: u16 = 12;
const INVALID_ARGUMENT: u16 = 3;

pub type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Calls a method of a server at a unix socket.
pub async fn call(stream: UnixStream, path: &str, message: &[u8]) -> Result<Bytes> {
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(frame(message)))?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let early = response.headers().clone();
        let body = response.into_body().collect().await?;
        let trailers = body.trailers().cloned().unwrap_or(early);
        let header = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if header("grpc-status") != "0" {
            bail!("it answered with the gRPC status {:?}: {}", header("grpc-status"), header("grpc-message"));
        }
        unframe(body.to_bytes()).context("its answer is damaged")
    };
    let answer = answer.await;
    connection.abort();
    answer
}

/// The message of a request with one.
pub async fn message(body: Incoming) -> Option<Bytes> {
    unframe(http_body_util::Limited::new(body, LIMIT).collect().await.ok()?.to_bytes())
}

pub fn one(message: &[u8]) -> Answer {
    many(stream::iter([message.to_vec()]))
}

/// One message after the other, for as long as there are any.
pub fn many(messages: impl Stream<Item = Vec<u8>> + Send + 'static) -> Answer {
    let data = messages.map(|message| Ok(Frame::data(frame(&message))));
    let end = stream::once(async { Ok(Frame::trailers(status(0))) });
    let mut response = Response::new(StreamBody::new(data.chain(end)).boxed_unsync());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

pub fn unknown_method() -> Answer {
    refusal(UNIMPLEMENTED)
}

pub fn damaged() -> Answer {
    refusal(INVALID_ARGUMENT)
}

fn refusal(code: u16) -> Answer {
    let mut response = Response::new(Full::default().boxed_unsync());
    *response.headers_mut() = status(code);
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

fn status(code: u16) -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from(code))])
}

/// A message with its length before it, not compressed.
fn frame(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(message.len() + 5);
    out.put_u8(0);
    out.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(message);
    out.freeze()
}

fn unframe(mut bytes: Bytes) -> Option<Bytes> {
    let head = bytes.get(..5)?;
    let (compressed, length) = head.split_first()?;
    let length = u32::from_be_bytes(length.try_into().ok()?);
    (*compressed == 0 && bytes.len() == usize::try_from(length).ok()? + 5).then(|| bytes.split_off(5))
}
