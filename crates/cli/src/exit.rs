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

use std::{io::IsTerminal, process::ExitCode};

use crate::{client, persona, wait};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    Other,
    NotFound,
    Forbidden,
    Conflict,
    Unreachable,
    TimedOut,
}

impl Failure {
    fn of(error: &anyhow::Error) -> Self {
        for cause in error.chain() {
            if cause.downcast_ref::<wait::TimedOut>().is_some() {
                return Self::TimedOut;
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
        }
    }

    /// What to do next, where the message does not say it.
    fn hint(self, message: &str) -> Option<&'static str> {
        match self {
            Self::NotFound if message.contains("virtualmachine") => {
                Some("`ferrovirt get vms -A` lists all that you may see")
            }
            Self::Forbidden => {
                Some("an administrator of the namespace can give you the role edit (or view, which only looks)")
            }
            Self::Conflict if message.contains("not running") || message.contains("not started") => {
                Some("`ferrovirt start NAME` starts it, `ferrovirt why NAME` says why it does not run")
            }
            Self::Conflict if message.contains("guest agent") => {
                Some("install qemu-guest-agent in the guest and start it; `ferrovirt console NAME` gets you there")
            }
            Self::Conflict if message.contains("is paused") => Some("`ferrovirt unpause NAME` lets it go on"),
            Self::TimedOut => Some("`ferrovirt why NAME` says what it waits for"),
            _ => None,
        }
    }
}

pub fn report(error: &anyhow::Error) -> ExitCode {
    let message = client::explain(error);
    if persona::is_virtctl() {
        eprintln!("{message}");
        return ExitCode::FAILURE;
    }
    let failure = Failure::of(error);
    let label = if coloured(&std::io::stderr()) { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
    eprintln!("{label} {message}");
    if let Some(hint) = failure.hint(&message) {
        eprintln!("  {hint}");
    }
    ExitCode::from(failure.code())
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
            (api(409, "VM is not running"), 5, Some("start NAME")),
            (api(409, "VMI does not have guest agent connected"), 5, Some("qemu-guest-agent")),
            (api(409, "VMI is paused"), 5, Some("unpause")),
            (api(500, "boom"), 1, None),
            (anyhow::Error::from(wait::TimedOut { seconds: 1, last: String::new() }), 7, Some("why")),
            (anyhow::anyhow!("other"), 1, None),
        ];
        for (error, code, hint) in rows {
            let failure = Failure::of(&error);
            assert_eq!(failure.code(), code, "{error:#}");
            let message = client::explain(&error);
            match (failure.hint(&message), hint) {
                (Some(said), Some(part)) => assert!(said.contains(part), "{said}"),
                (said, wanted) => assert_eq!(said.is_some(), wanted.is_some(), "{message}"),
            }
        }
    }
}
