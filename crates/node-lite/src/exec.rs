//! `pod-exec` and `pod-session`: run one more command in a pod that runs, with the pod's own rights, and end with its exit code.
//!
//! They enter the namespaces of the pod's PID 1, give up what pod-init gave up, and start the command as a child: only a child is
//! in the PID namespace that was entered. Root goes into a place that a tenant furnished here, so nothing is looked up by a name of
//! theirs before root is given up, and PID 1 is the one of the record as long as its pidfd says that it lives. Nobody enters before PID 1
//! is shut in: its namespaces are the host's until then.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sched::{CloneFlags, setns};
use rustix::fs::{CWD, Mode as FileMode, OFlags, ResolveFlags, openat2};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, waitpid};
use rustix::stdio::stdin;
use rustix::termios::tcsetpgrp;

use crate::identity::Lookup;
use crate::init::{InitError, drop_privileges, fail, fail_errno, filter_calls, prepare_descriptors};
use crate::records::{self, InitPlan, PodDir, StateRecord};
use crate::shut_in;

/// What a shell says of a command that cannot be run.
const CANNOT_RUN: i32 = 126;
/// And of one that is not there.
const NOT_FOUND: i32 = 127;
/// How often a command that stopped because it did not have the terminal yet is told to go on.
const WAKE: u32 = 10;
/// The mount namespace last: after it, /proc is the pod's.
const NAMESPACES: [(&str, CloneFlags); 6] = [
    ("cgroup", CloneFlags::CLONE_NEWCGROUP),
    ("net", CloneFlags::CLONE_NEWNET),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("pid", CloneFlags::CLONE_NEWPID),
    ("mnt", CloneFlags::CLONE_NEWNS),
];

/// How a command is joined with whoever asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// It is a probe's: part of this process's own group.
    Probe,
    Pipes,
    /// Standard input is a terminal, which is to be the command's.
    Terminal,
}

/// Entry of `ferrovirt pod-exec DIR COMMAND…`. Call it before any thread is started.
pub fn exec_main(args: impl Iterator<Item = OsString>) -> i32 {
    enter(args, Mode::Probe)
}

/// Entry of `ferrovirt pod-session DIR pipes|terminal COMMAND…`. Call it before any thread is started.
pub fn session_main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let (dir, mode) = (args.next(), args.next());
    let mode = match mode.as_deref().and_then(OsStr::to_str) {
        Some("pipes") => Mode::Pipes,
        Some("terminal") => Mode::Terminal,
        _ => {
            eprintln!("usage: pod-session POD-DIRECTORY pipes|terminal COMMAND...");
            return CANNOT_RUN;
        }
    };
    enter(dir.into_iter().chain(args), mode)
}

fn enter(mut args: impl Iterator<Item = OsString>, mode: Mode) -> i32 {
    let Some(dir) = args.next() else {
        eprintln!("usage: pod-exec POD-DIRECTORY COMMAND...");
        return CANNOT_RUN;
    };
    match run(&PodDir::at(PathBuf::from(dir)), args.collect(), mode) {
        Ok(code) => code,
        Err(error) => {
            let missing =
                matches!(&error, InitError::Io { action: RUN, source, .. } if source.kind() == io::ErrorKind::NotFound);
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(inner) = source {
                text = format!("{text}: {inner}");
                source = inner.source();
            }
            eprintln!("{text}");
            if missing { NOT_FOUND } else { CANNOT_RUN }
        }
    }
}

/// What failed when a command could not be run.
const RUN: &str = "run";

fn run(dir: &PodDir, command: Vec<OsString>, mode: Mode) -> Result<i32, InitError> {
    let (program, arguments) = command.split_first().ok_or(InitError::NoCommand)?;
    let plan: InitPlan = records::read(&dir.init())?.ok_or_else(|| InitError::NoPlan(dir.init()))?;
    let state: StateRecord = records::read(&dir.state())?.ok_or_else(|| InitError::NoPlan(dir.state()))?;
    if (plan.uid == 0 || plan.gid == 0) && !plan.privileged {
        return Err(InitError::Root);
    }
    prepare_descriptors(&plan)?;
    // The number alone could be another process's by now.
    let Ok(Lookup::Alive(held)) = state.process.lookup() else { return Err(InitError::Ended) };
    let pid = state.process.pid;
    let shim = match state.shim.lookup() {
        Ok(Lookup::Alive(_)) => state.shim.pid.to_string(),
        _ => "self".to_owned(),
    };
    shut_in::wait(pid, &shim, || match held.wait_blocking(shut_in::LOOK) {
        Ok(false) => Ok(()),
        _ => Err(InitError::Ended),
    })?;
    let mut namespaces = Vec::with_capacity(NAMESPACES.len());
    for (name, kind) in NAMESPACES {
        let path = format!("/proc/{pid}/ns/{name}");
        namespaces.push((File::open(&path).map_err(fail("open", &path))?, kind, path));
    }
    let users = other_users(pid)?;
    // Alive now, so it was its number all the time, and these are its namespaces.
    if held.has_ended().unwrap_or(true) {
        return Err(InitError::Ended);
    }
    drop(held);
    if mode == Mode::Terminal {
        take_terminal(&plan)?;
    }
    for procs in &plan.cgroup_procs {
        fs::write(procs, "0").map_err(fail("join", procs))?;
    }
    for (namespace, kind, path) in &namespaces {
        setns(namespace, *kind).map_err(fail_errno("enter", path))?;
    }
    drop(namespaces);
    if let Some(users) = users {
        setns(&users, CloneFlags::CLONE_NEWUSER).map_err(fail_errno("enter the users of", &plan.container))?;
    }
    drop_privileges(&plan)?;
    std::env::set_current_dir(&plan.working_dir).map_err(fail("change to", &plan.working_dir))?;
    // The child is the pod's to see before it is the command; not its memory, nor what it has open.
    nix::sys::prctl::set_dumpable(false).map_err(fail_errno("hide from", &plan.container))?;
    filter_calls(&plan)?;
    refuse_tricks(program)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    if mode == Mode::Terminal {
        command.env("TERM", "xterm");
    }
    command.envs(plan.env.iter().map(|(name, value)| (name, value)));
    if mode != Mode::Probe {
        command.process_group(0);
    }
    let child = command.spawn().map_err(fail(RUN, program))?;
    let pid = Pid::from_child(&child);
    if mode == Mode::Terminal {
        tcsetpgrp(stdin(), pid).map_err(|error| fail("give the terminal to", program)(error.into()))?;
        // It may have asked for the terminal before it was its own, and stopped.
        let _ = kill_process_group(pid, Signal::CONT);
    }
    collect(pid).map_err(fail("wait for", program))
}

/// The exit code, as a shell says it.
fn collect(pid: Pid) -> io::Result<i32> {
    let mut wakes = 0;
    loop {
        let status: WaitStatus = match waitpid(Some(pid), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) => status,
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if let Some(code) = status.exit_status() {
            return Ok(code);
        }
        if let Some(signal) = status.terminating_signal() {
            return Ok(128 + signal);
        }
        if status.stopped() && wakes < WAKE {
            wakes += 1;
            let _ = kill_process_group(pid, Signal::CONT);
        }
    }
}

/// Makes the terminal on standard input this session's, and its files those of the pod's user.
fn take_terminal(plan: &InitPlan) -> Result<(), InitError> {
    let terminal = |action| fail(action, "the terminal");
    rustix::process::setsid().map_err(|error| terminal("begin a session on")(error.into()))?;
    rustix::process::ioctl_tiocsctty(stdin()).map_err(|error| terminal("take")(error.into()))?;
    let (uid, gid) = plan.host_user();
    let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    rustix::fs::fchown(stdin(), Some(uid), Some(gid)).map_err(|error| terminal("hand over")(error.into()))
}

/// A program that is named by a path must be a file of the pod. Links of /proc lead to files of whoever looks at them: to our own
/// program, which the pod has no other way to run.
fn refuse_tricks(program: &OsStr) -> Result<(), InitError> {
    if !program.as_encoded_bytes().contains(&b'/') {
        return Ok(());
    }
    match openat2(
        CWD,
        Path::new(program),
        OFlags::PATH | OFlags::CLOEXEC,
        FileMode::empty(),
        ResolveFlags::NO_MAGICLINKS,
    ) {
        Ok(_) => Ok(()),
        Err(error) => Err(fail(RUN, program)(error.into())),
    }
}

/// The user namespace of the pod, if it has one of its own.
fn other_users(pid: i32) -> Result<Option<File>, InitError> {
    let path = format!("/proc/{pid}/ns/user");
    let theirs = File::open(&path).map_err(fail("open", &path))?;
    let own = fs::metadata("/proc/self/ns/user").map_err(fail("examine", "/proc/self/ns/user"))?;
    let found = theirs.metadata().map_err(fail("examine", &path))?;
    Ok(((own.dev(), own.ino()) != (found.dev(), found.ino())).then_some(theirs))
}
