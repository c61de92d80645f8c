//! How a machine ended, in a line that outlives its launcher.
//!
//! Exit codes say the same, but a container runtime that was restarted in the wrong moment no longer knows them. What a container
//! leaves in its termination log it still reads.

use ferrovirt_api::names::{ENDED_BADLY as BADLY, ENDED_WELL as WELL};

use crate::protocol::{MachineState, StopReason};

/// Where container runtimes look.
pub const PATH: &str = "/dev/termination-log";

/// Less than a kubelet takes.
const LONGEST: usize = 1000;

/// True if the launcher's exit code says that all went well.
pub fn ended_well(reason: Option<StopReason>) -> bool {
    !matches!(reason, Some(StopReason::Crashed | StopReason::StartFailed))
}

pub fn of(state: &MachineState) -> String {
    let (word, default) = match ended_well(state.stop_reason) {
        true => (WELL, "the guest ended"),
        false => (BADLY, "the guest crashed"),
    };
    let message = state.message.as_deref().unwrap_or(default);
    word.chars().chain(message.chars()).take(LONGEST).collect()
}

/// Whether it ended well, and the words. `None` for what somebody else wrote.
pub fn read(words: &str) -> Option<(bool, &str)> {
    let said = |word: &str, well: bool| words.strip_prefix(word).map(|rest| (well, rest.trim_end()));
    said(WELL, true).or_else(|| said(BADLY, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let state = |stop_reason, message: Option<&str>| MachineState {
            stop_reason: Some(stop_reason),
            message: message.map(str::to_owned),
            ..MachineState::default()
        };
        let long = "x".repeat(5000);
        let cases = [
            (state(StopReason::GuestShutdown, None), true, "the guest ended"),
            (state(StopReason::Destroyed, Some("killed")), true, "killed"),
            (state(StopReason::Crashed, None), false, "the guest crashed"),
            (state(StopReason::StartFailed, Some(&long)), false, &long[..LONGEST - BADLY.len()]),
        ];
        for (state, well, message) in cases {
            assert_eq!(read(&of(&state)), Some((well, message)), "{state:?}");
        }
        assert_eq!(read("panicked at"), None);
    }
}
