//! Disks, and their volumes' places.
//!
//! Some of upstream's paths name the place of the disks twice. They are kept: clients and tests know them so.

use std::collections::BTreeSet;

use ferrovirt_api::v1::{Disk, VirtualMachineInstanceSpec};
use ferrovirt_schema::names;

use super::{Cluster, Findings, network::is_pci_address};

const MAX_SERIAL: usize = 256;

/// Disks that have volumes, and the order in which disks and interfaces are booted from.
pub(super) fn boot(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let mut orders = BTreeSet::new();
    for (index, disk) in spec.domain.devices.disks.iter().enumerate() {
        let field = format!("{path}.domain.devices.disks[{index}]");
        let volume = spec.volumes.iter().rev().find(|volume| volume.name == disk.name);
        if volume.is_none() && disk.cdrom.is_none() {
            found.invalid(format!("{field}.name"), format!("{field}.Name '{}' not found.", disk.name));
        } else if volume.is_none() && !cluster.gate("DeclarativeHotplugVolumes") {
            found.invalid(
                format!("{field}.name"),
                "DeclarativeHotplugVolumes feature gate not enabled, cannot define an empty CD-ROM disk",
            );
        }
        if let Some(volume) = volume
            && disk.lun.is_some()
            && volume.persistent_volume_claim.is_none()
            && volume.data_volume.is_none()
        {
            let message = format!("{field}.lun can only be mapped to a DataVolume or PersistentVolumeClaim volume.");
            found.invalid(format!("{field}.lun"), message);
        }
        if volume.is_some_and(|volume| volume.downward_metrics.is_some()) {
            match &disk.disk {
                None => found.required(
                    format!("{field}.disk"),
                    format!("DownwardMetrics volume must be mapped to a disk, but disk is not set on {field}.disk."),
                ),
                Some(target) if !["", "virtio"].contains(&target.bus.as_str()) => {
                    let message = format!(
                        "DownwardMetrics volume must be mapped to virtio bus, but {field}.disk.bus is set to {}",
                        target.bus
                    );
                    found.invalid(format!("{field}.disk.bus"), message);
                }
                Some(_) => {}
            }
        }
        if disk.boot_order.is_some_and(|order| !orders.insert(order)) {
            let message = format!("Boot order for {field}.bootOrder already set for a different device.");
            found.invalid(format!("{field}.bootOrder"), message);
        }
    }
    for (index, interface) in spec.domain.devices.interfaces.iter().enumerate() {
        let field = format!("{path}.domain.devices.interfaces[{index}].bootOrder");
        match interface.boot_order {
            Some(0) => {
                let message = format!("{path}[{index}] must have a boot order > 0, if supplied");
                found.invalid(format!("{path}[{index}].bootOrder"), message);
            }
            Some(order) if !orders.insert(order) => {
                let message = format!("Boot order for {field} already set for a different device.");
                found.invalid(field, message);
            }
            _ => {}
        }
    }
}

pub(super) fn disks(disks: &[Disk], path: &str, found: &mut Findings) {
    let base = format!("{path}.domain.devices.disks");
    for (index, disk) in disks.iter().enumerate() {
        let field = format!("{base}[{index}]");
        for (other, _) in disks.iter().enumerate().take(index).filter(|(_, other)| other.name == disk.name) {
            let message = format!("{field} and {base}[{other}] must not have the same Name.");
            found.invalid(format!("{field}.name"), message);
        }
        let twice = format!("{base}.domain.devices.disks");
        target(disk, &field, &twice, index, found);
        details(disk, &field, &base, &twice, index, found);
        for problem in names::dns_label(&disk.name) {
            found.invalid(format!("{twice}[{index}].name"), problem);
        }
        block_size(disk, &format!("{field}.blockSize"), found);
    }
}

/// The kind of a disk, and the bus that it is on.
fn target(disk: &Disk, field: &str, twice: &str, index: usize, found: &mut Findings) {
    let kinds = [disk.disk.is_some(), disk.lun.is_some(), disk.cdrom.is_some()];
    if kinds.iter().filter(|set| **set).count() > 1 {
        found.invalid(field.to_owned(), format!("{field} can only have a single target type defined"));
    }
    if let Some(target) = disk.disk.as_ref().filter(|target| !target.pci_address.is_empty()) {
        let at = format!("{twice}.disk[{index}]");
        if target.bus != "virtio" {
            let message = format!("disk {at}.name - setting a PCI address is only possible with bus type virtio.");
            found.invalid(format!("{at}.pciAddress"), message);
        }
        if !is_pci_address(&target.pci_address) {
            let message = format!("disk {at}.name has malformed PCI address ({}).", target.pci_address);
            found.invalid(format!("{at}.pciAddress"), message);
        }
    }
    if disk.boot_order == Some(0) {
        let message = format!("{field} must have a boot order > 0, if supplied");
        found.invalid(format!("{field}.bootOrder"), message);
    }
    let (kind, bus) = kind_and_bus(disk);
    let bus_field = format!("{field}.{kind}.bus");
    match bus {
        "" => return,
        "ide" => found.invalid(bus_field, "IDE bus is not supported"),
        "virtio" if kind == "cdrom" => {
            found.invalid(bus_field, format!("Bus type {bus} is invalid for CD-ROM device"));
        }
        "sata" if disk.disk.as_ref().is_some_and(|target| target.readonly) => {
            found.invalid(format!("{field}.disk.bus"), format!("{bus} hard-disks do not support read-only."));
        }
        "virtio" | "sata" | "scsi" | "usb" => {}
        _ => {
            let message =
                format!("{field} is set with an unrecognized bus {bus}, must be one of: [virtio scsi sata usb]");
            found.invalid(bus_field, message);
        }
    }
    if disk.dedicated_io_thread == Some(true) && bus != "virtio" {
        let message = format!("IOThreads are not supported for disks on a {bus} bus");
        found.unsupported(format!("{twice}[{index}]"), message);
    }
}

fn kind_and_bus(disk: &Disk) -> (&'static str, &str) {
    match (&disk.disk, &disk.lun, &disk.cdrom) {
        (Some(disk), _, _) => ("disk", disk.bus.as_str()),
        (_, Some(lun), _) => ("lun", lun.bus.as_str()),
        (_, _, Some(cdrom)) => ("cdrom", cdrom.bus.as_str()),
        _ => ("", ""),
    }
}

fn details(disk: &Disk, field: &str, base: &str, twice: &str, index: usize, found: &mut Findings) {
    if !disk.serial.is_empty() {
        let serial = format!("{field}.serial");
        if !disk.serial.chars().all(|c| c.is_ascii_alphanumeric() || "_.+-".contains(c)) {
            let message = format!("{field} must be made up of the following characters [A-Za-z0-9_.+-], if specified");
            found.invalid(serial.clone(), message);
        }
        if disk.serial.chars().count() > MAX_SERIAL {
            let message = format!("{field} must be less than or equal to {MAX_SERIAL} in length, if specified");
            found.invalid(serial, message);
        }
    }
    if !["", "none", "writethrough", "writeback"].contains(&disk.cache.as_str()) {
        found.invalid(format!("{field}.cache"), format!("{field}.cache has invalid value {}", disk.cache));
    }
    if !["", "native", "threads"].contains(&disk.io.as_str()) {
        let message = format!("Disk IO mode for {base} is not supported. Supported modes are: native, threads.");
        found.unsupported(format!("{twice}[{index}].io"), message);
    }
    if let Some(policy) = disk.error_policy.as_deref().filter(|p| !["stop", "ignore", "report", "enospace"].contains(p))
    {
        let message = format!("{field}.errorPolicy has invalid value \"{policy}\"");
        found.invalid(format!("{field}.errorPolicy"), message);
    }
}

fn block_size(disk: &Disk, field: &str, found: &mut Findings) {
    let Some(size) = &disk.block_size else { return };
    let Some(custom) = &size.custom else { return };
    if size.match_volume.as_ref().is_some_and(|on| on.enabled != Some(false)) {
        return found.invalid(field.to_owned(), "Block size matching can't be enabled together with a custom value");
    }
    let (logical, physical) = (custom.logical, custom.physical);
    if logical > physical {
        let message = format!("Logical size {logical} must be the same or less than the physical size of {physical}");
        return found.invalid(format!("{field}.custom.logical"), message);
    }
    if kind_and_bus(disk).1 == "sata" && logical != 512 {
        let message = format!("Logical size {logical} must be 512 for SATA devices");
        return found.invalid(format!("{field}.custom.logical"), message);
    }
    if let Some(granularity) = custom.discard_granularity
        && logical != 0
        && granularity % logical != 0
    {
        let message = format!("Discard granularity {granularity} must be multiples of logical size {logical}");
        return found.invalid(format!("{field}.custom.discardGranularity"), message);
    }
    for (kind, size) in [("logical", logical), ("physical", physical)] {
        let message = match size {
            0..512 => format!("Provided size of {size} is less than the supported minimum size of 512"),
            2_097_153.. => format!("Provided size of {size} is greater than the supported maximum size of 2097152"),
            size if !size.is_power_of_two() => format!("Provided size of {size} is not a power of 2"),
            _ => continue,
        };
        found.invalid(format!("{field}.custom.{kind}"), message);
    }
}

/// A file in an image is named from its root, and by nothing that leads elsewhere.
pub(super) fn absolute(file: &str, field: String, found: &mut Findings) {
    if file == "/" {
        return found.invalid(field.clone(), format!("{field} must not point to root"));
    }
    let plain = file.strip_suffix('/').unwrap_or(file);
    let sound =
        plain.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|part| !["", ".", ".."].contains(&part)));
    if !sound {
        let message = format!("{field} must be an absolute path to a file without relative components");
        found.invalid(field, message);
    }
}
