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
mod guest;
mod network;
mod probes;
mod scheduling;
mod storage;
mod templates;
pub mod update;
mod volumes;

use std::collections::BTreeMap;

use ferrovirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet, VirtualMachineInstanceSpec,
    values::virtual_machine_run_strategy,
};

pub use cluster::Cluster;

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

pub fn virtual_machine(vm: &VirtualMachine, cluster: &Cluster<'_>) -> Vec<Cause> {
    let mut found = Findings::default();
    match &vm.spec.template {
        None => found.required("spec.template".into(), "missing virtual machine template."),
        Some(template) => {
            annotations(template.metadata.annotations.as_ref(), "spec.template.metadata", cluster, &mut found);
            labels(template.metadata.labels.as_ref(), &mut found);
            let mut spec = with_defaults(&template.spec);
            // Processors that nobody counted are one; with an instance type they are not known yet.
            if let Some(cpu) = spec.domain.cpu.as_mut().filter(|cpu| cpu.cores + cpu.sockets + cpu.threads == 0) {
                cpu.sockets = 1;
            }
            instance_spec(&spec, "spec.template.spec", cluster, &mut found);
            compute::growth(&spec, "spec.template.spec", cluster, &mut found);
            // An instance type may bring the memory, and what may grow is told above.
            let grows = spec.domain.memory.as_ref().is_some_and(|memory| memory.max_guest.is_some());
            if vm.spec.instancetype.is_none() && !grows {
                compute::size(&spec, "spec.template.spec", &mut found);
            }
            // What else the template asks for and we lack is accepted with a warning: see `warnings`.
            if let Some(error) = ferrovirt_plan::unsupported::hypervisor(vm) {
                found.unsupported(error.field, error.message);
            }
            templates::check(vm, &mut found);
        }
    }
    run_strategy(vm, cluster, &mut found);
    found.0
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

pub fn instance(vmi: &VirtualMachineInstance, cluster: &Cluster<'_>) -> Vec<Cause> {
    let mut found = Findings::default();
    let spec = with_defaults(&vmi.spec);
    instance_spec(&spec, "spec", cluster, &mut found);
    volumes::placed(&spec, "spec", &mut found);
    compute::size(&vmi.spec, "spec", &mut found);
    annotations(vmi.metadata.annotations.as_ref(), "metadata", cluster, &mut found);
    architecture::enlightenments(&vmi.spec, "spec", &mut found);
    architecture::check(&vmi.spec, "spec", cluster, &mut found);
    // What the chosen hypervisor cannot do here, by the feature table.
    for error in ferrovirt_machine::features::unsupported_in(&vmi.spec, "spec") {
        found.unsupported(error.field, error.message);
    }
    found.0
}

pub fn replica_set(set: &VirtualMachineInstanceReplicaSet, cluster: &Cluster<'_>) -> Vec<Cause> {
    let mut found = Findings::default();
    match &set.spec.template {
        None => found.required("spec.template".into(), "missing virtual machine template."),
        Some(template) => {
            instance_spec(&with_defaults(&template.spec), "spec.template.spec", cluster, &mut found);
            compute::size(&template.spec, "spec.template.spec", &mut found);
            annotations(template.metadata.annotations.as_ref(), "spec.template.metadata", cluster, &mut found);
            labels(template.metadata.labels.as_ref(), &mut found);
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

/// What will run: what defaults add stands behind what was written, so paths stay right.
fn with_defaults(spec: &VirtualMachineInstanceSpec) -> VirtualMachineInstanceSpec {
    let mut spec = spec.clone();
    ferrovirt_plan::disks::add_default(&mut spec);
    ferrovirt_plan::network::add_default(&mut spec);
    spec
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
    storage::disks(spec, path, found);
    firmware::check(spec, path, found);
    volumes::check(spec, path, cluster, found);
    guest::credentials(spec, path, found);
    guest::dns(spec, path, found);
    guest::eviction(spec, path, cluster, found);
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
