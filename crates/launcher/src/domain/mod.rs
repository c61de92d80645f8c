//! The domain as the owner task sees it: a few deeds and a stream of events.
//!
//! [`Backend`] is the seam between the launcher's logic and libvirt; tests put a fake behind it.

mod deaf;
mod hearing;
pub mod libvirt;
mod link;
mod looking;
mod traffic;

use std::future::Future;

use ferrovirt_libvirt::ErrorCode as LibvirtCode;
use ferrovirt_machine::changes::Change;
use ferrovirt_machine::protocol::{Answer, ErrorCode, GuestCall, GuestFacts, PauseReason, StopReason};
use ferrovirt_machine::spec::{Credential, Filesystem, SerialConsole};

use crate::filesystems::FilesystemError;

/// Carries out what `lifecycle` decided. Clones share one domain.
pub trait Backend: Clone + Send + Sync + 'static {
    /// Defines and starts the domain; returns when the hypervisor runs.
    fn start(&self, domain: NewDomain) -> impl Future<Output = Result<Started, DomainError>> + Send;

    /// [`Answer::Done`] but for [`Action::Xml`].
    fn act(&self, action: Action) -> impl Future<Output = Result<Answer, DomainError>> + Send;

    /// Changes the running domain.
    fn change(&self, change: Change) -> impl Future<Output = Result<(), DomainError>> + Send;

    /// The answer is what [`GuestCall`] says of each call.
    fn guest(&self, call: GuestCall) -> impl Future<Output = Result<Answer, DomainError>> + Send;
}

#[derive(Debug, Clone, PartialEq)]
pub struct NewDomain {
    pub name: String,
    pub xml: String,
    pub paused: bool,
    /// The console's socket and log, where the hypervisor does not serve them itself.
    pub console: Option<SerialConsole>,
    pub credentials: Vec<Credential>,
    /// Served before the domain starts.
    pub filesystems: Vec<Filesystem>,
}

/// What libvirt made of the XML.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    pub virt_type: Option<String>,
    pub machine_type: Option<String>,
    pub paused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Press the power button.
    Shutdown,
    /// Let the CPUs run, then press the power button.
    ShutdownPaused,
    Destroy,
    Suspend,
    Resume,
    Reset,
    Reboot,
    Xml,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DomainEvent {
    Stopped(StopReason),
    Suspended(PauseReason),
    Resumed,
    Panicked,
    IoError {
        disk: String,
        reason: String,
    },
    Agent {
        connected: bool,
    },
    /// What the guest agent tells now.
    Guest(Box<GuestFacts>),
    /// Whether the guest has the credentials that it should have.
    Credentials(Result<(), String>),
    /// The daemon of a shared file system ended before the domain did.
    FilesystemLost {
        tag: String,
        why: String,
    },
    /// The daemon died; the hypervisor goes on. `Observed` follows when a new daemon has found the domain.
    DaemonLost(String),
    Observed(Observed),
}

/// The domain's state after events may have been missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    Running,
    Paused(PauseReason),
    Stopped(StopReason),
}

#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    #[error("libvirt refused")]
    Libvirt(#[from] ferrovirt_libvirt::Error),
    #[error("the libvirt daemon is not available: {0}")]
    NoDaemon(String),
    #[error(
        "the libvirt daemon does not start: {0}. The log of the launcher pod says more; its image needs libvirt with the \
         driver of this hypervisor"
    )]
    DaemonFails(String),
    #[error("there is no domain yet")]
    NoDomain,
    #[error("cannot serve the console")]
    Console(#[source] std::io::Error),
    #[error(transparent)]
    Filesystem(#[from] FilesystemError),
    #[error("a container cannot be reset; restart it instead")]
    NoReset,
    #[error("the guest agent is not connected")]
    NoAgent,
    #[error("the guest agent cannot do that: {0}")]
    Agent(String),
    #[error("{command} did not end within {seconds} s in the guest")]
    ExecTimeout { command: String, seconds: u64 },
    #[error("cannot read the credentials in {dir}")]
    Credentials { dir: String, source: std::io::Error },
    #[error("the domain has no interface {0}")]
    NoInterface(String),
    #[error("cannot show the screen")]
    Screen(#[from] crate::screen::ScreenError),
}

impl DomainError {
    /// True if the guest agent is not there or does not answer, as against answering no.
    pub fn agent_is_silent(&self) -> bool {
        let silent = [LibvirtCode::AgentUnresponsive, LibvirtCode::AgentUnsynced, LibvirtCode::ArgumentUnsupported];
        match self {
            Self::NoAgent => true,
            Self::Libvirt(error) => error.code().is_some_and(|code| silent.contains(&code)),
            _ => false,
        }
    }

    pub fn code(&self) -> ErrorCode {
        if self.agent_is_silent() { ErrorCode::NoAgent } else { ErrorCode::Failed }
    }
}
