//! `ferrovirt console`: the serial console of a VM, as if one sat in front of it.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use clap::Args;
use futures::{SinkExt, StreamExt};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::io::AsyncReadExt;
use tokio_tungstenite::{WebSocketStream, tungstenite::Message};

use crate::{
    client::ClientArgs,
    console_log, persona, socket,
    target::{self, Kind},
    wait,
};

/// `^]`
const ESCAPE: u8 = 0x1d;

#[derive(Args)]
pub struct ConsoleArgs {
    /// The VM
    pub name: String,
    #[command(flatten)]
    pub client: ClientArgs,
    /// Begin with what the guest wrote last [default: true on a terminal]
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub scrollback: Option<bool>,
    /// Show what the guest wrote since it started, and leave
    #[arg(long, conflicts_with = "scrollback")]
    pub log: bool,
    /// With --log: go on with what it writes
    #[arg(long, short, requires = "log")]
    pub follow: bool,
    /// Accepted for upstream's sake: minutes to wait for the machine
    #[arg(long, hide = true)]
    pub timeout: Option<u64>,
}

pub async fn run(arguments: ConsoleArgs) -> Result<()> {
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let named = target::path(&arguments.name)?;
    let namespace = named.namespace.unwrap_or(namespace);
    let name = &named.name;
    if arguments.log {
        return console_log::run(&client, &namespace, name, arguments.follow).await;
    }
    if !persona::is_virtctl() {
        wait::until_guest_runs(&client, &namespace, name).await?;
    }
    let mut path = socket::path(&namespace, Kind::Instance.resource(), name, "console");
    if arguments.scrollback.unwrap_or_else(|| std::io::stdin().is_terminal()) {
        path.push_str("?scrollback=true");
    }
    let socket = socket::open(&client, &path).await?;
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
                Ok(Message::Close(Some(frame))) if !frame.reason.is_empty() => {
                    eprint!("\r\n{}.", frame.reason);
                    break;
                }
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
