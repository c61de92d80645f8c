//! A byte stream in the binary messages of a websocket.

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::channels::PING;

const CHUNK: usize = 32 << 10;

/// The stream inside. Both end with each other.
pub(super) fn carry<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(socket: WebSocketStream<S>) -> DuplexStream {
    let (near, far) = tokio::io::duplex(CHUNK);
    tokio::spawn(async move {
        let (mut to_client, mut from_client) = socket.split();
        let (mut reader, mut writer) = tokio::io::split(far);
        let inward = async {
            while let Some(Ok(message)) = from_client.next().await {
                match message {
                    Message::Binary(bytes) if writer.write_all(&bytes).await.is_err() => return,
                    Message::Close(_) => return,
                    _ => {}
                }
            }
        };
        let outward = async {
            let mut pings = tokio::time::interval_at(tokio::time::Instant::now() + PING, PING);
            let mut buffer = vec![0; CHUNK];
            loop {
                let message = tokio::select! {
                    read = reader.read(&mut buffer) => match read {
                        Ok(count @ 1..) => Message::Binary(Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default())),
                        _ => return,
                    },
                    _ = pings.tick() => Message::Ping(Bytes::new()),
                };
                if to_client.send(message).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = inward => {}
            () = outward => {}
        }
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), to_client.close()).await;
    });
    near
}

#[cfg(test)]
mod tests {
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    #[tokio::test]
    async fn messages_are_a_stream_inside() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let mut client = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
        let mut inside = carry(WebSocketStream::from_raw_socket(far, Role::Server, None).await);
        for part in ["one ", "two"] {
            client.send(Message::Binary(part.into())).await.unwrap();
        }
        let mut heard = [0; 7];
        inside.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"one two");
        inside.write_all(b"three").await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::Binary("three".into()));
        drop(client);
        assert_eq!(inside.read(&mut heard).await.unwrap(), 0);
    }
}
