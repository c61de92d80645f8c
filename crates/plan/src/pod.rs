//! The launcher pod of an instance, as upstream's virt-controller makes it where nothing speaks against it.

mod configured;
pub mod console_log;
mod logging;
mod metadata;
mod nodes;
mod volumes;

use std::collections::BTreeMap;

use ferrovirt_api::{
    names,
    v1::{SupportContainerResources, VirtualMachineInstance},
};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, ContainerPort, EnvVar, LocalObjectReference, Pod, PodReadinessGate, PodResourceClaim,
        PodSecurityContext, PodSpec, SELinuxOptions, SeccompProfile, SecurityContext, Sysctl,
    },
    apimachinery::pkg::api::resource::Quantity,
};

pub use metadata::{Changes, instance_id, name};
pub(crate) use metadata::{outdated, outdated_annotations};
pub use nodes::unmet;

pub use crate::resources::{memory_overhead, virtual_cpus};

/// User and group of everything in a launcher pod, as KubeVirt's, so that volumes move both ways.
pub const RUNTIME_USER: i64 = 107;
/// What the launcher gets on top of the guest's own grace period to tidy up, as upstream's.
const GRACE_SLACK_SECONDS: i64 = 30;
/// The program of every container of the pod, and what it has for itself.
const LAUNCHER: &str = "/usr/bin/ferrovirt-launcher";
const PRIVATE: &str = "/var/run/kubevirt-private";
/// The pod's condition without which it is not ready: its guest is not paused.
pub const UNPAUSED: &str = "kubevirt.io/virtual-machine-unpaused";
pub const DEFAULT_GRACE_SECONDS: i64 = 30;

/// What the cluster's configuration says about pods.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub launcher_image: String,
    pub image_pull_policy: String,
    /// True if some node offers the hypervisor's device. If none does, pods ask for it only if emulation is not allowed.
    pub device_available: bool,
    pub allow_emulation: bool,
    /// What the instance's pod asks of a node and no node has, in words: see [`unmet`].
    pub unmet: Vec<String>,
    /// Why no node runs a hypervisor, by its name; those that some node runs are not in it.
    pub not_offered: BTreeMap<String, String>,
    /// How many virtual CPUs share a physical one.
    pub cpu_allocation_ratio: i64,
    /// CPU of a machine that asks for none, in place of what follows from the ratio.
    pub cpu_request: Option<Quantity>,
    /// How much memory of guests is promised for a hundred.
    pub memory_overcommit: i64,
    /// Times what the processes around a guest need.
    pub overhead_ratio: Option<f64>,
    /// The instance's namespace wants limits: of CPU, and of memory so many times what is asked for.
    pub auto_cpu_limit: bool,
    pub auto_memory_limit: Option<f64>,
    /// Of containers beside the launcher's.
    pub support_containers: Vec<SupportContainerResources>,
    /// What every node of a VM must have.
    pub node_selectors: BTreeMap<String, String>,
    /// Nodes must say that they have what a guest asks for of Hyper-V.
    pub hyperv_strict: bool,
    pub runtime_class: Option<String>,
    /// The administrator's own filter of system calls, in place of the container runtime's.
    pub seccomp: Option<SeccompProfile>,
    pub selinux_type: Option<String>,
    /// How much launchers say.
    pub log_verbosity: u64,
    /// Of the launcher's image.
    pub pull_secrets: Vec<String>,
    /// Consoles are kept in a log only for those who ask for it.
    pub console_log_disabled: bool,
    /// Which devices may come by resource claims.
    pub claimed: Claimed,
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

/// Feature gates of devices that come by resource claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimed {
    pub gpus: bool,
    pub host_devices: bool,
    pub networks: bool,
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
            unmet: vec![],
            not_offered: BTreeMap::new(),
            cpu_allocation_ratio: 10,
            cpu_request: None,
            memory_overcommit: 100,
            overhead_ratio: None,
            auto_cpu_limit: false,
            auto_memory_limit: None,
            support_containers: vec![],
            node_selectors: BTreeMap::new(),
            hyperv_strict: false,
            runtime_class: None,
            seccomp: None,
            selinux_type: None,
            log_verbosity: logging::VERBOSITY,
            pull_secrets: vec![],
            console_log_disabled: false,
            claimed: Claimed { gpus: true, host_devices: true, networks: false },
            host_disks: false,
            block_claims: Default::default(),
            state_claim: None,
            vsock_cid: None,
            copy_images_with: None,
        }
    }
}

pub fn render(vmi: &VirtualMachineInstance, config: &Config) -> Pod {
    let spec = &vmi.spec;
    let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
    let (mut volumes, mut mounts) = volumes::volumes(vmi);
    crate::kept_state::add(vmi, config.state_claim.as_deref(), &mut volumes, &mut mounts);
    let privileged = is_privileged(vmi);
    // Not for a driver that runs as root, for whom no file of the node is closed. Admission says so to the VM's owner.
    if config.host_disks && !privileged {
        vmi.spec.volumes.iter().for_each(|volume| volumes::add_host_disk(volume, &mut volumes, &mut mounts));
    }
    let devices = volumes::block_devices(&volumes, &mut mounts, config);
    let ports = ports(vmi);
    let hypervisor_name = Some(hypervisor(vmi).to_owned());
    let mut env = vec![EnvVar { name: "FERROVIRT_HYPERVISOR".into(), value: hypervisor_name, ..Default::default() }];
    env.extend(logging::env(vmi, config));
    let mut pod_spec = PodSpec {
        restart_policy: Some("Never".into()),
        termination_grace_period_seconds: Some(grace.saturating_add(GRACE_SLACK_SECONDS)),
        // A volume that shows the account to the guest has its token by itself.
        automount_service_account_token: Some(metadata::is_in_mesh(vmi)),
        enable_service_links: Some(false),
        hostname: Some(metadata::hostname(vmi)),
        subdomain: some(&spec.subdomain),
        node_selector: Some(nodes::selector(vmi, config)),
        affinity: nodes::affinity(vmi),
        tolerations: some_vec(&spec.tolerations),
        topology_spread_constraints: some_vec(&spec.topology_spread_constraints),
        priority_class_name: some(&spec.priority_class_name),
        scheduler_name: some(&spec.scheduler_name),
        runtime_class_name: config.runtime_class.clone(),
        dns_policy: some(&spec.dns_policy),
        dns_config: spec.dns_config.clone(),
        readiness_gates: Some(vec![PodReadinessGate { condition_type: UNPAUSED.into() }]),
        security_context: Some(pod_security(privileged, config)),
        service_account_name: account(vmi),
        image_pull_secrets: some_vec(&pull_secrets(vmi, config)),
        resource_claims: some_vec(&resource_claims(vmi)),
        volumes: Some(volumes),
        // What others add to a pod, they add to its first container.
        containers: vec![Container {
            name: names::COMPUTE_CONTAINER.into(),
            image: Some(launcher_image(&config.launcher_image, hypervisor(vmi))),
            image_pull_policy: Some(config.image_pull_policy.clone()),
            command: Some(vec![LAUNCHER.into()]),
            args: Some(arguments(vmi)),
            env: Some(env),
            ports: some_vec(&ports),
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
    crate::log_filters::add(vmi, &mut pod_spec);
    // Before those that copy and end: it is there from the first.
    if let Some(container) = console_log::container(vmi, config) {
        pod_spec.init_containers.get_or_insert_default().insert(0, container);
    }
    Pod { metadata: metadata::metadata(vmi, config), spec: Some(pod_spec), status: None }
}

/// A launcher that crashes at once: KubeVirt's functional tests try start failures and back-off with it.
const FAIL_FAST: &str = "kubevirt.io/func-test-virt-launcher-fail-fast";

fn arguments(vmi: &VirtualMachineInstance) -> Vec<String> {
    let mut arguments = vec!["run", "--socket-dir", "/var/run/kubevirt/sockets"];
    let annotations = vmi.metadata.annotations.as_ref();
    if annotations.is_some_and(|a| a.contains_key(FAIL_FAST)) {
        arguments.push("--simulate-crash");
    }
    arguments.into_iter().map(str::to_owned).collect()
}

/// The account of the pod: the instance's own, else the one that it shows to its guest.
fn account(vmi: &VirtualMachineInstance) -> Option<String> {
    let shown =
        || vmi.spec.volumes.iter().find_map(|volume| some(&volume.service_account.as_ref()?.service_account_name));
    some(&vmi.spec.service_account_name).or_else(shown)
}

/// Each secret once: those of images that the instance names, then those of our own.
fn pull_secrets(vmi: &VirtualMachineInstance, config: &Config) -> Vec<LocalObjectReference> {
    let spec = &vmi.spec;
    let disks = spec.volumes.iter().filter_map(|volume| some(&volume.container_disk.as_ref()?.image_pull_secret));
    let firmware = spec.domain.firmware.as_ref().and_then(|firmware| firmware.kernel_boot.as_ref());
    let kernel = firmware.and_then(|boot| some(&boot.container.as_ref()?.image_pull_secret));
    let mut secrets: Vec<LocalObjectReference> = vec![];
    for name in disks.chain(kernel).chain(config.pull_secrets.iter().cloned()) {
        if secrets.iter().all(|known| known.name != name) {
            secrets.push(LocalObjectReference { name });
        }
    }
    secrets
}

/// The ports that interfaces list. Services know them by these names.
fn ports(vmi: &VirtualMachineInstance) -> Vec<ContainerPort> {
    let ports = vmi.spec.domain.devices.interfaces.iter().flat_map(|interface| &interface.ports);
    let ports = ports.map(|port| ContainerPort {
        name: some(&port.name),
        protocol: some(&port.protocol).or_else(|| Some("TCP".into())),
        container_port: port.port,
        ..Default::default()
    });
    ports.collect()
}

fn resource_claims(vmi: &VirtualMachineInstance) -> Vec<PodResourceClaim> {
    let claims = vmi.spec.resource_claims.iter().map(|claim| PodResourceClaim {
        name: claim.name.clone(),
        resource_claim_name: claim.resource_claim_name.clone(),
        resource_claim_template_name: claim.resource_claim_template_name.clone(),
    });
    claims.collect()
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

fn pod_security(privileged: bool, config: &Config) -> PodSecurityContext {
    let se_linux_options =
        config.selinux_type.clone().map(|type_| SELinuxOptions { type_: Some(type_), ..Default::default() });
    // The launcher answers DHCP for its guest, and ports below 1024 would need a capability otherwise.
    let sysctls = Some(vec![Sysctl { name: "net.ipv4.ip_unprivileged_port_start".into(), value: "0".into() }]);
    if privileged {
        // No group of its own for volumes: their files have the guest's owners.
        return PodSecurityContext {
            run_as_user: Some(0),
            run_as_group: Some(0),
            sysctls,
            se_linux_options,
            ..Default::default()
        };
    }
    PodSecurityContext {
        run_as_user: Some(RUNTIME_USER),
        run_as_group: Some(RUNTIME_USER),
        run_as_non_root: Some(true),
        fs_group: Some(RUNTIME_USER),
        seccomp_profile: Some(
            config
                .seccomp
                .clone()
                .unwrap_or_else(|| SeccompProfile { type_: "RuntimeDefault".into(), ..Default::default() }),
        ),
        sysctls,
        se_linux_options,
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
        assert_eq!(
            names,
            [
                "descheduler.alpha.kubernetes.io/request-evict-only",
                "example.com/mine",
                "kubectl.kubernetes.io/default-container",
                names::DOMAIN_ANNOTATION,
                names::MEMORY_OVERHEAD_ANNOTATION_BYTES,
                names::MIGRATION_TRANSPORT_UNIX_ANNOTATION,
            ]
        );
    }

    #[test]
    fn a_launcher_crashes_at_once_only_where_a_test_asks_for_it() {
        let last = |annotations: Value| arguments(&vmi(annotations, json!({ "domain": {} }))).pop();
        assert_eq!(last(json!({})).as_deref(), Some("/var/run/kubevirt/sockets"));
        let asked = json!({ "kubevirt.io/func-test-virt-launcher-fail-fast": "" });
        assert_eq!(last(asked).as_deref(), Some("--simulate-crash"));
    }

    fn rendered(spec: Value, config: &Config) -> PodSpec {
        render(&vmi(json!({}), spec), config).spec.unwrap()
    }

    #[test]
    fn ports_of_interfaces_have_their_names_on_the_pod() {
        let interfaces = json!([
            { "name": "a", "masquerade": {}, "ports": [{ "name": "http", "port": 80 }, { "protocol": "UDP", "port": 80 }] },
            { "name": "b", "bridge": {}, "ports": [{ "name": "other-http", "port": 80 }] },
        ]);
        let spec = rendered(json!({ "domain": { "devices": { "interfaces": interfaces } } }), &Config::default());
        assert_eq!(
            serde_json::to_value(&spec.containers[0].ports).unwrap(),
            json!([
                { "name": "http", "containerPort": 80, "protocol": "TCP" },
                { "containerPort": 80, "protocol": "UDP" },
                { "name": "other-http", "containerPort": 80, "protocol": "TCP" },
            ])
        );
        assert!(rendered(json!({ "domain": {} }), &Config::default()).containers[0].ports.is_none());
        assert_eq!(spec.readiness_gates.unwrap()[0].condition_type, UNPAUSED);
    }

    #[test]
    fn the_account_is_the_instances_or_the_one_that_its_guest_sees() {
        let volume = json!([{ "name": "v", "serviceAccount": { "serviceAccountName": "shown" } }]);
        for (spec, expected) in [
            (json!({ "domain": {} }), None),
            (json!({ "domain": {}, "serviceAccountName": "own" }), Some("own")),
            (json!({ "domain": {}, "volumes": volume }), Some("shown")),
            (json!({ "domain": {}, "volumes": volume, "serviceAccountName": "own" }), Some("own")),
        ] {
            let pod = rendered(spec.clone(), &Config::default());
            assert_eq!(pod.service_account_name.as_deref(), expected, "{spec}");
            // No token but for a volume that shows it, which brings its own.
            assert_eq!(pod.automount_service_account_token, Some(false), "{spec}");
        }
    }

    #[test]
    fn what_the_cluster_says_of_pods_is_on_them() {
        let config = Config {
            runtime_class: Some("fast".into()),
            pull_secrets: vec!["ours".into(), "theirs".into()],
            selinux_type: Some("spc_t".into()),
            seccomp: Some(SeccompProfile {
                type_: "Localhost".into(),
                localhost_profile: Some("kubevirt/k.json".into()),
            }),
            ..Config::default()
        };
        let boot = json!({ "kernelBoot": { "container": { "image": "k", "imagePullSecret": "kernel" } } });
        let disk = |name: &str| json!({ "name": name, "containerDisk": { "image": "i", "imagePullSecret": "theirs" } });
        let spec = json!({ "domain": { "firmware": boot }, "volumes": [disk("a"), disk("b")] });
        let pod = rendered(spec, &config);
        let secrets: Vec<_> = pod.image_pull_secrets.unwrap().into_iter().map(|secret| secret.name).collect();
        assert_eq!(secrets, ["theirs", "kernel", "ours"]);
        assert_eq!(pod.runtime_class_name.as_deref(), Some("fast"));
        let security = pod.security_context.unwrap();
        assert_eq!(security.se_linux_options.unwrap().type_.as_deref(), Some("spc_t"));
        assert_eq!(security.seccomp_profile.unwrap().type_, "Localhost");
        let plain = rendered(json!({ "domain": {} }), &Config::default());
        assert!(plain.runtime_class_name.is_none() && plain.image_pull_secrets.is_none());
        assert_eq!(plain.termination_grace_period_seconds, Some(60));
        assert_eq!(plain.init_containers.unwrap()[0].name, console_log::CONTAINER);
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
