//! The life of the machine as pure decisions: what a request or an event means now.
//!
//! ```text
//!            Sync            started               Shutdown            stopped
//!  Waiting ---------> Starting ------> Running --------------> ShuttingDown ----+
//!     |                  |  |           |   ^                       ^   |       |
//!     |                  |  |   suspend v   | resume                |   | grace |
//!     |                  |  +--------> Paused ----------------------+   | over: |
//!     |                  |              |                               | destroy
//!     |       start failed              | stopped                       |       v
//!     |                  +--------------+-------------------------------+-> Stopped
//!     +------ Shutdown, Kill -------------------------------------------------^
//! ```
//!
//! There is no way out of `Stopped`: a launcher runs one machine once. No I/O and no clock here: time comes in as an
//! argument, deeds go out as [`Action`]s, and the owner task (`owner`) connects both to the world.

use std::time::Duration;

use ferrovirt_machine::changes::{self, Change, Changes};
use ferrovirt_machine::last_words;
use ferrovirt_machine::protocol::{
    Applied, ErrorCode, GuestCall, MachinePhase, MachineState, PauseReason, ProtocolError, Request, StopReason,
};
use ferrovirt_machine::spec::MachineSpec;
use tokio::time::Instant;

use crate::domain::{Action, DomainEvent, Observed, Started};

/// How often a guest that shuts down is asked again: while it boots, nobody listens for the power button.
pub const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Used when a termination signal arrives before anybody named a grace period.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
const LONGEST_WORDS: usize = 1000;

/// What to do about a request.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// Nothing more to do; say yes.
    Done,
    /// Say yes, and start the machine.
    Start(Box<MachineSpec>),
    /// Say yes, and do this in the background.
    Background(Action),
    /// Do this and answer with its result.
    Answer(Action),
    /// Ask the guest, and answer with what it says.
    Guest(GuestCall),
    Refused(ProtocolError),
}

/// Everything the launcher knows of its machine. One task owns it.
#[derive(Debug, Default)]
pub struct Lifecycle {
    state: MachineState,
    grace: Option<Duration>,
    shutdown: Option<Shutdown>,
    /// A kill that came while the domain was still being made: it may have come too early to find the domain.
    kill_when_started: bool,
    /// A stop whose event overtook the answer to the start.
    stopped_early: Option<StopReason>,
    panicked: bool,
    released: bool,
    specs: Specs,
}

/// Specs of the machine, from the one that runs to the newest.
#[derive(Debug, Default)]
struct Specs {
    running: Option<Box<MachineSpec>>,
    /// Being made true.
    next: Option<Wanted>,
    /// To be looked at when that is done.
    newest: Option<Wanted>,
}

/// What somebody asked for.
#[derive(Debug)]
struct Wanted {
    generation: u64,
    spec: Box<MachineSpec>,
    at_restart: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Shutdown {
    /// When the guest is ended without its consent; `None` after that was done.
    deadline: Option<Instant>,
    ask: Instant,
}

impl Lifecycle {
    pub fn state(&self) -> &MachineState {
        &self.state
    }

    pub fn stopped(&self) -> bool {
        self.state.phase == MachinePhase::Stopped
    }

    /// The node has recorded the end; the process may go.
    pub fn released(&self) -> bool {
        self.released && self.stopped()
    }

    /// What the process's exit code shall be: 0 if the guest ended by itself or was asked to.
    pub fn exit_code(&self) -> u8 {
        u8::from(!last_words::ended_well(self.state.stop_reason))
    }

    /// When [`Lifecycle::tick`] wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let shutdown = self.shutdown?;
        match self.state.phase {
            MachinePhase::ShuttingDown => shutdown.deadline.map(|deadline| deadline.min(shutdown.ask)),
            MachinePhase::Starting => shutdown.deadline,
            _ => None,
        }
    }

    pub fn request(&mut self, request: Request, now: Instant) -> Verdict {
        use MachinePhase::{Paused, Running, ShuttingDown, Starting, Stopped, Waiting};
        match (request, self.state.phase) {
            (Request::Hello { .. } | Request::Subscribe {}, _) => Verdict::Done,
            (Request::Sync { spec }, phase) => self.sync(spec, phase),
            (Request::Apply { generation, spec }, phase) => self.apply(generation, spec, phase),
            (Request::Shutdown { grace_seconds }, _) => self.shutdown(Duration::from_secs(grace_seconds), now),
            (Request::Kill {}, Waiting) => self.stop_unstarted(),
            (Request::Kill {}, Starting) => {
                self.kill_when_started = true;
                Verdict::Background(Action::Destroy)
            }
            (Request::Kill {}, Stopped) => Verdict::Done,
            (Request::Kill {}, Running | Paused | ShuttingDown) => Verdict::Answer(Action::Destroy),
            (Request::Pause {}, Running) => Verdict::Answer(Action::Suspend),
            (Request::Pause {}, Paused) => Verdict::Done,
            (Request::Unpause {}, Paused) => Verdict::Answer(Action::Resume),
            (Request::Unpause {}, Running) => Verdict::Done,
            (Request::Reset {}, Running | Paused) => Verdict::Answer(Action::Reset),
            (Request::SoftReboot {}, Running) => Verdict::Answer(Action::Reboot),
            (Request::DomainXml {}, Running | Paused | ShuttingDown) => Verdict::Answer(Action::Xml),
            (Request::Guest { call }, Running | ShuttingDown) => Verdict::Guest(call),
            // Nobody inside could answer.
            (Request::Guest { call }, Paused) if !call.needs_agent() => Verdict::Guest(call),
            (Request::Release {}, _) => {
                self.released = true;
                Verdict::Done
            }
            (
                Request::Pause {}
                | Request::Unpause {}
                | Request::Reset {}
                | Request::SoftReboot {}
                | Request::DomainXml {}
                | Request::Guest { .. },
                phase,
            ) => conflict(format!("the machine is {}", phase_text(phase))),
        }
    }

    /// A termination signal: as a shutdown with the last grace period anybody named.
    pub fn terminate(&mut self, now: Instant) -> Option<Action> {
        // Who asked for a shutdown before knows why it ends; here only who sent the signal does.
        self.state.terminated |= self.shutdown.is_none() && !self.stopped();
        let grace = self.grace.unwrap_or(DEFAULT_GRACE);
        match self.shutdown(grace, now) {
            Verdict::Background(action) => Some(action),
            _ => None,
        }
    }

    /// The answer to [`Verdict::Start`].
    pub fn started(&mut self, result: Result<Started, String>, now: Instant) -> Option<Action> {
        if self.state.phase != MachinePhase::Starting {
            return None;
        }
        let started = match result {
            Ok(started) => started,
            Err(message) => {
                // A start that was broken off on request did not fail.
                let reason = if self.kill_when_started { StopReason::Destroyed } else { StopReason::StartFailed };
                self.stop(reason, Some(message));
                return None;
            }
        };
        self.state.virt_type = started.virt_type;
        self.state.machine_type = started.machine_type;
        if let Some(reason) = self.stopped_early.take() {
            self.stop(reason, None);
            return None;
        }
        self.state.message = None;
        if started.paused {
            self.paused(PauseReason::Starting);
        } else {
            self.phase(MachinePhase::Running);
        }
        if self.kill_when_started {
            self.phase(MachinePhase::ShuttingDown);
            return Some(Action::Destroy);
        }
        if let Some(shutdown) = self.shutdown {
            self.phase(MachinePhase::ShuttingDown);
            return match shutdown.deadline {
                Some(deadline) if deadline > now => Some(self.ask(now)),
                _ => Some(Action::Destroy),
            };
        }
        None
    }

    pub fn event(&mut self, event: DomainEvent) {
        match event {
            DomainEvent::Stopped(reason) => self.stopped_with(reason),
            DomainEvent::Suspended(reason) => self.suspended(reason),
            DomainEvent::Resumed => self.resumed(),
            DomainEvent::Panicked => {
                self.panicked = true;
                self.set_message("the guest's kernel panicked");
            }
            DomainEvent::Agent { connected } => {
                if self.state.agent_connected != connected {
                    self.state.agent_connected = connected;
                    self.state.guest = None;
                    self.changed();
                }
            }
            DomainEvent::Guest(facts) => {
                if self.state.agent_connected && self.state.guest.as_ref() != Some(&facts) {
                    self.state.guest = Some(facts);
                    self.changed();
                }
            }
            DomainEvent::Credentials(result) => {
                let problem = Some(short(&result.err().unwrap_or_default()));
                if self.state.credentials_problem != problem {
                    self.state.credentials_problem = problem;
                    self.changed();
                }
            }
            DomainEvent::IoError { disk, reason } => {
                self.set_message(&format!("disk {disk} reported an error: {reason}"));
            }
            DomainEvent::FilesystemLost { tag, why } => {
                // A hypervisor that ends takes them with it, and may do so before libvirt says that it ended.
                let why = short(&why);
                if !self.stopped() && self.state.lost_filesystems.insert(tag, why.clone()) != Some(why) {
                    self.changed();
                }
            }
            DomainEvent::DaemonLost(why) => {
                self.state.daemon_losses += 1;
                self.set_message(&format!("the libvirt daemon restarts: {why}"));
            }
            DomainEvent::Observed(observed) => {
                if self.state.message.take().is_some() {
                    self.changed();
                }
                match observed {
                    Observed::Running => self.resumed(),
                    Observed::Paused(reason) => self.suspended(reason),
                    Observed::Stopped(reason) => self.stopped_with(reason),
                }
            }
        }
    }

    /// Time has passed: ask the guest again, or end it.
    pub fn tick(&mut self, now: Instant) -> Option<Action> {
        let starting = match self.state.phase {
            MachinePhase::Starting => true,
            MachinePhase::ShuttingDown => false,
            _ => return None,
        };
        let shutdown = self.shutdown.as_mut()?;
        if shutdown.deadline.is_some_and(|deadline| deadline <= now) {
            shutdown.deadline = None;
            self.kill_when_started = starting;
            self.set_message("the guest did not power off within its grace period");
            return Some(Action::Destroy);
        }
        if !starting && shutdown.deadline.is_some() && shutdown.ask <= now {
            return Some(self.ask(now));
        }
        None
    }

    /// What is to be done now for the newest spec, unless something is being done or the machine cannot be changed.
    /// [`Lifecycle::changed_by`] hears of the end.
    pub fn changes_due(&mut self) -> Option<Vec<Change>> {
        if self.specs.next.is_some() || !matches!(self.state.phase, MachinePhase::Running | MachinePhase::Paused) {
            return None;
        }
        let mut wanted = self.specs.newest.take()?;
        let Changes { now, at_restart } = changes::between(self.specs.running.as_ref()?, &wanted.spec);
        wanted.at_restart = at_restart.into_iter().map(str::to_owned).collect();
        self.specs.next = Some(wanted);
        if now.is_empty() {
            self.changed_by(&[], None);
            return None;
        }
        Some(now)
    }

    /// The changes that were made, and why there are not more of them.
    pub fn changed_by(&mut self, made: &[Change], problem: Option<String>) {
        let Some(Wanted { generation, at_restart, .. }) = self.specs.next.take() else { return };
        if let Some(running) = &mut self.specs.running {
            made.iter().for_each(|change| change.note(running));
        }
        for change in made {
            if let (Change::Grace { seconds }, None) = (change, self.shutdown) {
                self.grace = Some(Duration::from_secs(*seconds));
            }
        }
        let applied = Some(Applied { generation, at_restart, problem: problem.map(|why| short(&why)) });
        if self.state.applied != applied {
            self.state.applied = applied;
            self.changed();
        }
    }

    fn sync(&mut self, spec: Box<MachineSpec>, phase: MachinePhase) -> Verdict {
        if phase != MachinePhase::Waiting {
            if self.state.uid != spec.uid {
                return conflict(format!("another machine runs here: {}", self.state.uid));
            }
            return Verdict::Done;
        }
        self.grace = Some(Duration::from_secs(spec.grace_seconds));
        self.state.uid.clone_from(&spec.uid);
        self.specs.running = Some(spec.clone());
        self.phase(MachinePhase::Starting);
        Verdict::Start(spec)
    }

    fn apply(&mut self, generation: u64, spec: Box<MachineSpec>, phase: MachinePhase) -> Verdict {
        if phase == MachinePhase::Waiting {
            self.state.applied = Some(Applied { generation, ..Applied::default() });
            return self.sync(spec, phase);
        }
        if self.state.uid != spec.uid {
            return conflict(format!("another machine runs here: {}", self.state.uid));
        }
        let known = [&self.specs.next, &self.specs.newest].into_iter().flatten().map(|wanted| wanted.generation);
        let known = known.chain(self.state.applied.as_ref().map(|applied| applied.generation)).max();
        if known.is_some_and(|known| generation < known) {
            return Verdict::Done;
        }
        self.specs.newest = Some(Wanted { generation, spec, at_restart: vec![] });
        Verdict::Done
    }

    fn shutdown(&mut self, grace: Duration, now: Instant) -> Verdict {
        self.grace = Some(grace);
        let deadline = later(now, grace);
        match self.state.phase {
            MachinePhase::Waiting => return self.stop_unstarted(),
            MachinePhase::Stopped => return Verdict::Done,
            _ => {}
        }
        if let Some(shutdown) = &mut self.shutdown {
            // Repeating a request must not give the guest more time; a shorter grace period takes some away.
            shutdown.deadline = shutdown.deadline.map(|before| before.min(deadline));
            return Verdict::Done;
        }
        self.shutdown = Some(Shutdown { deadline: Some(deadline), ask: now });
        if self.state.phase == MachinePhase::Starting {
            return Verdict::Done;
        }
        self.phase(MachinePhase::ShuttingDown);
        if grace.is_zero() {
            self.shutdown = Some(Shutdown { deadline: None, ask: now });
            return Verdict::Background(Action::Destroy);
        }
        Verdict::Background(self.ask(now))
    }

    fn ask(&mut self, now: Instant) -> Action {
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.ask = now + ASK_AGAIN;
        }
        match self.state.pause_reason {
            // A guest whose CPUs stand still cannot react. After a disk error this is its last chance to write, too.
            Some(_) => Action::ShutdownPaused,
            None => Action::Shutdown,
        }
    }

    fn stop_unstarted(&mut self) -> Verdict {
        self.stop(StopReason::Destroyed, Some("stopped before a machine was given".into()));
        Verdict::Done
    }

    fn stopped_with(&mut self, reason: StopReason) {
        let reason = if self.panicked { StopReason::Crashed } else { reason };
        match self.state.phase {
            // libvirt reports a failed start as a stop, too; the answer to the start decides.
            MachinePhase::Starting => self.stopped_early = Some(reason),
            MachinePhase::Stopped | MachinePhase::Waiting => {}
            _ => self.stop(reason, self.state.message.clone()),
        }
    }

    fn suspended(&mut self, reason: PauseReason) {
        match self.state.phase {
            MachinePhase::Running | MachinePhase::Paused => self.paused(reason),
            MachinePhase::ShuttingDown if self.state.pause_reason != Some(reason) => {
                self.state.pause_reason = Some(reason);
                self.changed();
            }
            _ => {}
        }
    }

    fn resumed(&mut self) {
        match self.state.phase {
            MachinePhase::Paused => {
                self.state.pause_reason = None;
                self.state.message = None;
                self.phase(MachinePhase::Running);
            }
            MachinePhase::ShuttingDown if self.state.pause_reason.is_some() => {
                self.state.pause_reason = None;
                self.changed();
            }
            _ => {}
        }
    }

    fn paused(&mut self, reason: PauseReason) {
        if self.state.phase == MachinePhase::Paused && self.state.pause_reason == Some(reason) {
            return;
        }
        self.state.pause_reason = Some(reason);
        self.phase(MachinePhase::Paused);
    }

    fn stop(&mut self, reason: StopReason, message: Option<String>) {
        self.state.stop_reason = Some(reason);
        self.state.pause_reason = None;
        self.state.agent_connected = false;
        self.state.guest = None;
        self.state.message = message;
        self.phase(MachinePhase::Stopped);
    }

    fn set_message(&mut self, message: &str) {
        let message = short(message);
        if self.state.message.as_ref() != Some(&message) {
            self.state.message = Some(message);
            self.changed();
        }
    }

    fn phase(&mut self, phase: MachinePhase) {
        self.state.phase = phase;
        self.changed();
    }

    fn changed(&mut self) {
        self.state.generation += 1;
    }
}

/// Guests have a hand in what libvirt and their agent say, and all of it goes into the machine's state.
fn short(text: &str) -> String {
    text.chars().take(LONGEST_WORDS).collect()
}

/// A grace period is what somebody wrote: any number of seconds.
pub(crate) fn later(now: Instant, by: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    now + by.min(FAR)
}

fn conflict(message: String) -> Verdict {
    Verdict::Refused(ProtocolError { code: ErrorCode::Conflict, message })
}

fn phase_text(phase: MachinePhase) -> &'static str {
    match phase {
        MachinePhase::Waiting => "not there yet",
        MachinePhase::Starting => "starting",
        MachinePhase::Running => "running",
        MachinePhase::Paused => "paused",
        MachinePhase::ShuttingDown => "shutting down",
        MachinePhase::Stopped => "stopped",
    }
}

#[cfg(test)]
mod tests;
