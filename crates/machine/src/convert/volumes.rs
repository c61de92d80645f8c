//! Where the content of disks comes from, and what has to be made for it.

use ferrovirt_api::{Quantity, v1};

use super::{ContainerDisk, Conversion, Layout, cloud_init};
use crate::spec::{BackingStore, Disk, DiskDevice, DiskFormat, DiskSource, Preparation};

/// Label of volumes made from configMaps, secrets and the like, unless they ask for another.
const DEFAULT_LABEL: &str = "cfgdata";
const SYSPREP_LABEL: &str = "unattendCD";

/// Gives the disk the content of the VMI's volume at this position.
pub(super) fn attach(c: &mut Conversion<'_>, position: usize, disk: &mut Disk) {
    let vmi = c.vmi;
    let Some(volume) = vmi.spec.volumes.get(position) else {
        return;
    };
    let field = format!("spec.volumes[{position}]");
    let layout = &c.ctx.layout;
    let name = &volume.name;
    let discard = !c.ctx.volumes_discard_ignore.contains(name);
    disk.format = DiskFormat::Raw;

    if volume.container_disk.is_some() {
        not_a_lun(c, &field, disk);
        container_disk(c, &field, position, name, disk);
    } else if volume.cloud_init_no_cloud.is_some() || volume.cloud_init_config_drive.is_some() {
        not_a_lun(c, &field, disk);
        disk.source = file(cloud_init::prepare(c, &field, volume));
    } else if let Some(sysprep) = &volume.sysprep {
        not_a_lun(c, &field, disk);
        if sysprep.secret.is_none() && sysprep.config_map.is_none() {
            c.refuse(format!("{field}.sysprep"), "needs a secret or a configMap");
        }
        let (dir, path) = content_paths(&c.ctx.layout.private, "sysprep", name);
        content(c, disk, dir, path, SYSPREP_LABEL);
    } else if let Some(host_disk) = &volume.host_disk {
        let base = host_disk.path.rsplit('/').next().unwrap_or_default();
        let path = format!("{}/{name}/{base}", layout.vmi_disks);
        if host_disk.type_ == v1::values::host_disk_type::DISK_OR_CREATE {
            match Quantity::try_from(&host_disk.capacity) {
                Ok(size) => c.prepare(Preparation::SparseFile { path: path.clone(), bytes: size.as_bytes() }),
                Err(error) => c.refuse(format!("{field}.hostDisk.capacity"), error.to_string()),
            }
        }
        disk.source = file(path);
        track_changes(c, disk);
    } else if volume.persistent_volume_claim.is_some() {
        disk.discard |= discard;
        disk.source = claim(c, name, c.ctx.is_block_pvc.get(name));
        track_changes(c, disk);
    } else if volume.data_volume.is_some() {
        disk.discard |= discard;
        disk.source = claim(c, name, c.ctx.is_block_dv.get(name));
        track_changes(c, disk);
    } else if volume.ephemeral.is_some() {
        let base = claim(c, name, c.ctx.is_block_pvc.get(name));
        overlay(c, name, disk, BackingStore { source: base, format: DiskFormat::Raw }, None);
    } else if let Some(empty) = &volume.empty_disk {
        not_a_lun(c, &field, disk);
        let path = format!("{}/{name}.qcow2", c.ctx.layout.empty_disks);
        disk.discard = true;
        disk.format = DiskFormat::Qcow2;
        disk.source = file(path.clone());
        match Quantity::try_from(&empty.capacity) {
            Ok(size) => {
                // Whole mebibytes, as upstream: a smaller one has none at all, so it stays as it is.
                let bytes = match size.as_bytes() {
                    bytes if bytes >= 1 << 20 => bytes & !((1 << 20) - 1),
                    bytes => bytes,
                };
                c.prepare(Preparation::EmptyDisk { path, format: DiskFormat::Qcow2, bytes });
            }
            Err(error) => c.refuse(format!("{field}.emptyDisk.capacity"), error.to_string()),
        }
    } else if let Some(source) = &volume.config_map {
        let (dir, path) = content_paths(&layout.private, "config-map", name);
        content(c, disk, dir, path, &source.volume_label);
    } else if let Some(source) = &volume.secret {
        let (dir, path) = content_paths(&layout.private, "secret", name);
        content(c, disk, dir, path, &source.volume_label);
    } else if let Some(source) = &volume.downward_api {
        let (dir, path) = content_paths(&layout.private, "downwardapi", name);
        content(c, disk, dir, path, &source.volume_label);
    } else if volume.service_account.is_some() {
        let path = format!("{}/service-account-disk/service-account.iso", layout.private);
        let dir = layout.service_account.clone();
        content(c, disk, dir, path, "");
    } else if volume.downward_metrics.is_some() {
        disk.source = file(metrics_disk(layout));
        disk.read_only = true;
        disk.discard = false;
        disk.model = Some(c.virtio_disk_model().into());
        disk.cache = None;
        disk.io = None;
        disk.queues = None;
        disk.iommu = false;
        disk.reservations = None;
    } else {
        c.refuse(field, format!("the volume of disk {name:?} has a source that cannot be a disk"));
    }
}

/// Gives the disk the content of a volume that was plugged into the running machine.
pub(super) fn plug(c: &mut Conversion<'_>, position: usize, disk: &mut Disk) {
    let vmi = c.vmi;
    let Some(volume) = vmi.spec.volumes.get(position) else {
        return;
    };
    let name = &volume.name;
    let is_block = if volume.persistent_volume_claim.is_some() || volume.host_disk.is_some() {
        c.ctx.is_block_pvc.get(name)
    } else if volume.data_volume.is_some() {
        c.ctx.is_block_dv.get(name)
    } else {
        c.refuse(format!("spec.volumes[{position}]"), "only claims and data volumes can be plugged in");
        return;
    };
    let directory = &c.ctx.layout.hotplug;
    disk.source = match is_block {
        Some(true) => DiskSource::Block { path: format!("{directory}/{name}"), name: None },
        _ => file(format!("{directory}/{name}.img")),
    };
    disk.format = DiskFormat::Raw;
    disk.discard |= !c.ctx.volumes_discard_ignore.contains(name);
    track_changes(c, disk);
}

/// Puts an overlay before the disk that knows which blocks changed, if there is one for it.
fn track_changes(c: &Conversion<'_>, disk: &mut Disk) {
    let Some(overlay) = c.ctx.apply_cbt.get(&disk.name).filter(|path| !path.is_empty()) else {
        return;
    };
    let data = std::mem::replace(&mut disk.source, file(overlay.clone()));
    disk.data_store = Some(BackingStore { source: data, format: DiskFormat::Raw });
    disk.format = DiskFormat::Qcow2;
}

fn container_disk(c: &mut Conversion<'_>, field: &str, position: usize, name: &str, disk: &mut Disk) {
    let found = c.ctx.disks_info.get(name).map(|info| ContainerDisk {
        path: format!("{}/disk_{position}.img", c.ctx.layout.container_disks),
        format: info.format,
        size: None,
    });
    let Some(image) = c.ctx.container_disks.get(name).cloned().or(found) else {
        c.refuse(format!("{field}.containerDisk"), format!("the image of volume {name:?} is not there"));
        return;
    };
    overlay(c, name, disk, BackingStore { source: file(image.path), format: image.format }, image.size);
}

/// Writes go to an overlay that ends with the machine.
fn overlay(c: &mut Conversion<'_>, name: &str, disk: &mut Disk, base: BackingStore, size: Option<u64>) {
    let directory = c.ctx.ephemeral_disk_base_dir.as_deref().unwrap_or(&c.ctx.layout.ephemeral);
    let path = format!("{}/{name}/disk.qcow2", directory.trim_end_matches('/'));
    c.prepare(Preparation::Overlay {
        path: path.clone(),
        backing: base.source.path().unwrap_or_default().into(),
        backing_format: base.format,
        size,
    });
    disk.discard = true;
    disk.format = DiskFormat::Qcow2;
    disk.source = file(path);
    disk.backing = Some(base);
}

fn claim(c: &Conversion<'_>, name: &str, is_block: Option<&bool>) -> DiskSource {
    if is_block == Some(&true) {
        DiskSource::Block { path: format!("{}/{name}", c.ctx.layout.block), name: Some(name.into()) }
    } else {
        file(format!("{}/{name}/disk.img", c.ctx.layout.vmi_disks))
    }
}

fn content(c: &mut Conversion<'_>, disk: &mut Disk, dir: String, path: String, label: &str) {
    let label = if label.is_empty() { DEFAULT_LABEL } else { label };
    c.prepare(Preparation::ContentDisk { path: path.clone(), label: label.into(), dir });
    disk.source = file(path);
}

/// The disk with counters of the host.
pub(super) fn metrics_disk(layout: &Layout) -> String {
    format!("{}/downwardapi-disks/vhostmd0", layout.private)
}

pub(super) fn content_paths(private: &str, kind: &str, name: &str) -> (String, String) {
    (format!("{private}/{kind}/{name}"), format!("{private}/{kind}-disks/{name}.iso"))
}

fn not_a_lun(c: &mut Conversion<'_>, field: &str, disk: &Disk) {
    // Upstream means to refuse this, but looks at the wrong field.
    if disk.device == DiskDevice::Lun && !c.ctx.as_upstream {
        c.refuse(field, format!("disk {:?} is a LUN, which needs a block device", disk.name));
    }
}

fn file(path: String) -> DiskSource {
    DiskSource::File { path }
}
