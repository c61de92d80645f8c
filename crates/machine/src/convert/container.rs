//! A VirtualMachineInstance as a container: its first disk becomes the root file system, its cloud-init data a directory.
//!
//! What only hardware has (buses, models, a random number device) means nothing here and is passed over, so that a manifest
//! need not change with its hypervisor. What would be missed is a gap in the feature table and never gets here.

use ferrovirt_api::v1::{self, VirtualMachineInstance};

use super::{Context, Conversion, FieldError, cloud_init, cpu, devices, domain_name, grace_seconds, memory, network};
use crate::spec::{
    Acceleration, Container, ContainerMount, Cpu, Devices, MachineSpec, Preparation, RebootAction, SPEC_VERSION,
};

const INIT: &str = "/sbin/init";
/// Where cloud-init looks for data that comes without a disk.
const NO_CLOUD_SEED: &str = "/var/lib/cloud/seed/nocloud";
const CONFIG_DRIVE_SEED: &str = "/var/lib/cloud/seed/config_drive";

pub(super) fn convert(vmi: &VirtualMachineInstance, ctx: &Context) -> Result<MachineSpec, Vec<FieldError>> {
    let mut c = Conversion { vmi, ctx, prepare: Vec::new(), errors: Vec::new() };
    let topology = cpu::topology(&vmi.spec.domain);
    let vcpus = cpu::vcpus(&topology);
    let mut container = Container { init: vec![INIT.into()], ids: ctx.guest_ids, ..Container::default() };
    if container.ids.count == 0 {
        c.refuse("spec.hypervisor", "the node has no user ids left for a container");
    }
    container.root = root(&mut c);
    container.mounts = seeds(&mut c);
    let spec = MachineSpec {
        version: SPEC_VERSION,
        name: domain_name(vmi),
        uid: vmi.metadata.uid.clone().unwrap_or_default(),
        hypervisor: vmi.spec.hypervisor.clone().unwrap_or_default(),
        arch: ctx.arch,
        acceleration: Acceleration::Hardware,
        memory: memory::convert(&mut c),
        cpu: Cpu { topology, vcpus, ..Cpu::default() },
        devices: Devices { interfaces: network::convert(&mut c), serial: devices::serial(&c), ..Devices::default() },
        on_reboot: match vmi.spec.domain.reboot_policy.as_deref() {
            Some("Terminate") => Some(RebootAction::Destroy),
            _ => None,
        },
        grace_seconds: grace_seconds(vmi),
        container: Some(container),
        prepare: std::mem::take(&mut c.prepare),
        ..MachineSpec::default()
    };
    if c.errors.is_empty() { Ok(spec) } else { Err(c.errors) }
}

/// Plans the root file system and returns its directory.
fn root(c: &mut Conversion<'_>) -> String {
    let vmi = c.vmi;
    let path = format!("{}/rootfs", c.ctx.layout.ephemeral);
    let Some((position, volume)) = root_volume(vmi) else {
        c.refuse(
            "spec.volumes",
            "a container needs a containerDisk, a persistentVolumeClaim or a dataVolume as its root",
        );
        return path;
    };
    let name = &volume.name;
    let ids = c.ctx.guest_ids;
    if let Some(disk) = &volume.container_disk {
        if !disk.path.is_empty() {
            let field = format!("spec.volumes[{position}].containerDisk.path");
            c.refuse(field, "a container's root is the whole image; leave the path out");
        }
        let Some(base) = c.ctx.container_trees.get(name).cloned() else {
            let field = format!("spec.volumes[{position}].containerDisk");
            c.refuse(field, format!("the image of volume {name:?} is not there"));
            return path;
        };
        let scratch = Some(format!("{}/{name}", c.ctx.layout.ephemeral));
        c.prepare(Preparation::RootTree { path: path.clone(), base, scratch, ids });
    } else {
        let block = c.ctx.is_block_pvc.get(name).or_else(|| c.ctx.is_block_dv.get(name));
        if block == Some(&true) {
            let message = "a container's root is a tree of files: use a claim with volumeMode Filesystem";
            c.refuse(format!("spec.volumes[{position}]"), message);
        }
        let base = format!("{}/{name}", c.ctx.layout.vmi_disks);
        c.prepare(Preparation::RootTree { path: path.clone(), base, scratch: None, ids });
    }
    path
}

/// The volume that the guest starts from: of those that can hold a root, the one whose disk boots first.
pub fn root_volume(vmi: &VirtualMachineInstance) -> Option<(usize, &v1::Volume)> {
    let mut disks: Vec<_> = vmi.spec.domain.devices.disks.iter().collect();
    disks.sort_by_key(|disk| disk.boot_order.unwrap_or(u32::MAX.into()));
    disks.iter().find_map(|disk| {
        let mut volumes = vmi.spec.volumes.iter().enumerate();
        volumes.find(|(_, volume)| volume.name == disk.name && can_be_root(volume))
    })
}

pub(crate) fn can_be_root(volume: &v1::Volume) -> bool {
    volume.container_disk.is_some() || volume.persistent_volume_claim.is_some() || volume.data_volume.is_some()
}

/// Cloud-init data, in the directories where its client looks when there is no disk.
fn seeds(c: &mut Conversion<'_>) -> Vec<ContainerMount> {
    let vmi = c.vmi;
    let mut mounts = Vec::new();
    for (position, volume) in vmi.spec.volumes.iter().enumerate() {
        let target = match (&volume.cloud_init_no_cloud, &volume.cloud_init_config_drive) {
            (Some(_), _) => NO_CLOUD_SEED,
            (_, Some(_)) => CONFIG_DRIVE_SEED,
            _ => continue,
        };
        let field = format!("spec.volumes[{position}]");
        let files = cloud_init::data(c, &field, volume);
        let path = format!("{}/{}", c.ctx.layout.cloud_init, volume.name);
        c.prepare(Preparation::Directory { path: path.clone(), files, ids: c.ctx.guest_ids });
        mounts.push(ContainerMount { source: path, target: target.into() });
    }
    mounts
}
