//! Which thread serves which disk.

use ferrovirt_api::v1::{self, VirtualMachineInstance, values::io_threads_policy};

use super::resource;

/// The threads of a machine. Automatic ones come first and are dealt out in turn; dedicated ones follow, one per disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IoThreads {
    pub(super) total: u32,
    pub(super) automatic: u32,
    /// All threads serve all disks.
    pub(super) pool: Vec<u32>,
}

/// `None` if the machine uses no I/O threads.
pub(super) fn plan(vmi: &VirtualMachineInstance) -> Option<IoThreads> {
    let domain = &vmi.spec.domain;
    let policy = domain.io_threads_policy.as_deref();
    let dedicated = count(domain.devices.disks.iter().filter(|disk| is_dedicated(disk)).count());
    if policy.is_none() && dedicated == 0 {
        return None;
    }
    let supplemental = domain.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
    if let (Some(io_threads_policy::SUPPLEMENTAL_POOL), Some(threads)) = (policy, supplemental) {
        return Some(IoThreads { total: threads, automatic: 0, pool: (1..=threads).collect() });
    }
    let mut automatic = count(domain.devices.disks.len()) - dedicated;
    let limit = limit(vmi, policy);
    if automatic + dedicated > limit {
        automatic = limit.saturating_sub(dedicated).max(1);
    }
    Some(IoThreads { total: automatic + dedicated, automatic, pool: Vec::new() })
}

/// Threads of the pool that all disks share, if the machine has one.
pub(super) fn supplemental(vmi: &VirtualMachineInstance) -> u32 {
    plan(vmi).map_or(0, |threads| count(threads.pool.len()))
}

pub(super) fn is_dedicated(disk: &v1::Disk) -> bool {
    disk.dedicated_io_thread == Some(true)
}

fn limit(vmi: &VirtualMachineInstance, policy: Option<&str>) -> u32 {
    match policy {
        None | Some(io_threads_policy::SHARED) => 1,
        Some(io_threads_policy::AUTO) => {
            let cpu = vmi.spec.domain.cpu.as_ref();
            if cpu.is_some_and(|cpu| cpu.dedicated_cpu_placement && cpu.isolate_emulator_thread) {
                return 1;
            }
            let resources = &vmi.spec.domain.resources;
            let cpus = resource(&resources.requests, "cpu").or_else(|| resource(&resources.limits, "cpu"));
            2 * cpus.map_or(1, |cpus| u32::try_from(cpus.value()).unwrap_or(1))
        }
        Some(_) => 0,
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
