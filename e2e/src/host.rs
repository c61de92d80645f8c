//! A host of our own: `ferrovirt up` with a data directory in `/tmp`, stopped and checked when dropped. If the target is a
//! cluster, the same methods are about that one; see [`crate::cluster`].

use std::{
    cell::{Cell, OnceCell},
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    cluster::{self, Cluster},
    command::{self, Outcome},
    console::Console,
    leftovers, process,
    process::Process,
    wait::{self, Seen},
};

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Further arguments of `ferrovirt up`.
    pub arguments: Vec<String>,
    /// Do without the demo guest's image.
    pub no_image: bool,
    /// Cases that only make sense with a host of their own, each with the reason. They are not run on a cluster.
    pub embedded_only: &'static [(&'static str, &'static str)],
    /// The whole suite is about a cluster.
    pub cluster_only: bool,
    /// Gives the host and its launchers a `/usr` of their own, and runs this script on it before they start.
    pub usr: Option<&'static str>,
}

pub struct Host {
    directory: TempDir,
    options: Options,
    instance: OnceCell<String>,
    programs: PathBuf,
    /// The target, if it is a cluster.
    cluster: Option<Cluster>,
    /// Set by `down` and taken back by `up`: dropping a host that is down does nothing.
    down: Cell<bool>,
}

impl Host {
    /// Starts a host and gives it the demo guest's image.
    pub fn start() -> Result<Self> {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> Result<Self> {
        if Cluster::wanted()? {
            return Self::on_cluster(options);
        }
        let host = Self::prepare(options)?;
        host.up()?;
        if !host.options.no_image {
            host.ferrovirt(&["image", "import", &guest_archive()?.to_string_lossy()])?;
        }
        Ok(host)
    }

    /// A host with a data directory that was never started.
    pub fn prepare(options: Options) -> Result<Self> {
        require_root()?;
        let programs = programs()?;
        // Short: pods keep sockets below it, and their addresses have little room.
        let directory = tempfile::Builder::new().prefix("fv-").tempdir_in("/tmp")?;
        Ok(Self { directory, options, instance: OnceCell::new(), programs, cluster: None, down: Cell::new(true) })
    }

    /// The cluster that this machine has, with everything installed on it.
    fn on_cluster(options: Options) -> Result<Self> {
        if !options.arguments.is_empty() {
            bail!("a cluster takes no arguments of `ferrovirt up`: {:?}", options.arguments);
        }
        let mut host = Self::prepare(options)?;
        host.instance = OnceCell::from(cluster::INSTANCE.to_owned());
        let mut cluster = Cluster::new();
        host.cluster = Some(Cluster::new());
        cluster.begin(&host)?;
        host.cluster = Some(cluster);
        host.down.set(false);
        Ok(host)
    }

    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// `ferrovirt up --detach`: the first time, after [`Host::kill_up`] or after [`Host::down`].
    pub fn up(&self) -> Result<String> {
        self.down.set(false);
        if let Some(cluster) = &self.cluster {
            return cluster.up(self);
        }
        let data_dir = self.data_dir();
        let data_dir = data_dir.to_string_lossy();
        // Named on the command line, although the environment says the same, so that the process can be told from others.
        let mut arguments = vec!["up", "--detach", "--listen", "127.0.0.1:0", "--data-dir", &*data_dir];
        arguments.extend(self.options.arguments.iter().map(String::as_str));
        let said = match self.options.usr {
            Some(script) => self.up_with_usr(script, &arguments)?,
            None => self.ferrovirt(&arguments)?,
        };
        if self.instance.get().is_none() {
            let _ = self.instance.set(self.find_instance()?);
        }
        Ok(said)
    }

    fn up_with_usr(&self, script: &str, arguments: &[&str]) -> Result<String> {
        let (above, scratch) = (self.work_dir().join("usr"), self.work_dir().join("usr.work"));
        std::fs::create_dir_all(&above)?;
        std::fs::create_dir_all(&scratch)?;
        let script = format!(
            "mount -t overlay overlay -o lowerdir=/usr,upperdir={},workdir={} /usr && {script} && exec \"$@\"",
            above.display(),
            scratch.display()
        );
        let ours = self.command("ferrovirt");
        let mut command = self.command("unshare");
        command.args(["--mount", "sh", "-c", &script, "sh"]).arg(ours.get_program()).args(arguments);
        command::run(&mut command, "")?.success()
    }

    /// Runs a script on the `/usr` that only this host has.
    pub fn change_usr(&self, script: &str) -> Result<()> {
        let pid = self.up_process()?.pid.to_string();
        command::output("nsenter", &["--mount", "--target", &pid, "sh", "-c", script])?;
        Ok(())
    }

    /// `ferrovirt down`, and a look at what it left behind. If something is left, it is ended by force.
    pub fn down(&self) -> Result<()> {
        self.down.set(true);
        let done = self.try_down();
        if done.is_err() {
            self.show_logs();
            self.clear();
        }
        done
    }

    fn try_down(&self) -> Result<()> {
        if let Some(cluster) = &self.cluster {
            return cluster.sweep(self);
        }
        self.ferrovirt(&["down"])?;
        // The process that answered `down` is the last one to go.
        wait::until("the host to leave nothing behind", wait::SOON, || {
            let left = leftovers::of_host(&self.data_dir(), self.instance())?;
            Ok(if left.is_empty() { Seen::Yes(()) } else { Seen::Not(left.join("\n")) })
        })
    }

    /// The process that is the API, the controllers and the node agent.
    pub fn up_process(&self) -> Result<Process> {
        let directory = self.data_dir();
        let found = process::all().into_iter().find(|process| {
            process.program() == "ferrovirt"
                && process.arguments.iter().any(|word| word == "up")
                && process.arguments.iter().any(|word| Path::new(word) == directory)
        });
        found.with_context(|| format!("no `ferrovirt up` runs with {}", directory.display()))
    }

    /// The processes that look after machines: `ferrovirt up`, or Ferrovirt's components on the cluster.
    pub fn up_processes(&self) -> Result<Vec<Process>> {
        match self.cluster {
            Some(_) => Ok(cluster::components()),
            None => Ok(vec![self.up_process()?]),
        }
    }

    /// `kill -9` of the host; its machines go on.
    pub fn kill_up(&self) -> Result<()> {
        if let Some(cluster) = &self.cluster {
            return cluster.kill();
        }
        let process = self.up_process()?;
        process.kill()?;
        wait::until("the killed host to be gone", wait::SOON, || {
            Ok(if process.alive() { Seen::Not(format!("pid {} runs", process.pid)) } else { Seen::Yes(()) })
        })
    }

    /// The data directory, which is also the root of a kubelet's layout of pods.
    pub fn data_dir(&self) -> PathBuf {
        match &self.cluster {
            Some(cluster) => cluster.kubelet_root(),
            None => self.directory.path().join("data"),
        }
    }

    /// Where tests put files of their own.
    pub fn work_dir(&self) -> &Path {
        self.directory.path()
    }

    pub fn kubeconfig(&self) -> PathBuf {
        match &self.cluster {
            Some(cluster) => cluster.kubeconfig(),
            None => self.data_dir().join("kubeconfig"),
        }
    }

    /// The text of a kubeconfig for a user who may do only what roles say.
    pub fn kubeconfig_of(&self, user: &str) -> Result<String> {
        match &self.cluster {
            Some(cluster) => cluster.kubeconfig_of(user, self.work_dir()),
            None => self.ferrovirt(&["kubeconfig", "--user", user]),
        }
    }

    /// Everything that looks after machines ends and comes back: in an orderly way embedded, on a cluster by force.
    pub fn restart(&self) -> Result<()> {
        match self.cluster {
            Some(_) => self.kill_up()?,
            None => self.down()?,
        }
        self.up().map(drop)
    }

    /// The hash that names this host's bridge, tables and cgroups.
    pub fn instance(&self) -> &str {
        self.instance.get().map_or("that-never-started", String::as_str)
    }

    /// Address of the API, from the kubeconfig.
    pub fn address(&self) -> Result<SocketAddr> {
        let config: Value = serde_json::from_str(&fs::read_to_string(self.kubeconfig())?)?;
        let server = config["clusters"][0]["cluster"]["server"].as_str().context("the kubeconfig names no server")?;
        Ok(server.trim_start_matches("https://").parse()?)
    }

    /// A program with this host as its default.
    pub fn command(&self, program: &str) -> Command {
        let ours = self.programs.join(program);
        let mut command = Command::new(if ours.exists() { ours } else { program.into() });
        command
            .env("FERROVIRT_DATA_DIR", self.data_dir())
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", self.directory.path().join("kubectl-cache"))
            .env_remove("FERROVIRT_LISTEN");
        if self.cluster.is_some() {
            command.env_remove("FERROVIRT_DATA_DIR");
        }
        command
    }

    /// `ferrovirt …`, which must succeed.
    pub fn ferrovirt(&self, arguments: &[&str]) -> Result<String> {
        self.try_ferrovirt(arguments, "")?.success()
    }

    pub fn try_ferrovirt(&self, arguments: &[&str], input: &str) -> Result<Outcome> {
        command::run(self.command("ferrovirt").args(arguments), input)
    }

    /// `kubectl …`, which must succeed.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.try_kubectl(arguments, "")?.success()
    }

    pub fn try_kubectl(&self, arguments: &[&str], input: &str) -> Result<Outcome> {
        command::run(self.command("kubectl").args(arguments), input)
    }

    /// Applies a manifest with `ferrovirt apply`.
    pub fn apply(&self, manifest: &Value) -> Result<String> {
        self.try_ferrovirt(&["apply", "-f", "-"], &manifest.to_string())?.success()
    }

    /// An object of the namespace `default`, asked of the API with `kubectl`. `None` if there is none of that name.
    pub fn object(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        let text = self.kubectl(&["get", kind, name, "--ignore-not-found", "-o", "json"])?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&text).with_context(|| format!("{kind}/{name} is not JSON: {text}"))?))
    }

    pub fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.object(kind, name)?.with_context(|| format!("there is no {kind}/{name}"))
    }

    /// Waits until `holds` is true of an object, and returns it.
    pub fn wait_for(&self, kind: &str, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        wait::until(&format!("{kind}/{name} {what}"), wait::BOOT, || {
            Ok(match self.object(kind, name)? {
                Some(object) if holds(&object) => Seen::Yes(object),
                Some(object) => Seen::Not(format!("{:#}", object["status"])),
                None => Seen::Not("no such object".into()),
            })
        })
    }

    /// Waits until a VM shows this `printableStatus`.
    pub fn wait_status(&self, name: &str, status: &str) -> Result<Value> {
        self.wait_for("vm", name, &format!("to be {status}"), |vm| vm["status"]["printableStatus"] == status)
    }

    /// Waits until a VM runs and is ready, and returns its VMI. Gives up on one that fails again and again.
    pub fn wait_running(&self, name: &str) -> Result<Value> {
        wait::until(&format!("vm/{name} to be Running and ready"), wait::BOOT, || {
            let status = self.get("vm", name)?["status"].take();
            if status["startFailure"]["consecutiveFailCount"].as_u64() > Some(1) {
                bail!("vm/{name} does not start: {status:#}");
            }
            let running = status["printableStatus"] == "Running" && status["ready"] == true;
            Ok(if running { Seen::Yes(()) } else { Seen::Not(format!("{status:#}")) })
        })?;
        self.get("vmi", name)
    }

    pub fn wait_gone(&self, kind: &str, name: &str) -> Result<()> {
        wait::until(&format!("{kind}/{name} to be gone"), wait::BOOT, || {
            Ok(match self.object(kind, name)? {
                None => Seen::Yes(()),
                Some(object) => Seen::Not(object.to_string()),
            })
        })
    }

    /// The launcher's pod of a VMI.
    pub fn pod_of(&self, vmi: &Value) -> Result<Value> {
        let uid = vmi["metadata"]["uid"].as_str().context("the VMI has no uid")?;
        let pods: Value = serde_json::from_str(&self.kubectl(&["get", "pods", "-o", "json"])?)?;
        let owned = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["uid"] == uid;
        let pods = pods["items"].as_array().context("no list of pods")?;
        pods.iter().find(owned).cloned().with_context(|| format!("no pod of VMI {uid} among {}", pods.len()))
    }

    pub fn console(&self, name: &str) -> Result<Console> {
        Console::start(self.command("ferrovirt").args(["console", name]))
    }

    /// The same on a terminal of its own, as a user has it.
    pub fn console_on_terminal(&self, name: &str) -> Result<Console> {
        let program = self.programs.join("ferrovirt");
        // What earlier cases made the guest write must not be taken for answers.
        let line = format!("{} console {name} --scrollback=false", program.display());
        Console::start(self.command("script").args(["--quiet", "--return", "--command", &line, "/dev/null"]))
    }

    pub fn processes(&self) -> Vec<Process> {
        process::of_host(&self.data_dir(), self.instance())
    }

    /// The QEMU of a VM in the namespace `default`.
    pub fn qemu(&self, name: &str) -> Result<Process> {
        process::qemu(&self.processes(), "default", name).cloned().with_context(|| format!("no QEMU runs for {name}"))
    }

    /// The launcher that a QEMU belongs to.
    pub fn launcher_of(&self, qemu: &Process) -> Result<Process> {
        let mut process = qemu.clone();
        while process.program() != "ferrovirt-launcher" {
            process = Process::read(process.parent).context("QEMU has no launcher among its parents")?;
        }
        Ok(process)
    }

    /// The run directory is named by the socket that the host listens on.
    fn find_instance(&self) -> Result<String> {
        let pid = self.up_process()?.pid;
        let sockets: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))?
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
            .collect();
        let table = fs::read_to_string("/proc/net/unix")?;
        let path = table.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (inode, path) = (*fields.get(6)?, *fields.get(7)?);
            (sockets.iter().any(|socket| socket == inode) && path.ends_with("/control.sock")).then(|| path.to_owned())
        });
        let path = path.context("the host listens on no control socket")?;
        let name = Path::new(&path).parent().and_then(Path::file_name).and_then(|name| name.to_str());
        Ok(name.with_context(|| format!("{path} is in no directory"))?.to_owned())
    }

    /// Ends everything by force, for tests that failed half way.
    fn clear(&self) {
        // A cluster is there for the next suite, and to be looked at.
        if self.cluster.is_some() {
            return;
        }
        for process in self.processes() {
            let _ = process.kill();
        }
        let _ = self.try_ferrovirt(&["down"], "");
    }

    pub fn show_logs(&self) {
        if let Some(cluster) = &self.cluster {
            return cluster.show_logs(self);
        }
        let mut logs = vec![self.data_dir().join("ferrovirt.log")];
        let pods = fs::read_dir(self.data_dir().join("pods")).into_iter().flatten().flatten();
        logs.extend(pods.map(|pod| pod.path().join("logs/compute.log")));
        for log in logs {
            let text = fs::read_to_string(&log).unwrap_or_default();
            // Without QEMU's command line, which libvirt logs as a hundred lines.
            let lines: Vec<&str> = text.lines().filter(|line| !line.ends_with('\\')).collect();
            let tail = lines.get(lines.len().saturating_sub(30)..).unwrap_or_default();
            eprintln!("--- end of {}\n{}", log.display(), tail.join("\n"));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.down.get() {
            return;
        }
        if let Err(error) = self.down() {
            // Loud, but never on top of another failure: that would hide it.
            let failing = std::thread::panicking();
            eprintln!("the host did not go down well: {error:#}");
            assert!(failing, "a host left something behind");
        }
    }
}

/// Where the programs under test are: `FERROVIRT_BIN_DIR`, or beside this test's own file.
pub fn programs() -> Result<PathBuf> {
    if let Some(directory) = env::var_os("FERROVIRT_BIN_DIR").map(PathBuf::from) {
        // Otherwise those of an installation would be tested.
        ensure!(directory.join("ferrovirt").is_file(), "there is no ferrovirt in {}", directory.display());
        return Ok(directory);
    }
    let own = env::current_exe()?;
    let directory = own.ancestors().skip(1).find(|directory| directory.join("ferrovirt").is_file());
    let directory =
        directory.context("build ferrovirt, ferrovirt-shim and ferrovirt-launcher first, or set FERROVIRT_BIN_DIR")?;
    Ok(directory.to_path_buf())
}

/// The archive with the demo guest's image, made by the repository's script if it is not there.
pub fn guest_archive() -> Result<PathBuf> {
    archive("demo-guest.tar", "guest-image.sh")
}

/// The same guest as a tree of files, for containers.
pub fn container_archive() -> Result<PathBuf> {
    archive("demo-container.tar", "guest-image.sh")
}

/// The guest's kernel and initrd, for machines that boot without a boot loader.
pub fn kernel_archive() -> Result<PathBuf> {
    archive("demo-kernel.tar", "guest-image.sh")
}

/// The archive with the Debian guest's image.
pub fn debian_archive() -> Result<PathBuf> {
    archive("debian-guest.tar", "debian-guest.sh")
}

fn archive(name: &str, script: &str) -> Result<PathBuf> {
    let directory = match env::var_os("FERROVIRT_GUEST_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(&env::var_os("HOME").context("neither FERROVIRT_GUEST_DIR nor HOME is set")?)
            .join(".cache/ferrovirt/guest"),
    };
    let archive = directory.join(name);
    if !archive.exists() {
        let script = command::script(script)?;
        command::run(Command::new(script).arg(&directory), "")?.success()?;
    }
    Ok(archive)
}

/// False if this machine has its IPv6 switched off; then its guests have none either.
pub fn has_ipv6() -> bool {
    let disabled = std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    !disabled.is_ok_and(|value| value.trim() != "0")
}

fn require_root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("tests with real guests need root: they make namespaces, taps and cgroups");
    }
    Ok(())
}
