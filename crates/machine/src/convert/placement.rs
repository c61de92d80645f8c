//! Devices on the root PCI bus, for guests that look for them there.

use ferrovirt_api::names;

use super::Conversion;
use crate::spec::{Arch, Devices, DiskAddress, DiskBus, HostDeviceSource, PciAddress};

/// Taken by the host bridge and the video card.
const FIRST_FREE_SLOT: u8 = 2;
const SLOTS: u8 = 0x20;
/// Taken by the first sound card and the SATA controller.
const RESERVED_SLOTS: [u8; 2] = [0x1b, 0x1f];

/// Gives every PCI device without an address one on the root bus, if the VMI's annotation asks for it.
pub(super) fn on_root_bus(c: &mut Conversion<'_>, devices: &mut Devices) {
    let annotations = c.vmi.metadata.annotations.as_ref();
    let wanted = annotations.and_then(|annotations| annotations.get(names::PLACE_PCI_DEVICES_ON_ROOT_COMPLEX));
    if wanted.is_none_or(|value| value != "true") || c.ctx.arch == Arch::S390x {
        return;
    }
    let mut slots = (FIRST_FREE_SLOT..SLOTS).filter(|slot| !RESERVED_SLOTS.contains(slot));
    let mut is_full = false;
    let mut place = |address: &mut Option<PciAddress>| {
        if address.is_none() {
            *address = slots.next().map(|slot| PciAddress { slot, ..PciAddress::default() });
            is_full |= address.is_none();
        }
    };
    for interface in &mut devices.interfaces {
        place(&mut interface.address);
    }
    for device in &mut devices.host_devices {
        if matches!(device.source, HostDeviceSource::Pci { .. }) {
            place(&mut device.guest_address);
        }
    }
    for controller in &mut devices.controllers {
        // Roots of buses have no address.
        if !matches!(controller.model.as_deref(), Some("pci-root" | "pcie-root" | "pcie-expander-bus")) {
            place(&mut controller.address);
        }
    }
    for disk in devices.disks.iter_mut().filter(|disk| disk.bus == DiskBus::Virtio && disk.address.is_none()) {
        let mut address = None;
        place(&mut address);
        disk.address = address.map(DiskAddress::Pci);
    }
    for input in devices.inputs.iter_mut().filter(|input| input.bus == "virtio") {
        place(&mut input.address);
    }
    devices.watchdog.iter_mut().for_each(|watchdog| place(&mut watchdog.address));
    devices.rng.iter_mut().for_each(|rng| place(&mut rng.address));
    devices.balloon.iter_mut().for_each(|balloon| place(&mut balloon.address));
    if is_full {
        c.refuse("spec.domain.devices", "there are more devices than slots on the root PCI bus");
    }
}
