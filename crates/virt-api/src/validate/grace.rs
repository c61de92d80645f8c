//! Graphics of NVIDIA's Grace machines: they want one kind of machine around them, and a gate.
//!
//! Such devices are not passed through yet; these rules only see to it that what is stored is what upstream would store.

use std::collections::BTreeMap;

use ferrovirt_api::{names, v1::VirtualMachineInstanceSpec};
use ferrovirt_plan::cluster_defaults;

use super::{Cluster, Findings};

const VENDOR: &str = "10DE";
const DEVICES: [&str; 3] = ["2342", "2348", "2941"];

/// A device that is asked for, and where.
struct Asked<'a> {
    field: String,
    resource: &'a str,
    exact: bool,
}

pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let asked = asked(spec, path, cluster);
    if asked.is_empty() {
        return;
    }
    let open = cluster.gate("GraceIOVirtualization");
    for Asked { field, resource, exact } in asked.iter().filter(|one| one.exact != open) {
        let message = match exact {
            true => format!(
                "GraceIOVirtualization feature gate must be enabled for NVIDIA Grace GPU passthrough resource {resource:?}"
            ),
            false => format!(
                "GraceIOVirtualization requires an exact pciVendorSelector for NVIDIA PCI host device resource {resource:?}"
            ),
        };
        found.invalid(field.clone(), message);
    }
    if !open || !asked.iter().any(|one| one.exact) {
        return;
    }
    let architecture = cluster.architecture(&spec.architecture);
    if architecture != "arm64" {
        found.invalid(format!("{path}.architecture"), "GraceIOVirtualization requires arm64 architecture");
    }
    let own = spec.domain.machine.as_ref().map(|machine| machine.type_.as_str()).filter(|own| !own.is_empty());
    if !own.unwrap_or(cluster_defaults::machine_type(cluster.0, architecture)).starts_with("virt") {
        let message = "GraceIOVirtualization requires \"virt\" machine type";
        found.invalid(format!("{path}.domain.machine.type"), message);
    }
    if spec.domain.cpu.as_ref().is_none_or(|cpu| !cpu.dedicated_cpu_placement) {
        let message = "GraceIOVirtualization requires dedicated CPU placement";
        found.required(format!("{path}.domain.cpu.dedicatedCpuPlacement"), message);
    }
    for gate in ["PCINUMAAwareTopology", "IOMMUFD"] {
        if !cluster.gate(gate) {
            let message = format!("{gate} feature gate must be enabled when GraceIOVirtualization is used");
            found.invalid(format!("{path}.domain.devices"), message);
        }
    }
}

/// Annotations that do not go with such a device.
pub(super) fn annotations(
    spec: &VirtualMachineInstanceSpec,
    annotations: Option<&BTreeMap<String, String>>,
    path: &str,
    cluster: &Cluster<'_>,
    found: &mut Findings,
) {
    if !asked(spec, "spec", cluster).iter().any(|one| one.exact) {
        return;
    }
    let messages = [
        (
            names::PLACE_PCI_DEVICES_ON_ROOT_COMPLEX,
            "GraceIOVirtualization is not compatible with placing PCI devices on the root complex",
        ),
        (names::DISABLE_PCI_HOLE64, "GraceIOVirtualization requires the 64-bit PCI hole"),
    ];
    for (key, message) in messages {
        if annotations.and_then(|all| all.get(key)).is_some_and(|value| value == "true") {
            found.invalid(format!("{path}.annotations[{key}]"), message);
        }
    }
}

fn asked<'a>(spec: &'a VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>) -> Vec<Asked<'a>> {
    let Some(permitted) = &cluster.0.permitted_host_devices else { return vec![] };
    let selectors: BTreeMap<&str, &str> = permitted
        .pci_host_devices
        .iter()
        .filter(|device| !device.resource_name.is_empty() && !device.pci_vendor_selector.is_empty())
        .map(|device| (device.resource_name.as_str(), device.pci_vendor_selector.as_str()))
        .collect();
    let devices = &spec.domain.devices;
    let gpus = devices.gpus.iter().enumerate().map(|(index, gpu)| ("gpus", index, gpu.device_name.as_str()));
    let hosts = devices.host_devices.iter().enumerate();
    let hosts = hosts.map(|(index, device)| ("hostDevices", index, device.device_name.as_str()));
    let mut asked = vec![];
    for (kind, index, resource) in gpus.chain(hosts).filter(|(.., name)| !name.is_empty()) {
        let field = format!("{path}.domain.devices.{kind}[{index}].deviceName");
        match selectors.get(resource).and_then(|selector| device(selector)).as_deref() {
            Some("*") => asked.push(Asked { field, resource, exact: false }),
            Some(id) if DEVICES.contains(&id) => asked.push(Asked { field, resource, exact: true }),
            _ => {}
        }
    }
    asked
}

/// The device of a selector of NVIDIA's, `vendor:device`.
fn device(selector: &str) -> Option<String> {
    let normal = |id: &str| {
        let id = id.trim().to_uppercase();
        id.strip_prefix("0X").map(str::to_owned).unwrap_or(id)
    };
    let (vendor, device) = selector.split_once(':')?;
    let (vendor, device) = (normal(vendor), normal(device));
    let hex = |id: &str| id.len() == 4 && id.chars().all(|c| c.is_ascii_hexdigit());
    (vendor == VENDOR && (device == "*" || hex(&device))).then_some(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fields(gates: &[&str], selector: &str, spec: Value) -> Vec<String> {
        let configuration = serde_json::from_value(json!({
            "developerConfiguration": { "featureGates": gates },
            "permittedHostDevices": { "pciHostDevices": [{ "pciVendorSelector": selector, "resourceName": "n/g" }] },
        }))
        .unwrap();
        let mut found = Findings::default();
        check(&serde_json::from_value(spec).unwrap(), "spec", &Cluster(&configuration), &mut found);
        found.0.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn a_grace_device_wants_its_machine_and_its_gates() {
        let devices = json!({ "gpus": [{ "name": "g", "deviceName": "n/g" }] });
        let bare = json!({ "architecture": "amd64", "domain": { "devices": devices } });
        let whole = json!({ "architecture": "arm64", "domain": { "devices": devices, "machine": { "type": "virt" },
            "cpu": { "dedicatedCpuPlacement": true } } });
        let gates = ["GraceIOVirtualization", "PCINUMAAwareTopology", "IOMMUFD"];
        let gpu = "spec.domain.devices.gpus[0].deviceName";
        assert_eq!(fields(&[], "10DE:2342", bare.clone()), [gpu]);
        assert!(fields(&[], "10DE:1111", bare.clone()).is_empty());
        assert!(fields(&[], "10DE:*", bare.clone()).is_empty());
        assert_eq!(fields(&gates, "10de:*", bare.clone()), [gpu]);
        assert!(fields(&gates, "10DE:2342", whole).is_empty());
        assert_eq!(
            fields(&gates[..1], "10DE:2348", bare),
            [
                "spec.architecture",
                "spec.domain.machine.type",
                "spec.domain.cpu.dedicatedCpuPlacement",
                "spec.domain.devices",
                "spec.domain.devices",
            ]
        );
    }
}
