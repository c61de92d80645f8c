//! cloud-hypervisor through libvirt's `ch` driver.
//!
//! No guest of anybody's ever ran in it: no machine of ours has a KVM that runs whole systems. docs/hypervisors.md says what was
//! tried. The rules are those of libvirt 11.3, whose driver defines every domain that the tests make.

use super::{Hypervisor, Overheads};
use crate::{
    features::Gap,
    overhead::MIB,
    spec::{Acceleration, MachineSpec},
    xml,
};

pub(super) struct CloudHypervisor;

impl Hypervisor for CloudHypervisor {
    fn name(&self) -> &'static str {
        "cloud-hypervisor"
    }

    fn image_suffix(&self) -> &'static str {
        "-cloud-hypervisor"
    }

    /// Not measured, for it never ran: the launcher and the daemon as for QEMU, the rest upstream's figure.
    fn overheads(&self, _acceleration: Acceleration) -> Overheads {
        Overheads { monitor: 2 * MIB, launcher: 16 * MIB, log_daemon: 0, daemon: 20 * MIB, hypervisor: 50 * MIB }
    }

    fn supports_iso(&self) -> bool {
        false
    }

    fn device(&self) -> Option<&'static str> {
        Some(ferrovirt_api::names::KVM_DEVICE)
    }

    fn can_emulate(&self) -> bool {
        false
    }

    fn runs_privileged(&self) -> bool {
        false
    }

    /// `vcpu3`.
    fn vcpu_of_thread(&self, name: &str) -> Option<u32> {
        name.strip_prefix("vcpu")?.parse().ok()
    }

    fn libvirt_socket(&self) -> &'static str {
        "/var/run/libvirt/libvirt-sock"
    }

    fn disk_driver(&self) -> &'static str {
        xml::cloud_hypervisor::DISK_DRIVER
    }

    fn requires_boot_order(&self) -> bool {
        false
    }

    /// The hypervisor has a balloon; libvirt's driver refuses the device.
    /// Its libvirt driver takes no log beside the socket.
    fn logs_console(&self) -> bool {
        false
    }

    fn supports_memory_ballooning(&self) -> bool {
        false
    }

    fn gaps(&self) -> &'static [Gap] {
        GAPS
    }

    fn domain_xml(&self, spec: &MachineSpec) -> String {
        xml::cloud_hypervisor::domain_xml(spec)
    }
}

const fn gap(feature: &'static str, reason: &'static str) -> Gap {
    Gap { feature, reason }
}

const REFUSED: &str = "libvirt's ch driver refuses this device";
const NO_OVERLAYS: &str = "cloud-hypervisor opens no image that is based on another; use a claim in file system mode";
const NOT_TRIED: &str = "this was never tried with cloud-hypervisor";

const GAPS: &[Gap] = &[
    gap("accessCredentials", "there is no channel to a guest agent; use cloud-init data"),
    gap("blockSizeMatchVolume", "libvirt's ch driver has no block sizes"),
    gap("bootloader", "the firmware is always cloud-hypervisor's own EDK2; leave the bootloader out"),
    gap("changedBlockTracking", NO_OVERLAYS),
    gap("containerDisk", NO_OVERLAYS),
    gap("containerPath", "paths of the launcher's container are not shared with guests"),
    gap("cpuModel", "the guest always has the node's CPU"),
    gap("dedicatedCpus", "CPUs are not pinned yet"),
    gap("downwardMetrics", REFUSED),
    gap("efiPersistent", "the EFI variable store is not kept"),
    gap("efiSecureBoot", "its firmware has no secure boot; set secureBoot to false"),
    gap("emptyDisk", "libvirt's ch driver does not say which format a disk has; use a claim in file system mode"),
    gap("ephemeralVolume", NO_OVERLAYS),
    gap("filesystems", REFUSED),
    gap("gpus", NOT_TRIED),
    gap("graphics", "cloud-hypervisor has no screen; use the console"),
    gap("hostDevices", NOT_TRIED),
    gap("hugepages", NOT_TRIED),
    gap("launchSecurity", NOT_TRIED),
    gap("liveMigration", "libvirt's ch driver does not migrate"),
    gap("lunReservation", "there is no SCSI in cloud-hypervisor"),
    gap("memoryDump", "libvirt's ch driver does not dump memory"),
    gap("memoryHotplug", "memory is not plugged into running machines yet"),
    gap("multus", "only the pod network is connected yet"),
    gap("networkBindingPlugin", "network binding plugins are not called"),
    gap("networkResourceClaim", "networks from resource claims are not connected"),
    gap("numaPassthrough", "the guest's NUMA nodes are not mapped to the host's yet"),
    gap("panicDevices", REFUSED),
    gap("passt", "libvirt's ch driver does not know passt; use masquerade or bridge"),
    gap("realtime", "vCPU threads do not get a real-time scheduler yet"),
    gap("resourceClaims", "devices from resource claims are not passed through"),
    gap("sound", REFUSED),
    gap("sriov", NOT_TRIED),
    gap("startPaused", "libvirt's ch driver starts no machine that stands still; pause it when it runs"),
    gap("tpm", REFUSED),
    gap("tpmPersistent", REFUSED),
    gap("usbRedirection", "there is no USB in cloud-hypervisor"),
    gap("utilityVolumes", "utility volumes are not mounted yet"),
    gap("vsock", "vsock devices are not given out yet"),
    gap("watchdog", REFUSED),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpu_threads_are_told_from_others() {
        for (name, expected) in [("vcpu0", Some(0)), ("vcpu12", Some(12)), ("vcpu", None), ("vmm", None)] {
            assert_eq!(CloudHypervisor.vcpu_of_thread(name), expected, "{name}");
        }
    }
}
