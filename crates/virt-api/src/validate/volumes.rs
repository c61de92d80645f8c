//! Volumes: what is behind a disk.

use std::collections::BTreeMap;

use base64::Engine;
use ferrovirt_api::{
    quantity::Quantity,
    v1::{VirtualMachineInstanceSpec, Volume},
};
use k8s_openapi::api::core::v1::LocalObjectReference;

use super::{Cluster, Findings, NOT_FOUND};

/// What fits into a VM object next to everything else.
const MAX_CLOUD_INIT: usize = 2048;

pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
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
        if volume.downward_metrics.is_some() && !cluster.gate("DownwardMetrics") {
            found.invalid(
                field.clone(),
                "downwardMetrics disks are not allowed: DownwardMetrics feature gate is not enabled.",
            );
        }
        host_disk(volume, &field, cluster, found);
        if let Some(disk) = &volume.empty_disk
            && Quantity::try_from(&disk.capacity).ok().is_none_or(|size| size.is_zero() || size.is_negative())
        {
            let field = format!("{field}.emptyDisk.capacity");
            let message = format!("{field} '{}': must be greater than zero", disk.capacity.0);
            found.invalid(field, message);
        }
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        let inside = volume.container_disk.as_ref().map(|disk| disk.path.as_str()).filter(|path| !path.is_empty());
        if let Some(inside) = inside {
            super::storage::absolute(inside, format!("{base}[{index}].containerDisk"), found);
        }
    }
    if !spec.utility_volumes.is_empty() {
        found.invalid(
            format!("{path}.utilityVolumes"),
            "cannot create VMI with utility volumes in spec, utility volumes can only be added via hotplug",
        );
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

fn host_disk(volume: &Volume, field: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let Some(disk) = &volume.host_disk else { return };
    // A file of the node is not the namespace's to give.
    if !cluster.gate("HostDisk") {
        found.invalid(field.to_owned(), "HostDisk feature gate is not enabled");
    }
    let field = format!("{field}.hostDisk");
    if disk.path.is_empty() {
        found.add(NOT_FOUND, format!("{field}.path"), format!("{field}.path is required for hostDisk volume"));
    }
    if !["Disk", "DiskOrCreate"].contains(&disk.type_.as_str()) {
        let message = format!("{field}.type has invalid value '{}', allowed are 'Disk' or 'DiskOrCreate'", disk.type_);
        found.invalid(format!("{field}.type"), message);
    }
    let sized = Quantity::try_from(&disk.capacity).is_ok_and(|size| !size.is_zero());
    if disk.type_ == "Disk" && sized {
        let message = format!("{field}.capacity is allowed to pass only with {field}.type equal to 'DiskOrCreate'");
        found.invalid(format!("{field}.capacity"), message);
    }
}

/// Every volume of an instance is seen by its guest: as a disk, or as a file system.
pub(super) fn placed(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    for (index, volume) in spec.volumes.iter().enumerate().filter(|(_, volume)| volume.memory_dump.is_none()) {
        let field = format!("{path}.domain.volumes[{index}]");
        let name = &volume.name;
        let disk = spec.domain.devices.disks.iter().any(|disk| disk.name == *name);
        let filesystem = spec.domain.devices.filesystems.iter().any(|filesystem| filesystem.name == *name);
        if !disk && !filesystem {
            found.invalid(format!("{field}.name"), format!("{field}.name '{name}' not found."));
        }
        let Some(container) = &volume.container_path else { continue };
        if disk {
            let message = format!("ContainerPath volume '{name}' must be mapped to a filesystem, not a disk");
            found.invalid(field.clone(), message);
        }
        if !filesystem {
            let message = format!(
                "ContainerPath volume '{name}' must have a matching filesystem defined in spec.domain.devices.filesystems"
            );
            found.invalid(field.clone(), message);
        }
        let reserved = ["/var/run/kubevirt", "/var/run/libvirt"];
        if let Some(prefix) = reserved.iter().find(|prefix| container.path.starts_with(*prefix)) {
            let message = format!("ContainerPath volume '{name}' uses reserved path prefix '{prefix}'");
            found.invalid(format!("{field}.containerPath.path"), message);
        }
    }
}
