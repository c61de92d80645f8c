//! What ssh talks through: a stream to the guest's ssh server, over the API. A guest that boots is waited for: its server speaks first, so
//! nothing is taken from ssh before it did, and a connection that came too early costs nothing.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use bytes::Bytes;
use clap::Args;
use futures::StreamExt;
use kube::Client;
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::tungstenite::Message;

use crate::{
    client::{ClientArgs, explain},
    socket::{self, Socket},
    target,
};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the API may take. Its client repeats by itself what was answered with 503, as a closed port is, and does so for minutes.
const OPEN: Duration = Duration::from_secs(4);
/// How long a server may think about its first words.
const SILENCE: Duration = Duration::from_secs(20);
/// After this the user wants to know what he waits for.
const SOON: Duration = Duration::from_secs(3);

#[derive(Args)]
pub struct ProxyArgs {
    /// vm/NAME/NAMESPACE
    target: String,
    /// Port of the guest's ssh server
    port: u16,
    /// Seconds to wait for it
    #[arg(long)]
    wait: u64,
    #[command(flatten)]
    client: ClientArgs,
}

pub async fn run(arguments: ProxyArgs) -> Result<()> {
    let named = target::path(&arguments.target)?;
    let client = arguments.client.connect().await?;
    let namespace = named.namespace.clone().unwrap_or_else(|| arguments.client.namespace(&client).to_owned());
    let below = format!("portforward/{}/tcp", arguments.port);
    let path = socket::path(&namespace, named.kind.resource(), &named.name, &below);
    let patience = Duration::from_secs(arguments.wait);
    let (socket, first) = reach(&client, &path, patience, || {
        eprintln!("waiting for the ssh server of {} (port {}) …", named.name, arguments.port);
    })
    .await?;
    let mut output = tokio::io::stdout();
    output.write_all(&first).await?;
    output.flush().await?;
    socket::join(socket, tokio::io::stdin(), output).await?;
    Ok(())
}

/// Whether a server answers, for those who failed to log in.
pub async fn answers(client: &Client, path: &str) -> Result<()> {
    reach(client, path, Duration::from_secs(3), || {}).await.map(drop)
}

/// A stream whose other side has spoken, and what it said.
async fn reach(client: &Client, path: &str, patience: Duration, late: impl FnOnce()) -> Result<(Socket, Bytes)> {
    let started = Instant::now();
    let mut late = Some(late);
    loop {
        let error = match attempt(client, path).await {
            Ok(reached) => return Ok(reached),
            Err(error) => error,
        };
        let waited = started.elapsed();
        if is_final(&error) {
            return Err(error);
        }
        if waited >= patience {
            return Err(anyhow!("no ssh server answers ({})", explain(&error)));
        }
        if waited >= SOON
            && let Some(late) = late.take()
        {
            late();
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn attempt(client: &Client, path: &str) -> Result<(Socket, Bytes)> {
    let opened = tokio::time::timeout(OPEN, socket::open(client, path)).await;
    let mut socket = opened.map_err(|_| anyhow!("nobody takes the connection"))??;
    let first = async {
        while let Some(message) = socket.next().await {
            match message? {
                Message::Binary(bytes) if !bytes.is_empty() => return Ok(bytes),
                Message::Text(text) if !text.is_empty() => return Ok(text.into()),
                Message::Close(Some(frame)) if !frame.reason.is_empty() => return Err(anyhow!("{}", frame.reason)),
                Message::Close(_) => break,
                _ => {}
            }
        }
        Err(anyhow!("the connection was closed"))
    };
    let first = tokio::time::timeout(SILENCE, first).await.map_err(|_| anyhow!("nothing is said"))??;
    Ok((socket, first))
}

/// Whether another try would end the same way.
fn is_final(error: &anyhow::Error) -> bool {
    let answered = error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>());
    matches!(answered, Some(kube::Error::Api(status)) if [401, 403, 404, 409].contains(&status.code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_final_and_closed_ports_are_not() {
        let api = |code| kube::Error::Api(Box::new(kube::core::Status::failure("x", "").with_code(code)));
        for (error, expected) in [
            (anyhow::Error::from(api(403)), true),
            (anyhow::Error::from(api(404)).context("y"), true),
            (anyhow::Error::from(api(409)), true),
            (anyhow::Error::from(api(500)), false),
            (anyhow!("connection refused"), false),
        ] {
            assert_eq!(is_final(&error), expected, "{error}");
        }
    }
}
