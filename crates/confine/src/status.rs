//! How a process is held, as the kernel tells.

use std::fs;
use std::io;

/// From `/proc/<pid>/status`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Confinement {
    /// Its system calls go through a filter.
    pub is_filtered: bool,
    /// Nothing it runs gets more privileges than it has.
    pub no_new_privileges: bool,
}

/// True where a driver can say which devices a container may use by no other means than a program for the kernel: version 1
/// of cgroups has files for that.
pub fn devices_need_bpf() -> bool {
    fs::read_to_string("/proc/self/cgroup").is_ok_and(|text| !has_devices(&text))
}

fn has_devices(cgroups: &str) -> bool {
    let mut hierarchies = cgroups.lines().filter_map(|line| line.split(':').nth(1));
    hierarchies.any(|names| names.split(',').any(|name| name == "devices"))
}

/// `process` is its directory, such as `/proc/self`.
pub fn of_process(process: &str) -> io::Result<Confinement> {
    Ok(parse(&fs::read_to_string(format!("{process}/status"))?))
}

fn parse(status: &str) -> Confinement {
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    Confinement { is_filtered: value("Seccomp") == Some("2"), no_new_privileges: value("NoNewPrivs") == Some("1") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_version_1_has_files_for_devices() {
        assert!(has_devices("9:name=systemd:/\n5:devices:/a\n0::/\n") && has_devices("4:freezer,devices:/\n"));
        assert!(!has_devices("0::/user.slice\n") && !has_devices("5:memory:/devices\n0::/\n"));
    }

    #[test]
    fn the_two_lines_are_told_from_those_that_begin_alike() {
        let text = "Name:\tx\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n";
        assert_eq!(parse(text), Confinement { is_filtered: true, no_new_privileges: true });
        assert_eq!(parse("NoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t2\n"), Confinement::default());
    }
}
