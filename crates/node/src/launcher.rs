//! A client of one launcher: requests with replies, the machine's state as a watch, and proof of its process's end.
//!
//! Connecting also takes a pidfd of the launcher. The launcher is PID 1 of its PID namespace, so the kernel ends every
//! process of the VM before that pidfd becomes readable: `gone` is the proof that fencing asks for.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use ferrovirt_machine::{
    protocol::{self, ClientFrame, FrameError, MachineState, ProtocolError, Request, ServerFrame},
    spec::MachineSpec,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, unix::AsyncFd},
    net::UnixStream,
    sync::{mpsc, oneshot, watch},
};

#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    #[error("cannot reach the launcher at {path}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("the launcher's process cannot be identified")]
    Process(#[source] io::Error),
    #[error("the launcher closed the connection")]
    Closed,
    #[error("the launcher refused")]
    Refused(#[source] ProtocolError),
    #[error("cannot encode a request")]
    Frame(#[from] FrameError),
}

/// A connection to a launcher. Dropping it leaves the machine alone.
pub struct Launcher {
    // Boxed: a channel reserves room for many, and there is one for every machine.
    requests: mpsc::Sender<Box<Call>>,
    state: watch::Receiver<MachineState>,
    process: Process,
}

/// What proves a launcher's end.
enum Process {
    Real {
        pid: i32,
        handle: AsyncFd<OwnedFd>,
    },
    /// It has no process of its own; whoever runs it says when it ended.
    Told(watch::Receiver<bool>),
}

struct Call {
    request: Request,
    reply: oneshot::Sender<Result<Reply, LauncherError>>,
}

struct Reply {
    text: Option<String>,
}

type Pending = Arc<Mutex<HashMap<u64, oneshot::Sender<Result<Reply, LauncherError>>>>>;

impl Launcher {
    /// Connects to the socket in a pod's `sockets` volume, says hello and subscribes to the state.
    pub async fn connect(directory: &Path) -> Result<Self, LauncherError> {
        let path = directory.join(protocol::SOCKET_NAME);
        let connect = |source| LauncherError::Connect { path: path.clone(), source };
        let stream = connect_below(directory, protocol::SOCKET_NAME).await.map_err(connect)?;
        let credentials = stream.peer_cred().map_err(LauncherError::Process)?;
        let pid = credentials
            .pid()
            .ok_or_else(|| LauncherError::Process(io::Error::other("the peer has no process id here")))?;
        let handle = open_process(pid).map_err(LauncherError::Process)?;
        let (reader, writer) = stream.into_split();
        Self::greet(reader, writer, Process::Real { pid, handle }).await
    }

    /// Speaks to a launcher inside this process. `ended` turns true when it has ended, which is all the proof there is.
    pub async fn inside(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        ended: watch::Receiver<bool>,
    ) -> Result<Self, LauncherError> {
        let (reader, writer) = tokio::io::split(stream);
        Self::greet(reader, writer, Process::Told(ended)).await
    }

    async fn greet(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        process: Process,
    ) -> Result<Self, LauncherError> {
        let (requests, queue) = mpsc::channel(16);
        let (state_sender, state) = watch::channel(MachineState::default());
        let pending = Pending::default();
        tokio::spawn(write_requests(writer, queue, pending.clone()));
        tokio::spawn(read_frames(reader, state_sender, pending));

        let mut launcher = Self { requests, state, process };
        launcher.call(Request::Hello { min_version: protocol::MIN_VERSION, max_version: protocol::VERSION }).await?;
        launcher.state.mark_unchanged();
        launcher.call(Request::Subscribe {}).await?;
        Ok(launcher)
    }

    /// The launcher's process id in our PID namespace, if it has a process.
    pub fn pid(&self) -> Option<i32> {
        match self.process {
            Process::Real { pid, .. } => Some(pid),
            Process::Told(_) => None,
        }
    }

    /// The state as the launcher reports it; the channel closes with the connection.
    pub fn state(&self) -> watch::Receiver<MachineState> {
        self.state.clone()
    }

    pub async fn sync(&self, spec: MachineSpec) -> Result<(), LauncherError> {
        self.call(Request::Sync { spec: Box::new(spec) }).await.map(drop)
    }

    pub async fn request(&self, request: Request) -> Result<Option<String>, LauncherError> {
        self.call(request).await.map(|reply| reply.text)
    }

    /// Waits until the launcher and with it every process of the VM has ended.
    pub async fn gone(&self) {
        // An error here means that the runtime is shutting down, and then nobody waits for the answer.
        match &self.process {
            Process::Real { handle, .. } => drop(handle.readable().await),
            Process::Told(ended) => drop(ended.clone().wait_for(|ended| *ended).await),
        }
    }

    async fn call(&self, request: Request) -> Result<Reply, LauncherError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Box::new(Call { request, reply })).await.map_err(|_| LauncherError::Closed)?;
        answer.await.map_err(|_| LauncherError::Closed)?
    }
}

/// Connects to a socket whose full path may be longer than a socket address can hold.
pub async fn connect_below(directory: &Path, name: &str) -> io::Result<UnixStream> {
    let handle = rustix::fs::open(
        directory,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    UnixStream::connect(format!("/proc/self/fd/{}/{name}", handle.as_raw_fd())).await
}

// Deprecated for types that may give out another descriptor later; an `OwnedFd` never does.
#[allow(deprecated)]
fn open_process(pid: i32) -> io::Result<AsyncFd<OwnedFd>> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| io::Error::other("no such process"))?;
    let handle = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::NONBLOCK)?;
    AsyncFd::with_interest(handle, tokio::io::Interest::READABLE)
}

async fn write_requests(mut writer: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Box<Call>>, pending: Pending) {
    let mut next_id = 1u64;
    while let Some(call) = queue.recv().await {
        let Call { request, reply } = *call;
        let id = next_id;
        next_id += 1;
        let bytes = match protocol::encode(&ClientFrame { id, request }) {
            Ok(bytes) => bytes,
            Err(error) => {
                let _ = reply.send(Err(error.into()));
                continue;
            }
        };
        if let Ok(mut pending) = pending.lock() {
            pending.insert(id, reply);
        }
        if writer.write_all(&bytes).await.is_err() {
            break;
        }
    }
}

async fn read_frames(mut reader: impl AsyncRead + Unpin, state: watch::Sender<MachineState>, pending: Pending) {
    loop {
        let frame = match read_frame(&mut reader).await {
            Ok(frame) => frame,
            Err(error) => {
                tracing::debug!(%error, "launcher connection ended");
                break;
            }
        };
        match frame {
            ServerFrame::State { state: new } => {
                let _ = state.send(new);
            }
            ServerFrame::Reply { id, text, error, .. } => {
                let waiting = pending.lock().ok().and_then(|mut pending| pending.remove(&id));
                if let Some(waiting) = waiting {
                    let _ = waiting.send(match error {
                        Some(error) => Err(LauncherError::Refused(error)),
                        None => Ok(Reply { text }),
                    });
                }
            }
        }
    }
    // Whoever still waits for a reply learns that none will come.
    if let Ok(mut pending) = pending.lock() {
        pending.clear();
    }
}

async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<ServerFrame> {
    let mut prefix = [0u8; 4];
    reader.read_exact(&mut prefix).await?;
    let length = protocol::frame_length(prefix).map_err(io::Error::other)?;
    let mut body = vec![0u8; length];
    reader.read_exact(&mut body).await?;
    protocol::decode(&body).map_err(io::Error::other)
}
