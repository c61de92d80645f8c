//! How much memory a machine's pod needs beside the guest's own.

use ferrovirt_api::{Quantity, v1::VirtualMachineInstance};

use crate::{
    convert::cpu,
    hypervisor::{Guest, Hypervisor, Overheads},
    spec::{Acceleration, Arch},
};

pub(crate) const MIB: u64 = 1 << 20;

/// Bound of the code translation cache of an emulated machine, unless the node says otherwise.
pub const DEFAULT_TRANSLATION_CACHE_MIB: u32 = 64;

/// What the daemon of one shared directory needs. Measured on Debian 12, 2026-11-16, virtiofsd 1.14: 1.7 MiB of its own and 2 of its
/// program with 3,000 files in use; the rest is for what the kernel keeps of files that the daemon holds open for the guest.
const SHARED_DIRECTORY: u64 = 16 * MIB;

/// The constants of upstream's formula.
const UPSTREAM: Overheads =
    Overheads { monitor: 25 * MIB, launcher: 100 * MIB, log_daemon: 25 * MIB, daemon: 40 * MIB, hypervisor: 50 * MIB };

/// Overhead in bytes. The pod is made before the node is known: a machine that may be emulated is counted as if it were.
pub fn memory_overhead(
    vmi: &VirtualMachineInstance,
    arch: Arch,
    driver: &dyn Hypervisor,
    may_be_emulated: bool,
) -> u64 {
    let acceleration = match may_be_emulated && driver.can_emulate() {
        true => Acceleration::Emulation,
        false => Acceleration::Hardware,
    };
    match driver.guest() {
        Guest::Machine => {
            let directories = u64::try_from(vmi.spec.domain.devices.filesystems.len()).unwrap_or(0);
            overhead(vmi, arch, driver.overheads(acceleration)) + SHARED_DIRECTORY * directories
        }
        // Page tables, devices and vCPU threads are a machine's.
        Guest::Container => driver.overheads(acceleration).total(),
    }
}

/// What upstream would ask for, to compare with.
pub fn upstream_memory_overhead(vmi: &VirtualMachineInstance, arch: Arch) -> u64 {
    overhead(vmi, arch, UPSTREAM)
}

fn overhead(vmi: &VirtualMachineInstance, arch: Arch, processes: Overheads) -> u64 {
    let domain = &vmi.spec.domain;
    let devices = &domain.devices;
    let parsed = |quantity: &_| Quantity::try_from(quantity).map(Quantity::as_bytes).unwrap_or(0);

    let request = domain.resources.requests.get("memory").map_or(0, parsed);
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref()).map_or(0, parsed);
    // One byte of page table for 512 of memory. Upstream looks at the request only, and so misses machines without one.
    let page_tables = request.max(guest).div_ceil(1000) * 1000 / 512;

    let vcpus = u64::from(cpu::vcpus(&cpu::topology(&vmi.spec.domain)).max(1));
    let mut total = page_tables + processes.total() + 8 * MIB * vcpus;
    // The thread that serves disks.
    total += 8 * MIB;
    if devices.autoattach_graphics_device != Some(false) {
        total += 32 * MIB;
    }
    if arch == Arch::Aarch64 {
        // Two flash devices of 64 MiB each for EFI.
        total += 128 * MIB;
    }
    if !devices.gpus.is_empty()
        || !devices.host_devices.is_empty()
        || devices.interfaces.iter().any(|i| i.sriov.is_some())
    {
        // Device memory of VFIO is locked beside the guest's.
        total += 1024 * MIB;
    }
    if vmi.spec.volumes.iter().any(|volume| volume.downward_metrics.is_some()) {
        total += MIB;
    }
    let probes = vmi.spec.liveness_probe.iter().chain(&vmi.spec.readiness_probe);
    let exec_probes = probes.filter(|probe| probe.exec.is_some()).count();
    if exec_probes > 0 {
        total += 100 * MIB + 10 * MIB * u64::try_from(exec_probes).unwrap_or(0);
    }
    let security = domain.launch_security.as_ref();
    if security.is_some_and(|security| security.sev.is_some() || security.snp.is_some()) {
        total += 256 * MIB;
    }
    if devices.tpm.as_ref().is_some_and(|tpm| tpm.enabled != Some(false)) {
        total += 53 * MIB;
    }
    if domain.cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement) || is_guaranteed(vmi) {
        total += 100 * MIB;
    }
    let reserved = domain.memory.as_ref().and_then(|memory| memory.reserved_overhead.as_ref());
    total + reserved.and_then(|reserved| reserved.added_overhead.as_ref()).map_or(0, parsed)
}

/// Requests equal limits, so that the pod is of the Guaranteed class.
pub fn is_guaranteed(vmi: &VirtualMachineInstance) -> bool {
    let resources = &vmi.spec.domain.resources;
    ["cpu", "memory"].iter().all(|name| {
        let (request, limit) = (resources.requests.get(*name), resources.limits.get(*name));
        limit.is_some() && (request.is_none() || request == limit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hypervisor;

    fn vmi(json: serde_json::Value) -> VirtualMachineInstance {
        serde_json::from_value(serde_json::json!({"spec": {"domain": json}})).unwrap()
    }

    #[test]
    fn upstream_figures() {
        let plain = vmi(serde_json::json!({"resources": {"requests": {"memory": "1Gi"}}}));
        let headless = vmi(serde_json::json!({
            "resources": {"requests": {"memory": "1Gi"}},
            "devices": {"autoattachGraphicsDevice": false}
        }));
        for (vmi, arch, expected) in
            [(&plain, Arch::X86_64, 290), (&headless, Arch::X86_64, 258), (&plain, Arch::Aarch64, 418)]
        {
            assert_eq!(upstream_memory_overhead(vmi, arch) / MIB, expected);
        }
    }

    #[test]
    fn ours_is_below_upstream() {
        let plain = vmi(serde_json::json!({"resources": {"requests": {"memory": "1Gi"}}}));
        let driver = hypervisor::hypervisor(hypervisor::DEFAULT).unwrap();
        let figure = |may_be_emulated| memory_overhead(&plain, Arch::X86_64, driver, may_be_emulated) / MIB;
        assert_eq!((figure(false), figure(true)), (138, 212));
        let mut shares = plain.clone();
        shares.spec.domain.devices.filesystems = vec![Default::default(), Default::default()];
        assert_eq!(memory_overhead(&shares, Arch::X86_64, driver, false) / MIB, 138 + 32);
    }
}
