//! The container that shows a guest's serial console as a log: it follows the file to which the hypervisor writes a copy.
//!
//! It is upstream's: the same name, file and limits. The program is the launcher's own.

use std::collections::BTreeMap;

use ferrovirt_api::v1::{SupportContainerResources, VirtualMachineInstance};
use k8s_openapi::{
    api::core::v1::{Capabilities, Container, ResourceRequirements, SecurityContext, VolumeMount},
    apimachinery::pkg::api::resource::Quantity,
};

use super::{Config, LAUNCHER, PRIVATE, RUNTIME_USER, hypervisor, launcher_image};

/// Its name, which people give to `kubectl logs -c`, and in `supportContainerResources`.
pub const CONTAINER: &str = "guest-console-log";

/// True if what the guest writes to its first serial port is to be kept. `disabled` is the cluster's word for those that say nothing.
pub fn is_wanted(vmi: &VirtualMachineInstance, disabled: bool) -> bool {
    let devices = &vmi.spec.domain.devices;
    let writes = ferrovirt_machine::hypervisor::hypervisor(hypervisor(vmi)).is_some_and(|driver| driver.logs_console());
    writes && devices.autoattach_serial_console != Some(false) && devices.log_serial_console.unwrap_or(!disabled)
}

/// A container that starts with the launcher's and ends with it, and is none of those whose end ends the pod.
pub(super) fn container(vmi: &VirtualMachineInstance, config: &Config) -> Option<Container> {
    if !is_wanted(vmi, config.console_log_disabled) {
        return None;
    }
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let capabilities = Capabilities { drop: Some(vec!["ALL".into()]), add: None };
    Some(Container {
        name: CONTAINER.into(),
        image: Some(launcher_image(&config.launcher_image, hypervisor(vmi))),
        image_pull_policy: Some(config.image_pull_policy.clone()),
        command: Some(vec![LAUNCHER.into()]),
        args: Some(vec!["console-log".into(), "--logfile".into(), format!("{PRIVATE}/{uid}/virt-serial0-log")]),
        restart_policy: Some("Always".into()),
        resources: Some(resources(vmi, &config.support_containers)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(capabilities),
            run_as_user: Some(RUNTIME_USER),
            run_as_group: Some(RUNTIME_USER),
            run_as_non_root: Some(true),
            ..Default::default()
        }),
        volume_mounts: Some(vec![VolumeMount {
            name: "private".into(),
            mount_path: PRIVATE.into(),
            read_only: Some(true),
            ..Default::default()
        }]),
        ..Default::default()
    })
}

fn resources(vmi: &VirtualMachineInstance, told: &[SupportContainerResources]) -> ResourceRequirements {
    let told = told.iter().find(|entry| entry.type_ == CONTAINER).map(|entry| &entry.resources);
    let amounts = |defaults: [(&str, &str); 2], told: Option<&BTreeMap<String, Quantity>>| {
        let amount = |name: &str, default: &str| {
            told.and_then(|told| told.get(name).cloned()).unwrap_or_else(|| Quantity(default.into()))
        };
        defaults.map(|(name, default)| (name.to_owned(), amount(name, default))).into_iter().collect::<BTreeMap<_, _>>()
    };
    let limits = amounts([("cpu", "15m"), ("memory", "60M")], told.map(|told| &told.limits));
    // A pod is only guaranteed what it asks for if all of its containers are.
    let requests = match crate::resources::pins_cpus(vmi) || crate::resources::is_guaranteed(vmi) {
        true => limits.clone(),
        false => amounts([("cpu", "5m"), ("memory", "35M")], told.map(|told| &told.requests)),
    };
    ResourceRequirements { requests: Some(requests), limits: Some(limits), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi(spec: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({ "metadata": { "name": "a", "uid": "u" }, "spec": spec })).unwrap()
    }

    #[test]
    fn who_has_a_console_has_a_log_of_it_unless_somebody_says_no() {
        for (serial, log, disabled, expected) in [
            (json!(true), json!(true), false, true),
            (json!(true), json!(false), false, false),
            (json!(false), json!(true), false, false),
            (json!(false), json!(false), false, false),
            (json!(null), json!(null), false, true),
            (json!(null), json!(null), true, false),
            (json!(null), json!(true), true, true),
        ] {
            let vmi =
                vmi(json!({ "domain": { "devices": { "autoattachSerialConsole": serial, "logSerialConsole": log } } }));
            let config = Config { console_log_disabled: disabled, ..Config::default() };
            assert_eq!(container(&vmi, &config).is_some(), expected, "{serial} {log} {disabled}");
        }
    }

    #[test]
    fn it_follows_the_file_that_the_hypervisor_writes_and_may_do_nothing_else() {
        let container = container(&vmi(json!({ "domain": {} })), &Config::default()).unwrap();
        assert_eq!(container.args.unwrap().last().unwrap(), "/var/run/kubevirt-private/u/virt-serial0-log");
        let mounts = container.volume_mounts.unwrap();
        assert_eq!((mounts.len(), mounts[0].read_only), (1, Some(true)));
        let security = container.security_context.unwrap();
        assert_eq!((security.run_as_user, security.run_as_non_root), (Some(107), Some(true)));
        assert_eq!(container.restart_policy.as_deref(), Some("Always"), "it is not what the pod waits for");
    }

    #[test]
    fn it_asks_for_little_or_what_the_cluster_says() {
        let shown = |spec: Value, told: Value| {
            let told: Vec<SupportContainerResources> = serde_json::from_value(told).unwrap();
            let found = resources(&vmi(spec), &told);
            let show = |list: Option<BTreeMap<String, Quantity>>| {
                list.unwrap().values().map(|amount| amount.0.clone()).collect::<Vec<_>>().join(" ")
            };
            format!("{} | {}", show(found.requests), show(found.limits))
        };
        let told = json!([{ "type": "virtiofs", "resources": { "limits": { "cpu": "9" } } },
            { "type": CONTAINER, "resources": { "requests": { "cpu": "1m" }, "limits": { "memory": "80M" } } }]);
        let own = json!({ "domain": { "cpu": { "dedicatedCpuPlacement": true } } });
        assert_eq!(shown(json!({}), json!([])), "5m 35M | 15m 60M");
        assert_eq!(shown(json!({}), told.clone()), "1m 35M | 15m 80M");
        assert_eq!(shown(own, told), "15m 80M | 15m 80M");
    }
}
