//! What the `KubeVirt` object's configuration says of pods.

use ferrovirt_api::v1::KubeVirtConfiguration;
use k8s_openapi::{api::core::v1::SeccompProfile, apimachinery::pkg::api::resource::Quantity};

use super::{Claimed, Config};
use crate::cluster_defaults::feature_gate;

impl Config {
    /// What the configuration alone says of pods.
    pub fn configured(configuration: &KubeVirtConfiguration) -> Self {
        let defaults = Self::default();
        let gate = |name: &str| feature_gate(configuration, name);
        let developer = configuration.developer_configuration.clone().unwrap_or_default();
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let ratio =
            configuration.additional_guest_memory_overhead_ratio.as_ref().and_then(|text| text.parse::<f64>().ok());
        let options = configuration.virtual_machine_options.as_ref();
        let seccomp = configuration.seccomp_configuration.as_ref();
        let profile = seccomp.and_then(|all| all.virtual_machine_instance_profile.as_ref()?.custom_profile.as_ref());
        // 100m is upstream's way to say that nothing was said.
        let said =
            |wire: &Quantity| ferrovirt_api::Quantity::try_from(wire).is_ok_and(|amount| amount.as_milli() != 100);
        Self {
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
            claimed: Claimed {
                gpus: gate("GPUsWithDRA"),
                host_devices: gate("HostDevicesWithDRA"),
                networks: gate("NetworkDevicesWithDRA"),
            },
            host_disks: gate("HostDisk"),
            ..Self::default()
        }
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
        let config = Config::configured(&configuration);
        assert_eq!(
            (config.image_pull_policy.as_str(), config.cpu_allocation_ratio, config.memory_overcommit),
            ("Always", 4, 150)
        );
        assert_eq!((config.cpu_request, config.overhead_ratio), (Some(Quantity("250m".into())), Some(1.5)));
        assert_eq!((config.runtime_class.as_deref(), config.selinux_type.as_deref()), (Some("fast"), Some("spc_t")));
        assert_eq!(config.seccomp.unwrap().localhost_profile.as_deref(), Some("a.json"));
        assert!(config.console_log_disabled && config.hyperv_strict && config.host_disks);
        assert_eq!(config.claimed, Claimed { gpus: false, host_devices: true, networks: false });
        assert_eq!((config.support_containers.len(), config.node_selectors["for"].as_str()), (1, "vms"));
        let upstreams = serde_json::from_value(json!({ "cpuRequest": "100m" })).unwrap();
        assert_eq!(Config::configured(&upstreams), Config::default());
        assert_eq!(Config::configured(&KubeVirtConfiguration::default()), Config::default());
    }
}
