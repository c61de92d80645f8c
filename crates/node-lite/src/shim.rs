//! `pod-shim`: the one process of a pod that runs as root and outside its namespaces. It starts pod-init as PID 1 of a
//! new PID namespace, copies its output to the log, and writes down how it ended.
//!
//! ```text
//! lock -> attempt still ours? -> join cgroup -> spawn pod-init -> state.json -> "ok" -> go-ahead to pod-init
//!      -> copy output until PID 1 ends -> exit.json -> exit
//! ```
//!
//! pod-init waits for the go-ahead, so nothing ever runs that is not on record; and a shim that comes late, after a
//! restarted node-lite has begun another attempt, sees a foreign token and ends. One thread, no runtime: this stays
//! in memory as long as the VM does.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use jiff::Timestamp;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::ends;
use crate::identity::ProcessId;
use crate::logs::{LineBuffer, LogWriter, Source};
use crate::records::{self, ExitRecord, InitPlan, PodDir, RecordError, Reserved, StateRecord};
use crate::sidecar::Sidecar;

/// The kubelet's name for a container that could not be started.
pub const START_ERROR: &str = "StartError";

#[derive(Debug, thiserror::Error)]
enum ShimError {
    #[error("usage: pod-shim POD-DIRECTORY ATTEMPT")]
    Usage,
    #[error("another shim holds {0}")]
    Locked(PathBuf),
    #[error("this attempt to start the pod was given up")]
    Superseded,
    #[error("{0} does not exist")]
    NoPlan(PathBuf),
    #[error("cannot {action}")]
    Io { action: &'static str, source: io::Error },
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Entry of `ferrovirt pod-shim`. Call it before any thread is started.
pub fn shim_main(args: impl Iterator<Item = OsString>) -> i32 {
    match run(args) {
        Ok(()) => 0,
        Err(error) => {
            // Standard output is the pipe on which node-lite waits for "ok" or the reason.
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(inner) = source {
                text = format!("{text}: {inner}");
                source = inner.source();
            }
            let _ = writeln!(io::stdout(), "{text}");
            let _ = writeln!(io::stderr(), "{} {text}", Timestamp::now());
            1
        }
    }
}

fn run(mut args: impl Iterator<Item = OsString>) -> Result<(), ShimError> {
    let fail = |action| move |source| ShimError::Io { action, source };
    let (Some(dir), Some(attempt)) = (args.next(), args.next()) else {
        return Err(ShimError::Usage);
    };
    let dir = PodDir::at(PathBuf::from(dir));
    std::env::set_current_dir("/").map_err(fail("change to /"))?;
    // A group leader cannot start a session; then it already has one of its own.
    let _ = nix::unistd::setsid();
    // Only the end of the pod ends the shim. pod-init unblocks what it inherits.
    let mut blocked = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        blocked.add(signal);
    }
    blocked.thread_block().map_err(|error| fail("block signals")(error.into()))?;

    let _lock = take_lock(&dir)?;
    let current = fs::read(dir.attempt()).map_err(fail("read the attempt"))?;
    if current != std::os::unix::ffi::OsStrExt::as_bytes(attempt.as_os_str()) {
        return Err(ShimError::Superseded);
    }
    let plan: InitPlan = records::read(&dir.init())?.ok_or_else(|| ShimError::NoPlan(dir.init()))?;
    for procs in &plan.cgroup_procs {
        fs::write(procs, "0").map_err(fail("join the pod's cgroup"))?;
    }
    // When the pod runs into its memory limit, the guest is to go, not the witness of its end.
    let _ = fs::write("/proc/self/oom_score_adj", "-999");
    fs::create_dir_all(dir.logs()).map_err(fail("create the log directory"))?;
    let mut log = LogWriter::open(&dir.log(&plan.container)).map_err(fail("open the log"))?;

    unshare(CloneFlags::CLONE_NEWPID).map_err(|error| fail("make a PID namespace")(error.into()))?;
    let mut child = Command::new("/proc/self/exe")
        .arg("pod-init")
        .arg(dir.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(fail("start pod-init"))?;
    let pid = child.id().cast_signed();
    records::write(
        &dir.state(),
        &StateRecord {
            pod_uid: plan.pod_uid.clone(),
            process: ProcessId::of(pid).map_err(fail("identify pod-init"))?,
            shim: ProcessId::of(std::process::id().cast_signed()).map_err(fail("identify the shim"))?,
            started_at: Timestamp::now(),
        },
    )?;
    if let Some(mut go_ahead) = child.stdin.take() {
        let _ = go_ahead.write_all(b"\n");
    }
    report_started()?;

    let cgroup = plan.cgroup_procs.iter().filter_map(|procs| procs.parent().map(Path::to_owned)).collect::<Vec<_>>();
    let container = plan.container.clone();
    let sidecar = plan.sidecar.as_ref().map(|sidecar| Sidecar::start(&dir, &sidecar.container));
    let mut sidecar = sidecar.transpose().map_err(fail("open the log of the second container"))?;
    drop(plan);
    let room = Reserved::new(&dir.exit());
    let status = watch(&mut child, pid, &mut log, sidecar.as_mut())?;
    let exit = exit_record(status, &dir, &container, &cgroup);
    match room {
        Ok(room) => room.write(&exit)?,
        Err(_) => records::write(&dir.exit(), &exit)?,
    }
    Ok(())
}

fn take_lock(dir: &PodDir) -> Result<File, ShimError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.lock())
        .map_err(|source| ShimError::Io { action: "open the lock", source })?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ShimError::Locked(dir.lock())),
        Err(error) => Err(ShimError::Io { action: "take the lock", source: error.into() }),
    }
}

fn report_started() -> Result<(), ShimError> {
    let fail = |source| ShimError::Io { action: "report the start", source };
    // Nobody may be listening any more; the state file says the same.
    let _ = writeln!(io::stdout(), "ok");
    let null = OpenOptions::new().write(true).open("/dev/null").map_err(fail)?;
    nix::unistd::dup2_stdout(&null).map_err(|error| fail(error.into()))
}

/// Copies output until PID 1 has ended and everything it wrote is in the log.
fn watch(
    child: &mut Child,
    pid: i32,
    log: &mut LogWriter,
    mut sidecar: Option<&mut Sidecar>,
) -> Result<ExitStatus, ShimError> {
    let fail = |action| move |source| ShimError::Io { action, source };
    let pid = Pid::from_raw(pid).ok_or_else(|| fail("watch pod-init")(io::ErrorKind::InvalidInput.into()))?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| fail("watch pod-init")(error.into()))?;
    let mut streams: Vec<(File, LineBuffer)> = Vec::with_capacity(2);
    if let Some(out) = child.stdout.take() {
        streams.push((File::from(OwnedFd::from(out)), LineBuffer::new(Source::Stdout)));
    }
    if let Some(err) = child.stderr.take() {
        streams.push((File::from(OwnedFd::from(err)), LineBuffer::new(Source::Stderr)));
    }
    let mut none = Vec::new();
    let mut is_over = false;
    // The write ends close with the last process of the PID namespace, so the streams end when the pod does; but the container may
    // have closed its output long before.
    while !(is_over && streams.is_empty() && sidecar.as_ref().is_none_or(|sidecar| sidecar.is_gone())) {
        let timeout = sidecar.as_ref().and_then(|sidecar| sidecar.timeout());
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let (beside, beside_log) = match &mut sidecar {
            Some(sidecar) => {
                let (streams, log) = sidecar.streams();
                (streams, Some(log))
            }
            None => (&mut none, None),
        };
        let all = streams.iter().chain(beside.iter()).map(|(file, _)| PollFd::new(file, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = all.collect();
        if !is_over {
            fds.push(PollFd::new(&pidfd, PollFlags::IN));
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(fail("wait for output")(error.into())),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (own, rest) = ready.split_at(streams.len());
        let (others, ended) = rest.split_at(beside.len());
        is_over |= ended.contains(&true);
        copy(&mut streams, own, log);
        if let Some(log) = beside_log {
            copy(beside, others, log);
        }
        if let Some(sidecar) = &mut sidecar {
            sidecar.tend(is_over);
        }
    }
    child.wait().map_err(fail("collect the exit status"))
}

/// Copies what is there of each stream that is ready, and takes those away that ended.
fn copy(streams: &mut Vec<(File, LineBuffer)>, ready: &[bool], log: &mut LogWriter) {
    let mut buffer = [0_u8; 4096];
    for (index, _) in ready.iter().enumerate().rev().filter(|(_, ready)| **ready) {
        let Some((file, lines)) = streams.get_mut(index) else {
            continue;
        };
        match file.read(&mut buffer) {
            Ok(0) => {
                let _ = lines.finish(log, Timestamp::now());
                streams.remove(index);
            }
            // A full disk must not stop the VM: what cannot be logged is dropped.
            Ok(count) => {
                let _ = lines.feed(buffer.get(..count).unwrap_or_default(), log, Timestamp::now());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The log ends here. Seeing how the pod ends is worth more.
            Err(_) => drop(streams.remove(index)),
        }
    }
}

fn exit_record(status: ExitStatus, dir: &PodDir, container: &str, cgroup: &[PathBuf]) -> ExitRecord {
    let signal = status.signal();
    let exit_code = status.code().unwrap_or_else(|| 128 + signal.unwrap_or(0));
    let start_error = fs::read_to_string(dir.init_error()).ok().filter(|text| !text.is_empty());
    let reason = match (&start_error, exit_code) {
        (Some(_), _) => START_ERROR,
        (None, 0) => "Completed",
        (None, 137) if ends::is_out_of_memory(cgroup) => ends::OUT_OF_MEMORY,
        (None, _) => "Error",
    };
    let message = start_error.or_else(|| ends::last_words(dir, container));
    ExitRecord { exit_code, signal, finished_at: Timestamp::now(), reason: reason.to_owned(), message }
}
