//! The cgroups that libvirt finds its processes in.
//!
//! With the first version of cgroups a container runtime mounts, as the top of each hierarchy, the container's own cgroup; but
//! the kernel says where a process is counted from the node's top, so no such directory is to be found. A cgroup namespace of
//! our own makes both agree. Where the hierarchies are whole, or a namespace is there already, nothing is to be done.

use std::fs;
use std::io;

use nix::sched::{CloneFlags, unshare};

/// Enters a cgroup namespace if paths would be wrong otherwise. A thread does so for itself and for what it starts, so this comes
/// before any other thread.
pub fn settle() -> io::Result<()> {
    if !rustix::process::geteuid().is_root() || !shows_a_part(&fs::read_to_string("/proc/self/mountinfo")?) {
        return Ok(());
    }
    Ok(unshare(CloneFlags::CLONE_NEWCGROUP)?)
}

/// True if a hierarchy is mounted with another top than its own.
fn shows_a_part(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let Some((place, source)) = line.split_once(" - ") else { return false };
        let root = place.split(' ').nth(3).unwrap_or("/");
        source.starts_with("cgroup") && root != "/"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_hierarchies_are_seen() {
        let line = |root: &str, kind: &str| {
            format!("30 24 0:26 {root} /sys/fs/cgroup/memory rw,nosuid shared:7 - {kind} {kind} rw,memory\n")
        };
        assert!(!shows_a_part(&line("/", "cgroup")));
        assert!(!shows_a_part(&line("/", "cgroup2")));
        assert!(!shows_a_part(&line("/volumes/a", "ext4")));
        assert!(shows_a_part(&(line("/", "tmpfs") + &line("/kubepods/pod1/2", "cgroup"))));
    }
}
