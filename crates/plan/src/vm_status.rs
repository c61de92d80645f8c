//! The status of a VirtualMachine: what people see in `kubectl get vm`.

use ferrovirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineStatus,
    values::{
        state_change_request_action as request, virtual_machine_condition_type as vm_condition,
        virtual_machine_instance_condition_type as vmi_condition, virtual_machine_instance_phase as phase,
        virtual_machine_printable_status as printable,
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::{
    conditions,
    vm::{RunStrategy, back_off, is_final},
};

pub(crate) fn fill(
    status: &mut VirtualMachineStatus,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    strategy: RunStrategy,
    now: Timestamp,
    time: &Time,
) {
    status.created = vmi.is_some();
    let ready = vmi.and_then(|vmi| conditions::find(&vmi.status.conditions, vmi_condition::READY));
    status.ready = ready.is_some_and(|c| c.status == "True");
    match ready {
        Some(c) => {
            conditions::set_vm(&mut status.conditions, time, vm_condition::READY, status.ready, &c.reason, &c.message);
        }
        None => {
            let (reason, message) = match vmi {
                Some(_) => ("GuestNotRunning", "the guest is not running"),
                None => ("VMINotExists", "VMI does not exist"),
            };
            conditions::set_vm(&mut status.conditions, time, vm_condition::READY, false, reason, message);
        }
    }
    match vmi.and_then(|vmi| conditions::find(&vmi.status.conditions, vmi_condition::PAUSED)) {
        Some(c) if c.status == "True" => {
            conditions::set_vm(&mut status.conditions, time, vm_condition::PAUSED, true, &c.reason, &c.message);
        }
        _ => conditions::remove_vm(&mut status.conditions, vm_condition::PAUSED),
    }
    status.desired_generation = vm.metadata.generation.unwrap_or_default();
    status.observed_generation = observed_generation(vm, vmi);
    status.printable_status = printable_status(status, vm, vmi, strategy, now).into();
}

/// The generation of the VM that the running instance was made from.
fn observed_generation(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> i64 {
    let annotation = ferrovirt_api::names::VIRTUAL_MACHINE_GENERATION_ANNOTATION;
    vmi.and_then(|vmi| vmi.metadata.annotations.as_ref()?.get(annotation)?.parse().ok())
        .unwrap_or_else(|| vm.metadata.generation.unwrap_or_default())
}

fn printable_status(
    status: &VirtualMachineStatus,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    strategy: RunStrategy,
    now: Timestamp,
) -> &'static str {
    if vm.metadata.deletion_timestamp.is_some() {
        return printable::TERMINATING;
    }
    let wants_start = status.state_change_requests.iter().any(|r| r.action == request::START);
    let Some(vmi) = vmi else {
        if back_off(status, now).is_some() {
            return printable::CRASH_LOOP_BACK_OFF;
        }
        let starting = strategy == RunStrategy::Always || wants_start;
        return if starting { printable::STARTING } else { printable::STOPPED };
    };
    let conditions = &vmi.status.conditions;
    if is_final(vmi) {
        // A failed start that is being waited out shows as such, not as a VM that somebody stopped.
        let failing = vmi.status.phase == phase::FAILED && status.start_failure.is_some();
        if failing && matches!(strategy, RunStrategy::Always | RunStrategy::RerunOnFailure) {
            return printable::CRASH_LOOP_BACK_OFF;
        }
        let restarting = strategy == RunStrategy::Always || wants_start;
        return if restarting { printable::STARTING } else { printable::STOPPED };
    }
    let stop_requested = status
        .state_change_requests
        .iter()
        .any(|r| r.action == request::STOP && r.uid.as_deref() == vmi.metadata.uid.as_deref());
    if vmi.metadata.deletion_timestamp.is_some() || stop_requested || strategy == RunStrategy::Halted {
        return printable::STOPPING;
    }
    if conditions::is_true(conditions, vmi_condition::PAUSED) {
        return printable::PAUSED;
    }
    match vmi.status.phase.as_str() {
        phase::RUNNING => return printable::RUNNING,
        phase::UNKNOWN => return printable::UNKNOWN,
        _ => {}
    }
    let has = |type_: &str, reason: &str| {
        conditions::find(conditions, type_).is_some_and(|c| c.status == "False" && c.reason == reason)
    };
    if has(vmi_condition::SYNCHRONIZED, printable::ERR_IMAGE_PULL) {
        printable::ERR_IMAGE_PULL
    } else if has(vmi_condition::SYNCHRONIZED, printable::IMAGE_PULL_BACK_OFF) {
        printable::IMAGE_PULL_BACK_OFF
    } else if has(vmi_condition::SYNCHRONIZED, "FailedPvcNotFound") {
        printable::ERROR_PVC_NOT_FOUND
    } else if has("PodScheduled", "Unschedulable") {
        printable::ERROR_UNSCHEDULABLE
    } else {
        printable::STARTING
    }
}
