//! System containers, with libvirt's daemon as root of its pod: the driver has no session mode.
//!
//! The daemon's own directories are the system's (`/etc/libvirt`, `/var/lib/libvirt`, …), which in a launcher's container
//! are nobody else's.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{DaemonCommand, Dirs, LibvirtRuntime, find_daemon, find_driver, settings};

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

const LXC_CONF: &str = "security_driver = \"none\"\nsecurity_default_confined = 0\n";

/// User ids of the selftest's container; machines get others from their node.
const SELFTEST_IDS: u32 = 1_000_000;

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
        settings::write(dirs, DRIVER)
    }

    fn command_prefixes(&self) -> &'static [&'static str] {
        &["libvirt_lxc"]
    }

    fn daemon(&self, dirs: &Dirs) -> io::Result<DaemonCommand> {
        let missing = |what| settings::missing(what, self.name());
        let (program, socket) = find_daemon(&DAEMONS).ok_or_else(|| missing("neither virtlxcd nor libvirtd"))?;
        if find_driver(DRIVER).is_none() {
            return Err(missing("libvirt's LXC driver (libvirt-daemon-driver-lxc)"));
        }
        if !CONTROLLERS.iter().any(|path| Path::new(path).exists()) {
            return Err(missing("libvirt_lxc"));
        }
        let mut command = settings::command(&program, dirs, DRIVER);
        // Without the system's administration programs: there is no hardware to ask about.
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
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

    /// The launcher itself is the container's only process; it finds its libraries in the directories of the image.
    fn selftest_domain(&self, dirs: &Dirs) -> io::Result<String> {
        let tree = dirs.base().join("selftest");
        fs::create_dir_all(&tree)?;
        // libvirt makes directories in it, as the container's root.
        chown(&tree, Some(SELFTEST_IDS), Some(SELFTEST_IDS))?;
        let mut mounts = mount(&tree, Path::new("/"));
        for name in ["usr", "lib", "lib64"] {
            let (own, place) = (Path::new("/").join(name), tree.join(name));
            match fs::read_link(&own) {
                Ok(target) => symlink(target, place)?,
                Err(_) if own.is_dir() => {
                    fs::create_dir_all(place)?;
                    mounts += &mount(&own, &own);
                }
                Err(_) => {}
            }
        }
        for name in ["proc", "sys", "dev"] {
            fs::create_dir_all(tree.join(name))?;
        }
        fs::copy(std::env::current_exe()?, tree.join("launcher"))?;
        Ok(format!(
            "<domain type='lxc'><name>selftest</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
             <os><type>exe</type><init>/launcher</init><initarg>idle</initarg></os><features><privnet/></features>\
             <idmap><uid start='0' target='{SELFTEST_IDS}' count='65536'/><gid start='0' target='{SELFTEST_IDS}' count='65536'/></idmap>\
             <devices>{mounts}<console type='pty'/></devices></domain>"
        ))
    }
}

fn mount(source: &Path, target: &Path) -> String {
    format!(
        "<filesystem type='mount'><source dir='{}'/><target dir='{}'/></filesystem>",
        source.display(),
        target.display()
    )
}
