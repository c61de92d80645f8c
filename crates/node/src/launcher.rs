//! A client of one launcher: requests with replies, the machine's state as a watch, and proof of its process's end.
//!
//! A launcher may have been broken out of, and whoever may run something in its pod can take its socket away. So the socket
//! is reached without following a link, and who answers is believed only as a [`Process`] of the pod. The launcher is PID 1
//! of its PID namespace, so the kernel ends every process of the VM before its pidfd becomes readable: `gone` is the proof
//! that fencing asks for.
//!
//! What it says costs little, whatever it says: frames are bounded, reports of its state come at a bounded rate, and nobody
//! waits for it longer than a request may take.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use ferrovirt_beneath::{Dir, proc_path};
use ferrovirt_machine::{
    protocol::{
        self, Answer, ClientFrame, FrameError, MachineState, Outcome, ProtocolError, Request, ServerFrame, Shape,
    },
    spec::MachineSpec,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::UnixStream,
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use crate::{
    guest,
    process::{Peer, Process, ProcessError},
};

/// A launcher that lives says hello at once.
const GREETING: Duration = Duration::from_secs(10);
/// Time to end in order for one that is to end at once.
const FAREWELL: Duration = Duration::from_secs(5);
/// Longer than anything that a guest's agent is given time for.
const ANSWER: Duration = Duration::from_secs(600);
/// So many reports of the state are read in this time; one that reports more waits. Each may become a write to the API.
const REPORTS: u32 = 20;
const REPORTS_IN: Duration = Duration::from_secs(2);
const FIRST_ROOM: usize = 16 << 10;

#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    #[error("cannot reach the launcher at {path}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("the launcher's socket is answered by somebody who is not believed")]
    Process(#[from] ProcessError),
    #[error("the launcher closed the connection")]
    Closed,
    #[error("the launcher did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the launcher refused")]
    Refused(#[source] ProtocolError),
    #[error("cannot encode a request")]
    Frame(#[from] FrameError),
    #[error("the launcher's answer is damaged")]
    Damaged(#[from] serde_json::Error),
    #[error("the launcher answered something else than what it was asked")]
    Astray,
}

/// A connection to a launcher. Dropping it leaves the machine alone.
pub struct Launcher {
    // Boxed: a channel reserves room for many, and there is one for every machine.
    requests: mpsc::Sender<Box<Call>>,
    state: watch::Receiver<MachineState>,
    proof: Proof,
    /// The version that both speak.
    version: u32,
}

/// What proves a launcher's end.
enum Proof {
    Process(Arc<Process>),
    /// It has no process of its own; whoever runs it says when it ended.
    Told(watch::Receiver<bool>),
}

struct Call {
    request: Request,
    reply: oneshot::Sender<Result<Reply, LauncherError>>,
}

struct Reply {
    answer: Answer,
    /// In the answer to a hello.
    version: Option<u32>,
}

/// Somebody who waits, and for which kind of answer: the first version of the protocol does not say it.
struct Waiting {
    shape: Shape,
    reply: oneshot::Sender<Result<Reply, LauncherError>>,
}

type Pending = Arc<Mutex<HashMap<u64, Waiting>>>;

impl Launcher {
    /// Connects to the socket in a pod's `sockets` volume, makes sure of who answers there, says hello and subscribes to the
    /// state. `pods` is the kubelet's directory of pods, `user` the one that the pod's container runs as.
    pub async fn connect(pods: &Path, pod: &str, user: u32) -> Result<Self, LauncherError> {
        let failed = |source| LauncherError::Connect { path: pods.join(pod).join(protocol::SOCKET_NAME), source };
        let stream = connect_in_pod(pods, pod, "sockets", None, protocol::SOCKET_NAME).await.map_err(failed)?;
        let process = Peer::of(&stream, pod)?.into_process(user)?;
        let (reader, writer) = stream.into_split();
        Self::greet(reader, writer, Proof::Process(Arc::new(process))).await
    }

    /// Speaks to a launcher inside this process. `ended` turns true when it has ended, which is all the proof there is.
    pub async fn inside(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        ended: watch::Receiver<bool>,
    ) -> Result<Self, LauncherError> {
        let (reader, writer) = tokio::io::split(stream);
        Self::greet(reader, writer, Proof::Told(ended)).await
    }

    async fn greet(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        proof: Proof,
    ) -> Result<Self, LauncherError> {
        let (requests, queue) = mpsc::channel(16);
        let (state_sender, state) = watch::channel(MachineState::default());
        let pending = Pending::default();
        tokio::spawn(write_requests(writer, queue, pending.clone()));
        tokio::spawn(read_frames(reader, state_sender, pending));

        let mut launcher = Self { requests, state, proof, version: protocol::MIN_VERSION };
        let hello = Request::Hello { min_version: protocol::MIN_VERSION, max_version: protocol::VERSION };
        let spoken = launcher.call(hello, GREETING).await?.version.unwrap_or(protocol::MIN_VERSION);
        launcher.version = spoken.clamp(protocol::MIN_VERSION, protocol::VERSION);
        launcher.state.mark_unchanged();
        launcher.call(Request::Subscribe {}, GREETING).await?;
        Ok(launcher)
    }

    /// The launcher's process, if it has one.
    pub(crate) fn process(&self) -> Option<&Arc<Process>> {
        match &self.proof {
            Proof::Process(process) => Some(process),
            Proof::Told(_) => None,
        }
    }

    /// The state as the launcher reports it; the channel closes with the connection.
    pub fn state(&self) -> watch::Receiver<MachineState> {
        self.state.clone()
    }

    /// Has the launcher run this machine, or change the one that runs into it. One that speaks the first version only starts it.
    pub async fn apply(&self, generation: u64, spec: MachineSpec) -> Result<(), LauncherError> {
        let spec = Box::new(spec);
        let request = match self.can_change() {
            true => Request::Apply { generation, spec },
            false => Request::Sync { spec },
        };
        self.call(request, ANSWER).await.map(drop)
    }

    /// Whether a machine that runs there can become another one.
    pub fn can_change(&self) -> bool {
        self.version >= 2
    }

    pub async fn request(&self, request: Request) -> Result<Answer, LauncherError> {
        let shape = request.shape();
        let answer = self.call(request, ANSWER).await?.answer;
        if answer.shape() == shape { Ok(answer) } else { Err(LauncherError::Astray) }
    }

    /// Waits until the launcher and with it every process of the VM has ended.
    pub async fn gone(&self) {
        match &self.proof {
            Proof::Process(process) => process.ended().await,
            // An error here means that the runtime is shutting down, and then nobody waits for the answer.
            Proof::Told(ended) => drop(ended.clone().wait_for(|ended| *ended).await),
        }
    }

    /// Ends the launcher and with it every process of the VM, with or without its help, and waits for that.
    pub(crate) async fn end(&self) {
        for request in [Request::Kill {}, Request::Release {}] {
            if let Err(error) = self.call(request, FAREWELL).await {
                tracing::debug!(%error, "the launcher does not help to end itself");
            }
        }
        if tokio::time::timeout(FAREWELL, self.gone()).await.is_ok() {
            return;
        }
        if let Proof::Process(process) = &self.proof
            && let Err(error) = process.kill()
        {
            tracing::warn!(%error, "cannot kill a launcher that does not end");
        }
        self.gone().await;
    }

    async fn call(&self, request: Request, time: Duration) -> Result<Reply, LauncherError> {
        let answered = async {
            let (reply, answer) = oneshot::channel();
            self.requests.send(Box::new(Call { request, reply })).await.map_err(|_| LauncherError::Closed)?;
            answer.await.map_err(|_| LauncherError::Closed)?
        };
        tokio::time::timeout(time, answered).await.unwrap_or(Err(LauncherError::Silent(time)))
    }
}

/// Connects to a socket in one of a pod's volumes. Everything below the volume is the pod's, so no link is followed there;
/// and a descriptor leads to it, because the full path may be longer than a socket address can hold.
pub(crate) async fn connect_in_pod(
    pods: &Path,
    pod: &str,
    volume: &str,
    directory: Option<&str>,
    name: &str,
) -> io::Result<UnixStream> {
    // A kubelet mounts some kinds of volumes; inside of them nothing else is.
    let volume = format!("{pod}/volumes/kubernetes.io~empty-dir/{volume}");
    let mut at = Dir::open(pods)?.sub_mount(volume)?;
    if let Some(directory) = directory {
        at = at.sub(directory)?;
    }
    let socket = at.socket(name)?;
    UnixStream::connect(proc_path(&socket)).await
}

async fn write_requests(mut writer: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Box<Call>>, pending: Pending) {
    let mut next_id = 1u64;
    while let Some(call) = queue.recv().await {
        let Call { request, reply } = *call;
        let shape = request.shape();
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
            // Those who do not wait any more would pile up with a launcher that never answers.
            pending.retain(|_, waiting| !waiting.reply.is_closed());
            pending.insert(id, Waiting { shape, reply });
        }
        if writer.write_all(&bytes).await.is_err() {
            break;
        }
    }
}

async fn read_frames(mut reader: impl AsyncRead + Unpin, state: watch::Sender<MachineState>, pending: Pending) {
    let mut pace = Pace::new(Instant::now());
    loop {
        let frame = match read_frame(&mut reader).await {
            Ok(frame) => frame,
            Err(error) => {
                tracing::debug!(%error, "launcher connection ended");
                break;
            }
        };
        match frame {
            ServerFrame::State { state: mut new } => {
                guest::bound_state(&mut new);
                let _ = state.send(new);
                if let Some(until) = pace.wait(Instant::now()) {
                    // Its socket fills up meanwhile, and it waits as well.
                    tokio::time::sleep_until(until).await;
                }
            }
            ServerFrame::Reply { id, version, text, error } => {
                let waiting = pending.lock().ok().and_then(|mut pending| pending.remove(&id));
                if let Some(Waiting { shape, reply }) = waiting {
                    let _ = reply.send(match error {
                        Some(error) => Err(LauncherError::Refused(error)),
                        None => Answer::from_text(shape, text)
                            .map(|answer| Reply { answer, version })
                            .map_err(LauncherError::Damaged),
                    });
                }
            }
            ServerFrame::Answer { id, result } => {
                let waiting = pending.lock().ok().and_then(|mut pending| pending.remove(&id));
                if let Some(waiting) = waiting {
                    let _ = waiting.reply.send(match result {
                        Outcome::Ok(answer) => Ok(Reply { answer, version: None }),
                        Outcome::Error(error) => Err(LauncherError::Refused(error)),
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

/// How fast reports are taken.
struct Pace {
    since: Instant,
    reports: u32,
}

impl Pace {
    fn new(since: Instant) -> Self {
        Self { since, reports: 0 }
    }

    /// Counts a report, and says until when the next one has to wait.
    fn wait(&mut self, now: Instant) -> Option<Instant> {
        if now.duration_since(self.since) >= REPORTS_IN {
            *self = Self::new(now);
        }
        self.reports += 1;
        (self.reports >= REPORTS).then(|| self.since + REPORTS_IN)
    }
}

async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<ServerFrame> {
    let mut prefix = [0u8; 4];
    reader.read_exact(&mut prefix).await?;
    let length = protocol::frame_length(prefix).map_err(io::Error::other)?;
    // It grows with what comes, not with what was promised.
    let mut body = Vec::with_capacity(length.min(FIRST_ROOM));
    if reader.take(length as u64).read_to_end(&mut body).await? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    protocol::decode(&body).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_that_floods_reports_is_read_slowly() {
        let begin = Instant::now();
        let (mut now, mut pace) = (begin, Pace::new(begin));
        for _ in 0..10_000 {
            now = pace.wait(now).unwrap_or(now).max(now);
        }
        assert!(now - begin >= REPORTS_IN * (10_000 / REPORTS - 1), "{:?}", now - begin);
        // One that reports now and then never waits.
        for _ in 0..100 {
            now += REPORTS_IN / (REPORTS / 2);
            assert_eq!(pace.wait(now), None);
        }
    }

    async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
        let length = stream.read_u32().await.unwrap();
        let mut body = vec![0; length as usize];
        stream.read_exact(&mut body).await.unwrap();
        let asked: ClientFrame = protocol::decode(&body).unwrap();
        let reply = ServerFrame::Reply { id: asked.id, version: Some(1), text: None, error: None };
        stream.write_all(&protocol::encode(&reply).unwrap()).await.unwrap();
    }

    #[tokio::test]
    async fn a_launcher_that_never_answers_is_not_waited_for() {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let (_ended, told) = watch::channel(false);
        let (launcher, ()) = tokio::join!(Launcher::inside(ours, told), async {
            answer(&mut theirs).await;
            answer(&mut theirs).await;
        });
        let launcher = launcher.unwrap();
        let time = Duration::from_millis(1);
        // More than the queue and the pipe hold: neither may keep the caller.
        for _ in 0..200 {
            assert!(matches!(launcher.call(Request::Pause {}, time).await, Err(LauncherError::Silent(_))));
        }
    }

    /// Reads one request and says what the launcher answers, in its version.
    async fn hear(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), reply: impl Fn(u64) -> ServerFrame) -> Request {
        let length = stream.read_u32().await.unwrap();
        let mut body = vec![0; length as usize];
        stream.read_exact(&mut body).await.unwrap();
        let asked: ClientFrame = protocol::decode(&body).unwrap();
        stream.write_all(&protocol::encode(&reply(asked.id)).unwrap()).await.unwrap();
        asked.request
    }

    #[tokio::test]
    async fn a_launcher_of_an_earlier_version_is_driven_in_its_words() {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        let (_ended, told) = watch::channel(false);
        let text = |id, text: &str| ServerFrame::Reply { id, version: None, text: Some(text.into()), error: None };
        let heard = tokio::spawn(async move {
            answer(&mut theirs).await;
            answer(&mut theirs).await;
            let first = hear(&mut theirs, |id| text(id, "")).await;
            let second = hear(&mut theirs, |id| text(id, "<domain/>")).await;
            let third = hear(&mut theirs, |id| text(id, "no JSON")).await;
            (first, second, third)
        });
        let launcher = Launcher::inside(ours, told).await.unwrap();
        assert!(!launcher.can_change());
        launcher.apply(7, MachineSpec::default()).await.unwrap();
        let xml = launcher.request(Request::DomainXml {}).await.unwrap();
        assert_eq!(xml, Answer::DomainXml { xml: "<domain/>".into() });
        let stats = Request::Guest { call: protocol::GuestCall::Stats {} };
        assert!(matches!(launcher.request(stats).await, Err(LauncherError::Damaged(_))));
        let (first, second, _) = heard.await.unwrap();
        assert!(matches!(first, Request::Sync { .. }), "{first:?}");
        assert!(matches!(second, Request::DomainXml {}), "{second:?}");
    }

    #[tokio::test]
    async fn an_answer_to_something_else_is_no_answer() {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        let (_ended, told) = watch::channel(false);
        let done = |id| ServerFrame::Answer { id, result: Outcome::Ok(Answer::Done {}) };
        let heard = tokio::spawn(async move {
            let hello = |id| ServerFrame::Reply { id, version: Some(2), text: None, error: None };
            hear(&mut theirs, hello).await;
            hear(&mut theirs, done).await;
            let first = hear(&mut theirs, done).await;
            hear(&mut theirs, done).await;
            first
        });
        let launcher = Launcher::inside(ours, told).await.unwrap();
        launcher.apply(7, MachineSpec::default()).await.unwrap();
        assert!(matches!(launcher.request(Request::DomainXml {}).await, Err(LauncherError::Astray)));
        assert!(matches!(heard.await.unwrap(), Request::Apply { generation: 7, .. }));
    }

    #[tokio::test]
    async fn a_launcher_that_promises_a_large_frame_is_given_no_room_for_it() {
        let (mut ours, mut theirs) = tokio::io::duplex(4096);
        theirs.write_u32(protocol::MAX_FRAME).await.unwrap();
        theirs.write_all(b"short").await.unwrap();
        drop(theirs);
        assert_eq!(read_frame(&mut ours).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let (mut ours, mut theirs) = tokio::io::duplex(4096);
        theirs.write_u32(protocol::MAX_FRAME + 1).await.unwrap();
        assert!(read_frame(&mut ours).await.unwrap_err().to_string().contains("larger than"));
    }
}
