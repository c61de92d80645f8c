//! cloud-hypervisor through libvirt's `ch` driver, in session mode: everything runs as the launcher's own uid.
//!
//! The rules are those of libvirt 11.3, which was built and tried (docs/hypervisors.md): its daemon ends at once where there is
//! no `/dev/kvm`, it tells of few changes, and it finds no machine again that an earlier daemon started.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{DaemonCommand, Dirs, LibvirtRuntime, find_daemon, find_driver, settings, trial_kernel};

/// Daemons in order of preference: program, socket name.
const DAEMONS: [(&str, &str); 2] = [("virtchd", "virtchd-sock"), ("libvirtd", "libvirt-sock")];
const DRIVER: &str = "libvirt_driver_ch.so";
const PROGRAM: &str = "/usr/bin/cloud-hypervisor";
const DEVICE: &str = "/dev/kvm";
const LOGS: &str = "libvirt/ch/log";

pub struct CloudHypervisor;

impl LibvirtRuntime for CloudHypervisor {
    fn name(&self) -> &'static str {
        "cloud-hypervisor"
    }

    fn setup(&self, dirs: &Dirs, _capabilities: Option<&Path>) -> io::Result<()> {
        for dir in dirs.all() {
            fs::create_dir_all(dir)?;
        }
        // The driver makes all its directories but this one.
        fs::create_dir_all(dirs.cache().join(LOGS))?;
        settings::write(dirs, DRIVER)
    }

    fn command_prefixes(&self) -> &'static [&'static str] {
        // Process names have 15 characters at most.
        &["cloud-hyperviso"]
    }

    fn daemon(&self, dirs: &Dirs) -> io::Result<DaemonCommand> {
        let missing = |what| settings::missing(what, self.name());
        let (program, socket) = find_daemon(&DAEMONS).ok_or_else(|| missing("neither virtchd nor libvirtd"))?;
        if find_driver(DRIVER).is_none() {
            return Err(missing("libvirt's ch driver"));
        }
        if !Path::new(PROGRAM).exists() {
            return Err(missing(PROGRAM));
        }
        check_device(Path::new(DEVICE))?;
        let mut command = settings::session_command(&program, dirs, DRIVER);
        // Not one level deeper, as other drivers have it: this one puts the whole name of a machine into a socket's path.
        command.env("XDG_RUNTIME_DIR", dirs.base());
        Ok(DaemonCommand { command, socket: dirs.base().join(socket) })
    }

    fn log_daemon(&self, _dirs: &Dirs) -> Option<Command> {
        None
    }

    fn root(&self) -> bool {
        false
    }

    fn uri_and_user(&self, dirs: &Dirs) -> (String, &'static str) {
        let socket = find_daemon(&DAEMONS).map_or(DAEMONS[0].1, |(_, socket)| socket);
        (format!("ch+unix:///session?socket={}", dirs.base().join(socket).display()), "qemu")
    }

    fn pid_dir(&self, dirs: &Dirs) -> PathBuf {
        dirs.base().join("libvirt/ch/run")
    }

    fn domain_log(&self, dirs: &Dirs, domain: &str) -> PathBuf {
        dirs.cache().join(LOGS).join(format!("{domain}.log"))
    }

    /// The driver asks the program for its version, and for nothing more.
    fn capabilities_cache(&self, dirs: &Dirs) -> PathBuf {
        dirs.cache().join("libvirt/ch")
    }

    /// The driver has no domain capabilities to ask for.
    fn virt_types(&self) -> &'static [&'static str] {
        &[]
    }

    fn tells_changes(&self) -> bool {
        false
    }

    fn selftest_domain(&self, dirs: &Dirs) -> io::Result<String> {
        let kernel = dirs.base().join("selftest-kernel");
        fs::write(&kernel, trial_kernel::halting())?;
        Ok(format!(
            "<domain type='kvm'><name>selftest</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
             <os><type>hvm</type><kernel>{}</kernel></os><devices><emulator>{PROGRAM}</emulator></devices></domain>",
            kernel.display()
        ))
    }
}

/// The daemon only says that its driver was skipped.
fn check_device(device: &Path) -> io::Result<()> {
    fs::OpenOptions::new().read(true).write(true).open(device).map(drop).map_err(|error| {
        let text = format!(
            "cloud-hypervisor cannot do without {}, which cannot be opened here ({error}); use nodes with hardware \
             virtualization, or the hypervisor qemu-kvm, which can emulate",
            device.display()
        );
        io::Error::new(error.kind(), text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_the_device_is_told_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let text = check_device(&directory.path().join("kvm")).unwrap_err().to_string();
        for expected in ["/kvm", "No such file", "hardware virtualization", "qemu-kvm"] {
            assert!(text.contains(expected), "{text}");
        }
        let device = directory.path().join("there");
        fs::write(&device, "").unwrap();
        check_device(&device).unwrap();
    }

    /// A socket's path has 107 characters at most; the driver adds `-socket` to the name.
    #[test]
    fn sockets_of_the_longest_names_fit() {
        let dirs = Dirs::new("/var/run/libvirt");
        let socket = CloudHypervisor.pid_dir(&dirs).join(format!("{}-socket", "a".repeat(64)));
        assert!(socket.as_os_str().len() <= 107, "{}", socket.display());
    }
}
