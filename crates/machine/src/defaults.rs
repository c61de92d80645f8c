//! What a VMI means where it says nothing, as upstream fills it in at admission.
//!
//! All of this is idempotent: applying it to an object that went through it changes nothing.

use std::collections::BTreeSet;

use ferrovirt_api::{
    Quantity,
    v1::{
        Bootloader, CPU, Diag288Watchdog, Disk, DiskTarget, EFI, FeatureHyperv, FeatureState, Features, Firmware,
        I6300ESBWatchdog, Interface, InterfaceMasquerade, Machine, Memory, Network, PodNetwork, Probe,
        VirtualMachineInstance, VirtualMachineInstanceSpec,
    },
};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;

use crate::{
    convert::{cpu, default_machine_type},
    hypervisor,
    spec::Arch,
};

/// Everything below in upstream's order. Admission applies it, so that what is stored says what will run.
pub fn apply(vmi: &mut VirtualMachineInstance, arch: Arch) {
    let spec = &mut vmi.spec;
    if spec.architecture.is_empty() {
        spec.architecture = arch.go_name().into();
    }
    spec.hypervisor.get_or_insert_with(|| hypervisor::DEFAULT.into());
    machine_type(spec, default_machine_type(arch));
    resource_requests(spec);
    guest_memory(spec);
    guest_cpus(spec);
    pull_policies(spec);
    default_network(spec);
    disks_of_volumes(spec);
    machine(vmi, arch, "host-model");
}

/// What is left when size, network and disks are settled: the devices' own defaults, and those of the architecture.
pub fn machine(vmi: &mut VirtualMachineInstance, arch: Arch, cpu_model: &str) {
    if arch == Arch::S390x {
        // There is no ACPI on s390x.
        vmi.spec.domain.features.get_or_insert_default().acpi.enabled.get_or_insert(false);
    }
    object(vmi);
    hyperv_dependencies(&mut vmi.spec);
    for_arch(&mut vmi.spec, arch);
    let cpu = vmi.spec.domain.cpu.get_or_insert_default();
    if cpu.model.is_empty() {
        cpu.model = cpu_model.into();
    }
}

/// What upstream's API types fill in by themselves, on any architecture.
pub fn object(vmi: &mut VirtualMachineInstance) {
    let uid = vmi.metadata.uid.clone().unwrap_or_default();
    let domain = &mut vmi.spec.domain;
    let firmware: &mut Firmware = domain.firmware.get_or_insert_default();
    if firmware.uuid.is_empty() {
        // Upstream draws one at random; the object's own is as unique, and needs no dice.
        firmware.uuid = uid;
    }
    let features: &mut Features = domain.features.get_or_insert_default();
    enable(&mut features.acpi);
    if let Some(apic) = &mut features.apic {
        apic.enabled.get_or_insert(true);
    }
    features.smm.iter_mut().for_each(enable);
    features.pvspinlock.iter_mut().for_each(enable);
    features.hyperv.iter_mut().for_each(hyperv);
    if let Some(timers) = domain.clock.as_mut().and_then(|clock| clock.timer.as_mut()) {
        timers.hpet.iter_mut().for_each(|timer| set(&mut timer.present));
        timers.kvm.iter_mut().for_each(|timer| set(&mut timer.present));
        timers.pit.iter_mut().for_each(|timer| set(&mut timer.present));
        timers.rtc.iter_mut().for_each(|timer| set(&mut timer.present));
        timers.hyperv.iter_mut().for_each(|timer| set(&mut timer.present));
    }
    for disk in &mut domain.devices.disks {
        if disk.disk.is_none() && disk.lun.is_none() && disk.cdrom.is_none() {
            disk.disk = Some(DiskTarget::default());
        }
        if let Some(cdrom) = &mut disk.cdrom {
            cdrom.readonly.get_or_insert(true);
            if cdrom.tray.is_empty() {
                cdrom.tray = "closed".into();
            }
        }
        disk.block_size.iter_mut().filter_map(|size| size.match_volume.as_mut()).for_each(enable);
    }
    let displays = domain.devices.gpus.iter_mut().filter_map(|gpu| gpu.virtual_gpu_options.as_mut()?.display.as_mut());
    displays.filter_map(|display| display.ram_fb.as_mut()).for_each(enable);
    for input in &mut domain.devices.inputs {
        if input.bus.is_empty() {
            input.bus = "usb".into();
        }
        if input.type_.is_empty() {
            input.type_ = "tablet".into();
        }
    }
    vmi.spec.liveness_probe.iter_mut().chain(&mut vmi.spec.readiness_probe).for_each(probe);
}

/// What the architecture decides: buses, firmware, watchdog.
pub fn for_arch(spec: &mut VirtualMachineInstanceSpec, arch: Arch) {
    let domain = &mut spec.domain;
    if arch == Arch::Aarch64 {
        let cpu: &mut CPU = domain.cpu.get_or_insert_default();
        if cpu.model.is_empty() {
            cpu.model = "host-passthrough".into();
        }
        let firmware = domain.firmware.get_or_insert_default();
        let bootloader = firmware
            .bootloader
            .get_or_insert_with(|| Bootloader { efi: Some(EFI::default()), ..Bootloader::default() });
        if let Some(efi) = &mut bootloader.efi {
            efi.secure_boot.get_or_insert(false);
        }
    }
    let bus = if arch == Arch::X86_64 { "sata" } else { "virtio" };
    for disk in &mut domain.devices.disks {
        let buses = [
            disk.disk.as_mut().map(|target| &mut target.bus),
            disk.cdrom.as_mut().map(|target| &mut target.bus),
            disk.lun.as_mut().map(|target| &mut target.bus),
        ];
        for target in buses.into_iter().flatten().filter(|target| target.is_empty()) {
            *target = bus.into();
        }
    }
    if let Some(watchdog) = &mut domain.devices.watchdog {
        let action = match arch {
            Arch::X86_64 => Some(&mut watchdog.i6300esb.get_or_insert_with(I6300ESBWatchdog::default).action),
            Arch::S390x => Some(&mut watchdog.diag288.get_or_insert_with(Diag288Watchdog::default).action),
            Arch::Aarch64 => None,
        };
        if let Some(action) = action.filter(|action| action.is_empty()) {
            *action = "reset".into();
        }
    }
}

pub fn machine_type(spec: &mut VirtualMachineInstanceSpec, default: &str) {
    let machine: &mut Machine = spec.domain.machine.get_or_insert_default();
    if machine.type_.is_empty() {
        machine.type_ = default.into();
    }
}

/// Whoever limits CPU time asks for as much, unless less was asked for.
pub fn resource_requests(spec: &mut VirtualMachineInstanceSpec) {
    let resources = &mut spec.domain.resources;
    let asked = resources.requests.get("cpu").is_some_and(is_something);
    if let Some(limit) = resources.limits.get("cpu").filter(|limit| is_something(limit) && !asked) {
        resources.requests.insert("cpu".into(), limit.clone());
    }
}

fn is_something(quantity: &WireQuantity) -> bool {
    Quantity::try_from(quantity).is_ok_and(|quantity| !quantity.is_zero())
}

/// As many sockets as CPUs were asked for, if nothing was said of the topology.
pub fn guest_cpus(spec: &mut VirtualMachineInstanceSpec) {
    let topology = cpu::topology(&spec.domain);
    let cpu = spec.domain.cpu.get_or_insert_default();
    if (cpu.cores, cpu.sockets, cpu.threads) == (0, 0, 0) {
        (cpu.sockets, cpu.cores, cpu.threads) = (topology.sockets, topology.cores, topology.threads);
    }
}

pub fn guest_memory(spec: &mut VirtualMachineInstanceSpec) {
    let resources = &spec.domain.resources;
    let memory: &mut Memory = spec.domain.memory.get_or_insert_default();
    if memory.guest.is_some() {
        return;
    }
    let set = |quantity: &&WireQuantity| is_something(quantity);
    let pages = memory.hugepages.as_ref().map(|pages| pages.page_size.clone());
    memory.guest = resources
        .requests
        .get("memory")
        .filter(set)
        .or_else(|| resources.limits.get("memory").filter(set))
        .cloned()
        .or_else(|| pages.filter(|size| Quantity::parse(size).is_ok()).map(WireQuantity));
}

pub fn pull_policies(spec: &mut VirtualMachineInstanceSpec) {
    for disk in spec.volumes.iter_mut().filter_map(|volume| volume.container_disk.as_mut()) {
        if disk.image_pull_policy.is_empty() {
            let is_moving = disk.image.ends_with(":latest") || !disk.image.contains([':', '@']);
            disk.image_pull_policy = if is_moving { "Always" } else { "IfNotPresent" }.into();
        }
    }
}

fn default_network(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    let said = !spec.networks.is_empty() || !devices.interfaces.is_empty();
    if devices.autoattach_pod_interface == Some(false) || said {
        return;
    }
    // Upstream's default is a bridge; masquerade is what live migration needs, and what its documentation recommends.
    devices.interfaces = vec![Interface {
        name: "default".into(),
        masquerade: Some(InterfaceMasquerade::default()),
        ..Interface::default()
    }];
    spec.networks = vec![Network { name: "default".into(), pod: Some(PodNetwork::default()), ..Network::default() }];
}

fn disks_of_volumes(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    let disks = devices.disks.iter().map(|disk| disk.name.clone());
    let known: BTreeSet<String> = disks.chain(devices.filesystems.iter().map(|fs| fs.name.clone())).collect();
    for volume in spec.volumes.iter().filter(|volume| !known.contains(&volume.name)) {
        devices.disks.push(Disk { name: volume.name.clone(), ..Disk::default() });
    }
}

fn hyperv(hyperv: &mut FeatureHyperv) {
    let states = [
        &mut hyperv.relaxed,
        &mut hyperv.vapic,
        &mut hyperv.vpindex,
        &mut hyperv.runtime,
        &mut hyperv.synic,
        &mut hyperv.reset,
        &mut hyperv.frequencies,
        &mut hyperv.reenlightenment,
        &mut hyperv.ipi,
        &mut hyperv.evmcs,
    ];
    states.into_iter().flatten().for_each(enable);
    if let Some(spinlocks) = &mut hyperv.spinlocks
        && *spinlocks.enabled.get_or_insert(true)
    {
        spinlocks.spinlocks.get_or_insert(4096);
    }
    if let Some(timer) = &mut hyperv.synictimer {
        set(&mut timer.enabled);
        timer.direct.iter_mut().for_each(enable);
    }
    if let Some(vendor) = &mut hyperv.vendorid {
        set(&mut vendor.enabled);
    }
    if let Some(flush) = &mut hyperv.tlbflush {
        set(&mut flush.enabled);
        flush.direct.iter_mut().for_each(enable);
        flush.extended.iter_mut().for_each(enable);
    }
}

/// Some enlightenments do not work without others; those are switched on unless they were switched off. What contradicts
/// itself is left for admission to refuse, and what comes after it, too.
pub fn hyperv_dependencies(spec: &mut VirtualMachineInstanceSpec) {
    let Some(hyperv) = spec.domain.features.as_mut().and_then(|features| features.hyperv.as_mut()) else {
        return;
    };
    let on = |state: Option<&FeatureState>| state.is_some_and(|state| state.enabled == Some(true));
    let timer = hyperv.synictimer.as_ref().is_some_and(|timer| timer.enabled == Some(true));
    let flush = hyperv.tlbflush.as_ref().is_some_and(|flush| flush.enabled == Some(true));
    let require = |state: &mut Option<FeatureState>| *state.get_or_insert_default().enabled.get_or_insert(true);
    let evmcs = on(hyperv.evmcs.as_ref());
    let consistent = (!evmcs || require(&mut hyperv.vapic))
        && (!(on(hyperv.ipi.as_ref()) || flush) || require(&mut hyperv.vpindex))
        && (!timer || require(&mut hyperv.synic))
        && (!on(hyperv.synic.as_ref()) || require(&mut hyperv.vpindex));
    if consistent && evmcs {
        let features = &mut spec.domain.cpu.get_or_insert_default().features;
        match features.iter_mut().find(|feature| feature.name == "vmx") {
            Some(vmx) => vmx.policy = "require".into(),
            None => features.push(ferrovirt_api::v1::CPUFeature { name: "vmx".into(), policy: "require".into() }),
        }
    }
}

fn probe(probe: &mut Probe) {
    let at_least_one = |value: &mut i32, default: i32| {
        if *value < 1 {
            *value = default;
        }
    };
    at_least_one(&mut probe.timeout_seconds, 1);
    at_least_one(&mut probe.period_seconds, 10);
    at_least_one(&mut probe.success_threshold, 1);
    at_least_one(&mut probe.failure_threshold, 3);
}

fn enable(state: &mut FeatureState) {
    set(&mut state.enabled);
}

fn set(value: &mut Option<bool>) {
    value.get_or_insert(true);
}
