//! A machine as libvirt domain XML.
//!
//! For `qemu-kvm` the text equals what KubeVirt's launcher hands to libvirt for the same VMI, element order included: the
//! order below is that of its schema, not of libvirt's documentation.

pub(crate) mod cloud_hypervisor;
mod devices;
mod disk;
mod element;
pub mod lxc;
mod parse;

pub use element::Element;
use element::{element, on_off, yes_no};
pub use parse::{ParseError, parse};

use crate::spec::{
    Acceleration, Boot, Clock, ClockOffset, Cpu, CpuMode, CpuPolicy, Features, Firmware, Hyperv, LaunchSecurity,
    MachineSpec, Memory, MemoryBacking, PciAddress, RebootAction, SystemInfo,
};

const QEMU_NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";
const KUBEVIRT_NAMESPACE: &str = "http://kubevirt.io";

/// The domain as text, without a final newline.
pub fn domain_xml(spec: &MachineSpec) -> String {
    let kind = match spec.acceleration {
        Acceleration::Hardware => "kvm",
        Acceleration::Emulation => "qemu",
    };
    let kind = spec.domain_type.as_deref().unwrap_or(kind);
    let mut domain = element("domain").attr("type", kind).attr("xmlns:qemu", QEMU_NAMESPACE);
    domain.push(element("name").text(&spec.name));
    memory(&mut domain, &spec.memory);
    domain.push(os(spec));
    domain.push_all(spec.system_info.as_ref().map(system_info));
    domain.push(devices::devices(&spec.devices));
    domain.push_all(spec.clock.as_ref().map(clock));
    domain.push_all(command_line(&spec.extra_arguments));
    // Upstream fills the uid in once the domain runs; the element is there from the start.
    let metadata = element("kubevirt").attr("xmlns", KUBEVIRT_NAMESPACE).child(element("uid"));
    domain.push(element("metadata").child(metadata));
    domain.push_all(spec.features.as_ref().map(|source| features(spec, source)));
    domain.push(cpu(&spec.cpu));
    domain.push(element("vcpu").attr("placement", "static").text(spec.cpu.vcpus));
    domain.push_all(slots(&spec.cpu));
    domain.push_all(cpu_tune(&spec.cpu));
    domain.push_all(numa_tune(&spec.cpu));
    domain.push_all(spec.io_threads.map(|threads| element("iothreads").text(threads)));
    domain.push_all(spec.launch_security.as_ref().map(launch_security));
    domain.push_all(spec.on_reboot.map(|action| {
        element("on_reboot").text(match action {
            RebootAction::Restart => "restart",
            RebootAction::Destroy => "destroy",
        })
    }));
    domain.push_all(spec.iommufd.then(|| element("iommufd").attr("enabled", "yes").attr("fdgroup", "iommu")));
    domain.to_string()
}

/// A PCI address as libvirt writes it.
fn pci_address(address: &PciAddress) -> Element {
    element("address")
        .attr("type", "pci")
        .attr("domain", format!("{:#06x}", address.domain))
        .attr("bus", format!("{:#04x}", address.bus))
        .attr("slot", format!("{:#04x}", address.slot))
        .attr("function", format!("{:#x}", address.function))
}

fn memory(domain: &mut Element, memory: &Memory) {
    domain.push(element("memory").attr("unit", "b").text(memory.bytes));
    domain.push_all(
        memory.max.as_ref().map(|max| element("maxMemory").attr("unit", "b").attr("slots", max.slots).text(max.bytes)),
    );
    domain.push_all(memory.backing.as_ref().map(memory_backing));
}

fn memory_backing(backing: &MemoryBacking) -> Element {
    let mut out = element("memoryBacking");
    out.push_all(backing.hugepages.then(|| {
        element("hugepages").children(
            backing
                .pages
                .iter()
                .map(|pages| element("page").attr("size", pages.bytes).attr("unit", "b").attr("nodeset", pages.cell)),
        )
    }));
    out.push_all(backing.source.as_ref().map(|source| element("source").attr("type", source)));
    out.push_all(backing.shared.then(|| element("access").attr("mode", "shared")));
    out.push_all(backing.allocate.then(|| element("allocation").attr("mode", "immediate")));
    out.push_all(backing.no_share_pages.then(|| element("nosharepages")));
    out
}

fn os(spec: &MachineSpec) -> Element {
    let firmware: &Firmware = &spec.firmware;
    let mut os = element("os");
    if let Boot::EfiAuto { features, .. } = &firmware.boot {
        os = os.attr("firmware", "efi");
        let features = features
            .iter()
            .map(|(name, enabled)| element("feature").attr("enabled", yes_no(*enabled)).attr("name", name));
        os.push(element("firmware").children(features));
    }
    let kind = element("type").attr("arch", spec.arch.name()).attr("machine", &firmware.machine_type);
    os.push(kind.text("hvm"));
    if !firmware.acpi_tables.is_empty() {
        let tables = firmware.acpi_tables.iter();
        let tables = tables.map(|table| element("table").attr("type", &table.kind).text(&table.path));
        os.push(element("acpi").children(tables));
    }
    os.push_all(firmware.smbios.then(|| element("smbios").attr("mode", "sysinfo")));
    os.push_all(firmware.boot_menu_ms.map(|ms| element("bootmenu").attr("enable", "yes").attr("timeout", ms)));
    match &firmware.boot {
        Boot::Bios { use_serial } => {
            os.push_all(use_serial.map(|serial| element("bios").attr("useserial", yes_no(serial))));
        }
        Boot::Efi { code, vars_template, nvram, secure } => {
            let kind = if nvram.is_empty() { "rom" } else { "pflash" };
            let loader = element("loader").attr("readonly", "yes").attr("secure", yes_no(*secure));
            os.push(loader.attr("type", kind).text(code));
            if !nvram.is_empty() {
                os.push(element("nvram").attr_set("template", vars_template).text(nvram));
            }
        }
        Boot::EfiAuto { nvram, .. } => {
            os.push_all(nvram.as_ref().map(|nvram| element("nvram").attr("format", "raw").text(nvram)));
        }
    }
    if let Some(kernel) = &firmware.kernel {
        os.push_all(text_element("kernel", &kernel.kernel));
        os.push_all(text_element("initrd", &kernel.initrd));
        os.push_all(text_element("cmdline", &kernel.arguments));
    }
    os
}

fn text_element(name: &'static str, text: &str) -> Option<Element> {
    (!text.is_empty()).then(|| element(name).text(text))
}

fn system_info(info: &SystemInfo) -> Element {
    let group = |name: &'static str, entries: &[(String, String)]| {
        let entries = entries.iter().map(|(name, value)| element("entry").attr("name", name).text(value));
        element(name).children(entries)
    };
    element("sysinfo")
        .attr("type", "smbios")
        .child(group("system", &info.system))
        .child(group("bios", &info.bios))
        .child(group("baseBoard", &info.base_board))
        .child(group("chassis", &info.chassis))
}

fn clock(clock: &Clock) -> Element {
    let timers = clock.timers.iter().map(|timer| {
        element("timer")
            .attr("name", &timer.name)
            .attr_some("tickpolicy", timer.tick_policy.as_ref())
            .attr_some("present", timer.present.map(yes_no))
            .attr_some("track", timer.track.as_ref())
            .attr_some("frequency", timer.frequency)
    });
    element("clock")
        .attr_some("offset", clock.offset.map(ClockOffset::name))
        .attr_some("timezone", clock.timezone.as_ref())
        .attr_some("adjustment", clock.adjustment.as_ref())
        .children(timers)
}

fn command_line(arguments: &[String]) -> Option<Element> {
    let values = arguments.iter().map(|argument| element("qemu:arg").attr("value", argument));
    (!arguments.is_empty()).then(|| element("qemu:commandline").children(values))
}

fn features(spec: &MachineSpec, source: &Features) -> Element {
    let mut features = element("features");
    let state = |name: &'static str, on: Option<bool>| on.map(|on| element(name).attr("state", on_off(on)));
    features.push_all(source.acpi.then(|| element("acpi")));
    features.push_all(source.apic.then(|| element("apic")));
    features.push_all(source.hyperv.as_ref().map(hyperv));
    features.push_all(source.smm.then(|| element("smm")));
    if source.kvm_hidden.is_some() || source.kvm_hint_dedicated.is_some() {
        let mut kvm = element("kvm");
        kvm.push_all(state("hidden", source.kvm_hidden));
        kvm.push_all(state("hint-dedicated", source.kvm_hint_dedicated));
        features.push(kvm);
    }
    features.push_all(state("pvspinlock", source.pv_spinlock));
    features.push_all(state("pmu", source.pmu));
    features.push_all(state("vmport", source.vm_port));
    if let (Acceleration::Emulation, Some(mib)) = (spec.acceleration, spec.translation_cache_mib) {
        features.push(element("tcg").child(element("tb-cache").attr("unit", "MiB").text(mib)));
    }
    features
}

fn hyperv(source: &Hyperv) -> Element {
    let state = |name: &'static str, on: Option<bool>| on.map(|on| element(name).attr("state", on_off(on)));
    let mut out = element("hyperv").attr_some("mode", source.passthrough.then_some("passthrough"));
    out.push_all(state("relaxed", source.relaxed));
    out.push_all(state("vapic", source.vapic));
    out.push_all(source.spinlocks.as_ref().map(|spinlocks| {
        element("spinlocks").attr("state", on_off(spinlocks.enabled)).attr_some("retries", spinlocks.retries)
    }));
    out.push_all(state("vpindex", source.vpindex));
    out.push_all(state("runtime", source.runtime));
    out.push_all(state("synic", source.synic));
    out.push_all(source.synic_timer.as_ref().map(|timer| {
        let mut out = element("stimer").attr("state", on_off(timer.enabled));
        out.push_all(state("direct", timer.direct));
        out
    }));
    out.push_all(state("reset", source.reset));
    out.push_all(
        source
            .vendor_id
            .as_ref()
            .map(|vendor| element("vendor_id").attr("state", on_off(vendor.enabled)).attr_set("value", &vendor.value)),
    );
    out.push_all(state("frequencies", source.frequencies));
    out.push_all(state("reenlightenment", source.reenlightenment));
    out.push_all(source.tlb_flush.as_ref().map(|flush| {
        let mut out = element("tlbflush").attr("state", on_off(flush.enabled));
        out.push_all(state("direct", flush.direct));
        out.push_all(state("extended", flush.extended));
        out
    }));
    out.push_all(state("ipi", source.ipi));
    out.push_all(state("evmcs", source.evmcs));
    out
}

fn cpu(cpu: &Cpu) -> Element {
    let (mode, model) = match &cpu.mode {
        CpuMode::Default => (None, None),
        CpuMode::HostModel => (Some("host-model"), None),
        CpuMode::HostPassthrough => (Some("host-passthrough"), None),
        CpuMode::Maximum => (Some("maximum"), None),
        CpuMode::Custom(model) => (Some("custom"), Some(model)),
    };
    let mut out = element("cpu").attr_some("mode", mode);
    out.push_all(model.map(|model| element("model").text(model)));
    out.push_all(cpu.features.iter().map(|feature| {
        element("feature").attr("name", &feature.name).attr_some("policy", feature.policy.map(CpuPolicy::name))
    }));
    let topology = &cpu.topology;
    out.push(
        element("topology")
            .attr("sockets", topology.sockets)
            .attr("cores", topology.cores)
            .attr("threads", topology.threads),
    );
    if !cpu.numa.is_empty() {
        let cells = cpu.numa.iter().map(|cell| {
            // Cells that mirror the host's are counted in bytes, the made-up one is not: upstream has it so.
            let (memory, unit) = if cell.host_node.is_some() { (cell.bytes, "b") } else { (cell.bytes / 1024, "KiB") };
            let mut out = element("cell")
                .attr("id", cell.id)
                .attr_set("cpus", &cell.cpus)
                .attr("memory", memory)
                .attr("unit", unit)
                .attr_some("memAccess", cell.memory_access.as_ref());
            if !cell.distances.is_empty() {
                let siblings = cell.distances.iter();
                let siblings = siblings.map(|(id, value)| element("sibling").attr("id", id).attr("value", value));
                out.push(element("distances").children(siblings));
            }
            out
        });
        out.push(element("numa").children(cells));
    }
    out
}

fn slots(cpu: &Cpu) -> Option<Element> {
    let slots = cpu.slots.iter().map(|slot| {
        element("vcpu")
            .attr("id", slot.id)
            .attr("enabled", yes_no(slot.enabled))
            .attr("hotpluggable", yes_no(slot.hotpluggable))
    });
    (!cpu.slots.is_empty()).then(|| element("vcpus").children(slots))
}

fn cpu_tune(cpu: &Cpu) -> Option<Element> {
    let pinning = cpu.pinning.as_ref()?;
    let mut out = element("cputune");
    for (vcpu, cpus) in pinning.vcpus.iter().enumerate() {
        out.push(element("vcpupin").attr("vcpu", vcpu).attr("cpuset", cpus));
    }
    for (index, cpus) in pinning.io_threads.iter().enumerate() {
        out.push(element("iothreadpin").attr("iothread", index + 1).attr("cpuset", cpus));
    }
    out.push_all(pinning.emulator.as_ref().map(|cpus| element("emulatorpin").attr("cpuset", cpus)));
    Some(out)
}

fn numa_tune(cpu: &Cpu) -> Option<Element> {
    let nodes: Vec<(u32, u32)> = cpu.numa.iter().filter_map(|cell| Some((cell.id, cell.host_node?))).collect();
    let set = nodes.iter().map(|(_, node)| node.to_string()).collect::<Vec<_>>().join(",");
    let mut out = element("numatune").child(element("memory").attr("mode", "strict").attr("nodeset", set));
    for (cell, node) in &nodes {
        out.push(element("memnode").attr("cellid", cell).attr("mode", "strict").attr("nodeset", node));
    }
    (!nodes.is_empty()).then_some(out)
}

fn launch_security(security: &LaunchSecurity) -> Element {
    let out = element("launchSecurity");
    match security {
        LaunchSecurity::Sev { policy, dh_cert, session } => {
            let mut out = out.attr("type", "sev");
            out.push_all(dh_cert.as_ref().map(|cert| element("dhCert").text(cert)));
            out.push_all(session.as_ref().map(|session| element("session").text(session)));
            out.child(element("policy").text(format!("{policy:#x}")))
        }
        LaunchSecurity::SevSnp { policy } => {
            out.attr("type", "sev-snp").child(element("policy").text(format!("{policy:#x}")))
        }
        LaunchSecurity::Tdx { quote_socket } => {
            let mut out = out.attr("type", "tdx");
            out.push(element("quoteGenerationService").attr_some("path", quote_socket.as_ref()));
            out
        }
        LaunchSecurity::S390Pv {} => out.attr("type", "s390-pv"),
    }
}
