//! The status of a VirtualMachine: what people see in `kubectl get vm`.

use ferrovirt_api::{
    names,
    v1::{
        VirtualMachine, VirtualMachineInstance, VirtualMachineStatus,
        values::{
            state_change_request_action as request, virtual_machine_condition_type as vm_condition,
            virtual_machine_instance_condition_type as vmi_condition, virtual_machine_instance_phase as phase,
            virtual_machine_printable_status as printable,
        },
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::{
    conditions,
    storage::Waiting,
    vm::{Observed, RunStrategy, back_off, is_final},
};

/// Why a VM that should have an instance gets none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub reason: &'static str,
    pub message: String,
}

/// All that the status is made from.
pub(crate) struct Shown<'a> {
    pub observed: &'a Observed<'a>,
    /// The instance, if it is the VM's.
    pub vmi: Option<&'a VirtualMachineInstance>,
    pub strategy: RunStrategy,
    pub waiting: Option<Waiting>,
    pub failure: Option<Failure>,
    /// An instance is being made by the same plan.
    pub creating: bool,
}

/// Conditions that are the VM's own. All others follow the instance's.
const OWN: [&str; 4] = [
    vm_condition::READY,
    vm_condition::FAILURE,
    vm_condition::RESTART_REQUIRED,
    vm_condition::MANUAL_RECOVERY_REQUIRED,
];

/// Fills the status. True if the instance fits a newer generation of the VM than it knows.
pub(crate) fn fill(status: &mut VirtualMachineStatus, shown: &Shown<'_>) -> bool {
    let Shown { observed, vmi, .. } = *shown;
    let (vm, time) = (observed.vm, Time(observed.now));
    status.created = vmi.is_some() || shown.creating;
    let ready = vmi.and_then(|vmi| conditions::find(&vmi.status.conditions, vmi_condition::READY));
    status.ready = ready.is_some_and(|c| c.status == "True");
    let (reason, message) = match (ready, vmi, &shown.waiting) {
        (Some(c), ..) => (c.reason.as_str(), c.message.as_str()),
        (None, Some(_), _) => (names::reason::GUEST_NOT_RUNNING, "the guest is not running yet"),
        (None, None, Some(Waiting::Provisioning(what))) => ("Provisioning", what.as_str()),
        (None, None, Some(Waiting::Failed(what))) => (printable::DATA_VOLUME_ERROR, what.as_str()),
        (None, None, _) if shown.creating => (names::reason::GUEST_NOT_RUNNING, "the guest is not running yet"),
        (None, None, _) => ("VMINotExists", "VMI does not exist"),
    };
    conditions::set_vm(&mut status.conditions, &time, vm_condition::READY, status.ready, reason, message);
    set_failure(status, &time, shown.failure.as_ref());
    follow_instance(status, vmi);
    let restart = restart_required(shown);
    if restart == Some(true) {
        let message = "a non-live-updatable field was changed in the template spec";
        let type_ = vm_condition::RESTART_REQUIRED;
        conditions::set_vm(&mut status.conditions, &time, type_, true, type_, message);
    } else {
        conditions::remove_vm(&mut status.conditions, vm_condition::RESTART_REQUIRED);
    }
    let generation = vm.metadata.generation.unwrap_or_default();
    let made_from = vmi.and_then(made_from);
    // A change that does not concern the running instance is observed by it at once.
    let catches_up =
        restart == Some(false) && same_template(observed) && made_from.is_some_and(|made_from| made_from != generation);
    status.desired_generation = generation;
    status.observed_generation = if catches_up { generation } else { made_from.unwrap_or(generation) };
    status.printable_status = printable_status(status, shown).into();
    catches_up
}

/// Sets or removes the `Failure` condition.
pub fn set_failure(status: &mut VirtualMachineStatus, now: &Time, failure: Option<&Failure>) {
    match failure {
        Some(failure) => {
            let (reason, message) = (failure.reason, failure.message.as_str());
            conditions::set_vm(&mut status.conditions, now, vm_condition::FAILURE, true, reason, message);
        }
        None => conditions::remove_vm(&mut status.conditions, vm_condition::FAILURE),
    }
}

/// True if the VM says already that it failed so.
pub(crate) fn shows(vm: &VirtualMachine, failure: &Failure) -> bool {
    let mut conditions = vm.status.conditions.iter();
    conditions.any(|c| c.type_ == vm_condition::FAILURE && c.reason == failure.reason && c.message == failure.message)
}

/// Copies the instance's conditions, and forgets those it no longer has.
fn follow_instance(status: &mut VirtualMachineStatus, vmi: Option<&VirtualMachineInstance>) {
    let theirs = vmi.map(|vmi| vmi.status.conditions.as_slice()).unwrap_or_default();
    // Why the last start failed is told until the next one.
    let failed = vmi.is_none() && status.start_failure.is_some();
    let kept = |type_: &str| {
        OWN.contains(&type_)
            || theirs.iter().any(|their| their.type_ == type_)
            || (failed && type_ == vmi_condition::SYNCHRONIZED)
    };
    status.conditions.retain(|c| kept(&c.type_));
    for their in theirs.iter().filter(|their| !OWN.contains(&their.type_.as_str())) {
        let condition = ferrovirt_api::v1::VirtualMachineCondition {
            type_: their.type_.clone(),
            status: their.status.clone(),
            last_probe_time: their.last_probe_time.clone(),
            last_transition_time: their.last_transition_time.clone(),
            reason: their.reason.clone(),
            message: their.message.clone(),
        };
        match status.conditions.iter_mut().find(|c| c.type_ == their.type_) {
            Some(ours) => *ours = condition,
            None => status.conditions.push(condition),
        }
    }
}

/// Whether the instance runs with something else than the template says. `None` if that cannot be told or does not matter.
fn restart_required(shown: &Shown<'_>) -> Option<bool> {
    let vmi = shown.vmi.filter(|vmi| !is_final(vmi) && vmi.metadata.deletion_timestamp.is_none())?;
    if made_from(vmi) == shown.observed.vm.metadata.generation {
        return Some(false);
    }
    let started_from = shown.observed.started_from?.template.as_ref()?;
    Some(started_from.spec != shown.observed.vm.spec.template.as_ref()?.spec)
}

/// Whether the template is the one that the instance was made from, with its labels and annotations: those of an instance that
/// runs do not change, although that needs no restart.
fn same_template(observed: &Observed<'_>) -> bool {
    observed.started_from.is_some_and(|started_from| started_from.template == observed.vm.spec.template)
}

/// The generation of the VM that the instance was made from.
fn made_from(vmi: &VirtualMachineInstance) -> Option<i64> {
    vmi.metadata.annotations.as_ref()?.get(names::VIRTUAL_MACHINE_GENERATION_ANNOTATION)?.parse().ok()
}

fn printable_status(status: &VirtualMachineStatus, shown: &Shown<'_>) -> &'static str {
    let Shown { observed, vmi, strategy, .. } = *shown;
    if observed.vm.metadata.deletion_timestamp.is_some() {
        return printable::TERMINATING;
    }
    match vmi {
        None => without_instance(status, shown, observed.now),
        Some(vmi) if is_final(vmi) => after_instance(status, strategy, observed.now),
        Some(vmi) => with_instance(status, shown, vmi),
    }
}

fn without_instance(status: &VirtualMachineStatus, shown: &Shown<'_>, now: Timestamp) -> &'static str {
    match shown.waiting {
        Some(Waiting::Failed(_)) => return printable::DATA_VOLUME_ERROR,
        Some(Waiting::Provisioning(_)) => return printable::PROVISIONING,
        Some(Waiting::Missing(_)) | None => {}
    }
    if shown.failure.is_some() {
        return printable::STOPPED;
    }
    if back_off(status, now).is_some() {
        return printable::CRASH_LOOP_BACK_OFF;
    }
    let wants_start = status.state_change_requests.iter().any(|r| r.action == request::START);
    let starting = shown.strategy == RunStrategy::Always || wants_start || shown.creating;
    if starting { printable::STARTING } else { printable::STOPPED }
}

fn after_instance(status: &VirtualMachineStatus, strategy: RunStrategy, now: Timestamp) -> &'static str {
    // A failed start that is being waited out shows as such, not as a VM that somebody stopped.
    let failing = back_off(status, now).is_some();
    if failing && matches!(strategy, RunStrategy::Always | RunStrategy::RerunOnFailure) {
        return printable::CRASH_LOOP_BACK_OFF;
    }
    let wants_start = status.state_change_requests.iter().any(|r| r.action == request::START);
    let restarting = strategy == RunStrategy::Always || wants_start;
    if restarting { printable::STARTING } else { printable::STOPPED }
}

fn with_instance(status: &VirtualMachineStatus, shown: &Shown<'_>, vmi: &VirtualMachineInstance) -> &'static str {
    let stop_requested = status
        .state_change_requests
        .iter()
        .any(|r| r.action == request::STOP && r.uid.as_deref() == vmi.metadata.uid.as_deref());
    if vmi.metadata.deletion_timestamp.is_some() || stop_requested || shown.strategy == RunStrategy::Halted {
        return printable::STOPPING;
    }
    let conditions = &vmi.status.conditions;
    match vmi.status.phase.as_str() {
        // The guest may well run, and nobody can say so.
        phase::RUNNING if conditions::is_missed(conditions) => return printable::UNKNOWN,
        phase::RUNNING if conditions::is_true(conditions, vmi_condition::PAUSED) => return printable::PAUSED,
        phase::RUNNING => return printable::RUNNING,
        phase::UNKNOWN => return printable::UNKNOWN,
        _ => {}
    }
    let has = |type_: &str, reason: &str| {
        conditions::find(conditions, type_).is_some_and(|c| c.status == "False" && c.reason == reason)
    };
    let spec = shown.observed.vm.spec.template.as_ref().map(|template| &template.spec);
    let unbound = spec.and_then(|spec| shown.observed.storage.unbound(spec)).is_some();
    if has(vmi_condition::SYNCHRONIZED, crate::vmi::PVC_NOT_FOUND) {
        printable::ERROR_PVC_NOT_FOUND
    } else if matches!(shown.waiting, Some(Waiting::Failed(_))) {
        printable::DATA_VOLUME_ERROR
    } else if ["Unschedulable", crate::vmi::HYPERVISOR_NOT_AVAILABLE].iter().any(|why| has("PodScheduled", why)) {
        printable::ERROR_UNSCHEDULABLE
    } else if matches!(shown.waiting, Some(Waiting::Provisioning(_))) {
        printable::PROVISIONING
    } else if unbound {
        printable::WAITING_FOR_VOLUME_BINDING
    } else if has(vmi_condition::SYNCHRONIZED, printable::ERR_IMAGE_PULL) {
        printable::ERR_IMAGE_PULL
    } else if has(vmi_condition::SYNCHRONIZED, printable::IMAGE_PULL_BACK_OFF) {
        printable::IMAGE_PULL_BACK_OFF
    } else {
        printable::STARTING
    }
}
