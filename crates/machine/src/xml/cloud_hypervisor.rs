//! A machine in the language of libvirt's `ch` driver: a kernel (or firmware in its place), virtio disks from files, taps, a
//! serial port. There is nothing else it takes; what has no device here was a gap in the feature table, or means nothing.

use ferrovirt_api::fnv::fnv1a;

use super::{
    devices::alias,
    element::{Element, element},
};
use crate::spec::{Attachment, Boot, Disk, DiskSource, Interface, MachineSpec, SerialConsole};

/// Name of the disk driver. libvirt takes any; this one says whose it is.
pub(crate) const DISK_DRIVER: &str = "ch";
const EMULATOR: &str = "/usr/bin/cloud-hypervisor";
/// EDK2 built for cloud-hypervisor. The driver takes it where other machines have a kernel.
const FIRMWARE: &str = "/usr/share/cloud-hypervisor/CLOUDHV.fd";

/// The domain as text, without a final newline.
pub(crate) fn domain_xml(spec: &MachineSpec) -> String {
    let mut domain = element("domain").attr("type", "kvm");
    domain.push(element("name").text(name(&spec.name)));
    domain.push(element("memory").attr("unit", "b").text(spec.memory.bytes));
    domain.push(element("vcpu").attr("placement", "static").text(spec.cpu.vcpus));
    domain.push(os(spec));
    let mut devices = element("devices").child(element("emulator").text(EMULATOR));
    // An empty CD drive is nothing here: there are no drives.
    let disks = spec.devices.disks.iter().filter(|disk| !matches!(disk.source, DiskSource::Empty {}));
    devices.push_all(disks.enumerate().map(|(index, source)| disk(index, source)));
    devices.push_all(spec.devices.interfaces.iter().filter_map(interface));
    devices.push_all(spec.devices.serial.as_ref().map(serial));
    domain.push(devices);
    domain.to_string()
}

/// The driver puts the name into the path of a socket, which may have 107 characters in all: a longer one would be defined and
/// never start. Names are cut, and told apart by a number made of the whole.
fn name(name: &str) -> String {
    const LONGEST: usize = 64;
    if name.len() <= LONGEST {
        return name.to_owned();
    }
    let hash = fnv1a(name.bytes());
    let kept = LONGEST - 17;
    let start: String = name.char_indices().take_while(|(at, c)| at + c.len_utf8() <= kept).map(|(_, c)| c).collect();
    format!("{start}-{hash:016x}")
}

fn os(spec: &MachineSpec) -> Element {
    let mut os = element("os").child(element("type").attr("arch", spec.arch.name()).text("hvm"));
    let kernel = spec.firmware.kernel.as_ref().filter(|kernel| !kernel.kernel.is_empty());
    let code = match &spec.firmware.boot {
        Boot::Efi { code, .. } if !code.is_empty() => code,
        _ => FIRMWARE,
    };
    os.push(element("kernel").text(kernel.map_or(code, |kernel| &kernel.kernel)));
    if let Some(kernel) = kernel {
        os.push_all((!kernel.initrd.is_empty()).then(|| element("initrd").text(&kernel.initrd)));
        os.push_all((!kernel.arguments.is_empty()).then(|| element("cmdline").text(&kernel.arguments)));
    }
    os
}

/// Every disk is a virtio disk, whatever bus it asked for: the driver has no other.
fn disk(index: usize, disk: &Disk) -> Element {
    let source = match &disk.source {
        DiskSource::File { path } | DiskSource::Block { path, .. } => element("source").attr("file", path),
        DiskSource::Empty {} => element("source"),
    };
    let letter = u8::try_from(index % 26).map_or('z', |index| char::from(b'a' + index));
    let prefix =
        if index < 26 { String::new() } else { char::from(b'a' + u8::try_from(index / 26 - 1).unwrap_or(25)).into() };
    let mut out = element("disk").attr("type", "file").attr("device", "disk");
    out.push(element("driver").attr("name", DISK_DRIVER).attr("type", disk.format.name()));
    out.push(source);
    out.push(element("target").attr("dev", format!("vd{prefix}{letter}")).attr("bus", "virtio"));
    out.push_all(disk.read_only.then(|| element("readonly")));
    out.push(alias(&disk.name));
    out
}

fn interface(interface: &Interface) -> Option<Element> {
    let Attachment::Tap { device } = &interface.attachment else {
        return None;
    };
    let mut out = element("interface").attr("type", "ethernet");
    out.push_all(interface.mac.as_ref().map(|mac| element("mac").attr("address", mac)));
    out.push_all(device.as_ref().map(|device| element("target").attr("dev", device).attr("managed", "no")));
    out.push(element("model").attr("type", "virtio"));
    out.push_all(interface.queues.map(|queues| element("driver").attr("queues", queues)));
    out.push_all(interface.mtu.map(|mtu| element("mtu").attr("size", mtu)));
    out.push(alias(&interface.name));
    Some(out)
}

fn serial(serial: &SerialConsole) -> Element {
    element("serial")
        .attr("type", "unix")
        .child(element("source").attr("mode", "bind").attr("path", &serial.socket))
        .child(element("target").attr("port", 0))
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let long = format!("{}_{}", "n".repeat(63), "v".repeat(62));
        let (a, b) = (name(&format!("{long}a")), name(&format!("{long}b")));
        assert_eq!((a.len(), b.len()), (64, 64));
        assert_ne!(a, b);
        assert_eq!(a, name(&format!("{long}a")));
        assert_eq!(name("default_vm"), "default_vm");
        assert!(name(&"ü".repeat(60)).len() <= 64);
    }
}
