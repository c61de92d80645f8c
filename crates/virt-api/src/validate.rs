//! What a VM or an instance must be to be accepted. Pure; every refusal names its field and all causes are listed.

use std::collections::BTreeSet;

use ferrovirt_api::{
    Quantity,
    v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec, values::virtual_machine_run_strategy},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Kubernetes' word for the kind of mistake.
    pub reason: &'static str,
    pub field: String,
    pub message: String,
}

const INVALID: &str = "FieldValueInvalid";
const REQUIRED: &str = "FieldValueRequired";
const NOT_SUPPORTED: &str = "FieldValueNotSupported";
const DUPLICATE: &str = "FieldValueDuplicate";

pub fn virtual_machine(vm: &VirtualMachine) -> Vec<Cause> {
    let mut causes = vec![];
    let spec = &vm.spec;
    match (spec.running, spec.run_strategy.as_deref()) {
        (Some(_), Some(_)) => add(
            &mut causes,
            INVALID,
            "spec.running",
            "Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead",
        ),
        (None, None) => {
            add(&mut causes, REQUIRED, "spec.runStrategy", "One of Running or RunStrategy must be specified")
        }
        (None, Some(strategy)) if !KNOWN_STRATEGIES.contains(&strategy) => {
            let message = format!("Invalid RunStrategy ({strategy}), supported are: {}", KNOWN_STRATEGIES.join(", "));
            add(&mut causes, NOT_SUPPORTED, "spec.runStrategy", &message);
        }
        _ => {}
    }
    match &spec.template {
        None => add(&mut causes, REQUIRED, "spec.template", "missing virtual machine template."),
        Some(template) => {
            instance_spec(&template.spec, "spec.template.spec", &mut causes);
            // What else the template asks for and we lack is accepted with a warning: see `warnings`.
            if let Some(error) = ferrovirt_plan::unsupported::hypervisor(vm) {
                causes.push(Cause { reason: NOT_SUPPORTED, field: error.field, message: error.message });
            }
        }
    }
    // An instance type may bring the memory.
    if spec.instancetype.is_some() {
        causes.retain(|cause| !(cause.reason == REQUIRED && cause.field.ends_with(".domain.memory.guest")));
    }
    causes
}

/// What a VM that is accepted asks for in vain: it will not start before that is changed.
pub fn warnings(vm: &VirtualMachine) -> Vec<String> {
    let fields = ferrovirt_plan::unsupported::fields(vm);
    fields.into_iter().map(|e| format!("{}: {}; the VM will not start with it", e.field, e.message)).collect()
}

const KNOWN_STRATEGIES: [&str; 5] = [
    virtual_machine_run_strategy::HALTED,
    virtual_machine_run_strategy::ALWAYS,
    virtual_machine_run_strategy::MANUAL,
    virtual_machine_run_strategy::RERUN_ON_FAILURE,
    virtual_machine_run_strategy::ONCE,
];

pub fn instance(vmi: &VirtualMachineInstance) -> Vec<Cause> {
    let mut causes = vec![];
    instance_spec(&vmi.spec, "spec", &mut causes);
    unsupported(&vmi.spec, "spec", &mut causes);
    causes
}

/// What the chosen hypervisor cannot do here, by the feature table.
fn unsupported(spec: &VirtualMachineInstanceSpec, path: &str, causes: &mut Vec<Cause>) {
    for error in ferrovirt_machine::features::unsupported_in(spec, path) {
        causes.push(Cause { reason: NOT_SUPPORTED, field: error.field, message: error.message });
    }
}

fn instance_spec(spec: &VirtualMachineInstanceSpec, path: &str, causes: &mut Vec<Cause>) {
    // Judged is what will run. What defaults add stands behind what was written, so paths stay right.
    let mut spec = spec.clone();
    ferrovirt_plan::disks::add_default(&mut spec);
    let spec = &spec;
    memory(spec, path, causes);
    cpu(spec, path, causes);
    disks(spec, path, causes);
    volumes(spec, path, causes);
    networks(spec, path, causes);
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        let field = format!("{path}.terminationGracePeriodSeconds");
        let message = format!("{field} must not be negative.");
        add(causes, INVALID, &field, &message);
    }
}

fn memory(spec: &VirtualMachineInstanceSpec, path: &str, causes: &mut Vec<Cause>) {
    let domain = &spec.domain;
    let guest = domain.memory.as_ref().and_then(|m| m.guest.as_ref());
    let sizes = [
        (format!("{path}.domain.memory.guest"), guest),
        (format!("{path}.domain.resources.requests.memory"), domain.resources.requests.get("memory")),
        (format!("{path}.domain.resources.limits.memory"), domain.resources.limits.get("memory")),
    ];
    if sizes.iter().all(|(_, amount)| amount.is_none()) && domain.memory.as_ref().is_none_or(|m| m.hugepages.is_none())
    {
        let field = format!("{path}.domain.memory.guest");
        add(
            causes,
            REQUIRED,
            &field,
            &format!("{field}: no memory requested. A guest needs memory: set it here or in resources.requests.memory"),
        );
    }
    for (field, amount) in &sizes {
        let Some(amount) = amount else { continue };
        match bytes(amount) {
            None => add(causes, INVALID, field, &format!("{field} '{}': is not a quantity", amount.0)),
            Some(bytes) if bytes < 1 << 20 => {
                add(causes, INVALID, field, &format!("{field} '{}': must be greater than or equal to 1Mi.", amount.0));
            }
            // The largest guest that QEMU on x86 can address.
            Some(bytes) if bytes > 1 << 46 => {
                add(causes, INVALID, field, &format!("{field} '{}': is larger than any machine (64Ti)", amount.0));
            }
            Some(_) => {}
        }
    }
    let request = sizes[1].1.and_then(bytes);
    let limit = sizes[2].1.and_then(bytes);
    if let (Some(request), Some(limit)) = (request, limit)
        && request > limit
    {
        let (requests, limits) = (&sizes[1].0, &sizes[2].0);
        add(causes, INVALID, requests, &format!("{requests} must not be greater than {limits}"));
    }
    if let (Some(guest), Some(limit)) = (guest.and_then(bytes), limit)
        && guest > limit
    {
        let (field, limits) = (&sizes[0].0, &sizes[2].0);
        add(causes, INVALID, field, &format!("{field} must be equal to or less than the memory limit {limits}"));
    }
}

fn cpu(spec: &VirtualMachineInstanceSpec, path: &str, causes: &mut Vec<Cause>) {
    let Some(cpu) = &spec.domain.cpu else { return };
    let count = u64::from(cpu.cores.max(1)) * u64::from(cpu.sockets.max(1)) * u64::from(cpu.threads.max(1));
    if count > 710 {
        let field = format!("{path}.domain.cpu");
        add(causes, INVALID, &field, &format!("{field}: {count} virtual CPUs are more than a guest can have (710)"));
    }
}

fn disks(spec: &VirtualMachineInstanceSpec, path: &str, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    let mut boot_orders = BTreeSet::new();
    for (index, disk) in spec.domain.devices.disks.iter().enumerate() {
        let field = format!("{path}.domain.devices.disks[{index}]");
        if !seen.insert(disk.name.as_str()) {
            let message = format!("{field} and an earlier disk must not have the same Name.");
            add(causes, DUPLICATE, &format!("{field}.name"), &message);
        }
        if !spec.volumes.iter().any(|volume| volume.name == disk.name) {
            let message = format!("{field}.Name '{}' not found.", disk.name);
            add(causes, INVALID, &format!("{field}.name"), &message);
        }
        let kinds = [disk.disk.is_some(), disk.lun.is_some(), disk.cdrom.is_some()];
        if kinds.iter().filter(|set| **set).count() > 1 {
            add(causes, INVALID, &field, &format!("{field} can only have a single target type defined"));
        }
        if let Some(order) = disk.boot_order {
            if order < 1 {
                let field = format!("{field}.bootOrder");
                add(causes, INVALID, &field, &format!("{field} must have a boot order > 0, if supplied"));
            } else if !boot_orders.insert(order) {
                let field = format!("{field}.bootOrder");
                add(causes, DUPLICATE, &field, &format!("Boot order for {field} already set for a different device."));
            }
        }
        let bus = disk.disk.as_ref().map(|d| &d.bus).or(disk.cdrom.as_ref().map(|d| &d.bus));
        let bus = bus.or(disk.lun.as_ref().map(|d| &d.bus)).map(String::as_str).unwrap_or_default();
        if !["", "virtio", "sata", "scsi", "usb"].contains(&bus) {
            let field = format!("{field}.disk.bus");
            add(
                causes,
                NOT_SUPPORTED,
                &field,
                &format!("{field} is set with an unrecognized bus {bus}, must be one of: [virtio sata scsi usb]"),
            );
        }
    }
}

fn volumes(spec: &VirtualMachineInstanceSpec, path: &str, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, volume) in spec.volumes.iter().enumerate() {
        let field = format!("{path}.volumes[{index}]");
        if !seen.insert(volume.name.as_str()) {
            let message = format!("{field} and an earlier volume must not have the same Name.");
            add(causes, DUPLICATE, &format!("{field}.name"), &message);
        }
        let sources = [
            volume.host_disk.is_some(),
            volume.persistent_volume_claim.is_some(),
            volume.cloud_init_no_cloud.is_some(),
            volume.cloud_init_config_drive.is_some(),
            volume.sysprep.is_some(),
            volume.container_disk.is_some(),
            volume.ephemeral.is_some(),
            volume.empty_disk.is_some(),
            volume.data_volume.is_some(),
            volume.config_map.is_some(),
            volume.secret.is_some(),
            volume.downward_api.is_some(),
            volume.service_account.is_some(),
            volume.downward_metrics.is_some(),
            volume.memory_dump.is_some(),
            volume.container_path.is_some(),
        ];
        if sources.iter().filter(|set| **set).count() != 1 {
            add(causes, INVALID, &field, &format!("{field} must have exactly one source type set"));
        }
        if let Some(disk) = &volume.container_disk
            && disk.image.is_empty()
        {
            let field = format!("{field}.containerDisk.image");
            add(causes, REQUIRED, &field, &format!("{field} is a required field"));
        }
        if let Some(disk) = &volume.empty_disk
            && bytes(&disk.capacity).is_none_or(|bytes| bytes == 0)
        {
            let field = format!("{field}.emptyDisk.capacity");
            add(causes, INVALID, &field, &format!("{field} '{}': must be greater than zero", disk.capacity.0));
        }
    }
}

fn networks(spec: &VirtualMachineInstanceSpec, path: &str, causes: &mut Vec<Cause>) {
    let interfaces = &spec.domain.devices.interfaces;
    let mut seen = BTreeSet::new();
    for (index, interface) in interfaces.iter().enumerate() {
        let field = format!("{path}.domain.devices.interfaces[{index}].name");
        if !seen.insert(interface.name.as_str()) {
            add(causes, DUPLICATE, &field, "Only one interface can be connected to one specific network");
        }
        if !spec.networks.iter().any(|network| network.name == interface.name) {
            add(causes, INVALID, &field, &format!("{field} '{}' not found.", interface.name));
        }
        let mac = &interface.mac_address;
        if !mac.is_empty() && !is_mac(mac) {
            let field = format!("{path}.domain.devices.interfaces[{index}].macAddress");
            add(causes, INVALID, &field, &format!("interface {field} has malformed MAC address ({mac})."));
        }
    }
    for (index, network) in spec.networks.iter().enumerate() {
        if !interfaces.iter().any(|interface| interface.name == network.name) {
            let field = format!("{path}.networks[{index}].name");
            add(causes, REQUIRED, &field, &format!("{field} '{}' not found.", network.name));
        }
    }
    if spec.networks.iter().filter(|network| network.pod.is_some()).count() > 1 {
        let field = format!("{path}.networks");
        add(causes, DUPLICATE, &field, &format!("more than one interface is connected to a pod network in {field}"));
    }
}

fn is_mac(text: &str) -> bool {
    let octets: Vec<&str> = text.split([':', '-']).collect();
    octets.len() == 6 && octets.iter().all(|o| o.len() == 2 && u8::from_str_radix(o, 16).is_ok())
}

fn bytes(amount: &Amount) -> Option<i64> {
    Quantity::try_from(amount).ok().map(Quantity::value)
}

fn add(causes: &mut Vec<Cause>, reason: &'static str, field: &str, message: &str) {
    causes.push(Cause { reason, field: field.into(), message: message.into() });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn base() -> serde_json::Value {
        json!({
            "metadata": { "name": "a" },
            "spec": { "runStrategy": "Always", "template": { "spec": {
                "domain": { "memory": { "guest": "64Mi" }, "devices": { "disks": [{ "name": "root", "disk": { "bus": "virtio" } }] } },
                "volumes": [{ "name": "root", "containerDisk": { "image": "x" } }],
            } } },
        })
    }

    fn check(change: impl FnOnce(&mut serde_json::Value), expected: &[&str]) {
        let mut value = base();
        change(&mut value);
        let vm: VirtualMachine = serde_json::from_value(value).unwrap();
        let fields: Vec<String> = virtual_machine(&vm).into_iter().map(|cause| cause.field).collect();
        assert_eq!(fields, expected);
    }

    #[test]
    fn what_we_lack_is_a_warning_on_a_vm_and_a_refusal_on_an_instance() {
        let mut value = base();
        value["spec"]["template"]["spec"]["domain"]["cpu"] = json!({ "realtime": {} });
        let vm: VirtualMachine = serde_json::from_value(value).unwrap();
        assert_eq!(virtual_machine(&vm), []);
        assert!(warnings(&vm)[0].starts_with("spec.template.spec.domain.cpu.realtime: "), "{:?}", warnings(&vm));
        let vmi = VirtualMachineInstance { spec: vm.spec.template.unwrap().spec, ..Default::default() };
        assert_eq!(instance(&vmi)[0].field, "spec.domain.cpu.realtime");
        check(|v| v["spec"]["template"]["spec"]["hypervisor"] = json!("none-such"), &["spec.template.spec.hypervisor"]);
    }

    #[test]
    fn every_mistake_is_named_by_its_field() {
        let t = "spec.template.spec";
        check(|_| {}, &[]);
        check(|v| v["spec"]["running"] = json!(true), &["spec.running"]);
        check(|v| v["spec"]["runStrategy"] = json!("Sometimes"), &["spec.runStrategy"]);
        check(|v| v["spec"]["template"] = json!(null), &["spec.template"]);
        check(
            |v| v["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = json!("-1Gi"),
            &[&format!("{t}.domain.memory.guest")],
        );
        check(
            |v| v["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = json!("9000Pi"),
            &[&format!("{t}.domain.memory.guest")],
        );
        check(
            |v| v["spec"]["template"]["spec"]["volumes"][0]["name"] = json!("other"),
            &[&format!("{t}.domain.devices.disks[0].name")],
        );
        check(
            |v| v["spec"]["template"]["spec"]["networks"] = json!([{ "name": "n", "pod": {} }]),
            &[&format!("{t}.networks[0].name")],
        );
        check(
            |v| {
                v["spec"]["template"]["spec"]["networks"] = json!([{ "name": "n", "pod": {} }]);
                v["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"] =
                    json!([{ "name": "n", "masquerade": {}, "macAddress": "zz" }]);
            },
            &[&format!("{t}.domain.devices.interfaces[0].macAddress")],
        );
    }
}
