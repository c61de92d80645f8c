//! What a privileged container has more than others, and what it is denied all the same.
//!
//! A container driver mounts file systems, makes device nodes and cgroups. It gets the pod's own cgroups to do so in, never
//! the host's: the controllers are mounted inside a cgroup namespace, and only those in which the pod has a cgroup.

use std::fs;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use rustix::thread::CapabilitySet;

use crate::init::{InitError, fail, fail_errno};

/// Devices beside those of every container: file systems in user space show a guest its own memory limits.
pub(crate) const DEVICES: &[&str] = &["/dev/fuse"];

/// What belongs to the whole machine. The rest is needed by the driver, or inside the guest's own user namespace, which
/// can have no capability that its creator lacks.
const WITHHELD: &[CapabilitySet] = &[
    CapabilitySet::SYS_MODULE,
    CapabilitySet::SYS_RAWIO,
    CapabilitySet::SYS_TIME,
    CapabilitySet::SYS_PACCT,
    CapabilitySet::MAC_ADMIN,
    CapabilitySet::MAC_OVERRIDE,
    CapabilitySet::SYSLOG,
    CapabilitySet::WAKE_ALARM,
    CapabilitySet::BLOCK_SUSPEND,
    CapabilitySet::AUDIT_CONTROL,
    CapabilitySet::AUDIT_READ,
    CapabilitySet::PERFMON,
    CapabilitySet::BPF,
];

pub(crate) fn is_withheld(capability: CapabilitySet) -> bool {
    WITHHELD.contains(&capability)
}

/// Shows the pod's cgroups on `target`, in the caller's cgroup namespace.
pub(crate) fn mount_cgroups(target: &Path) -> Result<(), InitError> {
    let path = Path::new("/proc/self/cgroup");
    let text = fs::read_to_string(path).map_err(fail("read", path))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let hierarchies = own_hierarchies(&text);
    if hierarchies.is_empty() {
        return mount(Some("cgroup2"), target, Some("cgroup2"), flags, None::<&str>)
            .map_err(fail_errno("show cgroups on", target));
    }
    mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some("mode=0755,size=64k"))
        .map_err(fail_errno("show cgroups on", target))?;
    for name in hierarchies {
        let point = target.join(&name);
        fs::create_dir(&point).map_err(fail("create", &point))?;
        mount(Some("cgroup"), &point, Some("cgroup"), flags, Some(name.as_str()))
            .map_err(fail_errno("show cgroups on", &point))?;
    }
    Ok(())
}

/// The version 1 hierarchies in which every pod has a cgroup, by their mount option; none where there is only version 2.
fn own_hierarchies(proc_cgroup: &str) -> Vec<String> {
    let controllers = proc_cgroup.lines().filter_map(|line| line.split(':').nth(1));
    let own = controllers.filter(|names| names.split(',').any(|name| crate::cgroup::WANTED_V1.contains(&name)));
    own.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hierarchies_with_a_cgroup_of_the_pod_are_shown() {
        let hybrid = "9:name=systemd:/\n7:blkio:/\n5:devices:/\n4:memory:/\n2:cpu,cpuacct:/\n0::/\n";
        assert_eq!(own_hierarchies(hybrid), ["devices", "memory", "cpu,cpuacct"]);
        assert!(own_hierarchies("0::/\n").is_empty());
    }
}
