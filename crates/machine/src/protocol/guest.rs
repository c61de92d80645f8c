//! What can be asked of a running guest and its devices, and what is known of a guest that has an agent.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Asked with [`super::Request::Guest`]. In version 1 the reply's text is JSON where a type is named, else empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum GuestCall {
    /// Does the guest agent answer?
    Ping {},
    /// [`GuestReport`].
    Report {},
    /// [`ExecResult`]. The command runs as the agent's user, without a shell.
    Exec {
        command: String,
        #[serde(default)]
        args: Vec<String>,
        timeout_seconds: u64,
    },
    /// Freezes all file systems; they thaw by themselves after the time, unless it is 0.
    Freeze {
        unfreeze_timeout_seconds: u64,
    },
    Unfreeze {},
    SetPassword {
        user: String,
        password: Secret,
    },
    /// Makes these the only keys of the user.
    SetSshKeys {
        user: String,
        keys: Vec<String>,
    },
    /// The first screen as PNG, in base64.
    Screenshot {},
    /// Counters of CPU, memory, disks and interfaces: one flat JSON object in libvirt's names.
    Stats {},
}

impl GuestCall {
    /// False for what the hypervisor answers without the guest.
    pub fn needs_agent(&self) -> bool {
        !matches!(self, Self::Screenshot {} | Self::Stats {})
    }
}

/// Text that must not show up in a log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecResult {
    pub exit_code: i64,
    pub stdout: String,
    pub stderr: String,
}

/// What the agent says now, all of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestReport {
    pub agent_version: String,
    pub commands: Vec<AgentCommand>,
    pub facts: GuestFacts,
    pub users: Vec<GuestUser>,
    pub filesystems: Vec<GuestFilesystem>,
}

/// What changes seldom, and is part of the machine's state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestFacts {
    pub hostname: String,
    pub timezone: String,
    pub os: GuestOs,
    pub interfaces: Vec<GuestInterface>,
    /// The file systems are frozen.
    pub frozen: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestOs {
    pub id: String,
    pub name: String,
    pub pretty_name: String,
    pub version: String,
    pub version_id: String,
    pub kernel_release: String,
    pub kernel_version: String,
    pub machine: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestInterface {
    pub name: String,
    pub mac: String,
    /// Without loopback and link-local ones of other interfaces; each without its prefix length.
    pub addresses: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentCommand {
    pub name: String,
    pub enabled: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestUser {
    pub name: String,
    pub domain: String,
    pub login_time: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestFilesystem {
    pub name: String,
    pub mount_point: String,
    pub kind: String,
    pub used_bytes: i64,
    pub total_bytes: i64,
    pub disks: Vec<GuestDisk>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestDisk {
    pub serial: String,
    pub bus: String,
}
