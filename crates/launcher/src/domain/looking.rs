//! What a driver does not tell, seen by looking.
//!
//! libvirt's `ch` driver (11.3) sends no event when a guest powers off, stands still or goes on, and never notices that its
//! hypervisor was killed. So the launcher reads the state itself, and looks whether the process is there.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ferrovirt_machine::protocol::StopReason;
use tokio::sync::mpsc;

use super::{DomainEvent, Observed, libvirt::LibvirtBackend};

const LOOK: Duration = Duration::from_secs(1);
/// A machine that ends has no process for a moment before the daemon knows it.
const GONE_FOR: u32 = 3;

/// Tells what the driver does not, from the start of a domain to its end.
pub(super) async fn watch(backend: LibvirtBackend, events: mpsc::UnboundedSender<DomainEvent>, first: Observed) {
    let mut sight = Sight { last: first, gone: 0 };
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(now) = backend.observe().await else { continue };
        let alive = backend.pid_file().is_none_or(|file| is_alive(&file));
        if let Some(news) = sight.look(now, alive) {
            tracing::info!(?news, "seen");
            let stopped = matches!(news, Observed::Stopped(_));
            let _ = events.send(DomainEvent::Observed(news));
            if stopped {
                return;
            }
        }
    }
}

struct Sight {
    last: Observed,
    /// How many looks in a row found no process behind a domain that is said to run.
    gone: u32,
}

impl Sight {
    /// What is new since the last look.
    fn look(&mut self, now: Observed, alive: bool) -> Option<Observed> {
        self.gone = if alive { 0 } else { self.gone + 1 };
        let now = match now {
            Observed::Running | Observed::Paused(_) if self.gone >= GONE_FOR => Observed::Stopped(StopReason::Crashed),
            now => now,
        };
        (now != self.last).then(|| {
            self.last = now;
            now
        })
    }
}

/// Whether there is a process with the number in this file. One that ended and that nobody waited for is none.
fn is_alive(pid_file: &Path) -> bool {
    let Ok(text) = fs::read_to_string(pid_file) else { return false };
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", text.trim())) else { return false };
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

#[cfg(test)]
mod tests {
    use ferrovirt_machine::protocol::PauseReason;

    use super::*;

    #[test]
    fn only_changes_are_news() {
        let mut sight = Sight { last: Observed::Running, gone: 0 };
        let paused = Observed::Paused(PauseReason::User);
        let stopped = Observed::Stopped(StopReason::GuestShutdown);
        assert_eq!(sight.look(Observed::Running, true), None);
        assert_eq!(sight.look(paused, true), Some(paused));
        assert_eq!(sight.look(paused, true), None);
        assert_eq!(sight.look(Observed::Running, true), Some(Observed::Running));
        assert_eq!(sight.look(stopped, false), Some(stopped), "at once, with the daemon's own reason");
    }

    #[test]
    fn a_machine_whose_process_is_gone_has_crashed() {
        let mut sight = Sight { last: Observed::Running, gone: 0 };
        let looks: Vec<_> =
            [false, false, true, false, false, false].map(|alive| sight.look(Observed::Running, alive)).into();
        let crashed = Some(Observed::Stopped(StopReason::Crashed));
        assert_eq!(looks, [None, None, None, None, None, crashed]);
    }

    #[test]
    fn processes_are_found_by_their_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        assert!(!is_alive(&file));
        fs::write(&file, format!("{}\n", std::process::id())).unwrap();
        assert!(is_alive(&file));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        fs::write(&file, pid.to_string()).unwrap();
        assert!(!is_alive(&file));
    }
}
