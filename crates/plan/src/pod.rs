//! The launcher pod of an instance.

use std::collections::BTreeMap;

use ferrovirt_api::{
    names,
    v1::{VirtualMachineInstance, Volume as VmVolume},
};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, ConfigMapProjection, ConfigMapVolumeSource, Container, DownwardAPIProjection,
        DownwardAPIVolumeFile, DownwardAPIVolumeSource, EmptyDirVolumeSource, EnvVar, HostPathVolumeSource,
        ImageVolumeSource, LocalObjectReference, ObjectFieldSelector, PersistentVolumeClaimVolumeSource, Pod,
        PodSecurityContext, PodSpec, ProjectedVolumeSource, SeccompProfile, SecretVolumeSource, SecurityContext,
        ServiceAccountTokenProjection, Sysctl, Volume, VolumeDevice, VolumeMount, VolumeProjection,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

pub use crate::resources::{memory_overhead, virtual_cpus};

/// User and group of everything in a launcher pod, as KubeVirt's, so that volumes move both ways.
pub const RUNTIME_USER: i64 = 107;
/// What the launcher gets on top of the guest's own grace period to tidy up.
const GRACE_SLACK_SECONDS: i64 = 15;
/// Where programs look for the pod's account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
pub const DEFAULT_GRACE_SECONDS: i64 = 30;

/// What the cluster's configuration says about pods.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub launcher_image: String,
    pub image_pull_policy: String,
    /// True if some node offers the hypervisor's device. If none does, pods ask for it only if emulation is not allowed.
    pub device_available: bool,
    pub allow_emulation: bool,
    /// Why no node runs a hypervisor, by its name; those that some node runs are not in it.
    pub not_offered: BTreeMap<String, String>,
    /// How many virtual CPUs share a physical one.
    pub cpu_allocation_ratio: i64,
    /// The feature gate `HostDisk` is open.
    pub host_disks: bool,
    /// Claims of the instance that are block devices.
    pub block_claims: std::collections::BTreeSet<String>,
    /// The claim of what the instance keeps beside its disks: see `kept_state`.
    pub state_claim: Option<String>,
    /// The instance's vsock address, if it asks for one.
    pub vsock_cid: Option<u32>,
    /// The components' image, if the cluster has no image volumes: see `container_disks`.
    pub copy_images_with: Option<String>,
}

impl Config {
    /// Whether pods do without the hypervisor's device. Where emulation is not allowed, they wait for a node that has it.
    pub(crate) fn may_emulate(&self) -> bool {
        self.allow_emulation && !self.device_available
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            launcher_image: format!("ferrovirt-launcher:{}", env!("CARGO_PKG_VERSION")),
            image_pull_policy: "IfNotPresent".into(),
            device_available: false,
            allow_emulation: true,
            not_offered: BTreeMap::new(),
            cpu_allocation_ratio: 10,
            host_disks: false,
            block_claims: Default::default(),
            state_claim: None,
            vsock_cid: None,
            copy_images_with: None,
        }
    }
}

/// How the name of a pod ends that has root on its node. A cluster's admission policy for `exec` sees nothing of a pod but its name.
const PRIVILEGED_SUFFIX: &str = "-root";

/// The pod's name. It follows from the instance, so that creating it twice creates one.
pub fn name(vmi: &VirtualMachineInstance) -> String {
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let mut state: u32 = 0x811c_9dc5;
    for byte in uid.bytes() {
        state = (state ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut suffix = String::new();
    for _ in 0..5 {
        suffix.push(ALPHABET[(state % ALPHABET.len() as u32) as usize] as char);
        state /= ALPHABET.len() as u32;
    }
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let privileged = if is_privileged(vmi) { PRIVILEGED_SUFFIX } else { "" };
    // A name has at most 253 characters, and "virt-launcher-" and the suffix need 20 of them.
    let longest = 233 - privileged.len();
    let name = name.get(..name.len().min(longest)).unwrap_or(name).trim_end_matches(['-', '.']);
    format!("virt-launcher-{name}-{suffix}{privileged}")
}

pub fn render(vmi: &VirtualMachineInstance, config: &Config) -> Pod {
    let spec = &vmi.spec;
    let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
    let (mut volumes, mut mounts) = volumes(vmi);
    crate::kept_state::add(vmi, config.state_claim.as_deref(), &mut volumes, &mut mounts);
    let privileged = is_privileged(vmi);
    // Not for a driver that runs as root, for whom no file of the node is closed. Admission says so to the VM's owner.
    if config.host_disks && !privileged {
        vmi.spec.volumes.iter().for_each(|volume| add_host_disk(volume, &mut volumes, &mut mounts));
    }
    let account = spec.volumes.iter().find_map(|volume| some(&volume.service_account.as_ref()?.service_account_name));
    let pull_secrets =
        spec.volumes.iter().filter_map(|volume| some(&volume.container_disk.as_ref()?.image_pull_secret));
    let pull_secrets: Vec<_> = pull_secrets.map(|name| LocalObjectReference { name }).collect();
    let devices = block_devices(&volumes, &mut mounts, config);
    let mut node_selector = spec.node_selector.clone();
    node_selector.insert(names::NODE_SCHEDULABLE.into(), "true".into());
    node_selector.insert(format!("{}{}", names::HYPERVISOR_LABEL, hypervisor(vmi)), "true".into());
    if crate::resources::pins_cpus(vmi) {
        node_selector.insert(names::CPU_MANAGER.into(), "true".into());
    }
    let mut pod_spec = PodSpec {
        restart_policy: Some("Never".into()),
        termination_grace_period_seconds: Some(grace + GRACE_SLACK_SECONDS),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        hostname: Some(hostname(vmi)),
        subdomain: some(&spec.subdomain),
        node_selector: Some(node_selector),
        affinity: spec.affinity.clone(),
        tolerations: some_vec(&spec.tolerations),
        topology_spread_constraints: some_vec(&spec.topology_spread_constraints),
        priority_class_name: some(&spec.priority_class_name),
        scheduler_name: some(&spec.scheduler_name),
        dns_policy: some(&spec.dns_policy),
        dns_config: spec.dns_config.clone(),
        security_context: Some(pod_security(privileged)),
        service_account_name: account,
        image_pull_secrets: some_vec(&pull_secrets),
        volumes: Some(volumes),
        containers: vec![Container {
            name: names::COMPUTE_CONTAINER.into(),
            image: Some(launcher_image(&config.launcher_image, hypervisor(vmi))),
            image_pull_policy: Some(config.image_pull_policy.clone()),
            command: Some(vec!["/usr/bin/ferrovirt-launcher".into()]),
            args: Some(vec!["run".into(), "--socket-dir".into(), "/var/run/kubevirt/sockets".into()]),
            env: Some(vec![EnvVar {
                name: "FERROVIRT_HYPERVISOR".into(),
                value: Some(hypervisor(vmi).into()),
                ..Default::default()
            }]),
            resources: Some(crate::resources::resources(vmi, config)),
            security_context: Some(container_security(vmi, privileged)),
            volume_mounts: Some(mounts),
            volume_devices: some_vec(&devices),
            liveness_probe: spec.liveness_probe.as_ref().map(crate::probes::probe),
            readiness_probe: spec.readiness_probe.as_ref().map(crate::probes::probe),
            ..Default::default()
        }],
        ..Default::default()
    };
    // Not for a driver that runs as root: its guests have files of many owners, which a copy would lose.
    if let Some(tool) = config.copy_images_with.as_ref().filter(|_| !privileged) {
        crate::container_disks::copy_images(&mut pod_spec, tool);
    }
    Pod { metadata: metadata(vmi), spec: Some(pod_spec), status: None }
}

pub fn hypervisor(vmi: &VirtualMachineInstance) -> &str {
    vmi.spec.hypervisor.as_deref().unwrap_or(ferrovirt_machine::hypervisor::DEFAULT)
}

/// True if the instance's hypervisor needs root in its pod. Its guest never has it.
pub fn is_privileged(vmi: &VirtualMachineInstance) -> bool {
    ferrovirt_machine::hypervisor::hypervisor(hypervisor(vmi)).is_some_and(|driver| driver.runs_privileged())
}

/// The image of a hypervisor's launcher: the common name and the driver's suffix, before the tag or digest.
pub fn launcher_image(common: &str, hypervisor: &str) -> String {
    let suffix = ferrovirt_machine::hypervisor::hypervisor(hypervisor).map_or("", |driver| driver.image_suffix());
    // A colon in the registry's address is followed by a slash later on.
    let (path, name) = common.rsplit_once('/').map_or(("", common), |(path, name)| (path, name));
    let end = name.find([':', '@']).unwrap_or(name.len());
    let (name, version) = name.split_at(end);
    let slash = if path.is_empty() { "" } else { "/" };
    format!("{path}{slash}{name}{suffix}{version}")
}

fn pod_security(privileged: bool) -> PodSecurityContext {
    // The launcher answers DHCP for its guest, and ports below 1024 would need a capability otherwise.
    let sysctls = Some(vec![Sysctl { name: "net.ipv4.ip_unprivileged_port_start".into(), value: "0".into() }]);
    if privileged {
        // No group of its own for volumes: their files have the guest's owners.
        return PodSecurityContext { run_as_user: Some(0), run_as_group: Some(0), sysctls, ..Default::default() };
    }
    PodSecurityContext {
        run_as_user: Some(RUNTIME_USER),
        run_as_group: Some(RUNTIME_USER),
        run_as_non_root: Some(true),
        fs_group: Some(RUNTIME_USER),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), ..Default::default() }),
        sysctls,
        ..Default::default()
    }
}

fn container_security(vmi: &VirtualMachineInstance, privileged: bool) -> SecurityContext {
    if privileged {
        return SecurityContext {
            privileged: Some(true),
            run_as_user: Some(0),
            run_as_group: Some(0),
            ..Default::default()
        };
    }
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".into()]),
            // Nobody in the pod has it, not being root. But the profiles of container runtimes let only a container that could have it
            // say from which NUMA node its memory comes.
            add: crate::resources::mirrors_numa(vmi).then(|| vec!["SYS_NICE".into()]),
        }),
        run_as_user: Some(RUNTIME_USER),
        run_as_group: Some(RUNTIME_USER),
        run_as_non_root: Some(true),
        ..Default::default()
    }
}

/// Annotations of an instance that would say something else on its pod, which is ours and not its owner's: who made it, on which networks it
/// is, and how container runtimes confine it. What its owner may choose of that is in the instance's spec.
const NOT_COPIED: [&str; 10] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "ferrovirt.io/",
    crate::network::NETWORKS_ANNOTATION,
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
    "io.kubernetes.cri",
    "io.containerd.",
    "io.katacontainers.",
    "run.oci.",
];

fn metadata(vmi: &VirtualMachineInstance) -> ObjectMeta {
    let uid = vmi.metadata.uid.clone().unwrap_or_default();
    let vmi_name = vmi.metadata.name.clone().unwrap_or_default();
    let mut labels = vmi.metadata.labels.clone().unwrap_or_default();
    labels.remove(names::NODE_NAME_LABEL);
    labels.insert(names::APP_LABEL.into(), names::LAUNCHER_APP.into());
    labels.insert(names::CREATED_BY_LABEL.into(), uid.clone());
    // What Services of `expose` select by. A label holds 63 characters; longer names have no Service of their own.
    if vmi_name.len() <= 63 {
        labels.insert(names::VIRTUAL_MACHINE_INSTANCE_ID_LABEL.into(), vmi_name.clone());
    }
    if vmi_name.len() <= 63 {
        labels.insert(names::DEPRECATED_VIRTUAL_MACHINE_NAME_LABEL.into(), vmi_name.clone());
    }
    let mut annotations = vmi.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|name, _| !NOT_COPIED.iter().any(|prefix| name.starts_with(prefix)));
    // Its networks are those of the spec, each of which was judged by what its writer may use.
    annotations.retain(|name, _| !crate::network::ASKING_ANNOTATIONS.contains(&name.as_str()));
    annotations.insert(names::DOMAIN_ANNOTATION.into(), vmi_name.clone());
    if let Some(networks) = crate::network::annotation(vmi) {
        annotations.insert(crate::network::NETWORKS_ANNOTATION.into(), networks);
    }
    annotations.insert("kubectl.kubernetes.io/default-container".into(), names::COMPUTE_CONTAINER.into());
    ObjectMeta {
        name: Some(name(vmi)),
        namespace: vmi.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![OwnerReference {
            api_version: "kubevirt.io/v1".into(),
            kind: "VirtualMachineInstance".into(),
            name: vmi_name,
            uid,
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..Default::default()
    }
}

fn hostname(vmi: &VirtualMachineInstance) -> String {
    let name = match vmi.spec.hostname.as_str() {
        "" => vmi.metadata.name.as_deref().unwrap_or_default(),
        name => name,
    };
    // A host name is one label of at most 63 characters.
    let label = name.split('.').next().unwrap_or_default();
    label.get(..label.len().min(63)).unwrap_or(label).trim_end_matches('-').into()
}

/// The directories every launcher has, then those of the instance's own volumes.
fn volumes(vmi: &VirtualMachineInstance) -> (Vec<Volume>, Vec<VolumeMount>) {
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
fn block_devices(volumes: &[Volume], mounts: &mut Vec<VolumeMount>, config: &Config) -> Vec<VolumeDevice> {
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
    let secrets = [
        (name.clone(), volume.secret.as_ref().map(|s| s.secret_name.clone())),
        (name.clone(), volume.cloud_init_no_cloud.as_ref().and_then(|c| Some(c.secret_ref.as_ref()?.name.clone()))),
        (name.clone(), volume.cloud_init_config_drive.as_ref().and_then(|c| Some(c.secret_ref.as_ref()?.name.clone()))),
        (
            format!("{name}-net"),
            volume.cloud_init_no_cloud.as_ref().and_then(|c| Some(c.network_data_secret_ref.as_ref()?.name.clone())),
        ),
        (
            format!("{name}-net"),
            volume
                .cloud_init_config_drive
                .as_ref()
                .and_then(|c| Some(c.network_data_secret_ref.as_ref()?.name.clone())),
        ),
    ];
    for (volume_name, secret) in secrets {
        if let Some(secret) = secret {
            let source = SecretVolumeSource { secret_name: Some(secret), ..Default::default() };
            let path = format!("/var/run/kubevirt-private/secret/{volume_name}");
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
fn add_host_disk(volume: &VmVolume, volumes: &mut Vec<Volume>, mounts: &mut Vec<VolumeMount>) {
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

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.into())
}

fn some_vec<T: Clone>(items: &[T]) -> Option<Vec<T>> {
    (!items.is_empty()).then(|| items.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi(annotations: Value, spec: Value) -> VirtualMachineInstance {
        let metadata = json!({ "name": "a", "namespace": "n", "uid": "u", "annotations": annotations });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    #[test]
    fn annotations_of_a_vm_do_not_say_who_made_its_pod_or_how_it_is_confined() {
        let evil = json!({
            names::CREATED_BY: names::UP_USER,
            "k8s.v1.cni.cncf.io/networks": "other-tenant/secret",
            "container.apparmor.security.beta.kubernetes.io/compute": "unconfined",
            "seccomp.security.alpha.kubernetes.io/pod": "unconfined",
            "container.seccomp.security.alpha.kubernetes.io/compute": "unconfined",
            "io.kubernetes.cri-o.Devices": "/dev/sda",
            "run.oci.keep_original_groups": "1",
            "io.katacontainers.config.hypervisor.path": "/bin/sh",
            "example.com/mine": "kept",
        });
        let annotations = render(&vmi(evil, json!({ "domain": {} })), &Config::default()).metadata.annotations.unwrap();
        let names: Vec<&str> = annotations.keys().map(String::as_str).collect();
        assert_eq!(names, ["example.com/mine", "kubectl.kubernetes.io/default-container", names::DOMAIN_ANNOTATION]);
    }

    #[test]
    fn nothing_that_a_vms_owner_writes_mounts_a_path_of_the_host() {
        let host_disk = json!({ "path": "/etc/shadow", "type": "DiskOrCreate", "capacity": "1Gi" });
        let spec = |hypervisor: &str| {
            json!({
                "hypervisor": hypervisor,
                "domain": {
                    "devices": { "filesystems": [{ "name": "c", "virtiofs": {} }], "downwardMetrics": {} },
                    "firmware": { "kernelBoot": { "container": { "image": "../../../../etc", "kernelPath": "/etc/shadow" } } },
                },
                "accessCredentials": [{ "sshPublicKey": { "source": { "secret": { "secretName": "../x" } },
                    "propagationMethod": { "noCloud": {} } } }],
                "volumes": [
                    { "name": "h", "hostDisk": host_disk },
                    { "name": "i", "containerDisk": { "image": "/etc", "path": "/etc/shadow" } },
                    { "name": "c", "persistentVolumeClaim": { "claimName": "../../../etc" } },
                    { "name": "s", "sysprep": { "secret": { "name": "/etc" } } },
                    { "name": "m", "downwardMetrics": {} },
                ],
            })
        };
        let host_paths = |hypervisor: &str, host_disks: bool| {
            let pod = render(&vmi(json!({}), spec(hypervisor)), &Config { host_disks, ..Default::default() });
            let spec = pod.spec.unwrap();
            assert!(spec.host_network.is_none() && spec.host_pid.is_none() && spec.host_ipc.is_none());
            let volumes = spec.volumes.unwrap_or_default();
            volumes.into_iter().filter_map(|volume| Some(volume.host_path?.path)).collect::<Vec<_>>()
        };
        let none = Vec::<String>::new();
        assert_eq!(host_paths("qemu", false), none);
        assert_eq!(host_paths("lxc", false), none);
        // What the cluster's administrator opened, and for drivers without root only.
        assert_eq!(host_paths("qemu", true), ["/etc"]);
        assert_eq!(host_paths("lxc", true), none);
    }
}
