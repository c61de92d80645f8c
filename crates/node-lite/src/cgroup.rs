//! One cgroup for each pod, outside that of `ferrovirt up`, with the pod's limits. Version 2 where its hierarchy has the
//! controllers, else version 1 with one directory for each controller.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// In the units of the pod spec; the kernel's come from [`settings`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub cpu_request_milli: i64,
    pub cpu_limit_milli: Option<i64>,
    pub memory_limit_bytes: Option<i64>,
}

/// What a cgroup used so far, and holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    pub cpu_nanos: u64,
    /// Without what the kernel can drop at once, as a kubelet counts.
    pub memory_bytes: u64,
}

/// A machine's cgroup file systems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchy {
    V2 {
        root: PathBuf,
    },
    /// Controller name and its mount point.
    V1 {
        controllers: Vec<(String, PathBuf)>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("no cgroup file system with a memory and cpu controller is mounted")]
    NotMounted,
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("processes in {0} do not end")]
    Busy(PathBuf),
}

/// More than any VM needs; keeps one from exhausting the machine's pids.
const MAX_PIDS: u32 = 8192;
pub(crate) const WANTED_V1: &[&str] = &["memory", "cpu", "cpuacct", "pids", "freezer", "devices"];
const WANTED_V2: &[&str] = &["cpu", "cpuset", "memory", "pids"];
/// For which CPUs a pod runs on. Where it is missing, nobody can have CPUs of their own.
const CPUSET: &str = "cpuset";

impl Hierarchy {
    pub fn detect() -> Result<Self, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read_to_string(path).map_err(io_error("read", path))?;
        let hierarchy =
            parse_mountinfo(&text, |root| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default());
        hierarchy.ok_or(CgroupError::NotMounted)
    }

    /// The directories of a cgroup, one for version 2.
    pub fn paths(&self, name: &str) -> Vec<PathBuf> {
        match self {
            Self::V2 { root } => vec![root.join(name)],
            Self::V1 { controllers } => controllers.iter().map(|(_, mount)| mount.join(name)).collect(),
        }
    }

    /// Makes `parent/child` with limits and returns the files through which a process joins.
    pub fn create(&self, parent: &str, child: &str, limits: &Limits) -> Result<Vec<PathBuf>, CgroupError> {
        let name = format!("{parent}/{child}");
        match self {
            Self::V2 { root } => {
                let dir = root.join(parent);
                fs::create_dir_all(&dir).map_err(io_error("create", &dir))?;
                for level in [root, &dir] {
                    let file = level.join("cgroup.subtree_control");
                    for controller in WANTED_V2 {
                        // One that is missing or taken only costs its limit, which setting it below would report.
                        let _ = fs::write(&file, format!("+{controller}"));
                    }
                }
                let dir = root.join(&name);
                fs::create_dir_all(&dir).map_err(io_error("create", &dir))?;
                for (_, file, value) in settings(limits, Version::V2) {
                    set(&dir.join(file), &value)?;
                }
            }
            Self::V1 { controllers } => {
                for (controller, mount) in controllers {
                    let dir = mount.join(&name);
                    fs::create_dir_all(&dir).map_err(io_error("create", &dir))?;
                    if controller == CPUSET {
                        inherit_cpus(mount, &mount.join(parent))?;
                        inherit_cpus(&mount.join(parent), &dir)?;
                    }
                    for (owner, file, value) in settings(limits, Version::V1) {
                        if owner == controller {
                            set(&dir.join(file), &value)?;
                        }
                    }
                }
            }
        }
        Ok(self.paths(&name).into_iter().map(|dir| dir.join("cgroup.procs")).collect())
    }

    /// True if pods can be kept to some of the CPUs.
    pub fn has_cpusets(&self) -> bool {
        match self {
            Self::V2 { root } => {
                let available = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
                available.split_ascii_whitespace().any(|name| name == CPUSET)
            }
            Self::V1 { controllers } => controllers.iter().any(|(name, _)| name == CPUSET),
        }
    }

    /// Keeps `parent/child` to some CPUs, in the kernel's form.
    pub fn set_cpus(&self, parent: &str, child: &str, cpus: &str) -> Result<(), CgroupError> {
        match self {
            Self::V2 { root } => set(&root.join(parent).join(child).join("cpuset.cpus"), cpus),
            Self::V1 { controllers } => {
                let Some((_, mount)) = controllers.iter().find(|(name, _)| name == CPUSET) else { return Ok(()) };
                set(&mount.join(parent).join(child).join("cpuset.cpus"), cpus)
            }
        }
    }

    /// Ends every process inside and removes the cgroup. Missing is fine.
    pub fn remove(&self, name: &str, deadline: Instant) -> Result<(), CgroupError> {
        for dir in self.paths(name) {
            loop {
                match fs::remove_dir(&dir) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) => {
                        if Instant::now() > deadline {
                            return Err(CgroupError::Busy(dir));
                        }
                        for pid in members(&dir) {
                            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                        }
                        remove_children(&dir);
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Err(source) => {
                        return Err(CgroupError::Io { action: "remove", path: dir, source });
                    }
                }
            }
        }
        Ok(())
    }

    /// What a cgroup and those below it used. None if there is none.
    pub fn used(&self, name: &str) -> Option<Used> {
        let read = |file: &str| self.paths(name).iter().find_map(|dir| fs::read_to_string(dir.join(file)).ok());
        let (cpu_nanos, memory, droppable) = match self {
            Self::V2 { .. } => {
                let micros = field(&read("cpu.stat")?, "usage_usec")?;
                (micros.saturating_mul(1000), read("memory.current")?, field(&read("memory.stat")?, "inactive_file"))
            }
            Self::V1 { .. } => {
                let nanos = read("cpuacct.usage")?.trim().parse().ok()?;
                let droppable = field(&read("memory.stat")?, "total_inactive_file");
                (nanos, read("memory.usage_in_bytes")?, droppable)
            }
        };
        let memory: u64 = memory.trim().parse().ok()?;
        Some(Used { cpu_nanos, memory_bytes: memory.saturating_sub(droppable.unwrap_or(0)) })
    }

    /// Processes in any of the cgroup's directories.
    pub fn members(&self, name: &str) -> Vec<i32> {
        let mut pids: Vec<i32> = self.paths(name).iter().flat_map(|dir| members(dir)).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }
}

/// The number behind a name, in the kernel's files of names and numbers.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.split_once(' ').filter(|(key, _)| *key == name)?.1.trim().parse().ok())
}

/// (v1 controller, file, value) of every limit.
pub fn settings(limits: &Limits, version: Version) -> Vec<(&'static str, &'static str, String)> {
    const PERIOD: i64 = 100_000;
    let shares = (limits.cpu_request_milli * 1024 / 1000).clamp(2, 262_144);
    let quota = limits.cpu_limit_milli.map(|milli| (milli * PERIOD / 1000).max(1000));
    let mut out = Vec::new();
    match version {
        Version::V1 => {
            out.push(("cpu", "cpu.shares", shares.to_string()));
            if let Some(quota) = quota {
                out.push(("cpu", "cpu.cfs_period_us", PERIOD.to_string()));
                out.push(("cpu", "cpu.cfs_quota_us", quota.to_string()));
            }
            if let Some(bytes) = limits.memory_limit_bytes {
                out.push(("memory", "memory.limit_in_bytes", bytes.to_string()));
            }
            out.push(("pids", "pids.max", MAX_PIDS.to_string()));
        }
        Version::V2 => {
            // The kubelet's mapping of [2, 262144] shares to [1, 10000] weight.
            out.push(("cpu", "cpu.weight", (1 + (shares - 2) * 9999 / 262_142).to_string()));
            if let Some(quota) = quota {
                out.push(("cpu", "cpu.max", format!("{quota} {PERIOD}")));
            }
            if let Some(bytes) = limits.memory_limit_bytes {
                out.push(("memory", "memory.max", bytes.to_string()));
            }
            out.push(("pids", "pids.max", MAX_PIDS.to_string()));
        }
    }
    out
}

fn parse_mountinfo(text: &str, controllers_of: impl Fn(&Path) -> String) -> Option<Hierarchy> {
    let mut v1 = Vec::new();
    let mut v2 = None;
    for line in text.lines() {
        let Some((before, after)) = line.split_once(" - ") else {
            continue;
        };
        let Some(mount) = before.split(' ').nth(4).map(PathBuf::from) else {
            continue;
        };
        let mut after = after.split(' ');
        match after.next() {
            Some("cgroup2") => v2 = v2.or(Some(mount)),
            Some("cgroup") => {
                let options = after.nth(1).unwrap_or_default();
                // cpu and cpuacct are often one mount; one entry is enough to create the directory.
                let wanted = WANTED_V1.iter().copied().chain([CPUSET]);
                let found: Vec<&str> = wanted.filter(|name| options.split(',').any(|option| option == *name)).collect();
                if let Some(name) = found.first() {
                    v1.push(((*name).to_owned(), mount));
                }
            }
            _ => {}
        }
    }
    if let Some(root) = v2 {
        let available = controllers_of(&root);
        if ["cpu", "memory"].iter().all(|name| available.split_ascii_whitespace().any(|found| found == *name)) {
            return Some(Hierarchy::V2 { root });
        }
    }
    let complete = ["cpu", "memory"].iter().all(|name| v1.iter().any(|(found, _)| found == name));
    complete.then_some(Hierarchy::V1 { controllers: v1 })
}

/// In version 1 no process can join a cgroup for which nobody said which CPUs and memory it has.
fn inherit_cpus(above: &Path, dir: &Path) -> Result<(), CgroupError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let (from, to) = (above.join(file), dir.join(file));
        let known = fs::read_to_string(&to).map_err(io_error("read", &to))?;
        if known.trim().is_empty() {
            let text = fs::read_to_string(&from).map_err(io_error("read", &from))?;
            set(&to, text.trim())?;
        }
    }
    Ok(())
}

/// Processes of a cgroup and of those below it.
fn members(dir: &Path) -> Vec<i32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let own = text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 0);
    own.chain(children(dir).iter().flat_map(|child| members(child))).collect()
}

/// Removes the cgroups that a container driver made below its pod's. One that is busy stays for the next round.
fn remove_children(dir: &Path) {
    for child in children(dir) {
        remove_children(&child);
        let _ = fs::remove_dir(&child);
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

fn set(file: &Path, value: &str) -> Result<(), CgroupError> {
    fs::write(file, value).map_err(io_error("set", file))
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(limits: Limits, version: Version) -> String {
        settings(&limits, version).into_iter().map(|(_, file, value)| format!("{file}={value};")).collect()
    }

    #[test]
    fn limits_become_kernel_settings() {
        let none = Limits::default();
        let some = Limits { cpu_request_milli: 500, cpu_limit_milli: Some(2000), memory_limit_bytes: Some(1 << 30) };
        let cases = [
            (none, Version::V1, "cpu.shares=2;pids.max=8192;"),
            (none, Version::V2, "cpu.weight=1;pids.max=8192;"),
            (
                some,
                Version::V1,
                "cpu.shares=512;cpu.cfs_period_us=100000;cpu.cfs_quota_us=200000;\
                 memory.limit_in_bytes=1073741824;pids.max=8192;",
            ),
            (some, Version::V2, "cpu.weight=20;cpu.max=200000 100000;memory.max=1073741824;pids.max=8192;"),
        ];
        for (limits, version, expected) in cases {
            assert_eq!(shown(limits, version), expected, "{limits:?} {version:?}");
        }
    }

    #[test]
    fn what_a_cgroup_used_is_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |dir: &str, file: &str, text: &str| {
            let dir = root.path().join(dir);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(file), text).unwrap();
        };
        write("v2/a", "cpu.stat", "usage_usec 7\nuser_usec 3\n");
        write("v2/a", "memory.current", "1000\n");
        write("v2/a", "memory.stat", "anon 1\ninactive_file 300\n");
        write("cpu/a", "cpuacct.usage", "7000\n");
        write("memory/a", "memory.usage_in_bytes", "1000\n");
        write("memory/a", "memory.stat", "inactive_file 9\ntotal_inactive_file 300\n");
        let v2 = Hierarchy::V2 { root: root.path().join("v2") };
        let v1 = Hierarchy::V1 {
            controllers: ["cpu", "memory"].map(|name| (name.to_owned(), root.path().join(name))).to_vec(),
        };
        for hierarchy in [v1, v2] {
            assert_eq!(hierarchy.used("a"), Some(Used { cpu_nanos: 7000, memory_bytes: 700 }), "{hierarchy:?}");
            assert_eq!(hierarchy.used("b"), None);
        }
    }

    #[test]
    fn hierarchies_are_found() {
        let v2 = "30 20 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";
        let hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      35 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      36 31 0:32 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n\
                      41 31 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let show = |text: &str, controllers: &str| match parse_mountinfo(text, |_| controllers.to_owned()) {
            None => "none".to_owned(),
            Some(Hierarchy::V2 { root }) => format!("v2 {}", root.display()),
            Some(Hierarchy::V1 { controllers }) => {
                controllers.iter().map(|(name, path)| format!("{name}={} ", path.display())).collect()
            }
        };
        assert_eq!(show(v2, "cpuset cpu io memory pids"), "v2 /sys/fs/cgroup");
        assert_eq!(show(v2, "cpuset"), "none");
        assert_eq!(show(hybrid, ""), "cpu=/sys/fs/cgroup/cpu,cpuacct memory=/sys/fs/cgroup/memory ");
        assert_eq!(show("", ""), "none");
    }
}
