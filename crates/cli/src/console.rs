//! `ferrovirt console`: the serial console of a VM, as if one sat in front of it.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use clap::Args;
use futures::{SinkExt, StreamExt};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::io::AsyncReadExt;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

use crate::client::ClientArgs;

/// `^]`
const ESCAPE: u8 = 0x1d;

#[derive(Args)]
pub struct ConsoleArgs {
    /// The VM
    name: String,
    #[command(flatten)]
    client: ClientArgs,
}

pub async fn run(arguments: ConsoleArgs) -> Result<()> {
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let name = &arguments.name;
    let path =
        format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/console");
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
        let body = response.into_body().collect().await?.to_bytes();
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        bail!("{}", status["message"].as_str().unwrap_or("the server refused the console"));
    }
    let upgraded = hyper::upgrade::on(response).await.context("the server gave no stream")?;
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await;
    let terminal = RawTerminal::enter();
    if terminal.is_some() {
        eprint!("Connected to {name}. Press Enter for a prompt, Ctrl+] to leave.\r\n");
    }
    let ended = join(socket).await;
    drop(terminal);
    if std::io::stdin().is_terminal() {
        eprintln!();
    }
    ended
}

async fn join<S>(socket: WebSocketStream<S>) -> Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let (mut to_guest, mut from_guest) = socket.split();
    let outward = async {
        let mut input = tokio::io::stdin();
        let mut buffer = vec![0u8; 4096];
        loop {
            let length = input.read(&mut buffer).await?;
            let bytes = buffer.get(..length).unwrap_or_default();
            let (bytes, leave) = match bytes.iter().position(|b| *b == ESCAPE) {
                Some(position) => (bytes.get(..position).unwrap_or_default(), true),
                None => (bytes, bytes.is_empty()),
            };
            if !bytes.is_empty() {
                to_guest.send(Message::Binary(bytes::Bytes::copy_from_slice(bytes))).await?;
            }
            if leave {
                let _ = to_guest.send(Message::Close(None)).await;
                return Ok::<(), anyhow::Error>(());
            }
        }
    };
    let inward = async {
        let mut output = std::io::stdout();
        while let Some(message) = from_guest.next().await {
            let bytes = match message {
                Ok(Message::Binary(bytes)) => bytes,
                Ok(Message::Text(text)) => text.into(),
                Ok(Message::Close(_)) | Err(_) => break,
                Ok(_) => continue,
            };
            output.write_all(&bytes)?;
            output.flush()?;
        }
        Ok::<(), anyhow::Error>(())
    };
    tokio::select! {
        done = outward => done,
        done = inward => {
            done?;
            eprint!("\r\nThe console was closed.\r\n");
            Ok(())
        }
    }
}

/// The terminal in raw mode; dropping it puts everything back.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    fn enter() -> Option<Self> {
        let input = std::io::stdin();
        if !input.is_terminal() {
            return None;
        }
        let before = tcgetattr(&input).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&input, OptionalActions::Now, &raw).ok()?;
        Some(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}
