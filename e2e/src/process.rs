//! The processes of this machine, as `/proc` shows them.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// Effective user.
    pub uid: u32,
    pub arguments: Vec<String>,
    /// When it started, in clock ticks since boot. With the pid it names a process for good.
    pub started: u64,
}

impl Process {
    /// Reads one process. `None` if it is gone, or only its parent's to collect.
    pub fn read(pid: i32) -> Option<Self> {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let stat = fs::read_to_string(directory.join("stat")).ok()?;
        // The name may hold anything, parentheses included, so everything counts from the last one.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        if matches!(*fields.first()?, "Z" | "X") {
            return None;
        }
        let status = fs::read_to_string(directory.join("status")).ok()?;
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()?;
        let arguments = fs::read(directory.join("cmdline")).ok()?;
        let arguments = arguments.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            uid,
            arguments: arguments.filter(|word| !word.is_empty()).collect(),
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// True as long as this very process runs.
    pub fn alive(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started)
    }

    pub fn program(&self) -> &str {
        let path = self.arguments.first().map_or("", String::as_str);
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Identity of one of its namespaces: `pid`, `mnt`, `net`, …
    pub fn namespace(&self, kind: &str) -> Result<PathBuf> {
        let path = format!("/proc/{}/ns/{kind}", self.pid);
        fs::read_link(&path).with_context(|| format!("cannot read {path} of {}", self.program()))
    }

    /// Its pid in each PID namespace it is in, the innermost last.
    pub fn pids(&self) -> Result<Vec<i32>> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).context("no NSpid in the status")?;
        line.split_whitespace().map(|pid| Ok(pid.parse()?)).collect()
    }

    /// One line of its status, such as `Seccomp` or `NoNewPrivs`.
    pub fn status(&self, key: &str) -> Result<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        Ok(line.with_context(|| format!("no {key} in the status of {}", self.program()))?.trim().to_owned())
    }

    /// The effective user as it is called in the process's own user namespace.
    pub fn user_inside(&self) -> Result<u32> {
        let map = fs::read_to_string(format!("/proc/{}/uid_map", self.pid))?;
        let found = map.lines().find_map(|line| {
            let mut words = line.split_whitespace().map(str::parse::<u32>);
            let (inside, outside, count) = (words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?);
            self.uid.checked_sub(outside).filter(|offset| *offset < count).map(|offset| inside + offset)
        });
        found.with_context(|| format!("uid {} of {} is not in {map:?}", self.uid, self.program()))
    }

    /// Its cgroups, one `hierarchy:controllers:path` a line.
    pub fn cgroups(&self) -> String {
        fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default()
    }

    /// Resident and proportional memory in KiB.
    pub fn memory(&self) -> Result<Memory> {
        let path = format!("/proc/{}/smaps_rollup", self.pid);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let field = |name: &str| -> Result<u64> {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .with_context(|| format!("no {name} in {path}"))?;
            Ok(line.trim().trim_end_matches(" kB").parse()?)
        };
        Ok(Memory { rss: field("Rss:")?, pss: field("Pss:")? })
    }

    /// When it started, as time since boot, to a clock tick.
    pub fn since_boot(&self) -> Duration {
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_millis(self.started * 1000 / ticks)
    }

    pub fn kill(&self) -> Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid).context("not a pid")?;
        if self.alive() {
            match rustix::process::kill_process(pid, rustix::process::Signal::KILL) {
                // It was quicker.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Memory {
    pub rss: u64,
    pub pss: u64,
}

pub fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The processes of one host: those that name its data directory, those in its cgroups, and their children.
pub fn of_host(data_dir: &Path, instance: &str) -> Vec<Process> {
    let directory = data_dir.to_string_lossy();
    let group = format!("ferrovirt-{instance}");
    let own = std::process::id().cast_signed();
    let all = all();
    let mut found: Vec<Process> = all
        .iter()
        .filter(|process| process.pid != own)
        .filter(|process| {
            process.arguments.iter().any(|word| word.contains(&*directory)) || process.cgroups().contains(&group)
        })
        .cloned()
        .collect();
    loop {
        let more: Vec<Process> = all
            .iter()
            .filter(|process| !found.contains(process) && found.iter().any(|parent| parent.pid == process.parent))
            .cloned()
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// The QEMU that a libvirt domain name belongs to, among these.
pub fn qemu<'a>(processes: &'a [Process], namespace: &str, name: &str) -> Option<&'a Process> {
    let domain = format!("guest={namespace}_{name},");
    processes.iter().find(|process| {
        process.program().starts_with("qemu-system")
            && process.arguments.iter().any(|word| format!("{word},").starts_with(&domain))
    })
}
