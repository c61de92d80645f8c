//! Whether libvirt's daemon still hears of a container.
//!
//! It does so over a connection to the process that holds the container, and over nothing else: without it neither a reboot nor an
//! end is ever known. Now and then the connection is lost when a container starts, also after a reboot, and nobody says so. A
//! new daemon connects again.

use std::{fs, time::Duration};

use ferrovirt_libvirt::DomainState;

use super::libvirt::LibvirtBackend;

const LOOK: Duration = Duration::from_secs(1);
/// A container that starts or ends is between two states for a moment.
const ALONE_FOR: u32 = 5;

#[derive(Debug, PartialEq, Eq)]
enum Hearing {
    Connected,
    /// The process is there, and nobody is connected to it.
    Alone,
    /// There is no such process.
    Gone,
}

/// Looks for as long as the launcher lives, and has the daemon replaced when it does not hear.
pub(super) async fn watch(backend: LibvirtBackend) {
    let mut alone = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let deaf = match (backend.domain_name(), backend.is_linked()) {
            (Some(name), true) => match hearing(&read_sockets(), &name) {
                Hearing::Connected => false,
                Hearing::Alone => true,
                Hearing::Gone => {
                    matches!(backend.state().await, Some(DomainState::Running | DomainState::Paused { .. }))
                }
            },
            _ => false,
        };
        alone = if deaf { alone + 1 } else { 0 };
        if alone == ALONE_FOR {
            tracing::warn!("the daemon has lost its connection to the container; starting another one");
            backend.replace_daemon();
            alone = 0;
        }
    }
}

/// The unix sockets of this network namespace.
fn read_sockets() -> String {
    fs::read_to_string("/proc/self/net/unix").unwrap_or_default()
}

fn hearing(sockets: &str, name: &str) -> Hearing {
    const LISTENS: &str = "01";
    let own = format!("/lxc/{name}.sock");
    let ours = sockets.lines().filter(|line| line.ends_with(&own));
    let states: Vec<&str> = ours.filter_map(|line| line.split_whitespace().nth(5)).collect();
    match states.iter().any(|state| *state != LISTENS) {
        true => Hearing::Connected,
        false if states.is_empty() => Hearing::Gone,
        false => Hearing::Alone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_nobody_listens_to_is_noticed() {
        let listens = "0000: 00000002 00000000 00010000 0001 01 54 /run/libvirt/lxc/default_a.sock\n";
        let connected = "0000: 00000003 00000000 00000000 0001 03 55 /run/libvirt/lxc/default_a.sock\n";
        let other = "0000: 00000003 00000000 00000000 0001 03 56 /run/libvirt/libvirt-sock\n";
        assert_eq!(hearing(&format!("{listens}{connected}{other}"), "default_a"), Hearing::Connected);
        assert_eq!(hearing(&format!("{listens}{other}"), "default_a"), Hearing::Alone);
        assert_eq!(hearing(other, "default_a"), Hearing::Gone);
    }
}
