//! What may not be stored: pure rules, each with the field it is about. Wording agrees with upstream where clients match
//! on it. All mistakes are told at once.
//!
//! What is well formed but cannot be done here is not judged by these rules but by the feature table of the hypervisors:
//! an instance that asks for it is refused, a VM is kept with a warning, because it may be started elsewhere.

mod compute;
mod guest;
mod network;
mod storage;
pub mod update;

use std::collections::{BTreeMap, BTreeSet};

use ferrovirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet, VirtualMachineInstanceSpec,
    values::virtual_machine_run_strategy,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub reason: &'static str,
    pub field: String,
    pub message: String,
}

const INVALID: &str = "FieldValueInvalid";
const REQUIRED: &str = "FieldValueRequired";
const NOT_SUPPORTED: &str = "FieldValueNotSupported";
const DUPLICATE: &str = "FieldValueDuplicate";

/// Where the rules put what they find.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Cause>);

impl Findings {
    fn add(&mut self, reason: &'static str, field: String, message: impl Into<String>) {
        self.0.push(Cause { reason, field, message: message.into() });
    }

    fn invalid(&mut self, field: String, message: impl Into<String>) {
        self.add(INVALID, field, message);
    }

    fn required(&mut self, field: String, message: impl Into<String>) {
        self.add(REQUIRED, field, message);
    }

    fn unsupported(&mut self, field: String, message: impl Into<String>) {
        self.add(NOT_SUPPORTED, field, message);
    }

    fn duplicate(&mut self, field: String, message: impl Into<String>) {
        self.add(DUPLICATE, field, message);
    }
}

pub fn virtual_machine(vm: &VirtualMachine) -> Vec<Cause> {
    let mut found = Findings::default();
    let spec = &vm.spec;
    match (spec.running, spec.run_strategy.as_deref()) {
        (Some(_), Some(_)) => found.invalid(
            "spec.running".into(),
            "Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead",
        ),
        (None, None) => found.required("spec.runStrategy".into(), "One of Running or RunStrategy must be specified"),
        (None, Some(strategy)) if !KNOWN_STRATEGIES.contains(&strategy) => {
            let message = format!("Invalid RunStrategy ({strategy}), supported are: {}", KNOWN_STRATEGIES.join(", "));
            found.unsupported("spec.runStrategy".into(), message);
        }
        _ => {}
    }
    match &spec.template {
        None => found.required("spec.template".into(), "missing virtual machine template."),
        Some(template) => {
            instance_spec(&template.spec, "spec.template.spec", &mut found);
            annotations(template.metadata.annotations.as_ref(), "spec.template.metadata", &mut found);
            // What else the template asks for and we lack is accepted with a warning: see `warnings`.
            if let Some(error) = ferrovirt_plan::unsupported::hypervisor(vm) {
                found.unsupported(error.field, error.message);
            }
        }
    }
    data_volume_templates(vm, &mut found);
    // An instance type may bring the memory.
    if spec.instancetype.is_some() {
        found.0.retain(|cause| !(cause.reason == REQUIRED && cause.field.ends_with(".domain.memory.guest")));
    }
    found.0
}

/// What a VM that is accepted asks for in vain: it will not start before that is changed.
pub fn warnings(vm: &VirtualMachine) -> Vec<String> {
    let mut warnings = vec![];
    if vm.spec.running.is_some() {
        warnings.push("spec.running is deprecated, please use spec.runStrategy instead.".to_owned());
    }
    let fields = ferrovirt_plan::unsupported::fields(vm);
    warnings.extend(fields.into_iter().map(|e| format!("{}: {}; the VM will not start with it", e.field, e.message)));
    warnings
}

const KNOWN_STRATEGIES: [&str; 5] = [
    virtual_machine_run_strategy::HALTED,
    virtual_machine_run_strategy::ALWAYS,
    virtual_machine_run_strategy::MANUAL,
    virtual_machine_run_strategy::RERUN_ON_FAILURE,
    virtual_machine_run_strategy::ONCE,
];

pub fn instance(vmi: &VirtualMachineInstance) -> Vec<Cause> {
    let mut found = Findings::default();
    instance_spec(&vmi.spec, "spec", &mut found);
    annotations(vmi.metadata.annotations.as_ref(), "metadata", &mut found);
    // What the chosen hypervisor cannot do here, by the feature table.
    for error in ferrovirt_machine::features::unsupported_in(&vmi.spec, "spec") {
        found.unsupported(error.field, error.message);
    }
    found.0
}

pub fn replica_set(set: &VirtualMachineInstanceReplicaSet) -> Vec<Cause> {
    let mut found = Findings::default();
    match &set.spec.template {
        None => found.required("spec.template".into(), "missing virtual machine template."),
        Some(template) => {
            instance_spec(&template.spec, "spec.template.spec", &mut found);
            annotations(template.metadata.annotations.as_ref(), "spec.template.metadata", &mut found);
            let labels = template.metadata.labels.clone().unwrap_or_default();
            let selector = set.spec.selector.as_ref();
            let wanted = selector.and_then(|selector| selector.match_labels.as_ref());
            let empty = selector.is_none_or(|selector| {
                selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
                    && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
            });
            let differs = wanted.is_some_and(|wanted| wanted.iter().any(|(key, value)| labels.get(key) != Some(value)));
            if empty || differs {
                found.invalid("spec.selector".into(), "selector does not match labels.");
            }
        }
    }
    if set.spec.replicas.is_some_and(|replicas| replicas < 0) {
        found.invalid("spec.replicas".into(), "spec.replicas must be greater than or equal to 0.");
    }
    found.0
}

fn instance_spec(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    // Judged is what will run. What defaults add stands behind what was written, so paths stay right.
    let mut spec = spec.clone();
    ferrovirt_plan::disks::add_default(&mut spec);
    ferrovirt_plan::network::add_default(&mut spec);
    // Disks and interfaces share one order.
    let mut orders = BTreeSet::new();
    compute::check(&spec, path, found);
    storage::check(&spec, path, &mut orders, found);
    network::check(&spec, path, &mut orders, found);
    guest::check(&spec, path, found);
}

/// Annotations that would run programs of the user's choice in the launcher's pod.
fn annotations(annotations: Option<&BTreeMap<String, String>>, path: &str, found: &mut Findings) {
    let gates =
        [("hooks.kubevirt.io/hookSidecars", "sidecar"), ("kubevirt.io/ignitiondata", "ExperimentalIgnitionSupport")];
    for (key, gate) in gates {
        if annotations.and_then(|all| all.get(key)).is_some_and(|value| !value.is_empty()) {
            let field = format!("{path}.annotations");
            let message = format!("{gate} feature gate is not enabled in kubevirt-config, invalid entry {field}.{key}");
            found.invalid(field, message);
        }
    }
}

fn data_volume_templates(vm: &VirtualMachine, found: &mut Findings) {
    let volumes = vm.spec.template.as_ref().map(|template| template.spec.volumes.as_slice()).unwrap_or_default();
    for (index, template) in vm.spec.data_volume_templates.iter().enumerate() {
        let field = format!("spec.dataVolumeTemplates[{index}]");
        let name = template.metadata.name.as_deref().unwrap_or_default();
        if name.is_empty() {
            let message = format!("'name' field must not be empty for DataVolumeTemplate entry {field}.");
            found.required(format!("{field}.name"), message);
            continue;
        }
        let used = volumes.iter().any(|volume| {
            volume.data_volume.as_ref().is_some_and(|data| data.name == name)
                || volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.claim_name == name)
        });
        if !used {
            let message =
                format!("DataVolumeTemplate entry {field} must be referenced in the VMI template's 'volumes' list");
            found.required(field, message);
        }
    }
}

#[cfg(test)]
#[path = "validate/tests.rs"]
mod tests;
