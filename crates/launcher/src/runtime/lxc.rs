//! System containers, with libvirt's daemon as root of its pod: the driver has no session mode.
//!
//! The daemon's own directories are the system's (`/etc/libvirt`, `/var/lib/libvirt`, …), which in a launcher's container
//! are nobody else's.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{DaemonCommand, Dirs, LibvirtRuntime, find_daemon, find_driver};

/// Daemons in order of preference: program, socket name.
const DAEMONS: [(&str, &str); 2] = [("virtlxcd", "virtlxcd-sock"), ("libvirtd", "libvirt-sock")];
const DRIVER: &str = "libvirt_driver_lxc.so";
/// The program that holds a container; without it the driver loads, and no container starts.
const CONTROLLERS: [&str; 2] = ["/usr/lib/libvirt/libvirt_lxc", "/usr/libexec/libvirt_lxc"];

const CONF_DIR: &str = "/etc/libvirt";
const STATE_DIRS: [&str; 4] =
    ["/var/lib/libvirt/lxc", "/var/log/libvirt/lxc", "/var/cache/libvirt/lxc", "/etc/libvirt/lxc"];
const LOG_DIR: &str = "/var/log/libvirt/lxc";
const PID_DIR: &str = "/run/libvirt/lxc";

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
log_outputs = "3:stderr"
auth_unix_rw = "none"
"#;

const LXC_CONF: &str = "security_driver = \"none\"\nsecurity_default_confined = 0\n";

pub struct Lxc;

impl LibvirtRuntime for Lxc {
    fn name(&self) -> &'static str {
        "lxc"
    }

    fn setup(&self, dirs: &Dirs, _capabilities: Option<&Path>) -> io::Result<()> {
        fs::create_dir_all(dirs.drivers())?;
        for dir in STATE_DIRS {
            fs::create_dir_all(dir)?;
        }
        // A container's first process finds its terminal below, already with the guest's user ids.
        fs::set_permissions(dirs.base(), fs::Permissions::from_mode(0o755))?;
        let conf_dir = Path::new(CONF_DIR);
        fs::write(conf_dir.join("lxc.conf"), LXC_CONF)?;
        fs::write(daemon_conf(dirs), format!("unix_sock_dir = \"{}\"\n{DAEMON_CONF}", dirs.base().display()))?;
        match find_driver(DRIVER).map(|driver| symlink(driver, dirs.drivers().join(DRIVER))) {
            Some(Err(error)) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn command_prefixes(&self) -> &'static [&'static str] {
        &["libvirt_lxc"]
    }

    fn daemon(&self, dirs: &Dirs) -> io::Result<DaemonCommand> {
        let missing = |what: &str| {
            let text = format!("{what} is not installed; this launcher's image is not made for lxc");
            io::Error::new(io::ErrorKind::NotFound, text)
        };
        let (program, socket) = find_daemon(&DAEMONS).ok_or_else(|| missing("neither virtlxcd nor libvirtd"))?;
        if find_driver(DRIVER).is_none() {
            return Err(missing("libvirt's LXC driver (libvirt-daemon-driver-lxc)"));
        }
        if !CONTROLLERS.iter().any(|path| Path::new(path).exists()) {
            return Err(missing("libvirt_lxc"));
        }
        let mut command = Command::new(program);
        command
            .arg("--config")
            .arg(daemon_conf(dirs))
            .arg("--pid-file")
            .arg(dirs.base().join("daemon.pid"))
            .current_dir("/")
            .stdin(Stdio::null())
            .env_clear()
            // Without the system's administration programs: there is no hardware to ask about.
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LC_ALL", "C")
            .env("LIBVIRT_DRIVER_DIR", dirs.drivers())
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_TRIM_THRESHOLD_", "65536");
        Ok(DaemonCommand { command, socket: dirs.base().join(socket) })
    }

    fn log_daemon(&self, _dirs: &Dirs) -> Option<Command> {
        None
    }

    fn root(&self) -> bool {
        true
    }

    fn uri_and_user(&self, dirs: &Dirs) -> (String, &'static str) {
        let socket = find_daemon(&DAEMONS).map_or(DAEMONS[1].1, |(_, socket)| socket);
        (format!("lxc+unix:///system?socket={}", dirs.base().join(socket).display()), "root")
    }

    fn pid_dir(&self, _dirs: &Dirs) -> PathBuf {
        PID_DIR.into()
    }

    fn domain_log(&self, _dirs: &Dirs, domain: &str) -> PathBuf {
        Path::new(LOG_DIR).join(format!("{domain}.log"))
    }

    /// There is nothing to find out that would be worth keeping.
    fn capabilities_cache(&self, dirs: &Dirs) -> PathBuf {
        dirs.cache().join("lxc")
    }

    fn virt_types(&self) -> &'static [&'static str] {
        &[]
    }
}

fn daemon_conf(dirs: &Dirs) -> PathBuf {
    dirs.base().join("lxc-daemon.conf")
}
