//! What a launcher pod mounts.

use ferrovirt_api::v1::{VirtualMachineInstance, Volume as VmVolume};
use k8s_openapi::api::core::v1::{
    ConfigMapProjection, ConfigMapVolumeSource, DownwardAPIProjection, DownwardAPIVolumeFile, DownwardAPIVolumeSource,
    EmptyDirVolumeSource, HostPathVolumeSource, ImageVolumeSource, ObjectFieldSelector,
    PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, SecretVolumeSource, ServiceAccountTokenProjection,
    Volume, VolumeDevice, VolumeMount, VolumeProjection,
};

use super::{Config, some};

/// Where programs look for the pod's account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The directories every launcher has, then those of the instance's own volumes.
pub(super) fn volumes(vmi: &VirtualMachineInstance) -> (Vec<Volume>, Vec<VolumeMount>) {
    let mut volumes = vec![];
    let mut mounts = vec![];
    for (name, path) in [
        ("private", "/var/run/kubevirt-private"),
        ("sockets", "/var/run/kubevirt/sockets"),
        ("ephemeral-disks", "/var/run/kubevirt-ephemeral-disks"),
        ("libvirt-runtime", "/var/run/libvirt"),
    ] {
        volumes.push(Volume {
            name: name.into(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Default::default()
        });
        mounts.push(VolumeMount { name: name.into(), mount_path: path.into(), ..Default::default() });
    }
    for volume in &vmi.spec.volumes {
        add_volume(volume, &mut volumes, &mut mounts);
    }
    let firmware = vmi.spec.domain.firmware.as_ref();
    if let Some(container) = firmware.and_then(|f| f.kernel_boot.as_ref()?.container.as_ref()) {
        let name = "kernel-boot";
        let (reference, pull_policy) = (Some(container.image.clone()), some(&container.image_pull_policy));
        let image = ImageVolumeSource { reference, pull_policy };
        volumes.push(Volume { name: name.into(), image: Some(image), ..Default::default() });
        let mount_path = format!("/var/run/kubevirt/container-disks/{name}");
        mounts.push(VolumeMount { name: name.into(), mount_path, read_only: Some(true), ..Default::default() });
    }
    if !vmi.spec.domain.devices.filesystems.is_empty() {
        // Where the daemons of shared file systems listen, as upstream.
        let (name, mount_path) =
            ("virtiofs-containers".to_owned(), ferrovirt_machine::convert::filesystems::SOCKETS.to_owned());
        mounts.push(VolumeMount { name: name.clone(), mount_path, ..Default::default() });
        volumes.push(Volume { name, empty_dir: Some(EmptyDirVolumeSource::default()), ..Default::default() });
    }
    crate::credentials::add(vmi, &mut volumes, &mut mounts);
    crate::resources::add_huge_pages(vmi, &mut volumes, &mut mounts);
    (volumes, mounts)
}

/// Turns the mounts of claims that are block devices into devices.
pub(super) fn block_devices(volumes: &[Volume], mounts: &mut Vec<VolumeMount>, config: &Config) -> Vec<VolumeDevice> {
    let block = volumes.iter().filter(|volume| {
        volume.persistent_volume_claim.as_ref().is_some_and(|claim| config.block_claims.contains(&claim.claim_name))
    });
    let devices: Vec<VolumeDevice> = block
        .map(|volume| VolumeDevice { name: volume.name.clone(), device_path: format!("/dev/{}", volume.name) })
        .collect();
    mounts.retain(|mount| devices.iter().all(|device| device.name != mount.name));
    devices
}

fn add_volume(volume: &VmVolume, volumes: &mut Vec<Volume>, mounts: &mut Vec<VolumeMount>) {
    let name = &volume.name;
    let mut add = |source: Volume, path: String, read_only: bool| {
        mounts.push(VolumeMount {
            name: source.name.clone(),
            mount_path: path,
            read_only: read_only.then_some(true),
            ..Default::default()
        });
        volumes.push(source);
    };
    let named = |name: &str| Volume { name: name.into(), ..Default::default() };
    if let Some(disk) = &volume.container_disk {
        let image =
            ImageVolumeSource { reference: Some(disk.image.clone()), pull_policy: some(&disk.image_pull_policy) };
        let path = format!("/var/run/kubevirt/container-disks/{name}");
        add(Volume { image: Some(image), ..named(&format!("container-disk-{name}")) }, path, true);
    }
    let claim = volume.persistent_volume_claim.as_ref().map(|c| (c.claim_name.clone(), c.read_only));
    let claim = claim
        .or_else(|| volume.data_volume.as_ref().map(|d| (d.name.clone(), false)))
        .or_else(|| Some((volume.ephemeral.as_ref()?.persistent_volume_claim.as_ref()?.claim_name.clone(), true)));
    if let Some((claim_name, read_only)) = claim {
        let source = PersistentVolumeClaimVolumeSource { claim_name, read_only: read_only.then_some(true) };
        let path = format!("/var/run/kubevirt-private/vmi-disks/{name}");
        add(Volume { persistent_volume_claim: Some(source), ..named(name) }, path, read_only);
    }
    // Upstream's names of the volumes; where they are mounted is between the pod and its launcher.
    let no_cloud = volume.cloud_init_no_cloud.as_ref();
    let drive = volume.cloud_init_config_drive.as_ref();
    let user_data = no_cloud
        .and_then(|source| source.secret_ref.as_ref())
        .or_else(|| drive.and_then(|source| source.secret_ref.as_ref()));
    let network_data = no_cloud
        .and_then(|source| source.network_data_secret_ref.as_ref())
        .or_else(|| drive.and_then(|source| source.network_data_secret_ref.as_ref()));
    let secrets = [
        (name.clone(), name.clone(), volume.secret.as_ref().map(|source| &source.secret_name)),
        (format!("{name}-udata"), name.clone(), user_data.map(|secret| &secret.name)),
        (format!("{name}-ndata"), format!("{name}-net"), network_data.map(|secret| &secret.name)),
    ];
    for (volume_name, directory, secret) in secrets {
        if let Some(secret) = secret {
            let source = SecretVolumeSource { secret_name: Some(secret.clone()), ..Default::default() };
            let path = format!("/var/run/kubevirt-private/secret/{directory}");
            add(Volume { secret: Some(source), ..named(&volume_name) }, path, true);
        }
    }
    if let Some(map) = &volume.config_map {
        let source = ConfigMapVolumeSource { name: map.name.clone(), optional: map.optional, ..Default::default() };
        let path = format!("/var/run/kubevirt-private/config-map/{name}");
        add(Volume { config_map: Some(source), ..named(name) }, path, true);
    }
    if let Some(sysprep) = &volume.sysprep {
        let secret = sysprep
            .secret
            .as_ref()
            .map(|secret| SecretVolumeSource { secret_name: Some(secret.name.clone()), ..Default::default() });
        let config_map = sysprep.config_map.as_ref().filter(|_| secret.is_none());
        let config_map = config_map.map(|map| ConfigMapVolumeSource { name: map.name.clone(), ..Default::default() });
        let path = format!("/var/run/kubevirt-private/sysprep/{name}");
        add(Volume { secret, config_map, ..named(name) }, path, true);
    }
    if let Some(source) = &volume.downward_api {
        let source = DownwardAPIVolumeSource { items: Some(source.fields.clone()), ..Default::default() };
        let path = format!("/var/run/kubevirt-private/downwardapi/{name}");
        add(Volume { downward_api: Some(source), ..named(name) }, path, true);
    }
    if volume.service_account.is_some() {
        add(Volume { projected: Some(service_account()), ..named(name) }, SERVICE_ACCOUNT.into(), true);
    }
}

/// What a kubelet would mount by itself. Pods of VMs get it only for a volume that asks for it.
fn service_account() -> ProjectedVolumeSource {
    const TOKEN_SECONDS: i64 = 3607;
    let token = ServiceAccountTokenProjection {
        path: "token".into(),
        expiration_seconds: Some(TOKEN_SECONDS),
        ..Default::default()
    };
    let authority = ConfigMapProjection { name: "kube-root-ca.crt".into(), optional: Some(true), ..Default::default() };
    let namespace = DownwardAPIVolumeFile {
        path: "namespace".into(),
        field_ref: Some(ObjectFieldSelector { field_path: "metadata.namespace".into(), ..Default::default() }),
        ..Default::default()
    };
    let namespace = DownwardAPIProjection { items: Some(vec![namespace]) };
    ProjectedVolumeSource {
        sources: Some(vec![
            VolumeProjection { service_account_token: Some(token), ..Default::default() },
            VolumeProjection { config_map: Some(authority), ..Default::default() },
            VolumeProjection { downward_api: Some(namespace), ..Default::default() },
        ]),
        ..Default::default()
    }
}

/// The directory of the host in which the disk is, for those whom the cluster's configuration lets have it.
pub(super) fn add_host_disk(volume: &VmVolume, volumes: &mut Vec<Volume>, mounts: &mut Vec<VolumeMount>) {
    let Some(disk) = &volume.host_disk else { return };
    let directory = disk.path.rsplit_once('/').map_or("/", |(directory, _)| directory);
    let kind = if disk.type_ == "DiskOrCreate" { "DirectoryOrCreate" } else { "Directory" };
    let source = HostPathVolumeSource { path: directory.into(), type_: Some(kind.into()) };
    volumes.push(Volume { name: volume.name.clone(), host_path: Some(source), ..Default::default() });
    mounts.push(VolumeMount {
        name: volume.name.clone(),
        mount_path: format!("/var/run/kubevirt-private/vmi-disks/{}", volume.name),
        ..Default::default()
    });
}
