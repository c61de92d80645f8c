//! Asking a container to stop or to restart: the signal that its init understands.
//!
//! libvirt alone would send SIGTERM, which means "start over" to busybox and "load yourself anew" to systemd.

use std::fs;
use std::io;
use std::path::Path;

const SIGINT: u32 = 2;
const SIGPWR: u32 = 30;
/// `SIGRTMIN+3` as C libraries count: the first two real-time signals are their own.
const SYSTEMD_HALT: u32 = 37;

/// What a container is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    PowerOff,
    Reboot,
}

/// The signal for the init of a container, found by the controller's pid file.
pub fn choose(pid_file: &Path, wish: Wish) -> u32 {
    // An init that cannot be looked at is asked in the words that most understand.
    signal(&init_name(pid_file).unwrap_or_default(), wish)
}

fn init_name(pid_file: &Path) -> io::Result<String> {
    let controller = fs::read_to_string(pid_file)?;
    let controller = controller.trim();
    let children = fs::read_to_string(format!("/proc/{controller}/task/{controller}/children"))?;
    let init = children.split_whitespace().next().unwrap_or_default();
    Ok(fs::read_to_string(format!("/proc/{init}/comm"))?.trim().to_owned())
}

/// By the name of the init. SIGPWR and SIGINT are what LXC itself sends to one it does not know.
fn signal(init: &str, wish: Wish) -> u32 {
    match (init, wish) {
        ("systemd", Wish::PowerOff) => SYSTEMD_HALT,
        (_, Wish::PowerOff) => SIGPWR,
        (_, Wish::Reboot) => SIGINT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_init_is_asked_in_its_own_words() {
        for (init, wish, expected) in [
            ("systemd", Wish::PowerOff, SYSTEMD_HALT),
            ("systemd", Wish::Reboot, SIGINT),
            ("init", Wish::PowerOff, SIGPWR),
            ("", Wish::PowerOff, SIGPWR),
            ("init", Wish::Reboot, SIGINT),
        ] {
            assert_eq!(signal(init, wish), expected, "{init} {wish:?}");
        }
    }
}
