//! Disks and volumes.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use ferrovirt_api::{
    quantity::Quantity,
    v1::{Disk, VirtualMachineInstanceSpec, Volume},
};
use k8s_openapi::api::core::v1::LocalObjectReference;

use super::Findings;

const MAX_SERIAL: usize = 256;
/// What fits into a VM object next to everything else.
const MAX_CLOUD_INIT: usize = 2048;

pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, orders: &mut BTreeSet<u64>, found: &mut Findings) {
    disks(spec, path, orders, found);
    volumes(spec, path, found);
}

fn disks(spec: &VirtualMachineInstanceSpec, path: &str, orders: &mut BTreeSet<u64>, found: &mut Findings) {
    let base = format!("{path}.domain.devices.disks");
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, disk) in spec.domain.devices.disks.iter().enumerate() {
        let field = format!("{base}[{index}]");
        if let Some(other) = seen.insert(&disk.name, index) {
            let message = format!("{field} and {base}[{other}] must not have the same Name.");
            found.invalid(format!("{field}.name"), message);
        }
        let volume = spec.volumes.iter().find(|volume| volume.name == disk.name);
        // A CD drive may be empty.
        if volume.is_none() && disk.cdrom.is_none() {
            found.invalid(format!("{field}.name"), format!("{field}.Name '{}' not found.", disk.name));
        }
        if let Some(volume) = volume
            && disk.lun.is_some()
            && volume.persistent_volume_claim.is_none()
            && volume.data_volume.is_none()
        {
            let message = format!("{field}.lun can only be mapped to a DataVolume or PersistentVolumeClaim volume.");
            found.invalid(format!("{field}.lun"), message);
        }
        target(disk, &field, found);
        if let Some(order) = disk.boot_order {
            if order < 1 {
                let message = format!("{field} must have a boot order > 0, if supplied");
                found.invalid(format!("{field}.bootOrder"), message);
            } else if !orders.insert(order) {
                let message = format!("Boot order for {field}.bootOrder already set for a different device.");
                found.invalid(format!("{field}.bootOrder"), message);
            }
        }
        details(disk, &field, found);
    }
}

/// The kind of a disk, and the bus that it is on.
fn target(disk: &Disk, field: &str, found: &mut Findings) {
    let kinds = [disk.disk.is_some(), disk.lun.is_some(), disk.cdrom.is_some()];
    if kinds.iter().filter(|set| **set).count() > 1 {
        return found.invalid(field.to_owned(), format!("{field} can only have a single target type defined"));
    }
    let (kind, bus) = match (&disk.disk, &disk.lun, &disk.cdrom) {
        (Some(disk), _, _) => ("disk", disk.bus.as_str()),
        (_, Some(lun), _) => ("lun", lun.bus.as_str()),
        (_, _, Some(cdrom)) => ("cdrom", cdrom.bus.as_str()),
        _ => return,
    };
    let bus_field = format!("{field}.{kind}.bus");
    match bus {
        "ide" => found.invalid(bus_field.clone(), "IDE bus is not supported"),
        "virtio" if kind == "cdrom" => {
            found.invalid(bus_field.clone(), format!("Bus type {bus} is invalid for CD-ROM device"));
        }
        "" | "virtio" | "sata" | "scsi" | "usb" => {}
        _ => {
            let message =
                format!("{field} is set with an unrecognized bus {bus}, must be one of: [virtio sata scsi usb]");
            found.invalid(bus_field.clone(), message);
        }
    }
    if let Some(target) = &disk.disk {
        if bus == "sata" && target.readonly {
            found.invalid(bus_field, format!("{bus} hard-disks do not support read-only."));
        }
        if !target.pci_address.is_empty() {
            if !["", "virtio"].contains(&bus) {
                let message =
                    format!("disk {field}.name - setting a PCI address is only possible with bus type virtio.");
                found.invalid(format!("{field}.disk.pciAddress"), message);
            }
            if !super::network::is_pci_address(&target.pci_address) {
                let message = format!("disk {field}.name has malformed PCI address ({}).", target.pci_address);
                found.invalid(format!("{field}.disk.pciAddress"), message);
            }
        }
    }
    if disk.dedicated_io_thread == Some(true) && ["sata", "usb"].contains(&bus) {
        found.unsupported(field.to_owned(), format!("IOThreads are not supported for disks on a {bus} bus"));
    }
}

fn details(disk: &Disk, field: &str, found: &mut Findings) {
    if !disk.serial.is_empty() {
        let serial = format!("{field}.serial");
        if !disk.serial.chars().all(|c| c.is_ascii_alphanumeric() || "_.+-".contains(c)) {
            let message = format!("{field} must be made up of the following characters [A-Za-z0-9_.+-], if specified");
            found.invalid(serial.clone(), message);
        }
        if disk.serial.len() > MAX_SERIAL {
            let message = format!("{field} must be less than or equal to {MAX_SERIAL} in length, if specified");
            found.invalid(serial, message);
        }
    }
    if !["", "none", "writethrough", "writeback"].contains(&disk.cache.as_str()) {
        found.invalid(format!("{field}.cache"), format!("{field}.cache has invalid value {}", disk.cache));
    }
    if !["", "native", "threads"].contains(&disk.io.as_str()) {
        let message = format!("Disk IO mode for {field} is not supported. Supported modes are: native, threads.");
        found.unsupported(format!("{field}.io"), message);
    }
    if let Some(policy) = disk.error_policy.as_deref().filter(|p| !["stop", "ignore", "report", "enospace"].contains(p))
    {
        let message = format!("{field}.errorPolicy has invalid value \"{policy}\"");
        found.invalid(format!("{field}.errorPolicy"), message);
    }
    let Some(size) = &disk.block_size else { return };
    let field = format!("{field}.blockSize");
    if size.custom.is_some() && size.match_volume.as_ref().is_some_and(|on| on.enabled != Some(false)) {
        found.invalid(field.clone(), "Block size matching can't be enabled together with a custom value");
    }
    let Some(custom) = &size.custom else { return };
    for (kind, size) in [("logical", custom.logical), ("physical", custom.physical)] {
        let message = match size {
            0..512 => format!("Provided size of {size} is less than the supported minimum size of 512"),
            2_097_153.. => format!("Provided size of {size} is greater than the supported maximum size of 2097152"),
            size if !size.is_power_of_two() => format!("Provided size of {size} is not a power of 2"),
            _ => continue,
        };
        found.invalid(format!("{field}.custom.{kind}"), message);
    }
}

fn volumes(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let base = format!("{path}.volumes");
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, volume) in spec.volumes.iter().enumerate() {
        let field = format!("{base}[{index}]");
        if let Some(other) = seen.insert(&volume.name, index) {
            let message = format!("{field} and {base}[{other}] must not have the same Name.");
            found.invalid(format!("{field}.name"), message);
        }
        if sources(volume) != 1 {
            found.invalid(field.clone(), format!("{field} must have exactly one source type set"));
        }
        named(volume, &field, found);
        cloud_init(volume, &field, found);
        host_disk(volume, &field, found);
        if let Some(disk) = &volume.empty_disk
            && Quantity::try_from(&disk.capacity).ok().is_none_or(|size| size.is_zero() || size.is_negative())
        {
            let field = format!("{field}.emptyDisk.capacity");
            let message = format!("{field} '{}': must be greater than zero", disk.capacity.0);
            found.invalid(field, message);
        }
    }
    type Is = fn(&Volume) -> bool;
    let counted: [(&str, Is); 3] = [
        ("serviceAccount volume", |volume| volume.service_account.is_some()),
        ("downwardMetric volume", |volume| volume.downward_metrics.is_some()),
        ("memory dump volume", |volume| volume.memory_dump.is_some()),
    ];
    for (what, is) in counted {
        if spec.volumes.iter().filter(|volume| is(volume)).count() > 1 {
            found.invalid(base.clone(), format!("{base} must have max one {what} set"));
        }
    }
}

fn sources(volume: &Volume) -> usize {
    [
        volume.host_disk.is_some(),
        volume.persistent_volume_claim.is_some(),
        volume.cloud_init_no_cloud.is_some(),
        volume.cloud_init_config_drive.is_some(),
        volume.sysprep.is_some(),
        volume.container_disk.is_some(),
        volume.ephemeral.is_some(),
        volume.empty_disk.is_some(),
        volume.data_volume.is_some(),
        volume.config_map.is_some(),
        volume.secret.is_some(),
        volume.downward_api.is_some(),
        volume.service_account.is_some(),
        volume.downward_metrics.is_some(),
        volume.memory_dump.is_some(),
        volume.container_path.is_some(),
    ]
    .into_iter()
    .filter(|set| *set)
    .count()
}

/// Sources that name an object, or an image.
fn named(volume: &Volume, field: &str, found: &mut Findings) {
    if volume.data_volume.as_ref().is_some_and(|data| data.name.is_empty()) {
        found.required(format!("{field}.name"), "DataVolume 'name' must be set");
    }
    let names = [
        ("containerDisk.image", volume.container_disk.as_ref().map(|disk| &disk.image)),
        ("configMap.name", volume.config_map.as_ref().map(|map| &map.name)),
        ("secret.secretName", volume.secret.as_ref().map(|secret| &secret.secret_name)),
        (
            "serviceAccount.serviceAccountName",
            volume.service_account.as_ref().map(|account| &account.service_account_name),
        ),
        ("persistentVolumeClaim.claimName", volume.persistent_volume_claim.as_ref().map(|claim| &claim.claim_name)),
    ];
    for (key, name) in names {
        if name.is_some_and(String::is_empty) {
            let field = format!("{field}.{key}");
            let message = format!("{field} is a required field");
            found.invalid(field, message);
        }
    }
}

/// What cloud-init is told, in whichever way it is written.
struct CloudInit<'a> {
    kind: &'static str,
    user: [(&'static str, &'a str); 2],
    user_secret: Option<&'a LocalObjectReference>,
    network: [(&'static str, &'a str); 2],
    network_secret: Option<&'a LocalObjectReference>,
}

fn cloud_init(volume: &Volume, field: &str, found: &mut Findings) {
    let source = match (&volume.cloud_init_no_cloud, &volume.cloud_init_config_drive) {
        (Some(source), _) => CloudInit {
            kind: "cloudInitNoCloud",
            user: [("userData", &source.user_data), ("userDataBase64", &source.user_data_base64)],
            user_secret: source.secret_ref.as_ref(),
            network: [("networkData", &source.network_data), ("networkDataBase64", &source.network_data_base64)],
            network_secret: source.network_data_secret_ref.as_ref(),
        },
        (None, Some(source)) => CloudInit {
            kind: "cloudInitConfigDrive",
            user: [("userData", &source.user_data), ("userDataBase64", &source.user_data_base64)],
            user_secret: source.secret_ref.as_ref(),
            network: [("networkData", &source.network_data), ("networkDataBase64", &source.network_data_base64)],
            network_secret: source.network_data_secret_ref.as_ref(),
        },
        (None, None) => return,
    };
    let field = format!("{field}.{}", source.kind);
    let mut count =
        |parts: &[(&str, &str); 2], secret: Option<&LocalObjectReference>, one: &str, what: &str, instead: &str| {
            let mut count = usize::from(secret.is_some_and(|secret| !secret.name.is_empty()));
            for (key, text) in parts.iter().filter(|(_, text)| !text.is_empty()) {
                count += 1;
                let mut length = text.len();
                if key.ends_with("Base64") {
                    match base64::engine::general_purpose::STANDARD.decode(text) {
                        Ok(bytes) => length = bytes.len(),
                        Err(_) => {
                            let path = format!("{field}.{key}");
                            let message = format!("{path}.{}.{key} is not a valid base64 value.", source.kind);
                            found.invalid(path, message);
                        }
                    }
                }
                if length > MAX_CLOUD_INIT {
                    let message = format!(
                        "{field} {what} exceeds {MAX_CLOUD_INIT} byte limit. Should use {instead} for larger data."
                    );
                    found.invalid(field.clone(), message);
                }
            }
            if count > 1 {
                found.invalid(field.clone(), format!("{field} must have only one {one} set."));
            }
            count
        };
    let user = count(&source.user, source.user_secret, "userdatasource", "userdata", "UserDataSecretRef");
    let network =
        count(&source.network, source.network_secret, "networkdata source", "networkdata", "NetworkDataSecretRef");
    if user == 0 && network == 0 {
        let message = format!("{field} must have at least one userdatasource or one networkdatasource set.");
        found.invalid(field, message);
    }
}

fn host_disk(volume: &Volume, field: &str, found: &mut Findings) {
    let Some(disk) = &volume.host_disk else { return };
    // A file of the node is not the namespace's to give.
    found.invalid(field.to_owned(), "HostDisk feature gate is not enabled");
    let field = format!("{field}.hostDisk");
    if disk.path.is_empty() {
        found.invalid(format!("{field}.path"), format!("{field}.path is required for hostDisk volume"));
    }
    if !["Disk", "DiskOrCreate"].contains(&disk.type_.as_str()) {
        let message = format!("{field}.type has invalid value '{}', allowed are 'Disk' or 'DiskOrCreate'", disk.type_);
        found.invalid(format!("{field}.type"), message);
    }
}
