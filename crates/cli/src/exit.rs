//! How a command that failed ends: what it says, what to try next, and its exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed for a reason of its own |
//! | 2 | the command line was wrong |
//! | 3 | no such object |
//! | 4 | not allowed |
//! | 5 | not in this state |
//! | 6 | the API server cannot be reached |
//! | 7 | waited too long |
//! | 255 | `exec`, `shell` and `cp`: no ssh server answers in the guest, as ssh says it |

use std::{io::IsTerminal, process::ExitCode};

use crate::{
    client,
    each::SomeFailed,
    next::{self, Flags},
    output, persona, shell, wait,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    Other,
    NotFound,
    Forbidden,
    Conflict,
    Unreachable,
    TimedOut,
    NoServer,
}

impl Failure {
    fn of(error: &anyhow::Error) -> Self {
        for cause in error.chain() {
            if cause.downcast_ref::<wait::TimedOut>().is_some() {
                return Self::TimedOut;
            }
            if cause.downcast_ref::<shell::NoServer>().is_some() {
                return Self::NoServer;
            }
            match cause.downcast_ref::<kube::Error>() {
                Some(kube::Error::Api(status)) => {
                    return match status.code {
                        404 => Self::NotFound,
                        401 | 403 => Self::Forbidden,
                        409 => Self::Conflict,
                        _ => Self::Other,
                    };
                }
                Some(kube::Error::Service(_) | kube::Error::HyperError(_)) => return Self::Unreachable,
                _ => {}
            }
        }
        Self::Other
    }

    fn code(self) -> u8 {
        match self {
            Self::Other => 1,
            Self::NotFound => 3,
            Self::Forbidden => 4,
            Self::Conflict => 5,
            Self::Unreachable => 6,
            Self::TimedOut => 7,
            Self::NoServer => 255,
        }
    }

    /// What to do next, where the message does not say it.
    fn hint(self, message: &str, flags: &Flags) -> Option<String> {
        let command = |words: &str| match object(message) {
            Some(name) => flags.ferrovirt(&format!("{words} {name}")),
            None => flags.ferrovirt(&format!("{words} NAME")),
        };
        Some(match self {
            Self::NotFound if message.contains("virtualmachine") => {
                format!("`{}` lists all that you may see", flags.ferrovirt("get vms -A"))
            }
            Self::Forbidden => {
                "an administrator of the namespace can give you the role edit (or view, which only looks)".into()
            }
            Self::Conflict if message.contains("not running") || message.contains("not started") => {
                format!("`{}` starts it, `{}` says why it does not run", command("start"), command("why"))
            }
            Self::Conflict if message.contains("guest agent") => format!(
                "install qemu-guest-agent in the guest and start it; `{}` gets you there",
                command("console")
            ),
            Self::Conflict if message.contains("is paused") => format!("`{}` lets it go on", command("unpause")),
            Self::TimedOut => format!("`{}` says what it waits for", command("why")),
            Self::Other if message.contains("failed calling webhook") => format!(
                "virt-api, which checks VMs, does not answer: `{}` here, `{}` on a cluster",
                flags.ferrovirt("status"),
                flags.kubectl("get pods -n kubevirt")
            ),
            Self::Other if message.contains("Internal error occurred") => {
                "this is a fault of the server, not yours; its log says more: `ferrovirt status` says where it is here, `kubectl -n kubevirt logs deployment/virt-api` on a cluster".into()
            }
            _ => return None,
        })
    }
}

/// The VM that a message is about: `… virtualmachine.kubevirt.io "demo": …` as the API writes it, `vm/demo: …` as we do.
fn object(message: &str) -> Option<&str> {
    let quoted = || {
        let (_, rest) = message.split_once("virtualmachine")?;
        rest.split('"').nth(1)
    };
    let labelled = || {
        let (_, rest) = message.split_once("vm/").or_else(|| message.split_once("virtualmachine/"))?;
        rest.split([':', ' ']).next()
    };
    let name = labelled().or_else(quoted)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    (!name.is_empty() && name.chars().all(plain)).then_some(name)
}

pub fn report(error: &anyhow::Error) -> ExitCode {
    tell(error);
    ExitCode::from(code(error))
}

/// The code that a command ends with that failed like this.
pub fn code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<SomeFailed>() {
        _ if persona::is_virtctl() => 1,
        Some(failed) => failed.code,
        None => Failure::of(error).code(),
    }
}

/// Says what went wrong, and what to try next.
pub fn tell(error: &anyhow::Error) {
    // Events, conditions and servers speak here, and what guests and tenants made them say.
    let message = output::harmless_lines(&client::explain(error));
    if persona::is_virtctl() {
        eprintln!("{message}");
        return;
    }
    let label = if coloured(&std::io::stderr()) { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
    eprintln!("{label} {message}");
    let in_vain = error.chain().find_map(|cause| cause.downcast_ref::<wait::InVain>());
    let hint = match in_vain {
        Some(wait::InVain { next, .. }) => next.clone(),
        None => Failure::of(error).hint(&message, &next::flags()),
    };
    if let Some(hint) = hint {
        eprintln!("  {}", output::harmless_lines(&hint));
    }
}

/// Colours are for people: on a terminal, and only if they did not refuse them.
pub fn coloured(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_codes_and_next_steps() {
        let api = |code: u16, message: &str| {
            let status = kube::core::Status::failure(message, "").with_code(code);
            anyhow::Error::from(kube::Error::Api(Box::new(status))).context("asking")
        };
        let rows = [
            (api(404, "virtualmachines.kubevirt.io \"a\" not found"), 3, Some("get vms")),
            (api(403, "no"), 4, Some("role edit")),
            (api(409, "VM is not running"), 5, Some("`ferrovirt start NAME` starts")),
            (
                api(
                    409,
                    "Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io \"a\": VMI is not running",
                ),
                5,
                Some("`ferrovirt start a` starts"),
            ),
            (api(409, "VMI does not have guest agent connected"), 5, Some("qemu-guest-agent")),
            (api(409, "VMI is paused"), 5, Some("unpause")),
            (api(500, "boom"), 1, None),
            (api(500, "Internal error occurred: failed calling webhook \"x\": no answer"), 1, Some("does not answer")),
            (api(500, "Internal error occurred: what"), 1, Some("its log says more")),
            (anyhow::Error::from(wait::TimedOut { seconds: 1, last: "vm/a: Starting".into() }), 7, Some("why a")),
            (anyhow::anyhow!("other"), 1, None),
        ];
        for (error, code, hint) in rows {
            let failure = Failure::of(&error);
            assert_eq!(failure.code(), code, "{error:#}");
            let message = client::explain(&error);
            match (failure.hint(&message, &Flags::default()), hint) {
                (Some(said), Some(part)) => assert!(said.contains(part), "{said}"),
                (said, wanted) => assert_eq!(said.is_some(), wanted.is_some(), "{message}"),
            }
        }
    }
}
