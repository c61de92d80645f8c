//! The launcher protocol: what the node agent and a launcher say to each other.
//!
//! One unix socket per launcher, any number of connections. A frame is a big-endian `u32` length followed by that many
//! bytes of JSON, at most [`MAX_FRAME`]. The first frame of a connection is the client's [`Request::Hello`]; the server
//! answers with the version that both speak. Replies carry the id of their request. After [`Request::Subscribe`] the
//! server sends [`ServerFrame::State`] at once and after every change: state is level-based, so a client that missed
//! nothing and one that just connected see the same.
//!
//! Requests are idempotent: repeating one with the same content has no further effect. Unknown fields are ignored, so a
//! newer peer may say more. Nothing here may name Kubernetes, and nothing here does I/O.
//!
//! Since version 2 a machine that runs can be told to be another one ([`Request::Apply`]), and replies have a type
//! ([`Answer`]). The answer to a hello has the form of version 1 in both, for nobody knows yet what the other speaks.
//!
//! ```text
//!            Sync            domain up             Shutdown / guest powers off
//!  Waiting ---------> Starting ---------> Running ------------------------> Stopped
//!                        |                 |   ^                              ^
//!                        |           Pause v   | Unpause                      |
//!                        |                Paused -----------------------------+
//!                        +--- error ------------------------------------------+
//! ```

mod answer;
mod guest;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::spec::MachineSpec;

pub use answer::{Answer, Outcome, Shape};
pub use guest::{
    AgentCommand, ExecResult, GuestCall, GuestDisk, GuestFacts, GuestFilesystem, GuestInterface, GuestOs, GuestReport,
    GuestUser, Secret,
};

/// The newest protocol version this build speaks.
pub const VERSION: u32 = 2;
/// The oldest protocol version this build speaks.
pub const MIN_VERSION: u32 = 1;
/// The largest frame that is accepted, in bytes.
pub const MAX_FRAME: u32 = 8 << 20;
/// The socket's name inside the pod's `sockets` volume.
pub const SOCKET_NAME: &str = "launcher.sock";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientFrame {
    pub id: u64,
    #[serde(flatten)]
    pub request: Request,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Request {
    Hello {
        min_version: u32,
        max_version: u32,
    },
    /// Run this machine. Refused with `conflict` if a different machine uid was synced before. Once it runs, nothing changes it.
    Sync {
        spec: Box<MachineSpec>,
    },
    /// Run this machine; if it runs already, make it what the spec says, as far as that goes without a restart. What became of
    /// it is told by [`MachineState::applied`]. An older generation than one that was seen means nothing. Since version 2.
    Apply {
        generation: u64,
        spec: Box<MachineSpec>,
    },
    Subscribe {},
    /// Ask the guest to power off; kill it when the grace period is over.
    Shutdown {
        grace_seconds: u64,
    },
    /// End the domain at once.
    Kill {},
    Pause {},
    Unpause {},
    /// Hard reset, as by the reset button.
    Reset {},
    /// Ask the guest to reboot.
    SoftReboot {},
    /// The domain XML as it runs, for diagnosis.
    DomainXml {},
    /// Ask the guest, or something about it. Refused with `noAgent` where the guest agent is needed and does not answer.
    Guest {
        #[serde(flatten)]
        call: GuestCall,
    },
    /// The launcher may exit once the domain has stopped: its state was recorded.
    Release {},
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
// A frame lives from its decoding to its use, one at a time: its size costs nothing.
#[allow(clippy::large_enum_variant)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ServerFrame {
    /// Since version 2.
    Answer {
        id: u64,
        result: Outcome,
    },
    /// In version 1, and to a hello.
    Reply {
        id: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<ProtocolError>,
    },
    State {
        state: MachineState,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
#[serde(rename_all = "camelCase")]
pub struct ProtocolError {
    pub code: ErrorCode,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ErrorCode {
    /// No common protocol version.
    Version,
    /// The frame could not be understood.
    BadRequest,
    /// Another machine runs here, or the request does not fit the state.
    Conflict,
    /// The guest agent is not connected or does not answer.
    NoAgent,
    /// The machine is not here.
    NotHere,
    /// libvirt, the guest or the host said no.
    Failed,
}

/// All that the launcher knows of its machine. `generation` grows with every change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineState {
    pub generation: u64,
    pub phase: MachinePhase,
    /// Uid of the machine that was synced, empty before.
    #[serde(default)]
    pub uid: String,
    /// Why `phase` is what it is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_reason: Option<PauseReason>,
    /// How often libvirt's daemon ended under the running machine and had to be started again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub daemon_losses: u32,
    /// `qemu`, `kvm`, … as libvirt runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virt_type: Option<String>,
    /// The machine type libvirt chose, such as `pc-q35-7.2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// True while the guest agent's channel is connected.
    #[serde(default)]
    pub agent_connected: bool,
    /// What the guest agent told, while it is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<Box<GuestFacts>>,
    /// Why the guest does not have the credentials that it should have; empty if it has them. `None` if none are asked for,
    /// or nobody could try yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_problem: Option<String>,
    /// Shared file systems whose daemon ended under the running machine, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lost_filesystems: BTreeMap<String, String>,
    /// What became of the newest [`Request::Apply`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// The end began with a signal to the launcher, not with a request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminated: bool,
}

/// How far a running machine is what its newest spec says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// Of the newest spec that was looked at to its end.
    pub generation: u64,
    /// Parts of the spec that a restart of the machine would change, by their names in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at_restart: Vec<String>,
    /// Why the machine is not what it could be without a restart. Applying the spec again tries again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub enum MachinePhase {
    #[default]
    Waiting,
    Starting,
    Running,
    Paused,
    ShuttingDown,
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StopReason {
    /// The guest powered itself off, or did so because it was asked.
    GuestShutdown,
    /// It was ended from outside.
    Destroyed,
    /// The hypervisor process died, or the guest panicked.
    Crashed,
    /// It never came up.
    StartFailed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PauseReason {
    /// Somebody asked.
    User,
    /// A disk reported an error.
    IoError,
    /// The machine was asked to start paused.
    Starting,
    Other,
}

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("frame of {0} bytes is larger than {MAX_FRAME}")]
    TooLarge(u32),
    #[error("frame is not valid JSON for this protocol")]
    Json(#[from] serde_json::Error),
}

/// Encodes a frame with its length in front.
pub fn encode<T: Serialize>(frame: &T) -> Result<Vec<u8>, FrameError> {
    let body = serde_json::to_vec(frame)?;
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    if length > MAX_FRAME {
        return Err(FrameError::TooLarge(length));
    }
    let mut out = Vec::with_capacity(body.len() + 4);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&body);
    Ok(out)
}

/// Checks a frame's length prefix.
pub fn frame_length(prefix: [u8; 4]) -> Result<usize, FrameError> {
    let length = u32::from_be_bytes(prefix);
    if length > MAX_FRAME {
        return Err(FrameError::TooLarge(length));
    }
    Ok(length as usize)
}

pub fn decode<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, FrameError> {
    Ok(serde_json::from_slice(body)?)
}
