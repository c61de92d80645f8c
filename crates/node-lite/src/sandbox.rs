//! A pod without Kubernetes: directory, cgroup, network, shim. Everything here can be repeated, because a killed `up`
//! begins again wherever it was.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrovirt_api::cpu_list;
use ferrovirt_beneath::Dir;
use ferrovirt_net::nft::Net;
use jiff::Timestamp;
use nix::mount::{MntFlags, umount2};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::cgroup::{CgroupError, Hierarchy, Limits};
use crate::cni::{self, Attached, Attachment, CniError, Plugins, Undone};
use crate::cpus::{CpuError, CpuSet, Cpus};
use crate::ends;
use crate::identity::{Lookup, ProcessHandle};
use crate::leftovers::Leftovers;
use crate::netns::{self, NetnsError};
use crate::network::{Network, NetworkError};
use crate::records::{self, ExitRecord, InitPlan, PodDir, PodRecord, RecordError, StateRecord};
use crate::services;
use crate::user_ids::{self, UserIds};
use crate::{Config, masquerade, policy, users};

/// Pods of one data directory on this machine.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    data_dir: PathBuf,
    netns_dir: PathBuf,
    shim: PathBuf,
    network: Arc<Network>,
    table: String,
    pods: Vec<Net>,
    instance: String,
    cgroup_parent: String,
    conflist: Value,
    plugins: Plugins,
    leftovers: Leftovers,
    hierarchy: Hierarchy,
    /// Where CPUs can be given away.
    cpus: Option<Arc<Cpus>>,
    /// Where pods can have users of their own.
    user_ids: Result<UserIds, String>,
}

/// What the files and the kernel say about a pod.
#[derive(Debug)]
pub enum Found {
    NotStarted,
    Running(Running),
    Exited(Ended),
}

/// A pod whose tree, or whose shim, is alive.
#[derive(Debug)]
pub struct Running {
    pub state: StateRecord,
    dir: PodDir,
    process: Option<ProcessHandle>,
    shim: Option<ProcessHandle>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub started_at: Option<Timestamp>,
    pub exit: ExitRecord,
}

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("the pod could not be started: {0}")]
    Start(String),
    #[error("an earlier shim of the pod is still starting")]
    Starting,
    #[error("the pod still runs")]
    StillRunning,
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Cpus(#[from] CpuError),
    #[error(transparent)]
    Network(#[from] CniError),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Port(#[from] NetworkError),
}

/// Prefix of pod directories that are being removed.
const TRASH: &str = ".trash-";

/// How much of earlier attempts to attach a pod is remembered.
const EARLIER: usize = 32;

/// How long processes that were killed may take to vanish.
const KILL_TIME: Duration = Duration::from_secs(10);

impl Sandboxes {
    /// Prepares the directories and the network configuration.
    pub fn open(config: &Config) -> Result<Self, SandboxError> {
        let cni_dir = config.data_dir.join("cni");
        let leftovers = cni_dir.join("leftovers");
        for dir in [&config.data_dir, &config.data_dir.join("pods"), &cni_dir, &leftovers, &config.run_dir] {
            create_private(dir)?;
        }
        let pods = config.pod_networks();
        let subnets: Vec<String> = pods.iter().map(ToString::to_string).collect();
        let conflist = cni::conflist(&config.instance, &subnets, &cni_dir.join("ipam"));
        let text = serde_json::to_vec_pretty(&conflist).unwrap_or_default();
        records::write_bytes(&cni_dir.join("10-ferrovirt.conflist"), &text)?;
        let hierarchy = Hierarchy::detect()?;
        let mut sandboxes = Self {
            data_dir: config.data_dir.clone(),
            netns_dir: config.run_dir.join("netns"),
            shim: config.self_exe.clone(),
            network: Arc::new(Network::new(config)),
            table: masquerade::table_name(&config.instance),
            instance: config.instance.clone(),
            pods,
            cgroup_parent: cgroup_parent(&config.instance),
            conflist,
            plugins: Plugins { dirs: config.cni_plugin_dirs.clone() },
            leftovers: Leftovers::new(leftovers),
            hierarchy,
            cpus: None,
            user_ids: user_ids(config),
        };
        if let Err(obstacle) = &sandboxes.user_ids
            && config.own_users
        {
            tracing::warn!(obstacle, "pods share one user of this machine");
        }
        if sandboxes.hierarchy.has_cpusets() {
            sandboxes.cpus = Cpus::open(&config.data_dir, &sandboxes.list()?)?.map(Arc::new);
        }
        Ok(sandboxes)
    }

    /// Makes what all pods share, and removes what pods left that were forgotten half-way.
    pub fn prepare(&self) -> Result<(), SandboxError> {
        masquerade::install(&self.table, &self.pods).map_err(io_error("set up", Path::new(&self.table)))?;
        for name in self.names()?.iter().filter(|name| name.starts_with(TRASH)) {
            let path = self.data_dir.join("pods").join(name);
            unmount_below(&path)?;
            remove_tree(&self.data_dir.join("pods"), name)?;
        }
        let known = self.list()?;
        let mut attached = vec![];
        for uid in &known {
            let record: Option<Attached> = records::read(&self.dir(uid).cni())?;
            attached.extend(record.map(|record| (uid.clone(), record, self.netns(uid))));
        }
        self.network.prepare(&attached)?;
        for entry in fs::read_dir(&self.netns_dir).into_iter().flatten().flatten() {
            if !known.iter().any(|uid| entry.file_name() == **uid) {
                netns::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    pub(crate) fn network(&self) -> Arc<Network> {
        self.network.clone()
    }

    pub fn dir(&self, uid: &str) -> PodDir {
        PodDir::new(&self.data_dir, uid)
    }

    pub fn netns(&self, uid: &str) -> PathBuf {
        self.netns_dir.join(uid)
    }

    /// Every pod that has a directory.
    pub fn list(&self) -> Result<Vec<String>, SandboxError> {
        Ok(self.names()?.into_iter().filter(|name| !name.starts_with('.')).collect())
    }

    fn names(&self) -> Result<Vec<String>, SandboxError> {
        let path = self.data_dir.join("pods");
        let entries = fs::read_dir(&path).map_err(io_error("list", &path))?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }

    pub fn create_dir(&self, record: &PodRecord) -> Result<PodDir, SandboxError> {
        let dir = self.dir(&record.uid);
        for path in [dir.root(), &dir.logs(), &dir.staging()] {
            create_private(path)?;
        }
        records::write(&dir.pod(), record)?;
        Ok(dir)
    }

    /// Makes the pod's cgroup. `own_cpus` is the container that wants CPUs of its own, and how many.
    pub fn create_cgroup(
        &self,
        uid: &str,
        limits: &Limits,
        own_cpus: Option<(&str, usize)>,
    ) -> Result<Vec<PathBuf>, SandboxError> {
        let child = cgroup_child(uid);
        let files = self.hierarchy.create(&self.cgroup_parent, &child, limits)?;
        if let Some(cpus) = &self.cpus {
            let _turn = cpus.turn();
            let given = cpus.give(uid, own_cpus)?;
            match self.hierarchy.set_cpus(&self.cgroup_parent, &child, &cpu_list::format(&given.cpus)) {
                // A pod without CPUs of its own can do without.
                Err(error) if own_cpus.is_none() => tracing::warn!(%error, uid, "cannot keep the pod to its CPUs"),
                result => result?,
            }
            if given.changed {
                self.share(cpus, &given.shared)?;
            }
        }
        Ok(files)
    }

    /// Keeps every pod without CPUs of its own to those that are left.
    fn share(&self, cpus: &Cpus, shared: &CpuSet) -> Result<(), SandboxError> {
        let text = cpu_list::format(shared);
        for uid in self.list()?.iter().filter(|uid| !cpus.has_own(uid)) {
            match self.hierarchy.set_cpus(&self.cgroup_parent, &cgroup_child(uid), &text) {
                // It ended, or has not begun: then it gets its share when it does.
                Err(CgroupError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        Ok(())
    }

    pub fn cgroup_members(&self, uid: &str) -> Vec<i32> {
        self.hierarchy.members(&format!("{}/{}", self.cgroup_parent, cgroup_child(uid)))
    }

    /// Gives the pod a network namespace with an address, and its secondary networks. What it has already is kept.
    pub async fn attach_network(
        &self,
        record: &PodRecord,
        more: Vec<cni::Secondary>,
    ) -> Result<Vec<IpAddr>, SandboxError> {
        let dir = self.dir(&record.uid);
        let known: Option<Attached> = records::read(&dir.cni())?;
        if let Some(known) = known.filter(|known| !known.result.is_null() && netns::is_namespace(&record.netns)) {
            self.network.attach(&record.uid, &known, &record.netns)?;
            return Ok(known.addresses());
        }
        // A half-made attachment, or one of before a reboot, is released first: its address would be lost otherwise.
        let mut undone = self.detach_network(record).await?;
        undone.truncate(EARLIER);
        netns::create(&record.netns)?;
        let wanted = Attached { conflist: self.conflist.clone(), result: Value::Null, more, undone };
        // On record before it begins, so that half of it can be undone.
        records::write(&dir.cni(), &wanted)?;
        let attached = self.plugins.add(wanted, &attachment(record)).await?;
        self.network.attach(&record.uid, &attached, &record.netns)?;
        records::write(&dir.cni(), &attached)?;
        Ok(attached.addresses())
    }

    pub fn addresses(&self, uid: &str) -> Result<Vec<IpAddr>, SandboxError> {
        let attached: Option<Attached> = records::read(&self.dir(uid).cni())?;
        Ok(attached.map(|attached| attached.addresses()).unwrap_or_default())
    }

    /// Starts the shim and waits until the pod is on record.
    pub async fn start(&self, plan: &InitPlan) -> Result<Running, SandboxError> {
        let dir = self.dir(&plan.pod_uid);
        let plan = &InitPlan { first_id: self.first_id(plan, &dir)?, ..plan.clone() };
        records::write(&dir.init(), plan)?;
        let attempt = self.begin_attempt(&dir)?;
        let log = dir.logs().join("shim.log");
        let stderr =
            OpenOptions::new().append(true).create(true).mode(0o600).open(&log).map_err(io_error("open", &log))?;
        let mut child = tokio::process::Command::new(&self.shim)
            .arg("pod-shim")
            .arg(dir.root())
            .arg(&attempt)
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(io_error("run", &self.shim))?;
        let mut answer = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut answer).await.map_err(io_error("hear from", &self.shim))?;
        }
        // The shim outlives us when we go first; as long as we are here, somebody has to collect it.
        tokio::spawn(async move { child.wait().await });
        if answer.trim() != "ok" {
            return Err(SandboxError::Start(answer.trim().to_owned()));
        }
        match self.inspect(&plan.pod_uid)? {
            Some(Found::Running(running)) => Ok(running),
            // It ended between "ok" and now; the caller learns that by waiting.
            Some(Found::Exited(_)) | Some(Found::NotStarted) | None => {
                let state = records::read(&dir.state())?.ok_or_else(|| SandboxError::Start("no state".to_owned()))?;
                Ok(Running { state, dir, process: None, shim: None })
            }
        }
    }

    /// A range of ids for the pod's users. A driver that needs root on the host has none, nor has a pod with ids that no range
    /// holds.
    fn first_id(&self, plan: &InitPlan, dir: &PodDir) -> Result<Option<u32>, SandboxError> {
        let mut ids = plan.groups.iter().chain([&plan.uid, &plan.gid]);
        let Ok(user_ids) = self.user_ids.as_ref() else { return Ok(None) };
        if plan.privileged || ids.any(|id| *id >= user_ids::COUNT) {
            return Ok(None);
        }
        user_ids.claim(dir.root()).map(Some).map_err(io_error("find user ids for", dir.root()))
    }

    /// Why the pods of this machine share one user, if they do.
    pub fn shared_user(&self) -> Option<&str> {
        self.user_ids.as_ref().err().map(String::as_str)
    }

    /// What became of a pod. Waits for a shim that is just starting.
    pub async fn find(&self, uid: &str) -> Result<Found, SandboxError> {
        let deadline = Instant::now() + KILL_TIME;
        loop {
            if let Some(found) = self.inspect(uid)? {
                return Ok(found);
            }
            if Instant::now() > deadline {
                return Err(SandboxError::Starting);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Releases what costs others something: network and cgroup. Refuses while anything of the pod runs. Returns what plugins did
    /// not release; that is tried again later, and the pod does not wait for it.
    pub async fn release(&self, uid: &str) -> Result<Vec<Undone>, SandboxError> {
        if matches!(self.find(uid).await?, Found::Running(_)) {
            return Err(SandboxError::StillRunning);
        }
        let dir = self.dir(uid);
        let mut undone = vec![];
        if let Some(record) = records::read::<PodRecord>(&dir.pod())? {
            undone = self.detach_network(&record).await?;
            self.leftovers.add(&record, &undone, Timestamp::now())?;
            remove_file(&dir.cni())?;
        }
        if let Ok(user_ids) = &self.user_ids
            && let Some(plan) = records::read::<InitPlan>(&dir.init())?
            && let Some(first) = plan.first_id
        {
            user_ids.release(first, dir.root()).map_err(io_error("release the user ids of", dir.root()))?;
        }
        let name = format!("{}/{}", self.cgroup_parent, cgroup_child(uid));
        let hierarchy = self.hierarchy.clone();
        blocking(move || hierarchy.remove(&name, Instant::now() + KILL_TIME)).await?;
        if let Some(cpus) = &self.cpus
            && let _turn = cpus.turn()
            && let Some(shared) = cpus.take_back(uid)?
        {
            self.share(cpus, &shared)?;
        }
        Ok(undone)
    }

    /// Tries again what plugins did not release, for as long as the node runs.
    pub(crate) async fn clean_up(&self) {
        self.leftovers.keep(&self.plugins).await;
    }

    /// Releases a pod and forgets it. Returns what [`Sandboxes::release`] does.
    pub async fn remove(&self, uid: &str) -> Result<Vec<Undone>, SandboxError> {
        let undone = self.release(uid).await?;
        let root = self.dir(uid).root().to_owned();
        let (pods, trash_name) = (self.data_dir.join("pods"), format!("{TRASH}{uid}"));
        let trash = pods.join(&trash_name);
        blocking(move || {
            unmount_below(&root)?;
            // Records vanish all at once: a pod half removed would look like one whose end nobody saw.
            match fs::rename(&root, &trash) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                result => result.map_err(io_error("remove", &root))?,
            }
            remove_tree(&pods, &trash_name)
        })
        .await?;
        Ok(undone)
    }

    /// Ends whatever runs and gives back everything outside the data directory. Records stay, so that a later `up` can
    /// report how each pod ended.
    pub async fn teardown(&self) -> Result<(), SandboxError> {
        for uid in self.list()? {
            if let Found::Running(running) = self.find(&uid).await? {
                running.kill()?;
                running.wait().await?;
            }
            self.release(&uid).await?;
            let root = self.dir(&uid).root().to_owned();
            blocking(move || unmount_below(&root)).await?;
        }
        if let Ok(entries) = fs::read_dir(&self.netns_dir) {
            for entry in entries.flatten() {
                netns::remove(&entry.path())?;
            }
            let _ = fs::remove_dir(&self.netns_dir);
        }
        self.network.remove().map_err(io_error("remove the network of", Path::new(&self.table)))?;
        policy::remove(&self.instance).map_err(io_error("remove the policies of", Path::new(&self.table)))?;
        services::proxy::remove(&self.instance).map_err(io_error("remove the services of", Path::new(&self.table)))?;
        masquerade::remove(&self.table).map_err(io_error("remove", Path::new(&self.table)))?;
        self.hierarchy.remove(&self.cgroup_parent, Instant::now() + KILL_TIME)?;
        Ok(())
    }

    /// Takes the pod off its networks, whatever the plugins say. `cni.json` stays until the caller has noted what they left.
    async fn detach_network(&self, record: &PodRecord) -> Result<Vec<Undone>, SandboxError> {
        let attached = records::read::<Attached>(&self.dir(&record.uid).cni())?;
        let undone = match &attached {
            Some(attached) => self.plugins.delete(attached, &attachment(record)).await,
            None => vec![],
        };
        self.network.detach(&record.uid)?;
        // The interfaces inside go with it, and so do their other ends.
        netns::remove(&record.netns)?;
        if let Some(attached) = attached.filter(|_| undone.iter().any(|part| part.interface == cni::IFNAME)) {
            self.free(&record.uid, &attached);
        }
        Ok(undone)
    }

    /// Gives back the pod's addresses where the plugin of the pod network did not. They are few, and the files are ours.
    fn free(&self, uid: &str, attached: &Attached) {
        let dir = self.data_dir.join("cni/ipam").join(cni::bridge_name(&self.instance));
        for address in attached.addresses() {
            let path = dir.join(address.to_string());
            let owner = fs::read_to_string(&path).unwrap_or_default();
            if owner.lines().next().is_some_and(|line| line.trim() == uid)
                && let Err(error) = fs::remove_file(&path)
            {
                tracing::warn!(%error, path = %path.display(), "the address of a pod that ended stays taken");
            }
        }
    }

    /// Only the shim that knows the newest token may start. Taking the lock proves that none runs now.
    fn begin_attempt(&self, dir: &PodDir) -> Result<String, SandboxError> {
        let lock = try_lock(dir)?.ok_or(SandboxError::Starting)?;
        if dir.state().exists() {
            return Err(SandboxError::StillRunning);
        }
        let attempt = format!("{}-{}", Timestamp::now().as_nanosecond(), std::process::id());
        records::write_bytes(&dir.attempt(), attempt.as_bytes())?;
        drop(lock);
        Ok(attempt)
    }

    /// `None` while a shim has the lock but has not written its record.
    fn inspect(&self, uid: &str) -> Result<Option<Found>, SandboxError> {
        let dir = self.dir(uid);
        let fail = io_error("find the processes of", dir.root());
        let Some(state) = records::read::<StateRecord>(&dir.state())? else {
            return Ok(match dir.root().exists() {
                true if try_lock(&dir)?.is_none() => None,
                _ => Some(Found::NotStarted),
            });
        };
        let started_at = Some(state.started_at);
        if let Some(exit) = records::read::<ExitRecord>(&dir.exit())? {
            return Ok(Some(Found::Exited(Ended { started_at, exit })));
        }
        let lookups = state.process.lookup().and_then(|process| Ok((process, state.shim.lookup()?)));
        let (process, shim) = match lookups.map_err(fail)? {
            (Lookup::OtherBoot, _) | (_, Lookup::OtherBoot) => {
                let exit = ends::unseen(&dir, ends::unknown("NodeReboot", "the machine was restarted"))?;
                records::write(&dir.exit(), &exit)?;
                return Ok(Some(Found::Exited(Ended { started_at, exit })));
            }
            (process, shim) => (alive(process), alive(shim)),
        };
        if process.is_some() || shim.is_some() {
            return Ok(Some(Found::Running(Running { state, dir, process, shim })));
        }
        Ok(Some(Found::Exited(Ended { started_at, exit: exit_or_unknown(&dir)? })))
    }
}

impl Running {
    /// Waits for the end of the process tree and of its shim.
    pub async fn wait(&self) -> Result<Ended, SandboxError> {
        for handle in [&self.process, &self.shim].into_iter().flatten() {
            handle.ended().await.map_err(io_error("wait for", self.dir.root()))?;
        }
        let dir = self.dir.clone();
        let exit = blocking(move || exit_or_unknown(&dir)).await?;
        Ok(Ended { started_at: Some(self.state.started_at), exit })
    }

    /// Asks PID 1 to end.
    pub fn terminate(&self) -> Result<(), SandboxError> {
        self.each(ProcessHandle::terminate)
    }

    /// Ends PID 1 and with it everything in its PID namespace.
    pub fn kill(&self) -> Result<(), SandboxError> {
        self.each(ProcessHandle::kill)
    }

    fn each(&self, action: impl Fn(&ProcessHandle) -> io::Result<()>) -> Result<(), SandboxError> {
        self.process.iter().try_for_each(action).map_err(io_error("signal", self.dir.root()))
    }
}

/// Tried once, on the file system that holds most of what pods see.
fn user_ids(config: &Config) -> Result<UserIds, String> {
    if !config.own_users {
        return Err("it is not switched on".to_owned());
    }
    let shared = config.run_dir.parent().unwrap_or(&config.run_dir).join("user-ids");
    let ids = UserIds::open(&shared).map_err(|error| format!("cannot use {}: {error}", shared.display()))?;
    match users::obstacle(&config.self_exe, &config.data_dir, user_ids::TRIAL) {
        None => Ok(ids),
        Some(obstacle) => Err(obstacle),
    }
}

fn attachment(record: &PodRecord) -> Attachment<'_> {
    Attachment { pod_uid: &record.uid, namespace: &record.namespace, name: &record.name, netns: &record.netns }
}

/// The cgroup of all pods of an instance.
pub(crate) fn cgroup_parent(instance: &str) -> String {
    format!("ferrovirt-{instance}")
}

pub(crate) fn cgroup_child(uid: &str) -> String {
    format!("pod{uid}")
}

fn alive(lookup: Lookup) -> Option<ProcessHandle> {
    match lookup {
        Lookup::Alive(handle) if !handle.has_ended().unwrap_or(false) => Some(handle),
        _ => None,
    }
}

/// Writes the verdict down when the shim could not, so that it is the same every time it is asked for.
fn exit_or_unknown(dir: &PodDir) -> Result<ExitRecord, SandboxError> {
    if let Some(exit) = records::read(&dir.exit())? {
        return Ok(exit);
    }
    let exit = ends::unseen(dir, ends::unknown("ContainerStatusUnknown", "the shim ended before the pod did"))?;
    records::write(&dir.exit(), &exit)?;
    Ok(exit)
}

/// A pod's lock, given back when dropped. Closing the file would not do: a process that another thread is about to start has a
/// copy of it for a moment, and the shim would find the lock taken.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

fn try_lock(dir: &PodDir) -> Result<Option<Lock>, SandboxError> {
    let path = dir.lock();
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path).map_err(io_error("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Lock(file))),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(io_error("lock", &path)(error.into())),
    }
}

/// Nothing is ever deleted through a mount: what cannot be unmounted stops the removal.
fn unmount_below(root: &Path) -> Result<(), SandboxError> {
    let path = Path::new("/proc/self/mountinfo");
    let text = fs::read_to_string(path).map_err(io_error("read", path))?;
    for mount in mounts_below(&text, root).into_iter().rev() {
        umount2(&mount, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|errno| io_error("unmount", &mount)(errno.into()))?;
    }
    Ok(())
}

/// Removes what pods left, who made names and links as they liked: by descriptor, and stopping at mounts.
fn remove_tree(parent: &Path, name: &str) -> Result<(), SandboxError> {
    Dir::open(parent).and_then(|parent| parent.remove_tree(name)).map_err(io_error("remove", &parent.join(name)))
}

fn mounts_below(mountinfo: &str, root: &Path) -> Vec<PathBuf> {
    let mounts = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    mounts.filter(|mount| mount.starts_with(root)).collect()
}

/// The kernel writes space, tab, newline and backslash as octal escapes.
fn unescape(field: &str) -> PathBuf {
    let mut out = field.to_owned();
    for (escape, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        out = out.replace(escape, character);
    }
    PathBuf::from(out)
}

fn create_private(path: &Path) -> Result<(), SandboxError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_error("create", path))
}

fn remove_file(path: &Path) -> Result<(), SandboxError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SandboxError + use<> {
    let path = path.to_owned();
    move |source| SandboxError::Io { action, path, source }
}

async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, SandboxError>
where
    T: Send + 'static,
    E: Send + 'static,
    SandboxError: From<E>,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => Ok(result?),
        Err(error) => Err(SandboxError::Start(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_the_pod_are_found() {
        let info = "1 0 0:1 / /data/pods/u1 rw - tmpfs t rw\n\
                    2 0 0:1 / /data/pods/u1/volumes/a\\040b rw - tmpfs t rw\n\
                    3 0 0:1 / /data/pods/u10/x rw - tmpfs t rw\n\
                    4 0 0:1 / /other rw - tmpfs t rw\n";
        let found = mounts_below(info, Path::new("/data/pods/u1"));
        assert_eq!(found, [PathBuf::from("/data/pods/u1"), PathBuf::from("/data/pods/u1/volumes/a b")]);
    }
}
