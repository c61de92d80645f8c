//! Nothing that upstream's objects say may get lost in our types.

#![allow(clippy::unwrap_used, clippy::panic)]

use ferrovirt_api::v1::{
    KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceReplicaSet,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Decodes and encodes again; what comes out must be what went in.
fn check<T: DeserializeOwned + Serialize>(name: &str, input: &Value) {
    let typed: T = serde_json::from_value(input.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let output = serde_json::to_value(&typed).unwrap();
    let mut lost = Vec::new();
    compare("", input, &output, &mut lost);
    assert!(lost.is_empty(), "{name}:\n{}", lost.join("\n"));
}

/// Fields that Go always writes may appear with their zero value; everything else must be equal.
fn compare(path: &str, before: &Value, after: &Value, out: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                match b.get(key) {
                    Some(other) => compare(&format!("{path}.{key}"), value, other, out),
                    None => out.push(format!("{path}.{key} lost: {value}")),
                }
            }
            for (key, value) in b.iter().filter(|(key, _)| !a.contains_key(*key)) {
                let zero = matches!(value, Value::Null)
                    || value == ""
                    || value == 0
                    || value == false
                    || value.as_array().is_some_and(Vec::is_empty)
                    || value.as_object().is_some_and(serde_json::Map::is_empty);
                if !zero {
                    out.push(format!("{path}.{key} appeared: {value}"));
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (x, y)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{index}]"), x, y, out);
            }
        }
        _ if before == after => {}
        _ => out.push(format!("{path}: {before} became {after}")),
    }
}

#[test]
fn every_field_of_a_virtual_machine_instance_survives() {
    let text = include_str!("data/kubevirt.io.v1.VirtualMachineInstance.json");
    let input: Value = serde_json::from_str(text).unwrap();
    let typed: VirtualMachineInstance = serde_json::from_value(input.clone()).unwrap();
    let output = serde_json::to_value(&typed).unwrap();
    check::<VirtualMachineInstance>("roundtrip", &input);
    assert_eq!(input, output);
}

#[test]
fn examples_survive() {
    let mut seen = 0;
    for entry in std::fs::read_dir("tests/data/examples").unwrap() {
        let path = entry.unwrap().path();
        let name = path.display().to_string();
        let input: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        match input["kind"].as_str() {
            Some("VirtualMachine") => check::<VirtualMachine>(&name, &input),
            Some("VirtualMachineInstance") => check::<VirtualMachineInstance>(&name, &input),
            Some("VirtualMachineInstanceMigration") => check::<VirtualMachineInstanceMigration>(&name, &input),
            Some("VirtualMachineInstanceReplicaSet") => check::<VirtualMachineInstanceReplicaSet>(&name, &input),
            _ => continue,
        }
        seen += 1;
    }
    assert_eq!(seen, 16);
}

#[test]
fn null_is_the_zero_value_and_a_wrong_kind_is_refused() {
    let vm: VirtualMachine =
        serde_json::from_str(r#"{"metadata":{"name":"a"},"spec":{"template":null},"status":null}"#).unwrap();
    assert_eq!(vm.spec.template, Default::default());
    let error = serde_json::from_str::<VirtualMachine>(r#"{"apiVersion":"kubevirt.io/v1","kind":"Pod"}"#).unwrap_err();
    assert!(error.to_string().contains("expected kubevirt.io/v1 VirtualMachine, found kubevirt.io/v1 Pod"), "{error}");
}

#[test]
fn configuration_that_this_build_does_not_know_is_kept() {
    let input = serde_json::json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {
            "configuration": {
                "cpuModel": "Nehalem",
                "fromTheFuture": {"a": [1, 2]},
                "smbios": {"manufacturer": "Acme"},
                "network": {"defaultNetworkInterface": "masquerade"},
                "hypervisors": [{"name": "kvm"}],
                "developerConfiguration": {
                    "useEmulation": true,
                    "cpuAllocationRatio": 4,
                    "featureGates": ["HostDisk"],
                    "newKnob": 7,
                },
            },
        },
    });
    let typed: KubeVirt = serde_json::from_value(input.clone()).unwrap();
    let developer = typed.spec.configuration.developer_configuration.as_ref().unwrap();
    assert!(developer.use_emulation);
    assert_eq!(developer.other["newKnob"], 7);
    check::<KubeVirt>("configuration", &input);
}
