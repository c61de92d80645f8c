//! What the `KubeVirt` object says an instance gets where it says nothing itself.
//!
//! Read anew for every instance, so that a change of the object counts from the next instance on.

use ferrovirt_api::v1::{
    InterfaceBridge, InterfaceMasquerade, KubeVirtConfiguration, Machine, VirtualMachineInstanceSpec,
};

/// Fills in processor model, machine type, eviction strategy and the binding of the default network.
///
/// Goes before [`crate::network::add_default`], whose network this binds as the configuration wants.
pub fn apply(spec: &mut VirtualMachineInstanceSpec, configuration: &KubeVirtConfiguration) {
    let cpu_model = &configuration.cpu_model;
    if !cpu_model.is_empty() {
        let cpu = spec.domain.cpu.get_or_insert_default();
        if cpu.model.is_empty() {
            cpu.model.clone_from(cpu_model);
        }
    }
    let architecture = if spec.architecture.is_empty() { "amd64" } else { &spec.architecture };
    let machine_type = machine_type(configuration, architecture);
    if !machine_type.is_empty() && spec.domain.machine.as_ref().is_none_or(|machine| machine.type_.is_empty()) {
        spec.domain.machine = Some(Machine { type_: machine_type.to_owned() });
    }
    if spec.eviction_strategy.is_none() {
        spec.eviction_strategy.clone_from(&configuration.eviction_strategy);
    }
    let asked = !spec.domain.devices.interfaces.is_empty() || !spec.networks.is_empty();
    if !asked {
        crate::network::add_default(spec);
        let binding = configuration.network.as_ref().map(|network| network.default_network_interface.as_str());
        if binding == Some("bridge") {
            for interface in &mut spec.domain.devices.interfaces {
                interface.masquerade = None::<InterfaceMasquerade>;
                interface.bridge = Some(InterfaceBridge {});
            }
        }
    }
}

/// Gates of features that are so far along that they are open unless closed.
const BETA: &[&str] = &[
    "DeclarativeHotplugVolumes",
    "ExternalNetResourceInjection",
    "GPUsWithDRA",
    "HostDevicesWithDRA",
    "ImageVolume",
    "KubevirtSeccompProfile",
    "LibvirtHooksServerAndClient",
    "NodeRestriction",
    "OptOutRoleAggregation",
    "PasstBinding",
    "PodSecondaryInterfaceNamingUpgrade",
    "RebootPolicy",
    "Snapshot",
    "Template",
    "VmiMemoryOverheadReport",
    "WorkloadEncryptionSEV",
];

/// True if a feature gate is open. One that is listed is, even if it is closed at the same time.
pub fn feature_gate(configuration: &KubeVirtConfiguration, name: &str) -> bool {
    let developer = configuration.developer_configuration.as_ref();
    let listed = |gates: &[String]| gates.iter().any(|gate| gate == name);
    match developer {
        Some(developer) if listed(&developer.feature_gates) => true,
        Some(developer) if listed(&developer.disabled_feature_gates) => false,
        _ => BETA.contains(&name),
    }
}

/// The machine type of an architecture, of which the older field only knows one for all.
fn machine_type<'a>(configuration: &'a KubeVirtConfiguration, architecture: &str) -> &'a str {
    let by_architecture = configuration.architecture_configuration.as_ref().and_then(|all| match architecture {
        "arm64" => all.arm64.as_ref(),
        "s390x" => all.s390x.as_ref(),
        _ => all.amd64.as_ref(),
    });
    match by_architecture.map(|one| one.machine_type.as_str()) {
        Some(own) if !own.is_empty() => own,
        _ => &configuration.machine_type,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(configuration: Value, spec: Value, expected: Value) {
        let mut spec: VirtualMachineInstanceSpec = serde_json::from_value(spec).unwrap();
        apply(&mut spec, &serde_json::from_value(configuration).unwrap());
        let seen = json!({
            "model": spec.domain.cpu.map(|cpu| cpu.model),
            "machine": spec.domain.machine.map(|machine| machine.type_),
            "eviction": spec.eviction_strategy,
            "bridged": spec.domain.devices.interfaces.iter().any(|interface| interface.bridge.is_some()),
        });
        assert_eq!(seen, expected);
    }

    #[test]
    fn defaults_fill_gaps_and_nothing_else() {
        let configuration = json!({
            "cpuModel": "Nehalem", "machineType": "q35", "evictionStrategy": "LiveMigrate",
            "network": { "defaultNetworkInterface": "bridge" },
        });
        let filled = json!({ "model": "Nehalem", "machine": "q35", "eviction": "LiveMigrate", "bridged": true });
        check(configuration.clone(), json!({}), filled);
        let own = json!({
            "evictionStrategy": "None", "networks": [{ "name": "n", "pod": {} }],
            "domain": { "cpu": { "model": "host-model" }, "machine": { "type": "virt" },
                "devices": { "interfaces": [{ "name": "n", "masquerade": {} }] } },
        });
        let kept = json!({ "model": "host-model", "machine": "virt", "eviction": "None", "bridged": false });
        check(configuration, own, kept);
        check(json!({}), json!({}), json!({ "model": null, "machine": null, "eviction": null, "bridged": false }));
        let both =
            json!({ "machineType": "q35", "architectureConfiguration": { "amd64": { "machineType": "pc-q35-9" } } });
        check(both, json!({}), json!({ "model": null, "machine": "pc-q35-9", "eviction": null, "bridged": false }));
    }

    #[test]
    fn gates_are_open_if_listed_or_far_along_and_not_closed() {
        let configuration = serde_json::from_value(json!({ "developerConfiguration": {
            "featureGates": ["A", "B"], "disabledFeatureGates": ["B", "Snapshot"] } }))
        .unwrap();
        let open = ["A", "B", "C", "Snapshot", "Template"].map(|gate| feature_gate(&configuration, gate));
        assert_eq!(open, [true, true, false, false, true]);
    }
}
