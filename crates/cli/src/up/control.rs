//! The control socket of a running host: how `status` and `down` find it. Root only, by the mode of its directory.
//!
//! One line in (`status` or `down`), lines out: a JSON object for `status`, progress and a last `done` for `down`.

use std::{io, path::Path, sync::Arc};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::mpsc,
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub version: String,
    pub pid: u32,
    pub server: String,
    pub ready: bool,
    pub virtualization: String,
}

/// The last line of a `down`.
pub const DONE: &str = "done";

/// Somebody wants the host to go down, and to hear how it goes.
pub type DownRequest = mpsc::Sender<String>;

/// Listens until the process ends.
pub fn listen(
    path: &Path,
    status: Arc<dyn Fn() -> Status + Send + Sync>,
    downs: mpsc::Sender<DownRequest>,
) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (status, downs) = (status.clone(), downs.clone());
            tokio::spawn(async move {
                if let Err(error) = serve(stream, &*status, downs).await {
                    tracing::debug!(%error, "control connection");
                }
            });
        }
    });
    Ok(())
}

async fn serve(
    stream: UnixStream,
    status: &(dyn Fn() -> Status + Send + Sync),
    downs: mpsc::Sender<DownRequest>,
) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    match line.trim() {
        "status" => {
            let mut answer = serde_json::to_vec(&status())?;
            answer.push(b'\n');
            stream.write_all(&answer).await?;
        }
        "down" => {
            let (progress, mut lines) = mpsc::channel(16);
            downs.send(progress).await?;
            while let Some(line) = lines.recv().await {
                stream.write_all(format!("{line}\n").as_bytes()).await?;
                // The host waits for this answer to be out before it ends.
                if line == DONE {
                    break;
                }
            }
        }
        other => stream.write_all(format!("unknown command {other:?}\n").as_bytes()).await?,
    }
    Ok(())
}

/// Asks a running host for its status. `None` if none runs.
pub async fn status(path: &Path) -> Option<Status> {
    let mut stream = BufReader::new(UnixStream::connect(path).await.ok()?);
    stream.write_all(b"status\n").await.ok()?;
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    serde_json::from_str(&line).ok()
}

/// Asks a running host to go down and hands its progress to `show`. False if none runs.
pub async fn down(path: &Path, mut show: impl FnMut(&str)) -> Result<bool> {
    let Ok(stream) = UnixStream::connect(path).await else { return Ok(false) };
    let mut stream = BufReader::new(stream);
    stream.write_all(b"down\n").await?;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        show(line.trim_end());
        line.clear();
    }
    Ok(true)
}
