//! Websocket streams: the client's socket on one side, a guest's byte stream on the other.

use std::future::Future;

use futures::{SinkExt, StreamExt};
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

use crate::{Body, BoxError, BoxStream, answer};

/// The protocol of KubeVirt's clients: binary frames, nothing around them.
const PLAIN: &str = "plain.kubevirt.io";
const CHUNK: usize = 32 << 10;

/// Answers a websocket upgrade and joins it with `target`, which is opened first: a client that gets a connection gets the
/// guest.
pub(crate) async fn serve(
    mut request: Request<Body>,
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
                let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
                join(socket, target).await;
            }
            Err(error) => tracing::debug!(%error, "the client left before its stream began"),
        }
    });
    let mut response = Response::new(answer::body(bytes::Bytes::new()));
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

/// Copies both ways until either side ends. Each direction waits for its own receiver: that is the back-pressure.
async fn join<S>(socket: WebSocketStream<S>, target: BoxStream)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let (mut to_client, mut from_client) = socket.split();
    let (mut from_guest, mut to_guest) = tokio::io::split(target);
    let outward = async {
        let mut buffer = vec![0u8; CHUNK];
        loop {
            match from_guest.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(length) => {
                    let bytes = bytes::Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
                    if to_client.send(Message::Binary(bytes)).await.is_err() {
                        return;
                    }
                }
            }
        }
        let _ = to_client.send(Message::Close(None)).await;
    };
    let inward = async {
        while let Some(Ok(message)) = from_client.next().await {
            let bytes = match message {
                Message::Binary(bytes) => bytes,
                Message::Text(text) => text.into(),
                Message::Close(_) => break,
                _ => continue,
            };
            if to_guest.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = outward => {}
        () = inward => {}
    }
}
