//! `pod-exec`: runs one more command in a pod that runs, with the pod's own rights, and ends with its exit code.
//!
//! It enters the namespaces of the pod's PID 1, gives up what pod-init gave up, and starts the command as a child: only
//! a child is in the PID namespace that was entered.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use nix::sched::{CloneFlags, setns};

use crate::identity::Lookup;
use crate::init::{InitError, drop_privileges, fail, fail_errno, filter_calls};
use crate::records::{self, InitPlan, PodDir, StateRecord};

/// What a shell says of a command that cannot be run.
const CANNOT_RUN: i32 = 126;
/// The mount namespace last: after it, /proc is the pod's.
const NAMESPACES: [(&str, CloneFlags); 5] = [
    ("net", CloneFlags::CLONE_NEWNET),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("pid", CloneFlags::CLONE_NEWPID),
    ("mnt", CloneFlags::CLONE_NEWNS),
];

/// Entry of `ferrovirt pod-exec DIR COMMAND…`. Call it before any thread is started.
pub fn exec_main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(dir) = args.next() else {
        eprintln!("usage: pod-exec POD-DIRECTORY COMMAND...");
        return CANNOT_RUN;
    };
    match run(&PodDir::at(PathBuf::from(dir)), args.collect()) {
        Ok(code) => code,
        Err(error) => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(inner) = source {
                text = format!("{text}: {inner}");
                source = inner.source();
            }
            eprintln!("{text}");
            CANNOT_RUN
        }
    }
}

fn run(dir: &PodDir, command: Vec<OsString>) -> Result<i32, InitError> {
    let (program, arguments) = command.split_first().ok_or(InitError::NoCommand)?;
    let plan: InitPlan = records::read(&dir.init())?.ok_or_else(|| InitError::NoPlan(dir.init()))?;
    let state: StateRecord = records::read(&dir.state())?.ok_or_else(|| InitError::NoPlan(dir.state()))?;
    if (plan.uid == 0 || plan.gid == 0) && !plan.privileged {
        return Err(InitError::Root);
    }
    // The number alone could be another process's by now.
    let Ok(Lookup::Alive(_held)) = state.process.lookup() else { return Err(InitError::Ended) };
    let pid = state.process.pid;
    let mut namespaces = Vec::with_capacity(NAMESPACES.len());
    for (name, kind) in NAMESPACES {
        let path = format!("/proc/{pid}/ns/{name}");
        namespaces.push((File::open(&path).map_err(fail("open", &path))?, kind, path));
    }
    let users = other_users(pid)?;
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
    std::env::set_current_dir(&plan.working_dir).map_err(fail("change to", &plan.working_dir))?;
    drop_privileges(&plan)?;
    filter_calls(&plan)?;
    let status = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(plan.env.iter().map(|(name, value)| (name, value)))
        .status()
        .map_err(fail("run", program))?;
    Ok(status.code().unwrap_or(CANNOT_RUN))
}

/// The user namespace of the pod, if it has one of its own.
fn other_users(pid: i32) -> Result<Option<File>, InitError> {
    let path = format!("/proc/{pid}/ns/user");
    let theirs = File::open(&path).map_err(fail("open", &path))?;
    let own = fs::metadata("/proc/self/ns/user").map_err(fail("examine", "/proc/self/ns/user"))?;
    let found = theirs.metadata().map_err(fail("examine", &path))?;
    Ok(((own.dev(), own.ino()) != (found.dev(), found.ino())).then_some(theirs))
}
