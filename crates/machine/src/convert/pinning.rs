//! Machines with CPUs of their own: which host CPU runs what, and the host's NUMA cells in the guest.

use ferrovirt_api::{Quantity, names, v1};

use super::{Conversion, HostTopology, cpu_pool::CpuPool, io_threads};
use crate::spec::{Cpu, HugePages, MachineSpec, NumaCell, Pinning, Topology};

/// Pins the machine's threads, if it asked for CPUs of its own.
pub(super) fn adjust(c: &mut Conversion<'_>, spec: &mut MachineSpec) {
    let vmi = c.vmi;
    let Some(cpu) = vmi.spec.domain.cpu.as_ref().filter(|cpu| cpu.dedicated_cpu_placement) else {
        return;
    };
    let ctx = c.ctx;
    let Some(host) = &ctx.topology else {
        c.refuse("spec.domain.cpu.dedicatedCpuPlacement", "the node's CPUs are not known");
        return;
    };
    let mirrors_host = cpu.numa.as_ref().is_some_and(|numa| numa.guest_mapping_passthrough.is_some());
    let mut pool = CpuPool::new(&plugged(&spec.cpu), host, &ctx.cpu_set, !mirrors_host);
    let vcpus = match pool.fit_cores(ctx.as_upstream) {
        Ok(cpus) => cpus,
        Err(message) => {
            c.refuse("spec.domain.cpu", message);
            return;
        }
    };
    let mut pinning = Pinning { vcpus: vcpus.iter().map(u32::to_string).collect(), ..Pinning::default() };
    let features = spec.features.get_or_insert_default();
    if vmi.spec.architecture == "amd64" {
        features.kvm_hint_dedicated = Some(true);
    }
    if cpu.realtime.is_some() {
        features.pmu = Some(false);
    }

    let supplemental = io_threads::supplemental(vmi);
    for _ in 0..supplemental {
        match pool.fit_thread() {
            Some(thread) => pinning.io_threads.push(thread.to_string()),
            None => c.refuse("spec.domain.ioThreads", "the node gave no CPU for the I/O threads"),
        }
    }
    if cpu.isolate_emulator_thread {
        pinning.emulator = emulator(c, cpu, supplemental, &mut pool);
    }
    if io_threads::plan(vmi).is_some() && supplemental == 0 {
        pinning.io_threads = io_thread_pins(c, cpu, spec.io_threads, pinning.emulator.as_deref());
    }
    spec.cpu.pinning = Some(pinning);
    if mirrors_host && !host.numa_cells.is_empty() {
        numa(c, cpu, host, &vcpus, spec);
    }
}

/// The topology without the sockets that are still to be plugged.
fn plugged(cpu: &Cpu) -> Topology {
    let missing = cpu.slots.iter().filter(|slot| !slot.enabled).count();
    let per_socket = usize::try_from(cpu.topology.cores.saturating_mul(cpu.topology.threads)).unwrap_or(1).max(1);
    let missing = u32::try_from(missing / per_socket).unwrap_or(0);
    Topology { sockets: cpu.topology.sockets.saturating_sub(missing), ..cpu.topology.clone() }
}

/// A CPU for the hypervisor's own threads, or two where that makes the machine's number of CPUs even.
fn emulator(c: &mut Conversion<'_>, cpu: &v1::CPU, supplemental: u32, pool: &mut CpuPool) -> Option<String> {
    let annotations = c.vmi.metadata.annotations.as_ref();
    let wants_even =
        annotations.is_some_and(|annotations| annotations.contains_key(names::EMULATOR_THREAD_COMPLETE_TO_EVEN_PARITY));
    let is_even = named_vcpus(cpu).saturating_add(supplemental).is_multiple_of(2);
    let wanted = if wants_even && is_even { 2 } else { 1 };
    let threads: Vec<String> = (0..wanted).filter_map(|_| pool.fit_thread()).map(|thread| thread.to_string()).collect();
    if threads.len() < wanted {
        c.refuse("spec.domain.cpu.isolateEmulatorThread", "the node gave no CPU for the emulator's threads");
    }
    Some(threads.join(","))
}

/// I/O threads share the vCPUs' CPUs, spread evenly, or the emulator's.
fn io_thread_pins(c: &mut Conversion<'_>, cpu: &v1::CPU, threads: Option<u32>, emulator: Option<&str>) -> Vec<String> {
    let cpus = &c.ctx.cpu_set;
    let vcpus = usize::try_from(named_vcpus(cpu)).unwrap_or(0);
    let Some(threads) = threads.and_then(|threads| usize::try_from(threads).ok()) else {
        c.refuse("spec.domain.ioThreadsPolicy", "there are no disks for I/O threads");
        return Vec::new();
    };
    if let Some(emulator) = emulator {
        return vec![emulator.into()];
    }
    if vcpus == 0 || cpus.len() < vcpus {
        c.refuse("spec.domain.cpu", "there are fewer CPUs than vCPUs to pin I/O threads to");
        return Vec::new();
    }
    if threads >= vcpus {
        return (1..=threads).filter_map(|thread| cpus.get(thread % vcpus)).map(u32::to_string).collect();
    }
    let mut rest: &[u32] = cpus;
    let mut pins = Vec::new();
    for thread in 0..threads {
        let share = vcpus / threads + usize::from(thread < vcpus % threads);
        let (mine, others) = rest.split_at(share.min(rest.len()));
        rest = others;
        pins.push(mine.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
    }
    pins
}

/// The vCPUs that the VMI names itself, without what defaults would add.
fn named_vcpus(cpu: &v1::CPU) -> u32 {
    let named = [cpu.cores, cpu.sockets, cpu.threads].into_iter().filter(|count| *count != 0);
    named.reduce(u32::saturating_mul).unwrap_or(0)
}

/// One cell of the guest for every cell of the host that runs one of its vCPUs.
fn numa(c: &mut Conversion<'_>, cpu: &v1::CPU, host: &HostTopology, vcpus: &[u32], spec: &mut MachineSpec) {
    let page = c.vmi.spec.domain.memory.as_ref().and_then(|memory| memory.hugepages.as_ref());
    let page = page.and_then(|pages| pages.page_size.parse::<Quantity>().ok()).map_or(0, |size| size.as_bytes());
    let Some(backing) = spec.memory.backing.as_mut().filter(|backing| backing.hugepages && page > 0) else {
        c.refuse("spec.domain.memory.hugepages", "mirroring the node's NUMA cells needs huge pages");
        return;
    };
    let mut cells: Vec<(u32, Vec<String>, &super::HostCell)> = Vec::new();
    for host_cell in &host.numa_cells {
        let here = |thread: &u32| host_cell.cpus.iter().any(|cpu| cpu.id == *thread);
        let mine: Vec<String> =
            vcpus.iter().enumerate().filter(|(_, thread)| here(thread)).map(|(vcpu, _)| vcpu.to_string()).collect();
        if !mine.is_empty() {
            cells.push((u32::try_from(cells.len()).unwrap_or(u32::MAX), mine, host_cell));
        }
    }
    let count = u64::try_from(cells.len()).unwrap_or(1).max(1);
    let pages = spec.memory.bytes / page;
    if !spec.memory.bytes.is_multiple_of(page) || pages < count {
        let message =
            format!("must be a multiple of the page size, with at least a page for each of {count} NUMA cells");
        c.refuse("spec.domain.memory.guest", message);
        return;
    }
    backing.allocate = true;
    backing.no_share_pages = cpu.realtime.is_some();
    for (id, mine, host_cell) in &cells {
        let guest_cell = |host: u32| cells.iter().find(|(_, _, cell)| cell.id == host).map(|(id, _, _)| *id);
        let distances = host_cell.distances.iter();
        // Pages that cannot be shared out evenly go to the first cells.
        let extra = u64::from(u64::from(*id) < pages % count);
        spec.cpu.numa.push(NumaCell {
            id: *id,
            cpus: mine.join(","),
            bytes: (pages / count + extra) * page,
            distances: distances.filter_map(|other| Some((guest_cell(other.id)?, other.value))).collect(),
            host_node: Some(host_cell.id),
            ..NumaCell::default()
        });
        backing.pages.push(HugePages { bytes: page, cell: *id });
    }
}
