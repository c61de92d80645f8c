//! CPU model, topology and features.

use ferrovirt_api::v1::{self, DomainSpec};

use super::{Conversion, arch, memory, resource};
use crate::spec::{Cpu, CpuFeature, CpuMode, CpuPolicy, NumaCell, Topology, VcpuSlot};

const HOST_MODEL: &str = "host-model";
const HOST_PASSTHROUGH: &str = "host-passthrough";

pub(super) fn convert(c: &mut Conversion<'_>) -> Cpu {
    let spec_cpu = c.vmi.spec.domain.cpu.as_ref();
    let requested = topology(&c.vmi.spec.domain);
    let (topology, vcpus, slots) = with_hotplug(c, requested, spec_cpu);
    let cpu =
        Cpu { mode: mode(c, spec_cpu), features: features(c, spec_cpu), topology, vcpus, slots, ..Cpu::default() };
    Cpu { numa: synthetic_numa(c, cpu.vcpus), ..cpu }
}

/// The topology the VMI asks for, without room to grow.
pub(crate) fn topology(domain: &DomainSpec) -> Topology {
    let (cores, sockets, threads) = domain.cpu.as_ref().map_or((0, 0, 0), |cpu| (cpu.cores, cpu.sockets, cpu.threads));
    if (cores, sockets, threads) != (0, 0, 0) {
        return Topology { sockets: sockets.max(1), cores: cores.max(1), threads: threads.max(1) };
    }
    // Sockets, because guests do best with them when nothing was said.
    let wanted = resource(&domain.resources.limits, "cpu").or_else(|| resource(&domain.resources.requests, "cpu"));
    let sockets = wanted.map_or(1, |quantity| u32::try_from(quantity.value()).unwrap_or(1));
    Topology { sockets, cores: 1, threads: 1 }
}

pub(crate) fn vcpus(topology: &Topology) -> u32 {
    topology.sockets.saturating_mul(topology.cores).saturating_mul(topology.threads)
}

/// With a maximum of sockets all of them are there from the start, but only the requested ones are plugged.
fn with_hotplug(c: &Conversion<'_>, requested: Topology, cpu: Option<&v1::CPU>) -> (Topology, u32, Vec<VcpuSlot>) {
    let enabled = vcpus(&requested);
    let max_sockets = cpu.map_or(0, |cpu| cpu.max_sockets);
    if max_sockets == 0 || !arch::has_cpu_hotplug(c.ctx.arch) {
        return (requested, enabled, Vec::new());
    }
    let full = Topology { sockets: max_sockets, ..requested };
    let count = vcpus(&full);
    let fixed = full.cores.saturating_mul(full.threads);
    let slots =
        (0..count).map(|id| VcpuSlot { id, enabled: id < enabled, hotpluggable: id >= fixed }).collect::<Vec<_>>();
    (full, count, slots)
}

fn mode(c: &Conversion<'_>, cpu: Option<&v1::CPU>) -> CpuMode {
    match cpu.map_or("", |cpu| cpu.model.as_str()) {
        "" | HOST_MODEL | HOST_PASSTHROUGH if c.ctx.allow_cross_arch_emulation => CpuMode::Custom("max".into()),
        "" | HOST_MODEL => CpuMode::HostModel,
        // libvirt refuses this without hardware virtualization; upstream's machine would not start.
        HOST_PASSTHROUGH if c.ctx.adapts_to_emulation() => CpuMode::Maximum,
        HOST_PASSTHROUGH => CpuMode::HostPassthrough,
        model => CpuMode::Custom(model.into()),
    }
}

fn features(c: &mut Conversion<'_>, cpu: Option<&v1::CPU>) -> Vec<CpuFeature> {
    let Some(cpu) = cpu else { return Vec::new() };
    let mut features = vec![];
    for (index, feature) in cpu.features.iter().enumerate() {
        let policy = CpuPolicy::parse(&feature.policy);
        if policy.is_none() && !feature.policy.is_empty() {
            let field = format!("spec.domain.cpu.features[{index}].policy");
            c.refuse(field, format!("{:?} is none of force, require, optional, disable and forbid", feature.policy));
        }
        features.push(CpuFeature { name: feature.name.clone(), policy });
    }
    let is_host_cpu = cpu.model == HOST_MODEL || cpu.model == HOST_PASSTHROUGH;
    if arch::needs_mpx_disabled(c.ctx.arch) && !is_host_cpu && !features.iter().any(|f| f.name == "mpx") {
        features.push(CpuFeature { name: "mpx".into(), policy: Some(CpuPolicy::Disable) });
    }
    features
}

/// Shared memory by memfd needs a NUMA cell to hang on.
fn synthetic_numa(c: &mut Conversion<'_>, vcpus: u32) -> Vec<NumaCell> {
    let has_numa = c.vmi.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.numa.is_some());
    if has_numa || !arch::has_memfd(c.ctx.arch) || !memory::needs_memfd(c.vmi) {
        return Vec::new();
    }
    let bytes = memory::guest_memory(c);
    vec![NumaCell { cpus: format!("0-{}", vcpus.saturating_sub(1)), bytes, ..NumaCell::default() }]
}
