//! `pod-init`: PID 1 of a pod. Enters the pod's network, builds its root, gives up every privilege, and becomes the
//! container's command.
//!
//! Volumes are taken as detached mounts while the host is still visible and attached after the root has changed. So a
//! link inside a volume or an image can point a mount at the container's own files at worst, never at the host's.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferrovirt_confine::Extra;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::SigSet;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::records::{self, InitPlan, MountPlan, PodDir, RecordError};
use crate::{privilege, rootfs, users};

#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error("usage: pod-init POD-DIRECTORY")]
    Usage,
    #[error("the shim ended before the pod was recorded")]
    NoGoAhead,
    #[error("{0} does not exist")]
    NoPlan(PathBuf),
    #[error("the pod has no command")]
    NoCommand,
    #[error("the pod's process has ended")]
    Ended,
    #[error("the pod is still being set up; try again later")]
    NotShutIn,
    #[error("a container runs as root only if it is privileged")]
    Root,
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Entry of `ferrovirt pod-init`. Returns only when the command could not be run.
pub fn init_main(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(dir) = args.next() else {
        eprintln!("pod-init: {}", InitError::Usage);
        return 2;
    };
    let dir = PodDir::at(PathBuf::from(dir));
    // Opened while it can be reached. It closes by itself when the command is run.
    let report = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(dir.init_error());
    let Err(error) = run(&dir);
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    eprintln!("pod-init: {text}");
    if let Ok(mut report) = report {
        let _ = report.write_all(text.as_bytes());
    }
    128
}

pub(crate) fn fail(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> InitError {
    let path = path.as_ref().to_owned();
    move |source| InitError::Io { action, path, source }
}

pub(crate) fn fail_errno(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(nix::Error) -> InitError {
    let fail = fail(action, path);
    move |errno| fail(errno.into())
}

fn run(dir: &PodDir) -> Result<std::convert::Infallible, InitError> {
    let mut byte = [0_u8; 1];
    if io::stdin().read(&mut byte).unwrap_or(0) == 0 {
        return Err(InitError::NoGoAhead);
    }
    let mut plan: InitPlan = records::read(&dir.init())?.ok_or_else(|| InitError::NoPlan(dir.init()))?;
    if (plan.uid == 0 || plan.gid == 0) && !plan.privileged {
        return Err(InitError::Root);
    }
    let _ = fs::write("/proc/self/oom_score_adj", "0");
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    enter_namespaces(&plan)?;
    let (volumes, users) = take_volumes(&mut plan)?;
    rootfs::assemble(&plan, &dir.termination_log(&plan.container))?;
    change_root(&plan.staging)?;
    for (mount, tree) in plan.mounts.iter().zip(volumes) {
        attach(&plan, mount, &tree)?;
    }
    let null = File::open("/dev/null").map_err(fail("open", "/dev/null"))?;
    nix::unistd::dup2_stdin(&null).map_err(fail_errno("open", "standard input"))?;
    if let Some(users) = users {
        setns(&users, CloneFlags::CLONE_NEWUSER).map_err(fail_errno("enter the users of", &plan.container))?;
    }
    drop_privileges(&plan)?;
    prepare_descriptors(&plan)?;
    filter_calls(&plan)?;
    run_command(&plan)
}

fn enter_namespaces(plan: &InitPlan) -> Result<(), InitError> {
    let netns = File::open(&plan.netns).map_err(fail("open", &plan.netns))?;
    setns(&netns, CloneFlags::CLONE_NEWNET).map_err(fail_errno("enter", &plan.netns))?;
    let mut namespaces = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC;
    if plan.privileged {
        // What it sees of the cgroups begins with its own.
        namespaces |= CloneFlags::CLONE_NEWCGROUP;
    }
    unshare(namespaces).map_err(fail_errno("make namespaces for", &plan.hostname))?;
    nix::unistd::sethostname(&plan.hostname).map_err(fail_errno("set the host name", &plan.hostname))?;
    for (name, value) in &plan.sysctls {
        // /proc/sys/net shows the network namespace of who looks, so this reaches no other pod.
        let path = Path::new("/proc/sys").join(name.replace('.', "/"));
        fs::write(&path, value).map_err(fail("set", &path))?;
    }
    // Nothing mounted from here on is seen outside.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .map_err(fail_errno("detach", "/"))
}

/// The volumes as they are mounted in the pod, and the pod's own users if it has some. Where a volume's file system cannot show
/// its files to them, the pod runs as the host's user with the same number, and says so.
fn take_volumes(plan: &mut InitPlan) -> Result<(Vec<OwnedFd>, Option<File>), InitError> {
    let take = |plan: &InitPlan| plan.mounts.iter().map(take_tree).collect::<Result<Vec<_>, _>>();
    let Some(first) = plan.first_id else { return Ok((take(plan)?, None)) };
    let namespace =
        users::namespace(Path::new("/proc/self/exe"), first).map_err(fail("make users for", &plan.container))?;
    let trees = take(plan)?;
    for (mount, tree) in plan.mounts.iter().zip(&trees) {
        if let Err(error) = users::show(tree, &namespace) {
            eprintln!(
                "pod-init: the pod shares its user with others, because the file system of {} takes no id-mapped mounts: {error}",
                mount.target.display()
            );
            plan.first_id = None;
            return Ok((take(plan)?, None));
        }
    }
    Ok((trees, Some(namespace)))
}

fn take_tree(plan: &MountPlan) -> Result<OwnedFd, InitError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    // The plan has the real path. A link in it was put there since, and leads elsewhere.
    let direct = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let root = openat2(CWD, &plan.source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), direct)
        .map_err(|e| fail("find", &plan.source)(e.into()))?;
    let Some(sub_path) = &plan.sub_path else {
        return open_tree(&root, "", flags | OpenTreeFlags::AT_EMPTY_PATH)
            .map_err(|e| fail("take", &plan.source)(e.into()));
    };
    let inner = openat2(
        &root,
        sub_path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
    )
    .map_err(|e| fail("find", sub_path)(e.into()))?;
    open_tree(&inner, "", flags | OpenTreeFlags::AT_EMPTY_PATH).map_err(|e| fail("take", sub_path)(e.into()))
}

fn change_root(root: &Path) -> Result<(), InitError> {
    std::env::set_current_dir(root).map_err(fail("change to", root))?;
    rustix::process::pivot_root(".", ".").map_err(|e| fail("make the root of", root)(e.into()))?;
    // Old and new root are now stacked on the same point; the old one is on top.
    umount2(".", MntFlags::MNT_DETACH).map_err(fail_errno("release", "the host's root"))?;
    std::env::set_current_dir("/").map_err(fail("change to", "/"))
}

fn attach(pod: &InitPlan, plan: &MountPlan, tree: &OwnedFd) -> Result<(), InitError> {
    let is_dir = rustix::fs::fstat(tree)
        .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
        .map_err(|e| fail("examine", &plan.source)(e.into()))?;
    let made = match make_place(&plan.target, is_dir) {
        // Inside of a volume that shows its files to the pod's users, the host's root is nobody who could own one.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::OVERFLOW.raw_os_error()) => {
            let (uid, gid) = pod.host_user();
            let before = (setfsgid(Gid::from_raw(gid)), setfsuid(Uid::from_raw(uid)));
            let made = make_place(&plan.target, is_dir);
            setfsuid(before.1);
            setfsgid(before.0);
            made
        }
        made => made,
    };
    made.map_err(fail("create", &plan.target))?;
    move_mount(tree, "", CWD, &plan.target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|e| fail("mount", &plan.target)(e.into()))?;
    if !plan.follow_host {
        mount(None::<&str>, &plan.target, None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
            .map_err(fail_errno("detach", &plan.target))?;
    }
    rootfs::restrict(&plan.target, plan.read_only)
}

/// What a volume is mounted on.
fn make_place(target: &Path, is_dir: bool) -> io::Result<()> {
    if is_dir {
        return fs::create_dir_all(target);
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    OpenOptions::new().append(true).create(true).open(target).map(drop)
}

pub(crate) fn drop_privileges(plan: &InitPlan) -> Result<(), InitError> {
    let groups: Vec<Gid> = plan.groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(plan.uid), Gid::from_raw(plan.gid));
    let who = format!("uid {uid} gid {gid}");
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        // The kernel knows fewer than 64; asking for one beyond the last is EINVAL.
        if (!plan.privileged || privilege::is_withheld(capability))
            && rustix::thread::capability_is_in_bounding_set(capability).unwrap_or(false)
        {
            rustix::thread::remove_capability_from_bounding_set(capability)
                .map_err(|e| fail("drop capabilities for", &who)(e.into()))?;
        }
    }
    rustix::thread::clear_ambient_capability_set().map_err(|e| fail("drop capabilities for", &who)(e.into()))?;
    if !plan.privileged {
        // Not even a process that became root would have a capability for it, and none can be handed on. (KEEP_CAPS stays free:
        // libvirt sets it before it starts anything, and there is nothing to keep.)
        let bits = CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
        rustix::thread::set_capabilities_secure_bits(bits)
            .map_err(|e| fail("lock the capabilities of", &who)(e.into()))?;
    }
    // What a guest's memory holds is not to be found in a file, wherever the host collects dumps.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(fail_errno("forbid dumps of", &who))?;
    nix::unistd::setgroups(&groups).map_err(fail_errno("set the groups of", &who))?;
    nix::unistd::setresgid(gid, gid, gid).map_err(fail_errno("become", &who))?;
    nix::unistd::setresuid(uid, uid, uid).map_err(fail_errno("become", &who))?;
    if plan.privileged {
        // Root's capabilities come back with exec, within the bounding set. Its guests must be able to have set-uid
        // programs, so new privileges are not forbidden: they end at the guest's own user namespace.
        return Ok(());
    }
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(|e| fail("drop capabilities for", &who)(e.into()))?;
    nix::sys::prctl::set_no_new_privs().map_err(fail_errno("forbid new privileges for", &who))
}

/// Holds this process and what it runs to what containers may ask of the kernel. Last, so that nothing of ours needs more.
pub(crate) fn filter_calls(plan: &InitPlan) -> Result<(), InitError> {
    let program = match plan.privileged {
        // The driver of a system container, and the guest below it.
        true => ferrovirt_confine::guest(ferrovirt_confine::devices_need_bpf()),
        false => ferrovirt_confine::container(Extra { memory_placement: plan.memory_placement }),
    };
    ferrovirt_confine::install(&program).map_err(fail("filter the system calls of", &plan.container))
}

/// Descriptors of this process close on exec; one that slipped through from `up` must not reach a guest.
pub(crate) fn prepare_descriptors(plan: &InitPlan) -> Result<(), InitError> {
    SigSet::all().thread_unblock().map_err(fail_errno("unblock signals for", &plan.container))?;
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")
        .map_err(fail("list", "/proc/self/fd"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        let closes = fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))
            .ok()
            .and_then(|info| flags_of(&info))
            .is_none_or(|flags| flags & OFlags::CLOEXEC.bits() != 0);
        if !closes {
            let _ = nix::unistd::close(fd);
        }
    }
    Ok(())
}

fn run_command(plan: &InitPlan) -> Result<std::convert::Infallible, InitError> {
    let (program, arguments) = plan.command.split_first().ok_or(InitError::NoCommand)?;
    let error = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(plan.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&plan.working_dir)
        .exec();
    Err(fail("run", program)(error))
}

fn flags_of(fdinfo: &str) -> Option<u32> {
    let octal = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(octal.trim(), 8).ok()
}
