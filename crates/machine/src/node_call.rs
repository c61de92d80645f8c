//! What virt-api asks a node agent about one of its machines. Both ends share these types; the way between them may be a
//! function call or a TLS connection.

use serde::{Deserialize, Serialize};

use crate::protocol::{GuestCall, Request, Secret};

/// File systems thaw by themselves after this time if nobody said another.
const UNFREEZE_SECONDS: u64 = 300;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum NodeCall {
    Pause {},
    Unpause {},
    /// The reset button.
    Reset {},
    SoftReboot {},
    /// 0 means never by itself.
    Freeze {
        #[serde(default)]
        unfreeze_timeout_seconds: Option<u64>,
    },
    Unfreeze {},
    /// Answered with upstream's `VirtualMachineInstanceGuestAgentInfo`.
    GuestInfo {},
    /// Answered with upstream's `VirtualMachineInstanceGuestOSUserList`.
    Users {},
    /// Answered with upstream's `VirtualMachineInstanceFileSystemList`.
    Filesystems {},
    Ping {},
    /// Answered with [`crate::protocol::ExecResult`].
    Exec {
        command: String,
        #[serde(default)]
        args: Vec<String>,
        timeout_seconds: u64,
    },
    /// Answered with a PNG.
    Screenshot {},
    /// Answered with one flat JSON object in libvirt's names.
    Stats {},
    DomainXml {},
    SetPassword {
        user: String,
        password: Secret,
    },
    SetSshKeys {
        user: String,
        keys: Vec<String>,
    },
}

impl NodeCall {
    /// What the launcher is asked for it.
    pub fn request(&self) -> Request {
        let call = match self.clone() {
            Self::Pause {} => return Request::Pause {},
            Self::Unpause {} => return Request::Unpause {},
            Self::Reset {} => return Request::Reset {},
            Self::SoftReboot {} => return Request::SoftReboot {},
            Self::DomainXml {} => return Request::DomainXml {},
            Self::Freeze { unfreeze_timeout_seconds } => {
                let seconds = unfreeze_timeout_seconds.unwrap_or(UNFREEZE_SECONDS);
                GuestCall::Freeze { unfreeze_timeout_seconds: seconds }
            }
            Self::Unfreeze {} => GuestCall::Unfreeze {},
            Self::GuestInfo {} | Self::Users {} | Self::Filesystems {} => GuestCall::Report {},
            Self::Ping {} => GuestCall::Ping {},
            Self::Exec { command, args, timeout_seconds } => GuestCall::Exec { command, args, timeout_seconds },
            Self::Screenshot {} => GuestCall::Screenshot {},
            Self::Stats {} => GuestCall::Stats {},
            Self::SetPassword { user, password } => GuestCall::SetPassword { user, password },
            Self::SetSshKeys { user, keys } => GuestCall::SetSshKeys { user, keys },
        };
        Request::Guest { call }
    }
}

/// How a port of a guest is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// The stream is the connection.
    Tcp,
    /// The stream carries datagrams, each with its length in front as a big-endian `u16`.
    Udp,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [Self::Tcp, Self::Udp].into_iter().find(|protocol| protocol.name() == name)
    }
}
