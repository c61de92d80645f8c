//! What may not be stored: pure rules, each with the field it is about. Wording agrees with upstream where clients match
//! on it. All mistakes are told at once.
//!
//! What is well formed but cannot be done here is not judged by these rules but by the feature table of the hypervisors:
//! an instance that asks for it is refused, a VM is kept with a warning, because it may be started elsewhere.

mod architecture;
mod claims;
mod cluster;
mod compute;
mod devices;
mod firmware;
mod grace;
mod guest;
pub mod instancetypes;
pub mod kubevirt;
mod matchers;
pub mod migrations;
mod network;
mod probes;
mod scheduling;
mod storage;
mod templates;
pub mod update;
mod volume_requests;
mod volumes;

use std::collections::BTreeMap;

use ferrovirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstancePresetSpec, VirtualMachineInstanceReplicaSet,
    VirtualMachineInstanceSpec, values::virtual_machine_run_strategy,
};

pub use cluster::Cluster;
pub use matchers::matchers;
pub use volume_requests::{volume_requests, while_kept};

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
const NOT_FOUND: &str = "FieldValueNotFound";
const FORBIDDEN: &str = "FieldValueForbidden";

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

/// The rules of a VM, its template judged with the defaults that an instance of it would get.
pub fn virtual_machine(vm: &VirtualMachine, cluster: &Cluster<'_>, by: By) -> Vec<Cause> {
    const PATH: &str = "spec.template.spec";
    let mut found = Findings::default();
    let Some(template) = &vm.spec.template else {
        found.required("spec.template".into(), "missing virtual machine template.");
        run_strategy(vm, cluster, &mut found);
        return found.0;
    };
    let spec = match with_defaults(&template.spec, cluster) {
        Ok(spec) => spec,
        Err(cause) => return vec![cause],
    };
    if by.creates {
        gone(&template.spec, &spec, cluster, &mut found);
        if !found.0.is_empty() {
            return found.0;
        }
    }
    let metadata = &template.metadata;
    if !by.component {
        update::labels(metadata.labels.as_ref(), "spec.template.metadata", &mut found);
    }
    annotations(metadata.annotations.as_ref(), "spec.template.metadata", cluster, &mut found);
    labels(metadata.labels.as_ref(), &mut found);
    grace::annotations(&spec, metadata.annotations.as_ref(), "spec.template.metadata", cluster, &mut found);
    instance_spec(&spec, PATH, cluster, &mut found);
    compute::growth(&spec, PATH, cluster, &mut found);
    // What else the template asks for and we lack is accepted with a warning: see `warnings`.
    if let Some(error) = ferrovirt_plan::unsupported::hypervisor(vm) {
        found.unsupported(error.field, error.message);
    }
    templates::check(vm, &mut found);
    run_strategy(vm, cluster, &mut found);
    found.0
}

/// Who writes an object, and whether it is new.
#[derive(Debug, Clone, Copy, Default)]
pub struct By {
    /// One of our own components.
    pub component: bool,
    pub creates: bool,
}

/// What is not made any more. Upstream looks at a template's interfaces as if they stood in the VM's own spec.
fn gone(
    own: &VirtualMachineInstanceSpec,
    spec: &VirtualMachineInstanceSpec,
    cluster: &Cluster<'_>,
    found: &mut Findings,
) {
    discontinued_gates(own, cluster, found);
    if found.0.is_empty() {
        network::discontinued(spec, "spec", found);
    }
}

/// Gates of things that are gone, where somebody asks for the thing.
fn discontinued_gates(spec: &VirtualMachineInstanceSpec, cluster: &Cluster<'_>, found: &mut Findings) {
    let interfaces = &spec.domain.devices.interfaces;
    let asked = [
        ("Passt", interfaces.iter().any(|interface| interface.passt.is_some())),
        ("Macvtap", interfaces.iter().any(|interface| interface.macvtap.is_some())),
    ];
    for (gate, asked) in asked {
        if let Some(message) = ferrovirt_plan::cluster_defaults::outdated_gate(gate)
            && asked
            && cluster.gate(gate)
        {
            found.unsupported(String::new(), message);
        }
    }
}

fn run_strategy(vm: &VirtualMachine, cluster: &Cluster<'_>, found: &mut Findings) {
    let spec = &vm.spec;
    if spec.running.is_some() && spec.run_strategy.is_some() {
        found.invalid(
            "spec.running".into(),
            "Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead",
        );
    }
    if spec.running.is_none() && spec.run_strategy.is_none() {
        found.invalid("spec.running".into(), "RunStrategy must be specified");
    }
    match spec.run_strategy.as_deref() {
        Some("WaitAsReceiver") if !cluster.gate("DecentralizedLiveMigration") => found.invalid(
            "spec.runStrategy".into(),
            "Invalid RunStrategy (WaitAsReceiver), DecentralizedLiveMigration feature gate is not enabled in kubevirt resource",
        ),
        Some(strategy) if strategy != "WaitAsReceiver" && !KNOWN_STRATEGIES.contains(&strategy) => {
            found.invalid("spec.runStrategy".into(), format!("Invalid RunStrategy ({strategy})"));
        }
        _ => {}
    }
}

/// What a VM that is accepted asks for in vain: it will not start before that is changed.
pub fn warnings(vm: &VirtualMachine, cluster: &Cluster<'_>) -> Vec<String> {
    let mut warnings = vec![];
    if let Some(template) = vm.spec.template.as_ref().filter(|_| vm.spec.instancetype.is_none()) {
        warnings.extend(without_size(&template.spec, "spec.template.spec", cluster));
    }
    if vm.spec.running.is_some() {
        warnings.push("spec.running is deprecated, please use spec.runStrategy instead.".to_owned());
    }
    let fields = ferrovirt_plan::unsupported::fields(vm);
    warnings.extend(fields.into_iter().map(|e| format!("{}: {}; the VM will not start with it", e.field, e.message)));
    warnings
}

/// That no instance can be made of a template as it is, if so.
fn without_size(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>) -> Option<String> {
    let mut found = Findings::default();
    compute::size(&*with_defaults(spec, cluster).ok()?, path, &mut found);
    found.0.pop().map(|cause| format!("{}: {}; no instance will start without it", cause.field, cause.message))
}

pub fn replica_set_warnings(set: &VirtualMachineInstanceReplicaSet, cluster: &Cluster<'_>) -> Vec<String> {
    let template = set.spec.template.as_ref();
    template.and_then(|template| without_size(&template.spec, "spec.template.spec", cluster)).into_iter().collect()
}

/// The rules of a preset: it has to say something, and its disks and firmware are an instance's.
pub fn preset(spec: &serde_json::Value) -> Vec<Cause> {
    let mut found = Findings::default();
    match serde_json::from_value::<VirtualMachineInstancePresetSpec>(spec.clone()) {
        Err(error) => found.invalid("spec".into(), error.to_string()),
        Ok(VirtualMachineInstancePresetSpec { domain: None, .. }) => {
            found.required("spec.domain".into(), "missing domain.");
        }
        Ok(VirtualMachineInstancePresetSpec { domain: Some(domain), .. }) => {
            storage::disks(&domain.devices.disks, "spec", &mut found);
            firmware::loaders(&domain, "spec", &mut found);
        }
    }
    found.0
}

const KNOWN_STRATEGIES: [&str; 5] = [
    virtual_machine_run_strategy::HALTED,
    virtual_machine_run_strategy::ALWAYS,
    virtual_machine_run_strategy::MANUAL,
    virtual_machine_run_strategy::RERUN_ON_FAILURE,
    virtual_machine_run_strategy::ONCE,
];

/// The rules of an instance. Admission has filled in its defaults before.
pub fn instance(vmi: &VirtualMachineInstance, cluster: &Cluster<'_>) -> Vec<Cause> {
    let mut found = Findings::default();
    let spec = &vmi.spec;
    discontinued_gates(spec, cluster, &mut found);
    network::discontinued(spec, "spec", &mut found);
    instance_spec(spec, "spec", cluster, &mut found);
    volumes::placed(spec, "spec", &mut found);
    compute::size(spec, "spec", &mut found);
    annotations(vmi.metadata.annotations.as_ref(), "metadata", cluster, &mut found);
    grace::annotations(spec, vmi.metadata.annotations.as_ref(), "metadata", cluster, &mut found);
    architecture::enlightenments(spec, "spec", &mut found);
    architecture::check(spec, "spec", &mut found);
    // What the chosen hypervisor cannot do here, by the feature table.
    for error in ferrovirt_machine::features::unsupported_in(spec, "spec") {
        found.unsupported(error.field, error.message);
    }
    found.0
}

pub fn replica_set(set: &VirtualMachineInstanceReplicaSet, cluster: &Cluster<'_>) -> Vec<Cause> {
    let mut found = Findings::default();
    match &set.spec.template {
        None => found.required("spec.template".into(), "missing virtual machine template."),
        Some(template) => {
            let metadata = &template.metadata;
            let spec = match with_defaults(&template.spec, cluster) {
                Ok(spec) => spec,
                Err(cause) => return vec![cause],
            };
            discontinued_gates(&template.spec, cluster, &mut found);
            grace::annotations(&spec, metadata.annotations.as_ref(), "spec.template.metadata", cluster, &mut found);
            instance_spec(&spec, "spec.template.spec", cluster, &mut found);
            annotations(metadata.annotations.as_ref(), "spec.template.metadata", cluster, &mut found);
            labels(metadata.labels.as_ref(), &mut found);
            let labels = metadata.labels.clone().unwrap_or_default();
            // A set without a selector selects nothing, and one with an empty selector would take everything.
            let selector = set.spec.selector.as_ref().filter(|selector| {
                selector.match_labels.as_ref().is_some_and(|all| !all.is_empty())
                    || selector.match_expressions.as_ref().is_some_and(|all| !all.is_empty())
            });
            if !selector.is_some_and(|selector| ferrovirt_plan::selector::matches(selector, &labels)) {
                found.invalid("spec.selector".into(), "selector does not match labels.");
            }
        }
    }
    if set.spec.replicas.is_some_and(|replicas| replicas < 0) {
        found.invalid("spec.replicas".into(), "spec.replicas must be greater than or equal to 0.");
    }
    found.0
}

/// What will run, as far as templates are judged by it: what defaults add stands behind what was written, so paths stay right.
fn with_defaults(
    spec: &VirtualMachineInstanceSpec,
    cluster: &Cluster<'_>,
) -> Result<Box<VirtualMachineInstanceSpec>, Cause> {
    let mut spec = Box::new(spec.clone());
    match ferrovirt_plan::defaults::spec(&mut spec, cluster.0) {
        Ok(()) => Ok(spec),
        Err(impossible) => {
            let field = "spec.template.spec.domain.devices.interfaces".into();
            Err(Cause { reason: INVALID, field, message: impossible.to_string() })
        }
    }
}

/// What is wrong with an instance's spec wherever it stands, without what only holds for instances or only for templates.
pub fn spec(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>) -> Vec<Cause> {
    let mut found = Findings::default();
    instance_spec(spec, path, cluster, &mut found);
    found.0
}

/// The rules that hold for an instance and for every template of one, in upstream's order. Defaults are filled in.
fn instance_spec(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    guest::host(spec, path, found);
    compute::check(spec, path, cluster, found);
    guest::start(spec, path, found);
    scheduling::check(spec, path, found);
    network::check(spec, path, cluster, found);
    claims::check(spec, path, cluster, found);
    storage::boot(spec, path, cluster, found);
    devices::inputs(spec, path, found);
    probes::probes(spec, path, found);
    storage::disks(&spec.domain.devices.disks, path, found);
    firmware::check(&spec.domain, path, found);
    volumes::check(spec, path, cluster, found);
    guest::credentials(spec, path, found);
    guest::dns(spec, path, found);
    guest::eviction(spec, path, cluster, found);
    grace::check(spec, path, cluster, found);
    devices::check(spec, path, cluster, found);
    guest::account(spec, path, found);
}

/// Labels of a template: no instance could be made with others.
fn labels(labels: Option<&BTreeMap<String, String>>, found: &mut Findings) {
    if let Some(labels) = labels {
        scheduling::labels(labels, "spec.template.metadata.labels", found);
    }
}

/// Annotations that would run programs of the user's choice in the launcher's pod.
fn annotations(
    annotations: Option<&BTreeMap<String, String>>,
    path: &str,
    cluster: &Cluster<'_>,
    found: &mut Findings,
) {
    let gates = [
        ("kubevirt.io/ignitiondata", "ExperimentalIgnitionSupport", "ExperimentalIgnitionSupport"),
        ("hooks.kubevirt.io/hookSidecars", "Sidecar", "sidecar"),
    ];
    for (key, gate, name) in gates {
        if annotations.and_then(|all| all.get(key)).is_none_or(String::is_empty) {
            continue;
        }
        let field = format!("{path}.annotations");
        let message = match cluster.gate(gate) {
            false => format!("{name} feature gate is not enabled in kubevirt-config, invalid entry {field}.{key}"),
            true => format!("{field}.{key}: this is not implemented yet"),
        };
        found.invalid(field, message);
    }
}

#[cfg(test)]
#[path = "validate/tests.rs"]
mod tests;
