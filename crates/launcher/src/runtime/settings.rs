//! What every libvirt daemon of ours is told, whatever its driver.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Dirs, find_driver};

/// One machine, one client and few threads. The anonymous limit may not exceed the client limit.
const DAEMON_CONF: &str = r#"max_clients = 8
max_anonymous_clients = 8
min_workers = 1
max_workers = 3
prio_workers = 1
max_client_requests = 5
admin_min_workers = 1
admin_max_workers = 1
admin_max_clients = 1
log_level = 3
auth_unix_rw = "none"
"#;

/// What goes to the log of the pod: warnings, or what filters let through.
fn log_conf(filters: Option<&str>) -> String {
    // A quotation mark would end the value, and what follows would be settings.
    match filters.filter(|filters| !filters.contains(['"', '\\']) && !filters.contains(char::is_control)) {
        Some(filters) => format!("log_outputs = \"1:stderr\"\nlog_filters = \"{filters}\"\n"),
        None => "log_outputs = \"3:stderr\"\n".to_owned(),
    }
}

/// Writes the daemon's configuration, and links the one driver it shall load: the monolithic daemon loads every one it finds, and
/// networks, storage pools and node devices cost memory and start-up time that no machine here uses.
pub(super) fn write(dirs: &Dirs, driver: &str) -> io::Result<()> {
    let log_conf = log_conf(dirs.log_filters.as_deref());
    fs::write(daemon_conf(dirs), format!("unix_sock_dir = \"{}\"\n{DAEMON_CONF}{log_conf}", dirs.base().display()))?;
    match find_driver(driver).map(|found| symlink(found, dirs.drivers().join(driver))) {
        Some(Err(error)) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The daemon with the settings that were written, and nothing of our environment.
pub(super) fn command(program: &Path, dirs: &Dirs, driver: &str) -> Command {
    let mut command = Command::new(program);
    command
        .arg("--config")
        .arg(daemon_conf(dirs))
        .arg("--pid-file")
        .arg(dirs.base().join("daemon.pid"))
        .current_dir("/")
        .stdin(Stdio::null())
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        // One heap for all threads: the daemon mostly waits, and each arena would keep pages of its own.
        .env("MALLOC_ARENA_MAX", "1")
        .env("MALLOC_TRIM_THRESHOLD_", "65536");
    if dirs.drivers().join(driver).exists() {
        command.env("LIBVIRT_DRIVER_DIR", dirs.drivers());
    }
    command
}

/// The same in session mode, where the daemon finds its directories by these variables.
pub(super) fn session_command(program: &Path, dirs: &Dirs, driver: &str) -> Command {
    let mut command = command(program, dirs, driver);
    command
        .env("HOME", dirs.base())
        .env("XDG_RUNTIME_DIR", dirs.runtime())
        .env("XDG_CACHE_HOME", dirs.cache())
        .env("XDG_CONFIG_HOME", dirs.config())
        .env("XDG_DATA_HOME", dirs.data());
    command
}

/// A part of the hypervisor that its image should have.
pub(super) fn missing(what: &str, hypervisor: &str) -> io::Error {
    let text = format!("{what} is not installed; this launcher's image is not made for {hypervisor}");
    io::Error::new(io::ErrorKind::NotFound, text)
}

fn daemon_conf(dirs: &Dirs) -> PathBuf {
    dirs.base().join("daemon.conf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_one_setting_and_become_no_other() {
        let plain = "log_outputs = \"3:stderr\"\n";
        let with = |filters: &str| format!("log_outputs = \"1:stderr\"\nlog_filters = \"{filters}\"\n");
        assert_eq!(log_conf(None), plain);
        assert_eq!(log_conf(Some("1:qemu 3:*")), with("1:qemu 3:*"));
        for evil in ["1:qemu\"\nauth_unix_rw = \"none", "1:qemu\\", "1:\nqemu"] {
            assert_eq!(log_conf(Some(evil)), plain, "{evil:?}");
        }
    }
}
