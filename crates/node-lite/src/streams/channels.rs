//! Streams in one websocket: the first byte of each binary message says which (`v4.channel.k8s.io`, `v5.channel.k8s.io`).

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::budget::Budget;
use super::session::{Output, Outside, Size, Wanted};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
/// Of version 5: the next byte says which stream has ended.
const CLOSE: u8 = 255;

/// A client that is gone without a word is found out by these.
pub(super) const PING: Duration = Duration::from_secs(20);

/// Joins a client's websocket with a program until either ends.
pub(super) async fn join<S: AsyncRead + AsyncWrite + Unpin>(
    socket: WebSocketStream<S>,
    wanted: Wanted,
    outside: Outside,
) {
    let Outside { stdin, resize, output } = outside;
    let (mut to_client, from_client) = socket.split();
    let result = {
        let inward = std::pin::pin!(inward(from_client, wanted, stdin, resize));
        let outward = std::pin::pin!(outward(&mut to_client, wanted, output));
        tokio::select! {
            () = inward => None,
            end = outward => Some(end),
        }
    };
    // The client may be gone, or may not be reading.
    let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let _ = tokio::time::timeout(Duration::from_secs(2), async {
        if result != Some(End::Gone) {
            let _ = to_client.send(Message::Close(Some(frame))).await;
        }
        let _ = to_client.close().await;
    })
    .await;
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Told,
    Gone,
}

/// Ends when the client is gone.
async fn inward<S: AsyncRead + AsyncWrite + Unpin>(
    mut from_client: SplitStream<WebSocketStream<S>>,
    wanted: Wanted,
    stdin: mpsc::Sender<Bytes>,
    resize: mpsc::Sender<Size>,
) {
    let mut stdin = Some(stdin).filter(|_| wanted.stdin);
    let budget = Budget::default();
    while let Some(Ok(message)) = from_client.next().await {
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Close(_) => return,
            _ => continue,
        };
        match bytes.split_first() {
            Some((&STDIN, [_, ..])) => {
                if let Some(target) = &stdin
                    && target.send(budget.hold(bytes.slice(1..)).await).await.is_err()
                {
                    // The program does not listen any more; it may still talk.
                    stdin = None;
                }
            }
            Some((&CLOSE, [STDIN])) => stdin = None,
            Some((&RESIZE, size)) => {
                if let Ok(size) = serde_json::from_slice(size) {
                    // A size that is not taken is overtaken by the next one.
                    let _ = resize.try_send(size);
                }
            }
            _ => {}
        }
    }
}

async fn outward<S: AsyncRead + AsyncWrite + Unpin>(
    to_client: &mut SplitSink<WebSocketStream<S>, Message>,
    wanted: Wanted,
    mut output: mpsc::Receiver<Output>,
) -> End {
    // Clients wait for a first, empty message before they believe that there is somebody.
    let first = if wanted.stdout {
        STDOUT
    } else if wanted.stderr {
        STDERR
    } else {
        STATUS
    };
    if to_client.send(message(first, b"")).await.is_err() {
        return End::Gone;
    }
    let mut pings = tokio::time::interval_at(tokio::time::Instant::now() + PING, PING);
    loop {
        let message = tokio::select! {
            output = output.recv() => match output {
                Some(Output::Stdout(bytes)) => message(STDOUT, &bytes),
                Some(Output::Stderr(bytes)) => message(STDERR, &bytes),
                Some(Output::Status(status)) => message(STATUS, status.to_string().as_bytes()),
                None => return End::Told,
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        if to_client.send(message).await.is_err() {
            return End::Gone;
        }
    }
}

pub(super) fn message(channel: u8, bytes: &[u8]) -> Message {
    let mut out = BytesMut::with_capacity(bytes.len() + 1);
    out.put_u8(channel);
    out.put_slice(bytes);
    Message::Binary(out.freeze())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::super::session;
    use super::*;

    #[tokio::test]
    async fn bytes_go_by_their_first() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let mut client = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
        let server = WebSocketStream::from_raw_socket(far, Role::Server, None).await;
        let (mut inside, outside) = session::pair();
        let wanted = Wanted { stdin: true, stdout: true, stderr: true, tty: false };
        let joined = tokio::spawn(join(server, wanted, outside));
        for (channel, bytes) in
            [(STDIN, &b"ls\n"[..]), (7, b"?"), (RESIZE, br#"{"Width":80,"Height":24}"#), (RESIZE, b"x")]
        {
            client.send(message(channel, bytes)).await.unwrap();
        }
        client.send(Message::Binary(Bytes::new())).await.unwrap();
        client.send(message(CLOSE, &[STDIN])).await.unwrap();
        assert_eq!(inside.stdin.recv().await.unwrap(), "ls\n");
        assert_eq!(inside.stdin.recv().await, None, "the end of the input is told");
        assert_eq!(inside.resize.recv().await, Some(Size { width: 80, height: 24 }));
        inside.output.send(Output::Stdout("out".into())).await.unwrap();
        inside.output.send(Output::Stderr("err".into())).await.unwrap();
        inside.output.send(Output::Status(json!({ "status": "Success" }))).await.unwrap();
        drop(inside);
        let mut heard = vec![];
        while let Some(Ok(Message::Binary(bytes))) = client.next().await {
            heard.push(String::from_utf8(bytes.to_vec()).unwrap());
        }
        assert_eq!(heard, ["\u{1}", "\u{1}out", "\u{2}err", "\u{3}{\"status\":\"Success\"}"]);
        joined.await.unwrap();
    }

    #[tokio::test]
    async fn input_that_was_not_asked_for_reaches_nobody_and_a_client_that_left_ends_it() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let mut client = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
        let server = WebSocketStream::from_raw_socket(far, Role::Server, None).await;
        let (mut inside, outside) = session::pair();
        let joined = tokio::spawn(join(server, Wanted::default(), outside));
        client.send(message(STDIN, b"rm -r /")).await.unwrap();
        assert_eq!(inside.stdin.recv().await, None);
        drop(client);
        inside.output.closed().await;
        joined.await.unwrap();
    }
}
