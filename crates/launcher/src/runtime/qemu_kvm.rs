//! QEMU, with KVM or emulating, in libvirt's session mode: everything runs as the launcher's own uid.
//!
//! Session mode needs a passwd record for that uid in the container, and its directories through the XDG variables.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{DaemonCommand, Dirs, LibvirtRuntime, find_daemon, settings};

/// Daemons in order of preference: program, socket name.
const DAEMONS: [(&str, &str); 2] = [("virtqemud", "virtqemud-sock"), ("libvirtd", "libvirt-sock")];
const DRIVER: &str = "libvirt_driver_qemu.so";

/// The session driver neither changes owners nor enters namespaces; saying so keeps it true if defaults move. There is
/// no virtlogd: QEMU writes its log file itself.
const QEMU_CONF: &str = r#"stdio_handler = "file"
security_driver = "none"
security_default_confined = 0
dynamic_ownership = 0
remember_owner = 0
namespaces = []
cgroup_controllers = []
seccomp_sandbox = 1
max_core = 0
"#;

/// Where a pod whose machine asks for huge pages has them.
const HUGE_PAGES: &str = "/dev/hugepages";

/// What a pod keeps of its TPM is mounted here, and where libvirt and its TPM's tools look for it below their configuration.
const PRIVATE: &str = "/var/run/kubevirt-private";
const TPM_STATE: [(&str, &str); 2] = [("swtpm", "libvirt/qemu/swtpm"), ("swtpm-localca", "var/lib/swtpm-localca")];

/// A machine without disks: its firmware runs, and that is all.
const SELFTEST: &str = "<domain type='qemu'><name>selftest</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>\
    <os><type>hvm</type></os><features><acpi/></features><devices><controller type='usb' model='none'/>\
    <memballoon model='none'/></devices></domain>";

pub struct QemuKvm;

impl LibvirtRuntime for QemuKvm {
    fn name(&self) -> &'static str {
        "qemu-kvm"
    }

    fn setup(&self, dirs: &Dirs, capabilities: Option<&Path>) -> io::Result<()> {
        for dir in dirs.all() {
            fs::create_dir_all(dir)?;
        }
        let config = dirs.config().join("libvirt");
        fs::create_dir_all(&config)?;
        fs::write(config.join("qemu.conf"), format!("{QEMU_CONF}{}", huge_pages(Path::new(HUGE_PAGES))))?;
        settings::write(dirs, DRIVER)?;
        link_tpm_state(dirs, Path::new(PRIVATE))?;
        if let Some(from) = capabilities {
            seed(from, &self.capabilities_cache(dirs))?;
        }
        Ok(())
    }

    fn command_prefixes(&self) -> &'static [&'static str] {
        &["qemu-system", "qemu-kvm"]
    }

    fn daemon(&self, dirs: &Dirs) -> io::Result<DaemonCommand> {
        let (program, socket) = find_daemon(&DAEMONS)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "neither virtqemud nor libvirtd is installed"))?;
        let command = settings::session_command(&program, dirs, DRIVER);
        Ok(DaemonCommand { command, socket: dirs.base().join(socket) })
    }

    fn log_daemon(&self, _dirs: &Dirs) -> Option<Command> {
        None
    }

    fn root(&self) -> bool {
        false
    }

    fn uri_and_user(&self, dirs: &Dirs) -> (String, &'static str) {
        let socket = self.daemon(dirs).map_or_else(|_| dirs.base().join(DAEMONS[1].1), |daemon| daemon.socket);
        (format!("qemu+unix:///session?socket={}", socket.display()), "qemu")
    }

    fn pid_dir(&self, dirs: &Dirs) -> PathBuf {
        dirs.runtime().join("libvirt/qemu/run")
    }

    fn domain_log(&self, dirs: &Dirs, domain: &str) -> PathBuf {
        dirs.cache().join("libvirt/qemu/log").join(format!("{domain}.log"))
    }

    fn capabilities_cache(&self, dirs: &Dirs) -> PathBuf {
        dirs.cache().join("libvirt/qemu/cache/capabilities")
    }

    fn virt_types(&self) -> &'static [&'static str] {
        &["kvm", "qemu"]
    }

    fn selftest_domain(&self, _dirs: &Dirs) -> io::Result<String> {
        Ok(SELFTEST.to_owned())
    }
}

/// The session driver does not look for huge pages by itself, and does not start where told of some that are not there.
fn huge_pages(path: &Path) -> String {
    let mounted =
        nix::sys::statfs::statfs(path).is_ok_and(|stat| stat.filesystem_type() == nix::sys::statfs::HUGETLBFS_MAGIC);
    if mounted { format!("hugetlbfs_mount = \"{}\"\n", path.display()) } else { String::new() }
}

fn link_tpm_state(dirs: &Dirs, private: &Path) -> io::Result<()> {
    for (kept, place) in TPM_STATE.map(|(kept, place)| (private.join(kept), dirs.config().join(place))) {
        if !kept.is_dir() {
            continue;
        }
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        match symlink(kept, place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Copies the cache. libvirt checks each file against the binary, its own build, the kernel and /dev/kvm, and probes
/// again if one does not fit, so a stale cache costs time but is never wrong.
fn seed(from: &Path, to: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(from) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    fs::create_dir_all(to)?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "xml") {
            fs::write(to.join(entry.file_name()), fs::read(&path)?)?;
        }
    }
    Ok(())
}
