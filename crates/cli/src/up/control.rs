//! The control socket of a running host: how `status` and `down` find it. Root only, by the mode of its directory.
//!
//! One line in (`status`, `down`, `down {"grace":SECONDS}`, `reload` or `backup "DIRECTORY"`), lines out: a JSON object for `status`, progress and a last
//! `done` for `down`, `done` or what went wrong for `backup`.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use futures::future::BoxFuture;
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

/// The last line of a `down`, and of a `backup` that succeeded.
pub const DONE: &str = "done";

/// Somebody wants the host to go down, and to hear how it goes.
pub struct DownRequest {
    pub haste: Haste,
    pub progress: mpsc::Sender<String>,
}

/// How long guests have to shut down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Haste {
    /// No guest has more than so many seconds, whatever its own grace period is.
    pub grace: Option<u64>,
    /// They are not asked.
    pub force: bool,
}

impl Haste {
    /// How long to wait at most.
    pub fn seconds(self) -> Option<u64> {
        if self.force { Some(0) } else { self.grace }
    }
}

/// Writes the objects of the API into a directory.
pub type Backup = Arc<dyn Fn(PathBuf) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// Reads again what changed on disk without the host.
pub type Reload = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// What a running host does for those who ask.
#[derive(Clone)]
pub struct Answers {
    pub status: Arc<dyn Fn() -> Status + Send + Sync>,
    pub downs: mpsc::Sender<DownRequest>,
    pub backup: Backup,
    pub reload: Reload,
}

/// Listens until the process ends.
pub fn listen(path: &Path, answers: Answers) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answers = answers.clone();
            tokio::spawn(async move {
                if let Err(error) = serve(stream, answers).await {
                    tracing::debug!(%error, "control connection");
                }
            });
        }
    });
    Ok(())
}

async fn serve(stream: UnixStream, answers: Answers) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let (command, argument) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    match command {
        "status" => {
            let mut answer = serde_json::to_vec(&(answers.status)())?;
            answer.push(b'\n');
            stream.write_all(&answer).await?;
        }
        "down" => {
            let haste = if argument.is_empty() { Haste::default() } else { serde_json::from_str(argument)? };
            let (progress, mut lines) = mpsc::channel(16);
            answers.downs.send(DownRequest { haste, progress }).await?;
            while let Some(line) = lines.recv().await {
                stream.write_all(format!("{line}\n").as_bytes()).await?;
                // The host waits for this answer to be out before it ends.
                if line == DONE {
                    break;
                }
            }
        }
        "backup" => {
            let directory: PathBuf = serde_json::from_str(argument)?;
            let answer = match (answers.backup)(directory).await {
                Ok(()) => DONE.to_owned(),
                Err(error) => format!("{error:#}").replace('\n', " "),
            };
            stream.write_all(format!("{answer}\n").as_bytes()).await?;
        }
        "reload" => {
            let answer = match (answers.reload)() {
                Ok(()) => DONE.to_owned(),
                Err(error) => format!("{error:#}").replace('\n', " "),
            };
            stream.write_all(format!("{answer}\n").as_bytes()).await?;
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
pub async fn down(path: &Path, haste: Haste, mut show: impl FnMut(&str)) -> Result<bool> {
    let Ok(stream) = UnixStream::connect(path).await else { return Ok(false) };
    let mut stream = BufReader::new(stream);
    // A host of an earlier version understands the word alone.
    let line = match haste == Haste::default() {
        true => "down\n".to_owned(),
        false => format!("down {}\n", serde_json::to_string(&haste)?),
    };
    stream.write_all(line.as_bytes()).await?;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        show(line.trim_end());
        line.clear();
    }
    Ok(true)
}

/// Asks a running host to read again what changed on disk. False if none runs.
pub async fn reload(path: &Path) -> Result<bool> {
    let Ok(stream) = UnixStream::connect(path).await else { return Ok(false) };
    let mut stream = BufReader::new(stream);
    stream.write_all(b"reload\n").await?;
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    match line.trim_end() {
        DONE => Ok(true),
        other => bail!("{other}"),
    }
}

/// Asks a running host to write its objects into a directory. False if none runs.
pub async fn backup(path: &Path, directory: &Path) -> Result<bool> {
    let Ok(stream) = UnixStream::connect(path).await else { return Ok(false) };
    let mut stream = BufReader::new(stream);
    stream.write_all(format!("backup {}\n", serde_json::to_string(directory)?).as_bytes()).await?;
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    match line.trim_end() {
        DONE => Ok(true),
        "" => bail!("the host ended before the backup was done"),
        other => bail!("{other}"),
    }
}
