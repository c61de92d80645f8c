//! System containers through libvirt's LXC driver: an init on a tree of files, on the node's own kernel.
//!
//! The driver needs root in its pod, for mounts, cgroups and the guest's network. The guest never has it: its root is an
//! unprivileged user of the node, from a range that no other guest shares.

use super::{Guest, Hypervisor, Overheads};
use crate::{
    features::Gap,
    overhead::MIB,
    spec::{Acceleration, MachineSpec},
    xml,
};

pub(super) struct Lxc;

impl Hypervisor for Lxc {
    fn name(&self) -> &'static str {
        "lxc"
    }

    fn guest(&self) -> Guest {
        Guest::Container
    }

    fn image_suffix(&self) -> &'static str {
        "-lxc"
    }

    /// Measured on Debian 12, 2026-11-16 (docs/benchmarks.md): 1.7, 11.1, 9.3 and 8.3 MiB, the same under load. A quarter is added.
    fn overheads(&self, _acceleration: Acceleration) -> Overheads {
        Overheads { monitor: 2 * MIB, launcher: 14 * MIB, log_daemon: 0, daemon: 12 * MIB, hypervisor: 11 * MIB }
    }

    fn supports_iso(&self) -> bool {
        false
    }

    fn device(&self) -> Option<&'static str> {
        None
    }

    fn can_emulate(&self) -> bool {
        false
    }

    fn runs_privileged(&self) -> bool {
        true
    }

    /// The guest's processes run on the node's CPUs themselves.
    fn vcpu_of_thread(&self, _name: &str) -> Option<u32> {
        None
    }

    fn libvirt_socket(&self) -> &'static str {
        "/var/run/libvirt/libvirt-sock"
    }

    fn disk_driver(&self) -> &'static str {
        ""
    }

    fn requires_boot_order(&self) -> bool {
        false
    }

    fn supports_memory_ballooning(&self) -> bool {
        false
    }

    fn gaps(&self) -> &'static [Gap] {
        GAPS
    }

    fn domain_xml(&self, spec: &MachineSpec) -> String {
        xml::lxc::domain_xml(spec)
    }
}

const fn gap(feature: &'static str, reason: &'static str) -> Gap {
    Gap { feature, reason }
}

const NO_HARDWARE: &str = "a container has no hardware of its own";
const NO_DISKS: &str = "a container has a root file system and cloud-init data, and no other disks";
const NO_PASSTHROUGH: &str = "devices of the node are not given to containers";

const GAPS: &[Gap] = &[
    gap("accessCredentials", "there is no guest agent in a container; use cloud-init data"),
    gap("blockSizeMatchVolume", NO_DISKS),
    gap("bootloader", "a container starts its /sbin/init, on the node's kernel"),
    gap("bridgeBinding", "the address of a pod is not handed to containers yet; use masquerade"),
    gap("changedBlockTracking", NO_DISKS),
    gap("containerPath", "paths of the launcher's container are not shared with guests"),
    gap("contentDisks", NO_DISKS),
    gap("cpuModel", "a container has the node's CPU"),
    gap("dedicatedCpus", "CPUs are not pinned yet"),
    gap("downwardMetrics", "host metrics are not passed to guests yet"),
    gap("efiPersistent", "a container has no firmware"),
    gap("efiSecureBoot", "a container has no firmware"),
    gap("emptyDisk", NO_DISKS),
    gap("ephemeralVolume", NO_DISKS),
    gap("filesystems", "directories of volumes are not shown in containers yet"),
    gap("gpus", NO_PASSTHROUGH),
    gap("graphics", "a container has no screen; use the console"),
    gap("hostDevices", NO_PASSTHROUGH),
    gap("hostDisk", "files of the node are not given to containers"),
    gap("hugepages", "a container's memory is the node's own"),
    gap("kernelBoot", "a container runs on the node's kernel"),
    gap("launchSecurity", "a container's memory is the node's own"),
    gap("liveMigration", "a running container cannot move to another node"),
    gap("lunReservation", NO_DISKS),
    gap("memoryDump", "there is no memory image of a container"),
    gap("memoryHotplug", "the memory of a running container is not changed yet"),
    gap("moreDisks", NO_DISKS),
    gap("multus", "only the pod network is connected yet"),
    gap("networkBindingPlugin", "network binding plugins are not called"),
    gap("networkResourceClaim", "networks from resource claims are not connected"),
    gap("numaPassthrough", "a container sees the node's NUMA nodes"),
    gap("panicDevices", NO_HARDWARE),
    gap("passt", "passt speaks to machines only; use masquerade"),
    gap("realtime", "a container's threads do not get a real-time scheduler"),
    gap("resourceClaims", "devices from resource claims are not passed through"),
    gap("sound", NO_HARDWARE),
    gap("sriov", NO_PASSTHROUGH),
    gap("startPaused", "the driver cannot start a container that stands still"),
    gap("tpm", NO_HARDWARE),
    gap("tpmPersistent", NO_HARDWARE),
    gap("usbRedirection", NO_HARDWARE),
    gap("utilityVolumes", "utility volumes are not mounted yet"),
    gap("vsock", "a container shares the node's kernel, and with it the node's vsock"),
    gap("watchdog", NO_HARDWARE),
];
