//! What the machine and its pods use, for `kubectl top`: the numbers of a kubelet's summary.

use std::{collections::BTreeMap, fs, time::Instant};

use crate::cgroup::{CgroupError, Hierarchy, Used};
use crate::sandbox::{cgroup_child, cgroup_parent};

/// Ticks of a second in the files below /proc, whatever the kernel counts with.
const USER_HZ: u64 = 100;

/// Everything at one moment. Processor time only grows, as long as a pod lives.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub at: Instant,
    pub node: Used,
    /// By uid; pods that have no processes here are left out.
    pub pods: BTreeMap<String, Used>,
}

/// Looks at these pods of an instance.
pub fn look<'a>(instance: &str, uids: impl IntoIterator<Item = &'a str>) -> Result<Snapshot, CgroupError> {
    let hierarchy = Hierarchy::detect()?;
    let parent = cgroup_parent(instance);
    let used = |uid: &str| hierarchy.used(&format!("{parent}/{}", cgroup_child(uid)));
    let pods = uids.into_iter().filter_map(|uid| Some((uid.to_owned(), used(uid)?))).collect();
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let node = machine(&read("/proc/stat"), &read("/proc/meminfo"), USER_HZ);
    Ok(Snapshot { at: Instant::now(), node, pods })
}

/// All of the machine, whoever uses it: its files count processor time in ticks and memory in KiB.
fn machine(stat: &str, meminfo: &str, ticks_per_second: u64) -> Used {
    let times = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let times: Vec<u64> = times.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
    let busy = [0, 1, 2, 5, 6, 7]
        .iter()
        .filter_map(|index| times.get(*index))
        .fold(0u64, |sum, time| sum.saturating_add(*time));
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let held = kib("MemTotal").saturating_sub(kib("MemFree")).saturating_sub(kib("Inactive(file)"));
    Used {
        cpu_nanos: busy.saturating_mul(1_000_000_000 / ticks_per_second.max(1)),
        memory_bytes: held.saturating_mul(1024),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_counts_what_is_busy_and_held() {
        let stat = "cpu  100 10 50 9999 500 1 2 3 77 0\ncpu0 1 1 1 1\n";
        let meminfo =
            "MemTotal:       1000 kB\nMemFree:         200 kB\nMemAvailable:    700 kB\nInactive(file):  300 kB\n";
        assert_eq!(machine(stat, meminfo, 100), Used { cpu_nanos: 166 * 10_000_000, memory_bytes: 500 * 1024 });
        assert_eq!(machine("", "", 0), Used::default());
    }

    #[test]
    fn this_machine_is_busy() {
        let snapshot = look("000000", ["no-such-pod"]);
        // A sandbox without cgroups has none to look at.
        if let Ok(snapshot) = snapshot {
            assert!(snapshot.node.cpu_nanos > 0 && snapshot.node.memory_bytes > 0, "{snapshot:?}");
            assert!(snapshot.pods.is_empty());
        }
    }
}
