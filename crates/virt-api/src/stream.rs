//! Websocket streams: the client's socket on one side, a guest's byte stream on the other.
//!
//! ```text
//!   client --binary messages--> inward  --bytes--> guest
//!   client <--binary messages-- outward <--bytes-- guest        + a ping when nothing was heard for a while
//! ```
//!
//! Each direction waits for its own receiver: that is the back-pressure, and it reaches the guest. A websocket cannot be
//! closed for one direction only; a client that will send no more but still listens says so with an empty message.

use std::{future::Future, io, pin::pin, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{Sink, SinkExt, Stream, StreamExt};
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    time::Instant,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        handshake::derive_accept_key,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use crate::{Body, BoxError, BoxStream, answer};

/// The protocol of KubeVirt's clients: binary frames, nothing around them.
const PLAIN: &str = "plain.kubevirt.io";
const CHUNK: usize = 64 << 10;
/// The largest message a client may send. It is kept until the guest has taken it, which may be never, and a client has many streams.
const MAX_MESSAGE: usize = 1 << 20;
const PATIENCE: Patience = Patience { ask: Duration::from_secs(20), give_up: Duration::from_secs(60) };

/// A client that says nothing for a while is asked whether it is still there; after a longer while it is gone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    ask: Duration,
    give_up: Duration,
}

/// What one websocket message is on the guest's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Any number of bytes of a stream.
    Bytes,
    /// One datagram, with its length in front as a big-endian `u16`.
    Datagrams,
}

/// Answers a websocket upgrade and joins it with `target`, which is opened first: a client that gets a connection gets the
/// guest. The stream ends when `revoked` resolves, and the client is told that reason.
pub(crate) async fn serve(
    mut request: Request<Body>,
    framing: Framing,
    revoked: impl Future<Output = String> + Send + 'static,
    target: impl Future<Output = Result<BoxStream, BoxError>>,
) -> Response<Body> {
    let headers = request.headers();
    let wants = |name: header::HeaderName, token: &str| {
        let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(','));
        values.into_iter().any(|v| v.trim().eq_ignore_ascii_case(token))
    };
    let key = headers.get(header::SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
    let Some(key) = key.filter(|_| wants(header::UPGRADE, "websocket") && wants(header::CONNECTION, "upgrade")) else {
        return answer::bad_request("this address speaks websocket only");
    };
    let plain = wants(header::SEC_WEBSOCKET_PROTOCOL, PLAIN);
    let target = match target.await {
        Ok(target) => target,
        Err(error) => {
            let message = format!("cannot reach the guest: {}", ferrovirt_api::chain(&*error));
            return answer::status(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &message);
        }
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => {
                let io = TokioIo::new(upgraded);
                let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(limits())).await;
                join(socket, target, framing, PATIENCE, revoked).await;
            }
            Err(error) => tracing::debug!(%error, "the client left before its stream began"),
        }
    });
    let mut response = Response::new(answer::body(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(key) = HeaderValue::from_str(&key) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, key);
    }
    if plain {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PLAIN));
    }
    response
}

fn limits() -> WebSocketConfig {
    let limits = WebSocketConfig::default().write_buffer_size(0);
    limits.max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE))
}

/// What the reading half has to say to the client: answers to pings are tungstenite's own, these are ours.
enum Note {
    Ping,
}

/// Copies both ways until either side ends.
pub(crate) async fn join<S, T>(
    socket: WebSocketStream<S>,
    target: T,
    framing: Framing,
    patience: Patience,
    revoked: impl Future<Output = String>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite,
{
    let (mut to_client, from_client) = socket.split();
    let (from_guest, to_guest) = tokio::io::split(target);
    let (notes, mut noted) = mpsc::channel(1);
    let end = {
        let mut outward = pin!(outward(&mut to_client, from_guest, framing, &mut noted));
        let mut inward = pin!(inward(from_client, to_guest, framing, patience, &notes));
        let mut revoked = pin!(revoked);
        tokio::select! {
            end = &mut outward => end,
            end = &mut inward => end,
            reason = &mut revoked => End::Refused(reason),
        }
    };
    let frame = match end {
        End::Guest | End::Client => Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }),
        End::Silent => None,
        // Without a farewell, as upstream's: its client tells by that, with an unexpected EOF, and so do those who wait for it.
        End::Taken => return,
        End::Refused(reason) => Some(CloseFrame { code: CloseCode::Policy, reason: reason.into() }),
    };
    // The client may be gone, or may not be reading.
    let _ = tokio::time::timeout(Duration::from_secs(1), async {
        if frame.is_some() {
            let _ = to_client.send(Message::Close(frame)).await;
        }
        let _ = to_client.close().await;
    })
    .await;
}

enum End {
    Guest,
    Client,
    /// The client does not answer.
    Silent,
    /// Another client has the stream now, or the way to the guest is cut.
    Taken,
    Refused(String),
}

async fn outward<S>(
    to_client: &mut S,
    from_guest: impl AsyncRead,
    framing: Framing,
    noted: &mut mpsc::Receiver<Note>,
) -> End
where
    S: Sink<Message, Error = tungstenite::Error> + Unpin,
{
    let mut messages = pin!(messages(from_guest, framing));
    loop {
        let message = tokio::select! {
            message = messages.next() => match message {
                Some(Ok(bytes)) => Message::Binary(bytes),
                Some(Err(error)) if is_taken(&error, framing) => return End::Taken,
                _ => return End::Guest,
            },
            Some(Note::Ping) = noted.recv() => Message::Ping(Bytes::new()),
        };
        if to_client.send(message).await.is_err() {
            return End::Client;
        }
    }
}

/// A stream that was taken away, not one that ended: of this process by its name, of another because the way to it was cut. There
/// are no two ways for datagrams to end.
fn is_taken(error: &io::Error, framing: Framing) -> bool {
    framing == Framing::Bytes && matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::UnexpectedEof)
}

/// What the guest sends, cut into messages. Ends with the guest's stream.
fn messages(from_guest: impl AsyncRead, framing: Framing) -> impl Stream<Item = io::Result<Bytes>> {
    let state = (Box::pin(from_guest), BytesMut::with_capacity(CHUNK));
    futures::stream::try_unfold(state, move |(mut from_guest, mut buffer)| async move {
        let message = match framing {
            Framing::Bytes => {
                buffer.reserve(CHUNK);
                if from_guest.read_buf(&mut buffer).await? == 0 {
                    return Ok(None);
                }
                buffer.split().freeze()
            }
            Framing::Datagrams => {
                let length = usize::from(from_guest.read_u16().await?);
                let mut datagram = vec![0; length];
                from_guest.read_exact(&mut datagram).await?;
                datagram.into()
            }
        };
        Ok(Some((message, (from_guest, buffer))))
    })
}

async fn inward(
    from_client: impl Stream<Item = Result<Message, tungstenite::Error>>,
    to_guest: impl AsyncWrite,
    framing: Framing,
    patience: Patience,
    notes: &mpsc::Sender<Note>,
) -> End {
    let mut from_client = pin!(from_client);
    let mut to_guest = pin!(to_guest);
    let mut heard = Instant::now();
    let mut ask = heard + patience.ask;
    loop {
        let message = tokio::select! {
            message = from_client.next() => match message {
                Some(Ok(message)) => message,
                _ => return End::Client,
            },
            () = tokio::time::sleep_until(ask) => {
                if heard.elapsed() >= patience.give_up {
                    return End::Silent;
                }
                // A full channel means that the one before was not sent yet: the client does not read.
                let _ = notes.try_send(Note::Ping);
                ask = Instant::now() + patience.ask;
                continue;
            }
        };
        heard = Instant::now();
        ask = heard + patience.ask;
        let bytes: Bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => return End::Client,
            _ => continue,
        };
        if bytes.is_empty() && framing == Framing::Bytes {
            if to_guest.shutdown().await.is_err() {
                return End::Guest;
            }
            continue;
        }
        let written = match (framing, u16::try_from(bytes.len())) {
            (Framing::Bytes, _) => to_guest.write_all(&bytes).await,
            (Framing::Datagrams, Ok(length)) => {
                let mut framed = length.to_be_bytes().to_vec();
                framed.extend_from_slice(&bytes);
                to_guest.write_all(&framed).await
            }
            // No datagram is that long; the network would have dropped it, too.
            (Framing::Datagrams, Err(_)) => continue,
        };
        if written.is_err() {
            return End::Guest;
        }
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
