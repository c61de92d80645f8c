//! A launcher that pretends: it speaks the launcher protocol and keeps a state, and there is no machine behind it.

use std::sync::{Arc, Mutex, PoisonError};

use ferrovirt_machine::protocol::{
    self, Answer, Applied, ClientFrame, ErrorCode, MachinePhase, MachineState, Outcome, PauseReason, ProtocolError,
    Request, ServerFrame, StopReason,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::{mpsc, watch},
};

use crate::ledger::Ledger;

/// Every connection keeps as much as it once held.
const PIPE: usize = 1 << 10;

/// How a guest behaves. Read from the instance's annotations by [`Behaviour::read`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// The machine does not come up, for this reason.
    pub start_error: Option<String>,
    /// The guest ignores the request to power off.
    pub stubborn: bool,
}

impl Behaviour {
    pub const START_ERROR: &str = "sim.ferrovirt.io/start-error";
    pub const STUBBORN: &str = "sim.ferrovirt.io/stubborn";

    pub fn read(annotations: &std::collections::BTreeMap<String, String>) -> Self {
        Self {
            start_error: annotations.get(Self::START_ERROR).cloned(),
            stubborn: annotations.contains_key(Self::STUBBORN),
        }
    }
}

/// One pretended launcher. Clones are the same one.
#[derive(Clone)]
pub struct SimLauncher(Arc<Inner>);

struct Inner {
    pod: String,
    disk: String,
    behaviour: Behaviour,
    ledger: Ledger,
    state: watch::Sender<MachineState>,
    /// The exit code, once it has ended.
    exit: watch::Sender<Option<i32>>,
    ended: watch::Sender<bool>,
    turn: Mutex<()>,
}

impl SimLauncher {
    pub fn new(pod: &str, disk: &str, behaviour: Behaviour, ledger: Ledger) -> Self {
        Self(Arc::new(Inner {
            pod: pod.into(),
            disk: disk.into(),
            behaviour,
            ledger,
            state: watch::Sender::new(MachineState::default()),
            exit: watch::Sender::new(None),
            ended: watch::Sender::new(false),
            turn: Mutex::new(()),
        }))
    }

    /// Turns true when nothing of the launcher is left.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.0.ended.subscribe()
    }

    pub fn has_ended(&self) -> bool {
        *self.0.ended.borrow()
    }

    pub fn exit(&self) -> watch::Receiver<Option<i32>> {
        self.0.exit.subscribe()
    }

    /// Opens a connection, as over its socket.
    pub fn dial(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        tokio::spawn(serve(self.clone(), ours));
        theirs
    }

    /// SIGKILL: it is gone, and the guest with it.
    pub fn kill(&self) {
        self.end(137);
    }

    /// The guest powers itself off.
    pub fn power_off(&self) {
        self.stop(StopReason::GuestShutdown, None);
    }

    /// The guest crashes.
    pub fn crash(&self) {
        self.stop(StopReason::Crashed, Some("the guest panicked".into()));
    }

    /// A disk reports an error, and the guest is held.
    pub fn io_error(&self) {
        self.change(|state| {
            if state.phase == MachinePhase::Running {
                state.phase = MachinePhase::Paused;
                state.pause_reason = Some(PauseReason::IoError);
            }
        });
    }

    /// SIGTERM, as a kubelet sends it.
    pub fn terminate(&self) {
        if self.phase() == MachinePhase::Waiting {
            return self.end(0);
        }
        if !self.0.behaviour.stubborn {
            self.power_off();
        }
    }

    pub fn phase(&self) -> MachinePhase {
        self.0.state.borrow().phase
    }

    fn end(&self, code: i32) {
        let _turn = self.0.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_ended() {
            return;
        }
        self.0.ledger.close(&self.0.disk, &self.0.pod);
        self.0.exit.send_replace(Some(code));
        self.0.ended.send_replace(true);
    }

    fn change(&self, change: impl FnOnce(&mut MachineState)) {
        self.0.state.send_modify(|state| {
            let before = state.clone();
            change(state);
            if *state != before {
                state.generation += 1;
            }
        });
    }

    fn stop(&self, reason: StopReason, message: Option<String>) {
        self.change(|state| {
            if state.phase != MachinePhase::Stopped {
                state.phase = MachinePhase::Stopped;
                state.stop_reason = Some(reason);
                state.message = message;
            }
        });
        self.0.ledger.close(&self.0.disk, &self.0.pod);
    }

    fn handle(&self, request: Request) -> Result<(), ProtocolError> {
        let turn = self.0.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_ended() {
            return Err(refusal(ErrorCode::Failed, "the launcher has ended"));
        }
        match request {
            Request::Sync { .. } => return Err(refusal(ErrorCode::BadRequest, "nobody says this any more")),
            Request::Apply { generation, spec } => {
                let known = self.0.state.borrow().uid.clone();
                if !known.is_empty() && known != spec.uid {
                    return Err(refusal(ErrorCode::Conflict, "another machine runs here"));
                }
                if known.is_empty() {
                    self.start(&spec.uid, spec.start_paused);
                }
                self.change(|state| state.applied = Some(Applied { generation, ..Default::default() }));
            }
            Request::Shutdown { grace_seconds } => {
                if self.phase() == MachinePhase::Waiting || !self.0.behaviour.stubborn {
                    self.stop(StopReason::GuestShutdown, None);
                } else {
                    self.change(|state| state.phase = MachinePhase::ShuttingDown);
                    let this = self.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(std::time::Duration::from_secs(grace_seconds)).await;
                        this.stop(StopReason::Destroyed, None);
                    });
                }
            }
            Request::Kill {} => self.stop(StopReason::Destroyed, None),
            Request::Pause {} => self.change(|state| {
                if state.phase == MachinePhase::Running {
                    state.phase = MachinePhase::Paused;
                    state.pause_reason = Some(PauseReason::User);
                }
            }),
            Request::Unpause {} => self.change(|state| {
                if state.phase == MachinePhase::Paused {
                    state.phase = MachinePhase::Running;
                    state.pause_reason = None;
                }
            }),
            Request::Release {} if self.phase() == MachinePhase::Stopped => {
                let reason = self.0.state.borrow().stop_reason;
                drop(turn);
                self.end(i32::from(!matches!(reason, Some(StopReason::GuestShutdown | StopReason::Destroyed))));
            }
            _ => {}
        }
        Ok(())
    }

    fn start(&self, uid: &str, paused: bool) {
        if let Some(error) = &self.0.behaviour.start_error {
            self.change(|state| state.uid = uid.into());
            return self.stop(StopReason::StartFailed, Some(error.clone()));
        }
        self.0.ledger.open(&self.0.disk, &self.0.pod);
        self.change(|state| {
            state.uid = uid.into();
            state.phase = if paused { MachinePhase::Paused } else { MachinePhase::Running };
            state.pause_reason = paused.then_some(PauseReason::Starting);
            state.machine_type = Some("pc-q35-sim".into());
        });
    }
}

fn refusal(code: ErrorCode, message: &str) -> ProtocolError {
    ProtocolError { code, message: message.into() }
}

/// One connection, until the client or the launcher is gone.
async fn serve(launcher: SimLauncher, stream: DuplexStream) {
    let mut ended = launcher.ended();
    let (mut reader, mut writer) = tokio::io::split(stream);
    // Boxed: a channel reserves room for many, and there is one for every machine.
    let (frames, mut queue) = mpsc::channel::<Box<ServerFrame>>(16);
    let write = async {
        while let Some(frame) = queue.recv().await {
            let Ok(bytes) = protocol::encode(&*frame) else { return };
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let read = async {
        let mut subscribed = false;
        loop {
            let mut prefix = [0u8; 4];
            if reader.read_exact(&mut prefix).await.is_err() {
                return;
            }
            let Ok(length) = protocol::frame_length(prefix) else { return };
            let mut body = vec![0u8; length];
            if reader.read_exact(&mut body).await.is_err() {
                return;
            }
            let Ok(ClientFrame { id, request }) = protocol::decode::<ClientFrame>(&body) else { return };
            let is_hello = matches!(request, Request::Hello { .. });
            if matches!(request, Request::Subscribe {}) && !subscribed {
                subscribed = true;
                tokio::spawn(forward(launcher.clone(), frames.clone()));
            }
            let reply = match launcher.handle(request) {
                Ok(()) if is_hello => {
                    ServerFrame::Reply { id, version: Some(protocol::VERSION), text: None, error: None }
                }
                Ok(()) => ServerFrame::Answer { id, result: Outcome::Ok(Answer::Done {}) },
                Err(error) => ServerFrame::Answer { id, result: Outcome::Error(error) },
            };
            if frames.send(Box::new(reply)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = write => {}
        () = read => {}
        _ = ended.wait_for(|ended| *ended) => {}
    }
}

async fn forward(launcher: SimLauncher, frames: mpsc::Sender<Box<ServerFrame>>) {
    let mut state = launcher.0.state.subscribe();
    loop {
        let current = state.borrow_and_update().clone();
        if frames.send(Box::new(ServerFrame::State { state: current })).await.is_err() {
            return;
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            () = frames.closed() => return,
        }
    }
}
