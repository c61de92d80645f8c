//! Devices other than disks.

use super::{
    disk,
    element::{Element, element, on_off},
    pci_address,
};
use crate::spec::{
    Attachment, Balloon, Channel, Controller, Devices, HostDevice, HostDeviceSource, Input, Interface, SerialConsole,
};

pub(super) fn devices(devices: &Devices) -> Element {
    let mut out = element("devices");
    out.push_all(devices.emulator.as_ref().map(|path| element("emulator").text(path)));
    out.push_all(devices.interfaces.iter().map(interface));
    out.push_all(devices.channels.iter().map(channel));
    out.push_all(devices.host_devices.iter().map(host_device));
    out.push_all(devices.panics.iter().map(|model| element("panic").attr_some("model", model.as_ref())));
    out.push_all(devices.controllers.iter().map(controller));
    out.push_all(devices.video.as_ref().map(|video| {
        let model = element("model")
            .attr("type", &video.model)
            .attr_some("heads", video.heads)
            .attr_some("vram", video.vram_kib);
        element("video").child(model)
    }));
    out.push_all(devices.graphics.as_ref().map(|graphics| {
        let listen = element("listen").attr("type", "socket").attr("socket", &graphics.socket);
        element("graphics").attr("type", "vnc").child(listen)
    }));
    out.push_all(devices.balloon.as_ref().map(balloon));
    out.push_all(devices.disks.iter().map(disk::disk));
    out.push_all(devices.inputs.iter().map(input));
    out.push_all(devices.serial.as_ref().map(serial));
    out.push_all(devices.serial.as_ref().map(|serial| {
        element("console").attr("type", "pty").child(element("target").attr("type", &serial.target).attr("port", 0))
    }));
    out.push_all(devices.watchdog.as_ref().map(|watchdog| {
        let mut out = element("watchdog").attr("model", &watchdog.model).attr("action", watchdog.action.name());
        out.push(alias(&watchdog.alias));
        out.push_all(watchdog.address.as_ref().map(pci_address));
        out
    }));
    out.push_all(devices.rng.as_ref().map(|rng| {
        let mut out = element("rng").attr("model", &rng.model);
        out.push(element("backend").attr("model", "random").text(&rng.source));
        out.push_all(rng.address.as_ref().map(pci_address));
        out.push_all(iommu_driver(rng.iommu));
        out
    }));
    out.push_all(devices.filesystems.iter().map(disk::filesystem));
    out.push_all(devices.usb_redirections.iter().map(|socket| {
        let source = element("source").attr("mode", "bind").attr("path", socket);
        element("redirdev").attr("type", "unix").attr("bus", "usb").child(source)
    }));
    out.push_all(
        devices.sound.as_ref().map(|sound| element("sound").attr("model", &sound.model).child(alias(&sound.alias))),
    );
    out.push_all(devices.tpm.as_ref().map(|tpm| {
        let backend = element("backend")
            .attr("type", "emulator")
            .attr("version", &tpm.version)
            .attr_some("persistent_state", tpm.persistent.then_some("yes"));
        element("tpm").attr("model", &tpm.model).child(backend)
    }));
    out.push_all(devices.vsock.as_ref().map(|vsock| {
        let cid = element("cid").attr("auto", "no").attr("address", vsock.cid);
        element("vsock").attr("model", &vsock.model).child(cid)
    }));
    out
}

/// libvirt takes names for aliases only with this prefix.
pub(super) fn alias(name: &str) -> Element {
    element("alias").attr("name", format!("ua-{name}"))
}

fn interface(interface: &Interface) -> Element {
    let mut out = element("interface");
    let (kind, source) = match &interface.attachment {
        Attachment::Tap { .. } => ("ethernet", element("source")),
        Attachment::Nothing {} => ("", element("source")),
        Attachment::Passt { device, .. } => ("vhostuser", element("source").attr_set("dev", device)),
    };
    out.push_all(interface.address.as_ref().map(pci_address));
    out = out.attr("type", kind);
    out.push(source);
    if let Attachment::Tap { device: Some(device) } = &interface.attachment {
        out.push(element("target").attr("dev", device).attr("managed", "no"));
    }
    out.push(element("model").attr("type", &interface.model));
    out.push_all(interface.mac.as_ref().map(|mac| element("mac").attr("address", mac)));
    out.push_all(interface.mtu.map(|mtu| element("mtu").attr("size", mtu)));
    out.push_all(interface.boot_order.map(|order| element("boot").attr("order", order)));
    out.push_all(interface.link_down.then(|| element("link").attr("state", "down")));
    out.push(alias(&interface.name));
    if interface.queues.is_some() || interface.iommu {
        let driver = element("driver").attr("name", "vhost").attr_some("queues", interface.queues);
        out.push(driver.attr_some("iommu", interface.iommu.then_some("on")));
    }
    out.push_all(interface.rom_disabled.then(|| element("rom").attr("enabled", "no")));
    out.push_all(interface.acpi_index.map(|index| element("acpi").attr("index", index)));
    if let Attachment::Passt { log_file, forwards, .. } = &interface.attachment {
        out.push(element("backend").attr("type", "passt").attr_some("logFile", log_file.as_ref()));
        out.push_all(forwards.iter().map(|forward| {
            let range = |port: &u32| element("range").attr("start", port);
            let included = forward.ports.iter().map(range);
            let excluded = forward.excluded.iter().map(|port| range(port).attr("exclude", "yes"));
            element("portForward").attr("proto", &forward.protocol).children(excluded.chain(included))
        }));
    }
    out
}

fn channel(channel: &Channel) -> Element {
    let mut out = element("channel").attr("type", "unix");
    out.push_all(channel.path.as_ref().map(|path| element("source").attr("mode", "bind").attr("path", path)));
    out.push(element("target").attr("name", &channel.name).attr("type", "virtio"));
    out
}

fn controller(controller: &Controller) -> Element {
    let mut out = element("controller")
        .attr("type", controller.kind.name())
        .attr("index", controller.index)
        .attr_some("model", controller.model.as_ref());
    if controller.io_thread.is_some() || controller.queues.is_some() || controller.iommu {
        out.push(
            element("driver")
                .attr_some("iothread", controller.io_thread)
                .attr_some("queues", controller.queues)
                .attr_some("iommu", controller.iommu.then_some("on")),
        );
    }
    out.push_all(controller.address.as_ref().map(pci_address));
    out.push_all(controller.pci_hole64_kib.map(|size| element("pcihole64").attr("unit", "KiB").text(size)));
    out.push_all(controller.hotplug.map(|on| element("target").attr("hotplug", on_off(on))));
    out
}

fn balloon(balloon: &Balloon) -> Element {
    let mut out = element("memballoon")
        .attr("model", &balloon.model)
        .attr_some("freePageReporting", balloon.free_page_reporting.map(on_off));
    out.push_all((balloon.stats_period > 0).then(|| element("stats").attr("period", balloon.stats_period)));
    out.push_all(balloon.address.as_ref().map(pci_address));
    out.push_all(iommu_driver(balloon.iommu));
    out
}

fn input(input: &Input) -> Element {
    let mut out =
        element("input").attr("type", &input.kind).attr("bus", &input.bus).attr_some("model", input.model.as_ref());
    out.push_all(input.alias.as_ref().map(|name| alias(name)));
    out.push_all(input.address.as_ref().map(pci_address));
    out
}

fn serial(serial: &SerialConsole) -> Element {
    let mut out = element("serial").attr("type", "unix");
    out.push(element("target").attr("port", 0));
    out.push(element("source").attr("mode", "bind").attr("path", &serial.socket));
    out.push_all(serial.log.as_ref().map(|log| element("log").attr("file", log).attr("append", "on")));
    out
}

fn host_device(device: &HostDevice) -> Element {
    let (kind, address) = match &device.source {
        HostDeviceSource::Pci { address } => ("pci", pci_address(address)),
        HostDeviceSource::Mediated { uuid } => ("mdev", element("address").attr("uuid", uuid)),
        HostDeviceSource::Usb { bus, device } => ("usb", element("address").attr("bus", bus).attr("device", device)),
    };
    let mut out = element("hostdev")
        .attr("type", kind)
        .attr_some("managed", device.managed.as_ref())
        .attr_some("mode", device.mode.as_ref())
        .attr_some("model", device.model.as_ref())
        .attr_some("display", device.display.as_ref())
        .attr_some("ramfb", device.ram_framebuffer.as_ref());
    out.push(element("source").child(address));
    out.push_all(device.boot_order.map(|order| element("boot").attr("order", order)));
    out.push_all(device.guest_address.as_ref().map(pci_address));
    out.push(alias(&device.alias));
    out.push_all(device.iommufd.as_ref().map(|on| element("driver").attr("iommufd", on)));
    out.push_all(device.node_set.as_ref().map(|nodes| element("acpi").attr("nodeset", nodes)));
    out
}

fn iommu_driver(iommu: bool) -> Option<Element> {
    iommu.then(|| element("driver").attr("iommu", "on"))
}
