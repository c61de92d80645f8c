//! How libvirt is started for a hypervisor.
//!
//! One implementation of [`LibvirtRuntime`] per hypervisor, found by name in [`by_name`]; no other place knows the names.
//! What is known without running anything (features, overheads, XML) is `machine::Hypervisor`.

mod cloud_hypervisor;
mod daemon;
mod lxc;
mod qemu_kvm;
mod settings;
mod trial_kernel;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferrovirt_machine::hypervisor::{self, Guest};

pub use daemon::{Daemon, DaemonError};

/// What differs between hypervisors when libvirt runs inside a launcher.
pub trait LibvirtRuntime: Send + Sync + 'static {
    /// The value of `spec.hypervisor`.
    fn name(&self) -> &'static str;

    /// Writes configuration and makes directories; `capabilities` is a directory made by `probe`, copied so that the
    /// daemon need not probe the hypervisor again.
    fn setup(&self, dirs: &Dirs, capabilities: Option<&Path>) -> io::Result<()>;

    /// Prefixes of the hypervisor's process name.
    fn command_prefixes(&self) -> &'static [&'static str];

    /// The daemon to start: modular where it is installed, else the monolithic one.
    fn daemon(&self, dirs: &Dirs) -> io::Result<DaemonCommand>;

    /// A daemon that collects the hypervisor's output, if the runtime needs one.
    fn log_daemon(&self, dirs: &Dirs) -> Option<Command>;

    /// Whether the daemon must run as root.
    fn root(&self) -> bool;

    /// Where to connect, and as whom.
    fn uri_and_user(&self, dirs: &Dirs) -> (String, &'static str);

    /// Where the daemon keeps the hypervisor's pid files.
    fn pid_dir(&self, dirs: &Dirs) -> PathBuf;

    /// What the hypervisor of this domain prints.
    fn domain_log(&self, dirs: &Dirs, domain: &str) -> PathBuf;

    /// Where the daemon caches its knowledge of the hypervisor.
    fn capabilities_cache(&self, dirs: &Dirs) -> PathBuf;

    /// Virtualization types to ask for, best first.
    fn virt_types(&self) -> &'static [&'static str];

    /// Whether the driver sends an event for whatever happens to a domain, finds the hypervisor dead when it died, and finds a
    /// domain again that an earlier daemon started. Where it does not, the launcher looks for itself.
    fn tells_changes(&self) -> bool {
        true
    }

    /// The smallest domain that runs, made of nothing but what the image holds; for `selftest`.
    fn selftest_domain(&self, dirs: &Dirs) -> io::Result<String>;

    /// What its guests are, and so who serves their console and how they are asked to stop.
    fn guest(&self) -> Guest {
        hypervisor::hypervisor(self.name()).map_or(Guest::Machine, |driver| driver.guest())
    }
}

/// A daemon, ready to start, and the socket it will listen on.
#[derive(Debug)]
pub struct DaemonCommand {
    pub command: Command,
    pub socket: PathBuf,
}

/// The daemon's private directories, all below one that belongs to us, and what it logs.
#[derive(Debug, Clone)]
pub struct Dirs {
    base: PathBuf,
    log_filters: Option<String>,
}

impl Dirs {
    pub fn new(base: impl Into<PathBuf>) -> Self {
        Self { base: base.into(), log_filters: None }
    }

    /// What the daemon logs beside warnings.
    pub fn with_log_filters(self, log_filters: Option<String>) -> Self {
        Self { log_filters, ..self }
    }

    pub fn base(&self) -> &Path {
        &self.base
    }

    pub fn runtime(&self) -> PathBuf {
        self.base.join("run")
    }

    pub fn cache(&self) -> PathBuf {
        self.base.join("cache")
    }

    pub fn config(&self) -> PathBuf {
        self.base.join("config")
    }

    pub fn data(&self) -> PathBuf {
        self.base.join("data")
    }

    /// Links to the drivers the daemon shall load.
    pub fn drivers(&self) -> PathBuf {
        self.base.join("drivers")
    }

    pub fn all(&self) -> [PathBuf; 5] {
        [self.runtime(), self.cache(), self.config(), self.data(), self.drivers()]
    }
}

pub fn all() -> &'static [&'static dyn LibvirtRuntime] {
    &[&qemu_kvm::QemuKvm, &lxc::Lxc, &cloud_hypervisor::CloudHypervisor]
}

pub fn by_name(name: &str) -> Option<&'static dyn LibvirtRuntime> {
    all().iter().copied().find(|runtime| runtime.name() == name)
}

const DAEMON_DIRS: [&str; 2] = ["/usr/sbin", "/usr/bin"];
const DRIVER_DIRS: [&str; 5] = [
    "/usr/lib64/libvirt/connection-driver",
    "/usr/lib/libvirt/connection-driver",
    "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver",
    "/usr/lib/aarch64-linux-gnu/libvirt/connection-driver",
    "/usr/lib/s390x-linux-gnu/libvirt/connection-driver",
];

/// The first daemon that is installed, with the name of its socket.
fn find_daemon(daemons: &[(&str, &'static str)]) -> Option<(PathBuf, &'static str)> {
    let places = daemons
        .iter()
        .flat_map(|(name, socket)| DAEMON_DIRS.iter().map(move |dir| (Path::new(dir).join(name), *socket)));
    places.into_iter().find(|(program, _)| program.exists())
}

/// libvirt's module of a driver, where it is installed.
fn find_driver(name: &str) -> Option<PathBuf> {
    DRIVER_DIRS.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists())
}
