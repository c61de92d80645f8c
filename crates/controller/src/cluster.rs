//! What the plans must know of the cluster: the `KubeVirt` object's configuration and the devices that nodes offer.

use std::{collections::BTreeMap, sync::Arc};

use ferrovirt_api::{
    names,
    v1::{KubeVirt, KubeVirtConfiguration},
};
use ferrovirt_machine::hypervisor;
use ferrovirt_plan::{cluster_defaults::feature_gate, pod, vmi};
use futures::StreamExt;
use k8s_openapi::{
    api::core::v1::{Node, Pod, SeccompProfile},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, reflector, watcher},
};

/// The hypervisors that no node runs, each with what a node says about it.
fn not_offered(nodes: &[Arc<Node>]) -> BTreeMap<String, String> {
    let key = |name: &str| format!("{}{name}", names::HYPERVISOR_LABEL);
    let drivers = hypervisor::KNOWN.iter().filter(|known| known.driver.is_ok());
    let missing = drivers.filter(|known| {
        !nodes
            .iter()
            .any(|node| node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(&key(known.name))))
    });
    let why = |name: &str| {
        let said = nodes.iter().find_map(|node| node.metadata.annotations.as_ref()?.get(&key(name)).cloned());
        said.unwrap_or_else(|| "none has tried it yet".into())
    };
    missing.map(|known| (known.name.into(), why(known.name))).collect()
}

/// What is fixed at start.
#[derive(Debug, Clone)]
pub struct Settings {
    pub launcher_image: String,
    /// The components' own image, where they are pods.
    pub component_image: Option<String>,
}

#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    settings: Settings,
    kubevirts: reflector::Store<KubeVirt>,
    nodes: reflector::Store<Node>,
}

impl Cluster {
    /// Starts to follow the configuration. Must be called inside a runtime.
    pub(crate) fn start(client: Client, settings: Settings) -> Self {
        let (kubevirts, writer) = reflector::store();
        let stream = watcher(Api::<KubeVirt>::all(client.clone()), watcher::Config::default());
        tokio::spawn(reflector(writer, stream.default_backoff()).for_each(|_| async {}));
        let (nodes, writer) = reflector::store();
        let stream = watcher(Api::<Node>::all(client.clone()), watcher::Config::default());
        tokio::spawn(reflector(writer, stream.default_backoff()).for_each(|_| async {}));
        Self { client, settings, kubevirts, nodes }
    }

    /// Lets scrapes see the configuration.
    pub(crate) fn tell(&self, metrics: &crate::Metrics) {
        metrics.set_kubevirts(self.kubevirts.clone());
    }

    /// Waits until the configuration was read once, so that no pod is made from a guess.
    pub(crate) async fn ready(&self) {
        let _ = tokio::join!(self.kubevirts.wait_until_ready(), self.nodes.wait_until_ready());
    }

    /// The `KubeVirt` object's configuration as it is now.
    pub(crate) fn configuration(&self) -> KubeVirtConfiguration {
        self.kubevirts.state().first().map(|kubevirt| kubevirt.spec.configuration.clone()).unwrap_or_default()
    }

    /// The `KubeVirt` object's annotations, some of which instances get.
    pub(crate) fn annotations(&self) -> BTreeMap<String, String> {
        self.kubevirts.state().first().and_then(|kubevirt| kubevirt.metadata.annotations.clone()).unwrap_or_default()
    }

    /// True if an operator said that nothing runs on a node any more: see [`vmi::node_is_released`].
    pub(crate) async fn is_released(&self, name: &str) -> Result<bool, kube::Error> {
        let state = self.nodes.state();
        if let Some(node) = state.iter().find(|node| node.metadata.name.as_deref() == Some(name)) {
            return Ok(vmi::node_is_released(node));
        }
        // The cache may be late; a node that is not there must not be there for certain.
        let node = Api::<Node>::all(self.client.clone()).get_opt(name).await?;
        Ok(node.is_none_or(|node| vmi::node_is_released(&node)))
    }

    /// What a pod that waits for a node asks for and no node has.
    pub(crate) fn unmet(&self, pod: &Pod) -> Vec<String> {
        let Some(selector) = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref()) else { return vec![] };
        let nodes = self.nodes.state();
        pod::unmet(selector, nodes.iter().filter_map(|node| node.metadata.labels.as_ref()))
    }

    pub(crate) fn pod_config(&self) -> pod::Config {
        let kubevirts = self.kubevirts.state();
        let secrets = kubevirts.first().map(|kubevirt| kubevirt.spec.image_pull_secrets.as_slice()).unwrap_or_default();
        let pull_secrets = secrets.iter().map(|secret| secret.name.clone()).collect();
        let configuration = self.configuration();
        let base = configured(&configuration);
        let image_volumes = feature_gate(&configuration, "ImageVolume");
        let developer = configuration.developer_configuration.unwrap_or_default();
        let device_available = self.nodes.state().iter().any(|node| {
            let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
            allocatable.and_then(|a| a.get(names::KVM_DEVICE)).is_some_and(|q| q.0 != "0")
        });
        pod::Config {
            launcher_image: self.settings.launcher_image.clone(),
            device_available,
            allow_emulation: developer.use_emulation,
            not_offered: not_offered(&self.nodes.state()),
            copy_images_with: self.settings.component_image.clone().filter(|_| !image_volumes),
            pull_secrets,
            ..base
        }
    }
}

/// What the configuration alone says of pods.
fn configured(configuration: &KubeVirtConfiguration) -> pod::Config {
    let defaults = pod::Config::default();
    let gate = |name: &str| feature_gate(configuration, name);
    let developer = configuration.developer_configuration.clone().unwrap_or_default();
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let ratio = configuration.additional_guest_memory_overhead_ratio.as_ref().and_then(|text| text.parse::<f64>().ok());
    let options = configuration.virtual_machine_options.as_ref();
    let seccomp = configuration.seccomp_configuration.as_ref();
    let profile = seccomp.and_then(|all| all.virtual_machine_instance_profile.as_ref()?.custom_profile.as_ref());
    // 100m is upstream's way to say that nothing was said.
    let said = |wire: &Quantity| ferrovirt_api::Quantity::try_from(wire).is_ok_and(|amount| amount.as_milli() != 100);
    pod::Config {
        image_pull_policy: some(&configuration.image_pull_policy).unwrap_or(defaults.image_pull_policy),
        cpu_allocation_ratio: match developer.cpu_allocation_ratio {
            0 => defaults.cpu_allocation_ratio,
            ratio => ratio,
        },
        cpu_request: configuration.cpu_request.clone().filter(said),
        memory_overcommit: match developer.memory_overcommit {
            0 => defaults.memory_overcommit,
            percent => percent,
        },
        overhead_ratio: ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0),
        support_containers: configuration.support_container_resources.clone(),
        log_verbosity: match developer.log_verbosity.as_ref().map_or(0, |verbosity| verbosity.virt_launcher) {
            0 => defaults.log_verbosity,
            verbosity => verbosity,
        },
        node_selectors: developer.node_selectors,
        hyperv_strict: gate("HypervStrictCheck"),
        runtime_class: some(&configuration.default_runtime_class),
        selinux_type: some(&configuration.selinux_launcher_type),
        seccomp: profile
            .and_then(|profile| profile.localhost_profile.clone())
            .map(|path| SeccompProfile { type_: "Localhost".into(), localhost_profile: Some(path) }),
        console_log_disabled: options.is_some_and(|options| options.disable_serial_console_log.is_some()),
        claimed: pod::Claimed {
            gpus: gate("GPUsWithDRA"),
            host_devices: gate("HostDevicesWithDRA"),
            networks: gate("NetworkDevicesWithDRA"),
        },
        host_disks: gate("HostDisk"),
        ..pod::Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_configuration_decides_about_pods() {
        let configuration = serde_json::from_value(json!({
            "imagePullPolicy": "Always", "cpuRequest": "250m", "defaultRuntimeClass": "fast", "selinuxLauncherType": "spc_t",
            "additionalGuestMemoryOverheadRatio": "1.5", "virtualMachineOptions": { "disableSerialConsoleLog": {} },
            "seccompConfiguration": { "virtualMachineInstanceProfile": { "customProfile": { "localhostProfile": "a.json" } } },
            "supportContainerResources": [{ "type": "guest-console-log", "resources": { "limits": { "cpu": "1" } } }],
            "developerConfiguration": { "cpuAllocationRatio": 4, "memoryOvercommit": 150, "nodeSelectors": { "for": "vms" },
                "featureGates": ["HypervStrictCheck", "HostDisk"], "disabledFeatureGates": ["GPUsWithDRA"] },
        }))
        .unwrap();
        let config = configured(&configuration);
        assert_eq!(
            (config.image_pull_policy.as_str(), config.cpu_allocation_ratio, config.memory_overcommit),
            ("Always", 4, 150)
        );
        assert_eq!((config.cpu_request, config.overhead_ratio), (Some(Quantity("250m".into())), Some(1.5)));
        assert_eq!((config.runtime_class.as_deref(), config.selinux_type.as_deref()), (Some("fast"), Some("spc_t")));
        assert_eq!(config.seccomp.unwrap().localhost_profile.as_deref(), Some("a.json"));
        assert!(config.console_log_disabled && config.hyperv_strict && config.host_disks);
        assert_eq!(config.claimed, pod::Claimed { gpus: false, host_devices: true, networks: false });
        assert_eq!((config.support_containers.len(), config.node_selectors["for"].as_str()), (1, "vms"));
        let upstreams = serde_json::from_value(json!({ "cpuRequest": "100m" })).unwrap();
        assert_eq!(configured(&upstreams), pod::Config::default());
        assert_eq!(configured(&KubeVirtConfiguration::default()), pod::Config::default());
    }
}
