//! The task that owns the machine's state.
//!
//! Sessions, signals, libvirt's events and finished deeds all arrive here one at a time; `lifecycle` decides, this task
//! carries out and publishes the new state. It also decides when the process ends:
//!
//! ```text
//!  Stopped --- Release -------------------------------------> exit
//!          --- nobody connected for `linger` ---------------> exit   (the node agent is down: the exit code tells)
//!          --- nobody released within `exit_timeout` -------> exit
//! ```

use std::sync::Arc;
use std::time::Duration;

use ferrovirt_machine::chain;
use ferrovirt_machine::changes::Change;
use ferrovirt_machine::protocol::{Answer, ErrorCode, MachineState, ProtocolError, Request};
use ferrovirt_machine::spec::{MachineSpec, SPEC_VERSION};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::console_log;
use crate::domain::{Action, Backend, DomainError, DomainEvent, NewDomain, Started};
use crate::host_metrics;
use crate::lifecycle::{Lifecycle, Verdict, later};
use crate::prepare;

pub type Answered = Result<Answer, ProtocolError>;

/// Turns a spec into the hypervisor's language.
pub type Translate = Arc<dyn Fn(&MachineSpec) -> String + Send + Sync>;

pub enum Message {
    Request {
        request: Request,
        answer: oneshot::Sender<Answered>,
    },
    Connected,
    Disconnected,
    /// A termination signal.
    Terminate,
}

#[derive(Clone)]
pub struct Settings {
    /// Key of the hypervisor this launcher runs; a spec for another one is refused.
    pub hypervisor: &'static str,
    pub translate: Translate,
    pub linger: Duration,
    pub exit_timeout: Duration,
}

/// How the other tasks reach the owner.
#[derive(Clone)]
pub struct Handle {
    messages: mpsc::UnboundedSender<Message>,
    state: watch::Receiver<MachineState>,
}

pub struct Owner<B> {
    settings: Settings,
    backend: B,
    lifecycle: Lifecycle,
    messages: mpsc::UnboundedReceiver<Message>,
    events: mpsc::UnboundedReceiver<DomainEvent>,
    state: watch::Sender<MachineState>,
    tasks: JoinSet<Done>,
    clients: usize,
    exit: ExitClock,
}

/// A deed that has finished.
enum Done {
    Started(Result<Started, String>),
    /// These changes, and why not the rest.
    Changed(Vec<Change>, Option<String>),
    Answered,
}

#[derive(Default)]
struct ExitClock {
    stopped: Option<Instant>,
    alone_since: Option<Instant>,
}

impl Handle {
    /// The owner never goes before the sessions, but a session may outlive it at exit; then the message is lost.
    pub fn send(&self, message: Message) {
        let _ = self.messages.send(message);
    }

    pub async fn request(&self, request: Request) -> Answered {
        let (answer, result) = oneshot::channel();
        self.send(Message::Request { request, answer });
        result.await.unwrap_or_else(|_| Err(failed("the launcher is about to exit".into())))
    }

    pub fn state(&self) -> watch::Receiver<MachineState> {
        self.state.clone()
    }
}

impl<B: Backend> Owner<B> {
    pub fn new(settings: Settings, backend: B, events: mpsc::UnboundedReceiver<DomainEvent>) -> (Self, Handle) {
        let (sender, messages) = mpsc::unbounded_channel();
        let (state, receiver) = watch::channel(MachineState::default());
        let owner = Self {
            settings,
            backend,
            lifecycle: Lifecycle::default(),
            messages,
            events,
            state,
            tasks: JoinSet::new(),
            clients: 0,
            exit: ExitClock::default(),
        };
        (owner, Handle { messages: sender, state: receiver })
    }

    /// Runs until the process may exit; returns its exit code.
    pub async fn run(mut self) -> u8 {
        loop {
            let wake = [self.lifecycle.deadline(), self.exit_at()].into_iter().flatten().min();
            tokio::select! {
                Some(message) = self.messages.recv() => self.message(message),
                Some(event) = self.events.recv() => {
                    tracing::info!(?event, "domain");
                    self.lifecycle.event(event);
                }
                Some(done) = self.tasks.join_next() => match done {
                    Ok(Done::Started(result)) => {
                        if let Some(action) = self.lifecycle.started(result, Instant::now()) {
                            self.background(action);
                        }
                    }
                    Ok(Done::Changed(made, problem)) => self.lifecycle.changed_by(&made, problem),
                    Ok(Done::Answered) | Err(_) => {}
                },
                () = sleep_until(wake) => {
                    if let Some(action) = self.lifecycle.tick(Instant::now()) {
                        self.background(action);
                    }
                }
            }
            self.publish();
            if self.lifecycle.released() || self.exit_at().is_some_and(|at| at <= Instant::now()) {
                return self.lifecycle.exit_code();
            }
        }
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Request { request, answer } => self.request(request, answer),
            Message::Connected => {
                self.clients += 1;
                self.exit.alone_since = None;
            }
            Message::Disconnected => {
                self.clients = self.clients.saturating_sub(1);
                if self.clients == 0 {
                    self.exit.alone_since = Some(Instant::now());
                }
            }
            Message::Terminate => {
                tracing::info!("asked to terminate");
                if let Some(action) = self.lifecycle.terminate(Instant::now()) {
                    self.background(action);
                }
            }
        }
    }

    fn request(&mut self, request: Request, answer: oneshot::Sender<Answered>) {
        if let Request::Sync { spec } | Request::Apply { spec, .. } = &request
            && let Some(error) = self.refuse(spec)
        {
            let _ = answer.send(Err(error));
            return;
        }
        let verdict = self.lifecycle.request(request, Instant::now());
        // Whoever asked sees the state that the answer is about before the answer.
        self.publish();
        let immediate = match verdict {
            Verdict::Done => Ok(Answer::Done {}),
            Verdict::Refused(error) => Err(error),
            Verdict::Background(action) => {
                self.background(action);
                Ok(Answer::Done {})
            }
            Verdict::Start(spec) => {
                self.tasks.spawn(start(self.backend.clone(), self.settings.translate.clone(), spec));
                Ok(Answer::Done {})
            }
            Verdict::Answer(action) => {
                let backend = self.backend.clone();
                self.tasks.spawn(async move {
                    let result = backend.act(action).await;
                    let _ = answer.send(result.map_err(|error| refusal(&error)));
                    Done::Answered
                });
                return;
            }
            Verdict::Guest(call) => {
                let backend = self.backend.clone();
                self.tasks.spawn(async move {
                    let result = backend.guest(call).await;
                    let _ = answer.send(result.map_err(|error| refusal(&error)));
                    Done::Answered
                });
                return;
            }
        };
        let _ = answer.send(immediate);
    }

    fn refuse(&self, spec: &MachineSpec) -> Option<ProtocolError> {
        if spec.version > SPEC_VERSION {
            let message = format!("spec version {} is newer than {SPEC_VERSION}", spec.version);
            return Some(ProtocolError { code: ErrorCode::Version, message });
        }
        if spec.hypervisor != self.settings.hypervisor {
            let message = format!("this launcher runs {}, not {}", self.settings.hypervisor, spec.hypervisor);
            return Some(ProtocolError { code: ErrorCode::Conflict, message });
        }
        None
    }

    /// Runs a deed nobody waits for; its effect comes back as an event.
    fn background(&mut self, action: Action) {
        let backend = self.backend.clone();
        self.tasks.spawn(async move {
            if let Err(error) = backend.act(action).await {
                tracing::warn!(error = chain(&error), ?action, "libvirt refused");
            }
            Done::Answered
        });
    }

    fn publish(&mut self) {
        if let Some(changes) = self.lifecycle.changes_due() {
            self.tasks.spawn(change(self.backend.clone(), changes));
        }
        let state = self.lifecycle.state();
        self.state.send_if_modified(|published| {
            let changed = published.generation != state.generation;
            if changed {
                tracing::info!(phase = ?state.phase, stop = ?state.stop_reason, message = state.message, "state");
                published.clone_from(state);
            }
            changed
        });
        if self.lifecycle.stopped() && self.exit.stopped.is_none() {
            self.exit.stopped = Some(Instant::now());
        }
    }

    fn exit_at(&self) -> Option<Instant> {
        let stopped = self.exit.stopped?;
        let timeout = later(stopped, self.settings.exit_timeout);
        if self.clients > 0 {
            return Some(timeout);
        }
        let alone = self.exit.alone_since.map_or(stopped, |since| since.max(stopped));
        Some(timeout.min(later(alone, self.settings.linger)))
    }
}

async fn start<B: Backend>(backend: B, translate: Translate, spec: Box<MachineSpec>) -> Done {
    Done::Started(try_start(backend, translate, spec).await)
}

/// Makes one change after the other, up to one that fails.
async fn change<B: Backend>(backend: B, changes: Vec<Change>) -> Done {
    let mut made = vec![];
    for change in changes {
        tracing::info!(?change, "machine");
        if let Err(error) = backend.change(change.clone()).await {
            let problem = chain(&error);
            tracing::warn!(error = problem, ?change, "the machine cannot be changed");
            return Done::Changed(made, Some(problem));
        }
        made.push(change);
    }
    Done::Changed(made, None)
}

async fn try_start<B: Backend>(backend: B, translate: Translate, spec: Box<MachineSpec>) -> Result<Started, String> {
    let spec = tokio::task::spawn_blocking(move || prepare::all(spec))
        .await
        .map_err(|_| "preparing the disks was interrupted".to_owned())?
        .map_err(|error| chain(&error))?;
    let console = spec.devices.serial.clone().filter(|_| spec.container.is_some());
    let domain = NewDomain {
        name: spec.name.clone(),
        xml: translate(&spec),
        paused: spec.start_paused,
        console,
        credentials: spec.credentials.clone(),
        filesystems: spec.devices.filesystems.clone(),
    };
    if let Some(log) = spec.devices.serial.as_ref().and_then(|serial| serial.log.as_ref()) {
        tokio::spawn(console_log::keep_small(log.into()));
    }
    let started = backend.start(domain).await.map_err(|error: DomainError| chain(&error))?;
    if let Some(told) = spec.host_metrics.clone() {
        host_metrics::start(backend, told);
    }
    Ok(started)
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn refusal(error: &DomainError) -> ProtocolError {
    ProtocolError { code: error.code(), message: chain(error) }
}

fn failed(message: String) -> ProtocolError {
    ProtocolError { code: ErrorCode::Failed, message }
}
