//! `pod-sidecar`: the second container of a pod, one that runs beside the first and whose end means nothing (an init container with
//! `restartPolicy: Always`). Here it is one more process in the first one's namespaces, with the same program, user, limits and filter,
//! and a log of its own.
//!
//! The shim starts it, after a fork that is in the pod's PID namespace already, and starts it again when it ends. It goes with the
//! pod's PID 1.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Container, PodSpec};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::SigSet;

use crate::init::{InitError, drop_privileges, fail, fail_errno, filter_calls, prepare_descriptors};
use crate::logs::{LineBuffer, LogWriter, Source};
use crate::records::{self, InitPlan, PodDir, StateRecord};
use crate::shut_in;

/// The mount namespace last: after it, /proc is the pod's. Its PID namespace is this process's own.
const NAMESPACES: [(&str, CloneFlags); 4] = [
    ("net", CloneFlags::CLONE_NEWNET),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("mnt", CloneFlags::CLONE_NEWNS),
];
/// Before it is started again, each time twice as long.
const FIRST_REST: Duration = Duration::from_secs(1);
const LAST_REST: Duration = Duration::from_secs(300);
/// For one that has closed its output and not ended yet.
const LINGER: Duration = Duration::from_millis(200);

/// The container that runs beside a pod's first, if that is all there is before it.
pub fn of(spec: &PodSpec) -> Option<&Container> {
    match spec.init_containers.as_deref().unwrap_or_default() {
        [container] if container.restart_policy.as_deref() == Some("Always") => Some(container),
        _ => None,
    }
}

/// Entry of `ferrovirt pod-sidecar DIR`. Returns only when the command could not be run. Call it before any thread is started.
pub fn sidecar_main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(dir) = args.next() else {
        eprintln!("usage: pod-sidecar POD-DIRECTORY");
        return 2;
    };
    let Err(error) = run(&PodDir::at(PathBuf::from(dir)));
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    eprintln!("pod-sidecar: {text}");
    128
}

fn run(dir: &PodDir) -> Result<std::convert::Infallible, InitError> {
    let plan: InitPlan = records::read(&dir.init())?.ok_or_else(|| InitError::NoPlan(dir.init()))?;
    let state: StateRecord = records::read(&dir.state())?.ok_or_else(|| InitError::NoPlan(dir.state()))?;
    let sidecar = plan.sidecar.clone().ok_or(InitError::NoCommand)?;
    // With the first one's rights where these are few, and never with those of a driver.
    let plan = InitPlan {
        container: sidecar.container,
        command: sidecar.command,
        uid: sidecar.uid,
        gid: sidecar.gid,
        privileged: false,
        memory_placement: false,
        ..plan
    };
    if plan.uid == 0 || plan.gid == 0 {
        return Err(InitError::Root);
    }
    let pid = state.process.pid;
    // The number is the host's, and no system call takes it here. But who is in this process's own PID namespace is of this pod.
    if identity_of(Path::new(&format!("/proc/{pid}/ns/pid")))? != identity_of(Path::new("/proc/self/ns/pid"))? {
        return Err(InitError::Ended);
    }
    // Its parent is the shim, so what it inherited is what PID 1 did.
    shut_in::wait(pid, "self", || {
        std::thread::sleep(shut_in::LOOK);
        Ok(())
    })?;
    let mut namespaces = Vec::with_capacity(NAMESPACES.len());
    for (name, kind) in NAMESPACES {
        let path = format!("/proc/{pid}/ns/{name}");
        namespaces.push((File::open(&path).map_err(fail("open", &path))?, kind, path));
    }
    let path = format!("/proc/{pid}/ns/user");
    let users = File::open(&path).map_err(fail("open", &path))?;
    let own = identity_of(Path::new("/proc/self/ns/user"))?;
    let has_own_users = identity_of(Path::new(&path))? != own;
    let _ = fs::write("/proc/self/oom_score_adj", "0");
    for (namespace, kind, path) in &namespaces {
        setns(namespace, *kind).map_err(fail_errno("enter", path))?;
    }
    drop(namespaces);
    if has_own_users {
        setns(&users, CloneFlags::CLONE_NEWUSER).map_err(fail_errno("enter the users of", &plan.container))?;
    }
    std::env::set_current_dir("/").map_err(fail("change to", "/"))?;
    drop_privileges(&plan)?;
    prepare_descriptors(&plan)?;
    SigSet::all().thread_unblock().map_err(fail_errno("unblock signals for", &plan.container))?;
    filter_calls(&plan)?;
    let (program, arguments) = plan.command.split_first().ok_or(InitError::NoCommand)?;
    let variables = plan.env.iter().map(|(name, value)| (name, value));
    let error = Command::new(program).args(arguments).env_clear().envs(variables).exec();
    Err(fail("run", program)(error))
}

fn identity_of(path: &Path) -> Result<(u64, u64), InitError> {
    let metadata = fs::metadata(path).map_err(fail("examine", path))?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The shim's side: the process, and its log.
pub(crate) struct Sidecar {
    directory: PathBuf,
    log: LogWriter,
    child: Option<Child>,
    streams: Vec<(File, LineBuffer)>,
    rest: Duration,
    again: Option<Instant>,
}

impl Sidecar {
    pub fn start(dir: &PodDir, container: &str) -> io::Result<Self> {
        let log = LogWriter::open(&dir.log(container))?;
        let (directory, streams) = (dir.root().to_owned(), Vec::with_capacity(2));
        let mut sidecar = Self { directory, log, child: None, streams, rest: FIRST_REST, again: None };
        sidecar.spawn();
        Ok(sidecar)
    }

    /// A pod without its second container goes on: what it is for is less than the guest.
    fn spawn(&mut self) {
        let spawned = Command::new("/proc/self/exe")
            .arg("pod-sidecar")
            .arg(&self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match spawned {
            Ok(mut child) => {
                let out = child.stdout.take().map(|out| (File::from(OwnedFd::from(out)), Source::Stdout));
                let err = child.stderr.take().map(|err| (File::from(OwnedFd::from(err)), Source::Stderr));
                self.streams.extend([out, err].into_iter().flatten().map(|(file, of)| (file, LineBuffer::new(of))));
                self.child = Some(child);
            }
            Err(_) => self.again_later(),
        }
    }

    fn again_later(&mut self) {
        self.again = Some(Instant::now() + self.rest);
        self.rest = (self.rest * 2).min(LAST_REST);
    }

    pub fn streams(&mut self) -> (&mut Vec<(File, LineBuffer)>, &mut LogWriter) {
        (&mut self.streams, &mut self.log)
    }

    /// Collects one that ended, and starts it again when it has rested, unless the pod `is_over`. To be called whenever something
    /// happened, and after [`Sidecar::timeout`].
    ///
    /// PID 1 cannot end before every other process of its namespace was collected, and this one is the shim's to collect.
    pub fn tend(&mut self, is_over: bool) {
        if self.streams.is_empty()
            && let Some(child) = &mut self.child
            && !matches!(child.try_wait(), Ok(None))
        {
            self.child = None;
            self.again_later();
        }
        if !is_over && self.again.is_some_and(|again| again <= Instant::now()) {
            self.again = None;
            self.spawn();
        }
    }

    /// When it wants to be tended even if nothing happens.
    pub fn timeout(&self) -> Option<Duration> {
        match (&self.child, self.again) {
            (Some(_), _) if self.streams.is_empty() => Some(LINGER),
            (None, Some(again)) => Some(again.saturating_duration_since(Instant::now())),
            _ => None,
        }
    }

    pub fn is_gone(&self) -> bool {
        self.child.is_none()
    }
}
