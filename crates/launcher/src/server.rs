//! The launcher's unix socket: framing, hello, peer credentials, subscriptions.
//!
//! A session has one task that reads and one that writes, so a slow deed never holds up a state or a later request.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ferrovirt_machine::protocol::{
    self, Answer, ClientFrame, ErrorCode, FrameError, MIN_VERSION, Outcome, ProtocolError, Request, ServerFrame,
    VERSION,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::owner::{Answered, Handle, Message};

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {}", path.display())]
    Listen { path: PathBuf, source: io::Error },
}

/// What ends a session from our side.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the client did not start with a hello that fits")]
    Hello,
}

/// Messages for the writing task of a session.
#[allow(clippy::large_enum_variant)]
enum Outgoing {
    Frame(ServerFrame),
    Subscribe,
}

pub struct Server {
    listener: UnixListener,
}

impl Server {
    /// Makes the socket, for root and our own uid only.
    pub fn bind(dir: &Path) -> Result<Self, ServerError> {
        let path = dir.join(protocol::SOCKET_NAME);
        let wrap = |source| ServerError::Listen { path: path.clone(), source };
        fs::create_dir_all(dir).map_err(wrap)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(wrap(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(wrap)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(wrap)?;
        Ok(Self { listener })
    }

    pub async fn serve(self, owner: Handle) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(session(stream, owner.clone()));
                }
                Err(error) => {
                    // Out of descriptors, most likely: serving the others is better than giving up.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn session(stream: UnixStream, owner: Handle) {
    if !allowed(&stream) {
        return;
    }
    owner.send(Message::Connected);
    let (reader, writer) = stream.into_split();
    let (outgoing, frames) = mpsc::channel(32);
    let writing = tokio::spawn(write_all(writer, frames, owner.clone()));
    if let Err(error) = read_all(reader, &outgoing, &owner).await {
        tracing::debug!(error = %error, "session ended");
    }
    drop(outgoing);
    // Pending answers keep their own senders; the writer ends after the last of them.
    let _ = writing.await;
    owner.send(Message::Disconnected);
}

fn allowed(stream: &UnixStream) -> bool {
    match stream.peer_cred() {
        Ok(peer) => {
            let own = rustix::process::geteuid().as_raw();
            let allowed = is_ours(peer.uid(), peer.pid().unwrap_or(0), own);
            if !allowed {
                tracing::warn!(uid = peer.uid(), "refused a connection");
            }
            allowed
        }
        Err(error) => {
            tracing::warn!(%error, "refused a connection without credentials");
            false
        }
    }
}

/// What the kernel calls users who have no id in our user namespace; nobody in a pod can be that one.
const NOBODY: u32 = 65534;

/// Root and ourselves. In a user namespace the node's root has no id; it is seen as nobody, and without a process id, because it
/// is outside of our PID namespace too. The socket's mode has kept everybody else outside from connecting.
fn is_ours(user: u32, process: i32, own: u32) -> bool {
    user == 0 || user == own || (user == NOBODY && process == 0)
}

async fn read_all(
    mut reader: OwnedReadHalf,
    outgoing: &mpsc::Sender<Outgoing>,
    owner: &Handle,
) -> Result<(), SessionError> {
    let mut spoken = None;
    while let Some(body) = read_frame(&mut reader).await? {
        let frame = match protocol::decode::<ClientFrame>(&body) {
            Ok(frame) => frame,
            Err(error) => {
                let text = ferrovirt_machine::chain(&error);
                reply(outgoing, id_of(&body), Err(refusal(ErrorCode::BadRequest, text)), spoken).await;
                continue;
            }
        };
        let ClientFrame { id, request } = frame;
        match request {
            Request::Hello { min_version, max_version } => match common_version(min_version, max_version) {
                Some(version) => {
                    spoken = Some(version);
                    let hello = ServerFrame::Reply { id, version: spoken, text: None, error: None };
                    let _ = outgoing.send(Outgoing::Frame(hello)).await;
                }
                None => {
                    let text = format!("this launcher speaks versions {MIN_VERSION} to {VERSION}");
                    reply(outgoing, id, Err(refusal(ErrorCode::Version, text)), None).await;
                    return Err(SessionError::Hello);
                }
            },
            _ if spoken.is_none() => {
                let text = "the first request must be a hello".to_owned();
                reply(outgoing, id, Err(refusal(ErrorCode::BadRequest, text)), None).await;
                return Err(SessionError::Hello);
            }
            Request::Subscribe {} => {
                reply(outgoing, id, Ok(Answer::Done {}), spoken).await;
                let _ = outgoing.send(Outgoing::Subscribe).await;
            }
            request => {
                let (outgoing, owner) = (outgoing.clone(), owner.clone());
                tokio::spawn(async move {
                    let answer = owner.request(request).await;
                    reply(&outgoing, id, answer, spoken).await;
                });
            }
        }
    }
    Ok(())
}

async fn write_all(mut writer: OwnedWriteHalf, mut frames: mpsc::Receiver<Outgoing>, owner: Handle) {
    let mut states = owner.state();
    let mut subscribed = false;
    loop {
        let frame = tokio::select! {
            // The state first: who gets an answer has seen the state it is about.
            biased;
            changed = states.changed(), if subscribed => {
                if changed.is_err() {
                    subscribed = false;
                    continue;
                }
                ServerFrame::State { state: states.borrow_and_update().clone() }
            }
            outgoing = frames.recv() => match outgoing {
                None => return,
                Some(Outgoing::Frame(frame)) => frame,
                Some(Outgoing::Subscribe) => {
                    subscribed = true;
                    ServerFrame::State { state: states.borrow_and_update().clone() }
                }
            },
        };
        // What is too much to tell must not keep the rest from being told.
        match protocol::encode(&frame).or_else(|error| protocol::encode(&less(frame, &error))) {
            Ok(bytes) => {
                if writer.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Err(error) => tracing::error!(%error, "cannot encode a frame"),
        }
    }
}

/// The frame without what a guest had a hand in.
fn less(frame: ServerFrame, error: &FrameError) -> ServerFrame {
    tracing::warn!(%error, "a frame is sent without what the guest says");
    match frame {
        ServerFrame::State { mut state } => {
            state.guest = None;
            ServerFrame::State { state }
        }
        ServerFrame::Reply { id, version, .. } => {
            let error = Some(refusal(ErrorCode::Failed, format!("the answer is too long: {error}")));
            ServerFrame::Reply { id, version, text: None, error }
        }
        ServerFrame::Answer { id, .. } => {
            let error = refusal(ErrorCode::Failed, format!("the answer is too long: {error}"));
            ServerFrame::Answer { id, result: Outcome::Error(error) }
        }
    }
}

/// The next frame's body; `None` at the end of the stream.
async fn read_frame(reader: &mut OwnedReadHalf) -> Result<Option<Vec<u8>>, SessionError> {
    let mut prefix = [0; 4];
    match reader.read_exact(&mut prefix).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    };
    let length = protocol::frame_length(prefix)?;
    // Grown while reading, so that a length alone does not make us allocate.
    let mut body = Vec::new();
    (&mut *reader).take(length as u64).read_to_end(&mut body).await?;
    if body.len() < length {
        return Ok(None);
    }
    Ok(Some(body))
}

/// Answers in the version that was agreed on; before that in the first.
async fn reply(outgoing: &mpsc::Sender<Outgoing>, id: u64, answer: Answered, spoken: Option<u32>) {
    let frame = match (answer, spoken) {
        (Ok(answer), Some(2..)) => ServerFrame::Answer { id, result: Outcome::Ok(answer) },
        (Err(error), Some(2..)) => ServerFrame::Answer { id, result: Outcome::Error(error) },
        (answer, _) => {
            let text = answer.and_then(|answer| {
                answer
                    .into_text()
                    .map_err(|error| refusal(ErrorCode::Failed, format!("cannot say the answer: {error}")))
            });
            let (text, error) = match text {
                Ok(text) => (text.filter(|text| !text.is_empty()), None),
                Err(error) => (None, Some(error)),
            };
            ServerFrame::Reply { id, version: None, text, error }
        }
    };
    let _ = outgoing.send(Outgoing::Frame(frame)).await;
}

fn common_version(min: u32, max: u32) -> Option<u32> {
    let version = max.min(VERSION);
    (version >= min.max(MIN_VERSION)).then_some(version)
}

/// The id of a frame that is not understood otherwise, so that its sender gets the refusal; 0 if there is none.
fn id_of(body: &[u8]) -> u64 {
    serde_json::from_slice::<serde_json::Value>(body).ok().and_then(|value| value.get("id")?.as_u64()).unwrap_or(0)
}

fn refusal(code: ErrorCode, message: String) -> ProtocolError {
    ProtocolError { code, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nodes_root_and_we_ourselves_are_heard() {
        for (user, process, expected) in
            [(0, 0, true), (0, 7, true), (107, 7, true), (NOBODY, 0, true), (NOBODY, 7, false), (1000, 0, false)]
        {
            assert_eq!(is_ours(user, process, 107), expected, "{user} {process}");
        }
    }
}
