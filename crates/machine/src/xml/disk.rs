//! Disks and file systems.

use super::{
    element::{Element, element},
    pci_address,
};
use crate::spec::{BackingStore, Disk, DiskAddress, DiskDevice, DiskSource, Filesystem, Tray};

pub(super) fn disk(disk: &Disk) -> Element {
    let device = match disk.device {
        DiskDevice::Disk => "disk",
        DiskDevice::Cdrom => "cdrom",
        DiskDevice::Lun => "lun",
        DiskDevice::Floppy => "floppy",
    };
    let mut out = element("disk")
        .attr("device", device)
        .attr("type", source_type(&disk.source))
        .attr_some("model", disk.model.as_ref());
    let mut disk_source = source(&disk.source);
    disk_source.push_all(disk.reservations.as_ref().map(|socket| {
        let client = element("source").attr("type", "unix").attr("path", socket).attr("mode", "client");
        element("reservations").attr("managed", "no").attr("migration", "yes").child(client)
    }));
    if let Some(store) = &disk.data_store {
        if let DiskSource::Block { name: Some(name), .. } = &store.source {
            disk_source = disk_source.attr("name", name);
        }
        disk_source.push(data_store(store));
    }
    out.push(disk_source);
    let tray = disk.tray.map(|tray| match tray {
        Tray::Open => "open",
        Tray::Closed => "closed",
    });
    out.push(element("target").attr("bus", disk.bus.name()).attr("dev", &disk.target).attr_some("tray", tray));
    out.push_all(disk.serial.as_ref().map(|serial| element("serial").text(serial)));
    out.push(driver(disk));
    out.push_all(disk.read_only.then(|| element("readonly")));
    out.push(super::devices::alias(&disk.name));
    out.push_all(chain(disk));
    out.push_all(disk.boot_order.map(|order| element("boot").attr("order", order)));
    out.push_all(disk.address.as_ref().map(address));
    out.push_all(disk.block_size.as_ref().map(|size| {
        element("blockio")
            .attr("logical_block_size", size.logical)
            .attr("physical_block_size", size.physical)
            .attr_some("discard_granularity", size.discard_granularity)
    }));
    out.push_all(disk.filesystem_overhead.as_ref().map(|share| element("filesystemOverhead").text(share)));
    out.push_all(disk.capacity.map(|bytes| element("capacity").text(bytes)));
    out.push_all(disk.shareable.then(|| element("shareable")));
    out
}

pub(super) fn filesystem(filesystem: &Filesystem) -> Element {
    element("filesystem")
        .attr("type", "mount")
        .attr("accessMode", "passthrough")
        .child(element("source").attr("dir", "").attr("socket", &filesystem.socket))
        .child(element("target").attr("dir", &filesystem.tag))
        .child(element("driver").attr("type", "virtiofs").attr("queue", "1024"))
}

fn driver(disk: &Disk) -> Element {
    let mut driver = element("driver")
        .attr_some("cache", disk.cache.map(|cache| cache.name()))
        .attr_some("error_policy", disk.error_policy.map(|policy| policy.name()))
        .attr_some("io", disk.io.map(|io| io.name()))
        .attr("name", "qemu")
        .attr("type", disk.format.name())
        .attr_some("iothread", disk.io_thread)
        .attr_some("queues", disk.queues)
        .attr_some("discard", disk.discard.then_some("unmap"))
        .attr_some("iommu", disk.iommu.then_some("on"));
    if !disk.io_thread_pool.is_empty() {
        let threads = disk.io_thread_pool.iter().map(|id| element("iothread").attr("id", id));
        driver.push(element("iothreads").children(threads));
    }
    driver
}

fn source_type(source: &DiskSource) -> &'static str {
    match source {
        DiskSource::File { .. } => "file",
        DiskSource::Block { .. } | DiskSource::Empty {} => "block",
    }
}

fn source(source: &DiskSource) -> Element {
    match source {
        DiskSource::File { path } => element("source").attr("file", path),
        DiskSource::Block { path, name } => element("source").attr("dev", path).attr_some("name", name.as_ref()),
        DiskSource::Empty {} => element("source"),
    }
}

/// What lies below the disk, said to the end. Where this ends without a word, libvirt goes by the image's own, and opens the file
/// that somebody wrote into its header; upstream does not say it.
fn chain(disk: &Disk) -> Option<Element> {
    match &disk.backing {
        Some(store) => Some(backing(store).child(end_of_chain())),
        None => (disk.source != DiskSource::Empty {}).then(end_of_chain),
    }
}

fn backing(backing: &BackingStore) -> Element {
    element("backingStore")
        .attr("type", source_type(&backing.source))
        .child(element("format").attr("type", backing.format.name()))
        .child(source(&backing.source))
}

fn end_of_chain() -> Element {
    element("backingStore")
}

fn data_store(store: &BackingStore) -> Element {
    let source = match &store.source {
        // The name stands with the disk's own source.
        DiskSource::Block { path, .. } => element("source").attr("dev", path),
        other => source(other),
    };
    element("dataStore")
        .attr("type", source_type(&store.source))
        .child(element("format").attr("type", store.format.name()))
        .child(source)
}

fn address(address: &DiskAddress) -> Element {
    match address {
        DiskAddress::Pci(address) => pci_address(address),
        DiskAddress::Drive { controller, bus, target, unit } => element("address")
            .attr("type", "drive")
            .attr("bus", bus)
            .attr("controller", controller)
            .attr_some("target", Some(target).filter(|target| **target > 0))
            .attr("unit", unit),
    }
}
