//! Websocket streams of `subresources.kubevirt.io`, from the client's side.

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

pub type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// The path of an action on a VM or an instance.
pub fn path(namespace: &str, resource: &str, name: &str, subresource: &str) -> String {
    format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/{resource}/{name}/{subresource}")
}

pub async fn open(client: &Client, path: &str) -> Result<Socket> {
    let mut nonce = [0u8; 16];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
    let request = Request::get(path)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, BASE64.encode(nonce))
        .header(header::SEC_WEBSOCKET_PROTOCOL, "plain.kubevirt.io")
        .body(Body::empty())?;
    let response = client.send(request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let code = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        let status: kube::core::Status = serde_json::from_slice(&body).unwrap_or_else(|_| {
            kube::core::Status::failure("the server gave no stream", "Unknown").with_code(code.as_u16())
        });
        return Err(kube::Error::Api(Box::new(status)).into());
    }
    let upgraded = hyper::upgrade::on(response).await.context("the server gave no stream")?;
    Ok(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await)
}

/// Copies both ways until the server ends the stream, and says why it did if it said so. When our side ends first, the
/// server is told that nothing more will come, and its own last words are awaited.
pub async fn join<R, W>(socket: Socket, mut reader: R, mut writer: W) -> Result<Option<String>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut to_server, mut from_server) = socket.split();
    let outward = async {
        let mut buffer = vec![0u8; 32 << 10];
        while let Ok(length @ 1..) = reader.read(&mut buffer).await {
            let bytes = Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
            if to_server.send(Message::Binary(bytes)).await.is_err() {
                break;
            }
        }
        let _ = to_server.send(Message::Binary(Bytes::new())).await;
        std::future::pending::<()>().await;
    };
    let inward = async {
        while let Some(Ok(message)) = from_server.next().await {
            let bytes = match message {
                Message::Binary(bytes) => bytes,
                Message::Text(text) => text.into(),
                Message::Close(frame) => {
                    return frame.map(|frame| frame.reason.to_string()).filter(|reason| !reason.is_empty());
                }
                _ => continue,
            };
            if writer.write_all(&bytes).await.is_err() || writer.flush().await.is_err() {
                return None;
            }
        }
        None
    };
    let reason = tokio::select! {
        () = outward => None,
        reason = inward => reason,
    };
    let _ = writer.shutdown().await;
    Ok(reason)
}
