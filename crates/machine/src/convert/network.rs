//! Interfaces.

use ferrovirt_api::v1::{self, values::interface_state};

use super::{Conversion, arch, cpu, pci};
use crate::spec::{Attachment, Interface, PortForward};

/// A tap device has no more queues than this.
const MAX_QUEUES: u32 = 256;
const TAP: &str = "tap";
const PASST_LOG: &str = "/var/run/kubevirt/passt.log";
const ISTIO_INJECTION: &str = "sidecar.istio.io/inject";
/// Ports on which an Istio proxy listens.
const ISTIO_PORTS: [u32; 10] = [15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090];

pub(super) fn convert(c: &mut Conversion<'_>) -> Vec<Interface> {
    let vmi = c.vmi;
    let mut interfaces = Vec::new();
    for (index, source) in vmi.spec.domain.devices.interfaces.iter().enumerate() {
        let field = format!("spec.domain.devices.interfaces[{index}]");
        if source.state == interface_state::ABSENT {
            continue;
        }
        if !vmi.spec.networks.iter().any(|network| network.name == source.name) {
            c.refuse(format!("{field}.name"), format!("there is no network {:?}", source.name));
            continue;
        }
        let attached_by = c.ctx.domain_attachment_by_interface_name.get(&source.name).map(String::as_str);
        let is_plugin = source.binding.is_some() && attached_by != Some(TAP);
        // Both are not interfaces of the domain: SR-IOV is a host device, a plugin brings its own.
        if source.sriov.is_some() || is_plugin {
            continue;
        }
        interfaces.extend(interface(c, &field, source));
    }
    interfaces
}

fn interface(c: &mut Conversion<'_>, field: &str, source: &v1::Interface) -> Option<Interface> {
    let is_virtio = source.model.is_empty() || source.model == "virtio";
    let info = c.ctx.interfaces.get(&source.name).cloned().unwrap_or_default();
    let mac = Some(source.mac_address.clone()).filter(|mac| !mac.is_empty());
    let mut interface = Interface {
        name: source.name.clone(),
        model: if is_virtio { c.virtio_model().into() } else { source.model.clone() },
        mac: mac.or(info.mac),
        mtu: info.mtu,
        queues: queues(c).filter(|_| is_virtio),
        iommu: is_virtio && c.uses_iommu(),
        acpi_index: u32::try_from(source.acpi_index).ok().filter(|index| *index > 0),
        ..Interface::default()
    };
    if !source.pci_address.is_empty() {
        interface.address = pci::parse(&source.pci_address);
        if interface.address.is_none() {
            c.refuse(format!("{field}.pciAddress"), format!("{:?} is no PCI address", source.pci_address));
        }
    }
    let attached_by = c.ctx.domain_attachment_by_interface_name.get(&source.name).map(String::as_str);
    if source.passt_binding.is_some() && attached_by != Some(TAP) {
        interface.attachment = passt(c, field, source)?;
        return Some(interface);
    }
    if c.ctx.as_upstream && attached_by != Some(TAP) {
        interface.attachment = Attachment::Nothing {};
        return Some(interface);
    }
    if source.slirp.is_some() || source.macvtap.is_some() || source.passt.is_some() {
        c.refuse(field, "slirp, macvtap and passt were removed upstream; use masquerade or bridge");
        return None;
    }
    interface.attachment = Attachment::Tap { device: info.tap };
    interface.boot_order = source.boot_order.and_then(|order| u32::try_from(order).ok());
    interface.rom_disabled = arch::has_rom_tuning(c.ctx.arch) && (source.boot_order.is_none() || c.uses_iommu());
    interface.link_down = source.state == interface_state::DOWN;
    Some(interface)
}

/// passt forwards the named ports, or all if none is named; those of an Istio proxy stay in the pod.
fn passt(c: &mut Conversion<'_>, field: &str, source: &v1::Interface) -> Option<Attachment> {
    let vmi = c.vmi;
    let status = vmi.status.interfaces.iter().find(|status| status.name == source.name);
    let device = status.map(|status| status.pod_interface_name.clone()).unwrap_or_default();
    if device.is_empty() {
        c.refuse(field, "the status does not say which interface of the pod this is");
        return None;
    }
    let ports = |protocol: &str| -> Vec<u32> {
        let named = source.ports.iter().filter(|port| {
            port.protocol.eq_ignore_ascii_case(protocol) || (port.protocol.is_empty() && protocol == "tcp")
        });
        named.filter_map(|port| u32::try_from(port.port).ok()).collect()
    };
    let annotations = vmi.metadata.annotations.as_ref();
    let injected = annotations.and_then(|annotations| annotations.get(ISTIO_INJECTION));
    let excluded = match injected {
        Some(value) if value.eq_ignore_ascii_case("true") => ISTIO_PORTS.to_vec(),
        _ => Vec::new(),
    };
    let tcp = PortForward { protocol: "tcp".into(), ports: ports("tcp"), excluded };
    let udp = PortForward { protocol: "udp".into(), ports: ports("udp"), excluded: Vec::new() };
    let mut forwards = vec![tcp, udp];
    let says_something = |forward: &PortForward| !forward.ports.is_empty() || !forward.excluded.is_empty();
    if forwards.iter().any(says_something) {
        forwards.retain(says_something);
    }
    Some(Attachment::Passt { device, log_file: Some(PASST_LOG.into()), forwards })
}

fn queues(c: &Conversion<'_>) -> Option<u32> {
    let wanted = c.vmi.spec.domain.devices.network_interface_multiqueue == Some(true);
    wanted.then(|| cpu::vcpus(&cpu::topology(&c.vmi.spec.domain)).min(MAX_QUEUES))
}
