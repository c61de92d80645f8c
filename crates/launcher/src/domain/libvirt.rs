//! The domain in libvirt, and the task that keeps a daemon running for it.
//!
//! The daemon is started before anybody asks for a machine, because that is time a machine need not wait for. If it dies,
//! the hypervisor keeps running: a new daemon finds it again from its state files, and the state is read anew. If it hangs,
//! ending the machine does not depend on it.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrovirt_libvirt::{
    Connection, Counter, Domain, DomainState, ErrorCode, EventKind, Events, Lifecycle, ShutdownMode, Start, StopDetail,
    SuspendDetail,
};
use ferrovirt_machine::changes::Change;
use ferrovirt_machine::hypervisor::Guest;
use ferrovirt_machine::protocol::{Answer, GuestCall, PauseReason, StopReason};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::sync::{Notify, mpsc, watch};

use super::{
    Action, Backend, DomainError, DomainEvent, NewDomain, Observed, Started, deaf, hearing, link, looking, traffic,
};
use crate::capabilities::{console_terminal, domain_facts};
use crate::console::Console;
use crate::filesystems::Filesystems;
use crate::guest;
use crate::init_signal::{self, Wish};
use crate::process::Children;
use crate::runtime::{Daemon, DaemonError, Dirs, LibvirtRuntime};
use crate::screen;
use ferrovirt_machine::chain;

/// How long a request waits for a daemon that restarts.
const DAEMON_WAIT: Duration = Duration::from_secs(20);
/// libvirt itself waits ten seconds before it kills a hypervisor that does not want to end.
const DESTROY_WAIT: Duration = Duration::from_secs(12);
/// How often, and how many times, a domain is looked at again after a new daemon found it.
const SECOND_LOOK: Duration = Duration::from_millis(500);
const SECOND_LOOKS: u32 = 40;
/// How many attempts to start a daemon are enough to know.
const FRUITLESS: u32 = 3;
const RESTART_FIRST: Duration = Duration::from_millis(50);
const RESTART_MOST: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct LibvirtBackend {
    link: watch::Receiver<Link>,
    name: Arc<Mutex<Option<String>>>,
    /// True once the domain ran: before that, one that does not run is no news.
    ran: Arc<AtomicBool>,
    pid_dir: PathBuf,
    guest: Guest,
    restart: Arc<Notify>,
    /// Whether the guest agent's channel is connected.
    agent: Arc<watch::Sender<bool>>,
    memory: guest::Memory,
    filesystems: Filesystems,
    /// Whom to tell what was seen, where the driver does not tell it.
    silent: Option<mpsc::UnboundedSender<DomainEvent>>,
}

/// The way to the daemon, or why there is none.
#[derive(Debug, Clone)]
enum Link {
    Up(Connection),
    Down(String),
    /// It did not start in several attempts. There will be more, but nobody needs to wait for them.
    Failed(String),
}

/// What the daemon task needs to know.
pub struct Supervisor {
    pub children: Children,
    pub runtime: &'static dyn LibvirtRuntime,
    pub dirs: Dirs,
    pub capabilities: Option<PathBuf>,
}

impl LibvirtBackend {
    /// Starts the daemon in the background.
    pub fn run(supervisor: Supervisor, events: mpsc::UnboundedSender<DomainEvent>) -> Self {
        let (sender, link) = watch::channel(Link::Down("it starts".into()));
        let backend = Self {
            link,
            name: Arc::new(Mutex::new(None)),
            ran: Arc::default(),
            pid_dir: supervisor.runtime.pid_dir(&supervisor.dirs),
            guest: supervisor.runtime.guest(),
            restart: Arc::new(Notify::new()),
            agent: Arc::new(watch::Sender::new(false)),
            memory: guest::Memory::default(),
            filesystems: Filesystems { children: supervisor.children.clone(), events: events.clone() },
            silent: (!supervisor.runtime.tells_changes()).then(|| events.clone()),
        };
        let connected = backend.agent.subscribe();
        tokio::spawn(guest::watch::follow(backend.clone(), backend.memory.clone(), connected, events.clone()));
        let looking_events = events.clone();
        tokio::spawn(supervise(supervisor, sender, events, backend.clone()));
        if backend.guest == Guest::Container {
            tokio::spawn(hearing::watch(backend.clone()));
        }
        let looker = backend.clone();
        let look = move || {
            let backend = looker.clone();
            async move { if backend.ran.load(Ordering::Acquire) { backend.observe().await } else { None } }
        };
        tokio::spawn(deaf::watch(look, looking_events, ferrovirt_libvirt::deafness()));
        backend
    }

    /// The name of the domain, once it was defined.
    pub fn domain_name(&self) -> Option<String> {
        name_of(&self.name)
    }

    /// Whether a daemon runs and answers.
    pub(super) fn is_linked(&self) -> bool {
        matches!(*self.link.borrow(), Link::Up(_))
    }

    /// What the daemon believes.
    pub(super) async fn state(&self) -> Option<DomainState> {
        self.domain().await.ok()?.state().await.ok()
    }

    /// What the daemon believes, unless there is none now.
    pub(super) async fn observe(&self) -> Option<Observed> {
        observe(&self.connection().await.ok()?, &self.domain_name()?).await
    }

    /// Where the daemon noted the hypervisor's process.
    pub(super) fn pid_file(&self) -> Option<PathBuf> {
        Some(self.pid_dir.join(format!("{}.pid", self.domain_name()?)))
    }

    /// The next daemon finds the domain as it is.
    pub(super) fn replace_daemon(&self) {
        self.restart.notify_one();
    }

    async fn connection(&self) -> Result<Connection, DomainError> {
        let mut link = self.link.clone();
        let up = tokio::time::timeout(DAEMON_WAIT, link.wait_for(|link| !matches!(link, Link::Down(_)))).await;
        if let Ok(Ok(link)) = up
            && let Link::Up(connection) = &*link
        {
            return Ok(connection.clone());
        }
        match &*self.link.borrow() {
            Link::Up(connection) => Ok(connection.clone()),
            Link::Down(why) => Err(DomainError::NoDaemon(why.clone())),
            Link::Failed(why) => Err(DomainError::DaemonFails(why.clone())),
        }
    }

    async fn domain(&self) -> Result<Domain, DomainError> {
        let name = name_of(&self.name).ok_or(DomainError::NoDomain)?;
        Ok(self.connection().await?.domain_by_name(&name).await?)
    }

    /// Has libvirt do it.
    async fn ask(&self, action: Action) -> Result<Answer, DomainError> {
        let domain = self.domain().await?;
        match action {
            Action::Shutdown => self.power_off(&domain).await?,
            Action::ShutdownPaused => {
                // In this order: libvirt refuses to press the button of a domain that stands still.
                domain.resume().await?;
                self.power_off(&domain).await?;
            }
            Action::Destroy => match domain.destroy().await {
                // It ended between the decision and now.
                Err(error) if error.code() == Some(ErrorCode::OperationInvalid) => {}
                result => result?,
            },
            Action::Suspend => domain.suspend().await?,
            Action::Resume => domain.resume().await?,
            Action::Reset if self.guest == Guest::Container => return Err(DomainError::NoReset),
            Action::Reset => domain.reset().await?,
            Action::Reboot => match self.guest {
                // By the agent where it is connected, else by the power button.
                Guest::Machine => domain.reboot(ShutdownMode::Any).await?,
                Guest::Container => domain.signal(1, self.signal(&domain, Wish::Reboot)).await?,
            },
            Action::Xml => return Ok(Answer::DomainXml { xml: domain.xml_desc().await? }),
        }
        Ok(Answer::Done {})
    }

    /// Presses the power button, or tells a container's init in its own words.
    async fn power_off(&self, domain: &Domain) -> Result<(), DomainError> {
        match self.guest {
            Guest::Machine => domain.shutdown(ShutdownMode::Acpi).await?,
            Guest::Container => domain.signal(1, self.signal(domain, Wish::PowerOff)).await?,
        }
        Ok(())
    }

    fn signal(&self, domain: &Domain, wish: Wish) -> u32 {
        init_signal::choose(&self.pid_dir.join(format!("{}.pid", domain.name())), wish)
    }

    /// The terminal of the domain's console, while it runs.
    pub(crate) async fn terminal(&self) -> Option<PathBuf> {
        let domain = self.domain().await.ok()?;
        console_terminal(&domain.xml_desc().await.ok()?)
    }

    /// Ends the hypervisor and the daemon that does not answer; the next daemon will find the domain stopped.
    fn force(&self) {
        tracing::warn!("libvirt does not answer: killing the hypervisor");
        self.kill_hypervisor();
        self.replace_daemon();
    }

    fn kill_hypervisor(&self) {
        if let Some(file) = self.pid_file()
            && let Ok(text) = fs::read_to_string(file)
            && let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw)
        {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Backend for LibvirtBackend {
    async fn start(&self, new: NewDomain) -> Result<Started, DomainError> {
        let connection = self.connection().await?;
        let domain = connection.define(&new.xml).await?;
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = Some(domain.name().to_owned());
        let console = match &new.console {
            Some(console) => Some(Console::bind(console).map_err(DomainError::Console)?),
            None => None,
        };
        self.memory.set_credentials(new.credentials);
        let served = self.filesystems.serve(&new.filesystems).await?;
        let how = if new.paused { Start::Paused } else { Start::Running };
        domain.create(how).await?;
        self.ran.store(true, Ordering::Release);
        served.keep();
        if let Some(events) = &self.silent {
            let first = if new.paused { Observed::Paused(PauseReason::Starting) } else { Observed::Running };
            tokio::spawn(looking::watch(self.clone(), events.clone(), first));
        }
        if let Some(console) = console {
            tokio::spawn(console.serve(self.clone()));
        }
        // The machine runs; not knowing what libvirt chose must not fail it.
        let (virt_type, machine_type) = match domain.xml_desc().await {
            Ok(xml) => domain_facts(&xml),
            Err(_) => (None, None),
        };
        Ok(Started { virt_type, machine_type, paused: new.paused })
    }

    async fn act(&self, action: Action) -> Result<Answer, DomainError> {
        if action != Action::Destroy {
            return self.ask(action).await;
        }
        match tokio::time::timeout(DESTROY_WAIT, self.ask(action)).await {
            Ok(result) => result,
            Err(_) => {
                self.force();
                Ok(Answer::Done {})
            }
        }
    }

    async fn change(&self, change: Change) -> Result<(), DomainError> {
        match change {
            // Kept by whoever decides about the end.
            Change::Grace { .. } => {}
            Change::Credentials(credentials) => {
                self.memory.set_credentials(credentials);
                self.memory.changed.notify_one();
            }
            Change::Link { interface, up } => {
                let domain = self.domain().await?;
                let device = link::set(&domain.xml_desc().await?, &interface, up);
                domain.update_device(&device.ok_or(DomainError::NoInterface(interface))?).await?;
            }
        }
        Ok(())
    }

    async fn guest(&self, call: GuestCall) -> Result<Answer, DomainError> {
        match call {
            GuestCall::Screenshot {} => {
                let shot = self.domain().await?.screenshot().await?;
                Ok(Answer::Screenshot { png: STANDARD.encode(screen::png(&shot.mime, shot.bytes)?) })
            }
            GuestCall::Stats {} => {
                let counters = self.domain().await?.stats().await?;
                let counters = counters.into_iter().map(|(name, counter)| (name, json_of(counter)));
                let mut counters: serde_json::Map<String, Value> = counters.collect();
                traffic::add(&mut counters);
                Ok(Answer::Stats { counters })
            }
            call => guest::answer(self, &self.memory, call).await,
        }
    }
}

impl guest::Agent for LibvirtBackend {
    async fn command(&self, command: Value, patience: Duration) -> Result<Value, DomainError> {
        if !*self.agent.borrow() {
            return Err(DomainError::NoAgent);
        }
        let answer = self.domain().await?.agent_command(&command.to_string(), patience).await?;
        let mut answer: Value = serde_json::from_str(&answer).map_err(|error| DomainError::Agent(error.to_string()))?;
        Ok(answer.get_mut("return").map(Value::take).unwrap_or_default())
    }
}

fn json_of(counter: Counter) -> Value {
    match counter {
        Counter::Signed(value) => value.into(),
        Counter::Unsigned(value) => value.into(),
        Counter::Float(value) => value.into(),
        Counter::Flag(value) => value.into(),
        Counter::Text(value) => value.into(),
    }
}

async fn supervise(
    supervisor: Supervisor,
    link: watch::Sender<Link>,
    events: mpsc::UnboundedSender<DomainEvent>,
    backend: LibvirtBackend,
) {
    let Supervisor { children, runtime, dirs, capabilities } = &supervisor;
    if let Err(error) = runtime.setup(dirs, capabilities.as_deref()) {
        // The daemon will say more about what is missing.
        tracing::error!(%error, dir = %dirs.base().display(), "cannot write the configuration of libvirt");
        link.send_replace(Link::Down(format!("cannot write its configuration: {error}")));
    }
    let mut pause = RESTART_FIRST;
    let mut failures = 0;
    loop {
        match up(children, *runtime, dirs).await {
            Ok((mut daemon, connection, mut stream)) => {
                (pause, failures) = (RESTART_FIRST, 0);
                let found = backend.domain_name().map(|name| (connection.clone(), name));
                if let Some((connection, name)) = &found
                    && let Some(observed) = observe(connection, name).await
                {
                    if matches!(observed, Observed::Stopped(_)) && !runtime.tells_changes() {
                        // The driver forgot a machine that may run on, and nobody could ever stop it.
                        backend.kill_hypervisor();
                    }
                    let _ = events.send(DomainEvent::Observed(observed));
                    let connected = agent_connected(connection, name).await;
                    backend.agent.send_replace(connected);
                    let _ = events.send(DomainEvent::Agent { connected });
                }
                tracing::info!(pid = daemon.pid(), "connected to libvirt");
                link.send_replace(Link::Up(connection));
                let why = follow(&mut daemon, &mut stream, &events, &backend, found).await;
                // First of all: ending the subscription asks the daemon, and a hung one would never answer.
                drop(daemon);
                tracing::warn!(why, "lost the libvirt daemon");
                link.send_replace(Link::Down(why.clone()));
                let _ = events.send(DomainEvent::DaemonLost(why));
            }
            Err(error) => {
                let why = chain(&error);
                tracing::error!(error = why, "libvirt does not start");
                failures += 1;
                if backend.domain_name().is_some() {
                    let _ = events.send(DomainEvent::DaemonLost(why.clone()));
                }
                link.send_replace(if failures < FRUITLESS { Link::Down(why) } else { Link::Failed(why) });
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RESTART_MOST);
            }
        }
    }
}

async fn up(
    children: &Children,
    runtime: &dyn LibvirtRuntime,
    dirs: &Dirs,
) -> Result<(Daemon, Connection, Events), DaemonError> {
    let (daemon, connection) = Daemon::start(children, runtime, dirs).await?;
    let events = connection.subscribe().await.map_err(DaemonError::Connect)?;
    Ok((daemon, connection, events))
}

/// Passes events on until the daemon is gone; returns why it is.
async fn follow(
    daemon: &mut Daemon,
    stream: &mut Events,
    events: &mpsc::UnboundedSender<DomainEvent>,
    backend: &LibvirtBackend,
    found: Option<(Connection, String)>,
) -> String {
    // A new daemon takes a domain for running until it has tried to reach its process, and finding that gone it sends no
    // event. So whoever found a domain looks again for a while.
    let mut looks = if found.is_some() { SECOND_LOOKS } else { 0 };
    let mut ticks = tokio::time::interval(SECOND_LOOK);
    loop {
        tokio::select! {
            // The last events first: a domain's end must not be lost with its daemon.
            biased;
            event = stream.next() => match event.map(|event| event.kind) {
                None | Some(EventKind::Closed) => return "it closed the connection".into(),
                Some(kind) => {
                    match kind {
                        EventKind::Agent { connected } => drop(backend.agent.send_replace(connected)),
                        EventKind::Lifecycle(Lifecycle::Stopped(_)) => drop(backend.agent.send_replace(false)),
                        _ => {}
                    }
                    if let Some(event) = translate(kind) {
                        let _ = events.send(event);
                    }
                }
            },
            status = daemon.ended() => return status,
            _ = ticks.tick(), if looks > 0 => {
                looks -= 1;
                if let Some((connection, name)) = &found
                    && let Ok(Some(stopped @ Observed::Stopped(_))) =
                        tokio::time::timeout(DESTROY_WAIT, observe(connection, name)).await
                {
                    looks = 0;
                    let _ = events.send(DomainEvent::Observed(stopped));
                }
            }
            () = backend.restart.notified() => return "it was given up".into(),
        }
    }
}

/// A new daemon may have connected to the agent before anybody listened.
async fn agent_connected(connection: &Connection, name: &str) -> bool {
    let xml = match connection.domain_by_name(name).await {
        Ok(domain) => domain.xml_desc().await,
        Err(error) => Err(error),
    };
    xml.is_ok_and(|xml| xml.contains("name='org.qemu.guest_agent.0' state='connected'"))
}

async fn observe(connection: &Connection, name: &str) -> Option<Observed> {
    let state = match connection.domain_by_name(name).await {
        Ok(domain) => domain.state().await,
        Err(error) => Err(error),
    };
    Some(match state {
        Ok(DomainState::Paused { reason }) => Observed::Paused(match reason {
            DomainState::PAUSED_USER => PauseReason::User,
            DomainState::PAUSED_IO_ERROR => PauseReason::IoError,
            _ => PauseReason::Other,
        }),
        Ok(DomainState::Shutoff { reason }) => Observed::Stopped(match reason {
            DomainState::SHUTOFF_SHUTDOWN => StopReason::GuestShutdown,
            DomainState::SHUTOFF_DESTROYED => StopReason::Destroyed,
            _ => StopReason::Crashed,
        }),
        Ok(_) => Observed::Running,
        Err(error) if error.code() == Some(ErrorCode::NoDomain) => Observed::Stopped(StopReason::Crashed),
        Err(error) => {
            // The connection broke again; the next daemon will tell.
            tracing::warn!(%error, "cannot read the state of the domain");
            return None;
        }
    })
}

fn translate(kind: EventKind) -> Option<DomainEvent> {
    Some(match kind {
        EventKind::Lifecycle(Lifecycle::Stopped(detail)) => DomainEvent::Stopped(match detail {
            StopDetail::Shutdown => StopReason::GuestShutdown,
            StopDetail::Crashed | StopDetail::Failed | StopDetail::Other(_) => StopReason::Crashed,
            StopDetail::Destroyed | StopDetail::Migrated | StopDetail::Saved => StopReason::Destroyed,
        }),
        EventKind::Lifecycle(Lifecycle::Suspended(detail)) => DomainEvent::Suspended(match detail {
            SuspendDetail::Paused => PauseReason::User,
            SuspendDetail::IoError => PauseReason::IoError,
            SuspendDetail::Migrated | SuspendDetail::Watchdog | SuspendDetail::Other(_) => PauseReason::Other,
        }),
        EventKind::Lifecycle(Lifecycle::Resumed) => DomainEvent::Resumed,
        EventKind::Lifecycle(Lifecycle::Crashed) => DomainEvent::Panicked,
        EventKind::Lifecycle(_) | EventKind::Reboot | EventKind::Closed => return None,
        EventKind::IoError { path, alias, reason, .. } => {
            DomainEvent::IoError { disk: if alias.is_empty() { path } else { alias }, reason }
        }
        EventKind::Agent { connected } => DomainEvent::Agent { connected },
    })
}

fn name_of(name: &Mutex<Option<String>>) -> Option<String> {
    name.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
