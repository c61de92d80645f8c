//! The child's half.

use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, chdir, chown, pivot_root, setgroups, setresgid, setresuid};
use rustix::process::{DumpableBehavior, Signal};

use crate::Syscalls;

/// Users that nobody has: above what systemd gives to containers, below the sign bit. The rest of the number is the pid, so that no
/// two processes of ours share a user.
const FIRST_UID: u32 = 0x7f00_0000;
/// Pids have 22 bits at most.
const PID_BITS: u32 = 0x3f_ffff;

#[derive(Debug, thiserror::Error)]
#[error("cannot confine the process: {step}")]
pub struct ConfineError {
    step: &'static str,
    source: std::io::Error,
}

/// What a confined process may use. Each is a limit of the kernel's, so that no fault in our code lifts it.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Address space in bytes.
    pub memory: u64,
    /// Seconds of processor time.
    pub cpu: u64,
    /// Bytes of the largest file it may write.
    pub file: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// A process that is about to shut itself in.
#[derive(Debug)]
pub struct Jail {
    /// Becomes the root directory, and the process's own; without it there is nothing to see but an empty one.
    pub root: Option<PathBuf>,
    pub limits: Limits,
    pub syscalls: Syscalls,
}

impl Jail {
    /// Shuts the calling thread in, for good. A process should have no other thread by then.
    ///
    /// Root loses everything; for anybody else only limits and system calls remain to be taken, since namespaces and users need root.
    /// Each step has to succeed.
    pub fn enter(self) -> Result<(), ConfineError> {
        limit(&self.limits)?;
        if rustix::process::geteuid().is_root() {
            let user = FIRST_UID | (std::process::id() & PID_BITS);
            let flags = CloneFlags::CLONE_NEWNS
                | CloneFlags::CLONE_NEWNET
                | CloneFlags::CLONE_NEWIPC
                | CloneFlags::CLONE_NEWUTS
                | CloneFlags::CLONE_NEWCGROUP;
            unshare(flags).map_err(at("leave its namespaces"))?;
            see_only(self.root.as_deref(), user)?;
            setgroups(&[]).map_err(at("leave its groups"))?;
            let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
            setresgid(gid, gid, gid).map_err(at("change its group"))?;
            setresuid(uid, uid, uid).map_err(at("change its user"))?;
        }
        // After the user: a change of user takes these back.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(at("hide its memory"))?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at("end with its parent"))?;
        rustix::thread::set_no_new_privs(true).map_err(at("renounce privileges"))?;
        self.syscalls.apply().map_err(at("limit its system calls"))
    }
}

fn limit(limits: &Limits) -> Result<(), ConfineError> {
    let all = [
        (Resource::RLIMIT_AS, limits.memory),
        (Resource::RLIMIT_CPU, limits.cpu),
        (Resource::RLIMIT_FSIZE, limits.file),
        (Resource::RLIMIT_NOFILE, limits.descriptors),
        (Resource::RLIMIT_CORE, 0),
    ];
    all.into_iter().try_for_each(|(resource, most)| setrlimit(resource, most, most).map_err(at("limit itself")))
}

/// Leaves nothing in sight but one directory, which becomes the user's, without devices, programs or set-uid bits that count.
fn see_only(root: Option<&Path>, user: u32) -> Result<(), ConfineError> {
    const NONE: Option<&str> = None;
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).map_err(at("keep its mounts to itself"))?;
    let place = root.unwrap_or(Path::new("/proc"));
    match root {
        Some(root) => {
            chown(root, Some(Uid::from_raw(user)), Some(Gid::from_raw(user))).map_err(at("own its directory"))?;
            mount(Some(root), root, NONE, MsFlags::MS_BIND, NONE).map_err(at("mount its directory"))?;
            mount(NONE, root, NONE, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | plain, NONE)
                .map_err(at("mount its directory"))?;
        }
        None => {
            let empty = Some("size=4k,nr_inodes=1,mode=555");
            mount(Some("none"), place, Some("tmpfs"), plain | MsFlags::MS_RDONLY, empty)
                .map_err(at("mount nothing"))?;
        }
    }
    chdir(place).map_err(at("enter its directory"))?;
    pivot_root(".", ".").map_err(at("change its root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(at("leave the other files"))?;
    chdir("/").map_err(at("enter its directory"))
}

fn at<E: Into<std::io::Error>>(step: &'static str) -> impl Fn(E) -> ConfineError {
    move |source| ConfineError { step, source: source.into() }
}
