//! What `/proc` tells of a launcher's processes.

use std::fs;

/// The kernel counts CPU time in hundredths of a second, on every architecture that we know.
const TICKS: f64 = 100.0;
const PAGE: u64 = 4096;

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub user: f64,
    pub system: f64,
    pub resident: u64,
    /// Number and seconds of each virtual CPU.
    pub virtual_cpus: Vec<(u32, f64)>,
}

/// The process that runs the guest: a child of the launcher, which is the first process of its namespace.
pub(crate) fn hypervisor(launcher: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).ok()?;
    let mut pids = children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
    pids.find(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("qemu-")))
}

pub(crate) fn usage(pid: i32) -> Option<Usage> {
    let (user, system) = times(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    let mut usage = Usage { user, system, resident: pages * PAGE, virtual_cpus: vec![] };
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        let Some(id) = virtual_cpu(&name) else { continue };
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        if let Some((user, system)) = times(&stat) {
            usage.virtual_cpus.push((id, user + system));
        }
    }
    Some(usage)
}

/// User and system seconds. The name before them may contain anything, so they are counted from its closing bracket.
fn times(stat: &str) -> Option<(f64, f64)> {
    let after = stat.get(stat.rfind(')')? + 1..)?;
    let mut fields = after.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok().map(|ticks| ticks / TICKS);
    Some((next()?, next()?))
}

/// QEMU names its threads `CPU 0/KVM` or `CPU 0/TCG`.
fn virtual_cpu(thread: &str) -> Option<u32> {
    thread.strip_prefix("CPU ")?.split('/').next()?.trim().parse().ok()
}

/// The guests' interfaces in a `net/dev` table, with all sixteen counters.
pub(crate) fn taps(table: &str) -> Vec<(String, [u64; 16])> {
    let lines = table.lines().filter_map(|line| {
        let (name, counters) = line.split_once(':')?;
        let name = name.trim();
        let values: Vec<u64> = counters.split_whitespace().filter_map(|value| value.parse().ok()).collect();
        Some((name.to_owned(), values.try_into().ok()?)).filter(|_| name.starts_with("tap"))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 0 0 0 250 75 0 0 20 0 4 0 100 0 0";
        assert_eq!(times(stat), Some((2.5, 0.75)));
        assert_eq!((virtual_cpu("CPU 3/TCG\n"), virtual_cpu("qemu-system-x86")), (Some(3), None));
        let table = "Inter-|   Receive  |  Transmit\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n\
            \x20 tap0: 10 2 0 1 0 0 0 0 20 3 0 0 0 0 0 0\n";
        let found = taps(table);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0.as_str(), found[0].1[0], found[0].1[8]), ("tap0", 10, 20));
    }

    #[test]
    fn this_process_uses_something() {
        let usage = usage(std::process::id() as i32).unwrap();
        assert!(usage.resident > 0);
    }
}
