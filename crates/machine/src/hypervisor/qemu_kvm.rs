//! QEMU, with KVM where the node has it and translation in software where the cluster allows it.

use super::{Hypervisor, Overheads};
use crate::{
    features::Gap,
    overhead::{DEFAULT_TRANSLATION_CACHE_MIB, MIB},
    spec::{Acceleration, MachineSpec},
    xml,
};

pub(super) struct QemuKvm;

impl Hypervisor for QemuKvm {
    fn name(&self) -> &'static str {
        super::DEFAULT
    }

    /// Measured on Debian 12, 2026-11-16, with one machine of 1 GiB (docs/benchmarks.md): under load the launcher has 12.9 MiB, the
    /// daemon 15.4, QEMU 151.9 with its screen, threads and a part of the translation cache, which are counted beside these.
    /// Hardware KVM was not measured: it never ran here, and its hypervisor figure is upstream's.
    fn overheads(&self, acceleration: Acceleration) -> Overheads {
        let hypervisor = match acceleration {
            Acceleration::Hardware => 50 * MIB,
            Acceleration::Emulation => (60 + u64::from(DEFAULT_TRANSLATION_CACHE_MIB)) * MIB,
        };
        // QEMU writes its log itself, so there is no log daemon.
        Overheads { monitor: 2 * MIB, launcher: 16 * MIB, log_daemon: 0, daemon: 20 * MIB, hypervisor }
    }

    fn supports_iso(&self) -> bool {
        true
    }

    fn device(&self) -> Option<&'static str> {
        Some(ferrovirt_api::names::KVM_DEVICE)
    }

    fn can_emulate(&self) -> bool {
        true
    }

    fn runs_privileged(&self) -> bool {
        false
    }

    /// `CPU 3/KVM` or `CPU 3/TCG`.
    fn vcpu_of_thread(&self, name: &str) -> Option<u32> {
        let (number, kind) = name.strip_prefix("CPU ")?.split_once('/')?;
        matches!(kind, "KVM" | "TCG").then(|| number.parse().ok()).flatten()
    }

    fn libvirt_socket(&self) -> &'static str {
        "/var/run/libvirt/libvirt-sock"
    }

    fn disk_driver(&self) -> &'static str {
        "qemu"
    }

    fn requires_boot_order(&self) -> bool {
        false
    }

    fn supports_memory_ballooning(&self) -> bool {
        true
    }

    fn gaps(&self) -> &'static [Gap] {
        GAPS
    }

    fn domain_xml(&self, spec: &MachineSpec) -> String {
        xml::domain_xml(spec)
    }
}

const fn gap(feature: &'static str, reason: &'static str) -> Gap {
    Gap { feature, reason }
}

const GAPS: &[Gap] = &[
    gap("blockSizeMatchVolume", "the block size of a volume is not read yet; give a custom one"),
    gap("changedBlockTracking", "changes of blocks are not tracked yet"),
    gap("containerPath", "paths of the launcher's container are not shared with guests"),
    gap("gpus", "GPUs are not passed through yet"),
    gap("hostDevices", "host devices are not passed through yet"),
    gap("launchSecurity", "encrypted guests need hardware that was never tested"),
    gap("lunReservation", "there is no helper for persistent reservations"),
    gap("memoryDump", "memory dumps are not written yet"),
    gap("memoryHotplug", "memory is not plugged into running machines yet"),
    gap("networkBindingPlugin", "network binding plugins are not called"),
    gap("networkResourceClaim", "networks from resource claims are not connected"),
    gap("passt", "passt is not started yet; use masquerade or bridge"),
    gap("realtime", "vCPU threads do not get a real-time scheduler yet"),
    gap("resourceClaims", "devices from resource claims are not passed through"),
    gap("sriov", "SR-IOV functions are not passed through yet"),
    gap("usbRedirection", "USB devices of clients are not redirected yet"),
    gap("utilityVolumes", "utility volumes are not mounted yet"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpu_threads_are_told_from_others() {
        for (name, expected) in [
            ("CPU 0/KVM", Some(0)),
            ("CPU 12/TCG", Some(12)),
            ("CPU 0/HVF", None),
            ("CPU x/KVM", None),
            ("IO mon_iothread", None),
            ("qemu-system-x86", None),
        ] {
            assert_eq!(QemuKvm.vcpu_of_thread(name), expected, "{name}");
        }
    }
}
