//! VirtualMachine: should an instance exist, and which one.
//!
//! ```text
//!   strategy        no instance           instance ended                     instance runs
//!   Always          start (back-off)      delete, then start                 delete on a stop request
//!   Halted          –                     delete                             delete
//!   Manual          start on request      delete on a start or stop request  delete on a stop request
//!   RerunOnFailure  start on request      failed: delete and start again     delete on a stop request
//!   Once            start the first time  –                                  delete on a stop request
//! ```
//!
//! An instance is never created while another of that name exists, deleted or not: its finalizer is released by the node
//! agent, which saw its processes end.

use std::time::Duration;

use ferrovirt_api::{
    names,
    v1::{
        VirtualMachine, VirtualMachineInstance, VirtualMachineStartFailure, VirtualMachineStateChangeRequest,
        VirtualMachineStatus,
        values::{
            state_change_request_action as request, virtual_machine_instance_phase as phase,
            virtual_machine_run_strategy as strategy,
        },
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{
    Note,
    identity::{stable_mac, stable_uuid},
    vm_status,
};

/// First delay after a failed start; it doubles with every further one.
const BACK_OFF_START: i64 = 10;
const BACK_OFF_MAX: i64 = 300;

pub struct Observed<'a> {
    pub vm: &'a VirtualMachine,
    pub vmi: Option<&'a VirtualMachineInstance>,
    pub now: Timestamp,
}

#[derive(Debug, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub status: VirtualMachineStatus,
    pub notes: Vec<Note>,
    /// Look again after this time even if nothing changes.
    pub requeue: Option<Duration>,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    AddFinalizer,
    RemoveFinalizer,
    Create(Box<VirtualMachineInstance>),
    Delete {
        uid: String,
    },
    /// Become the owner of an instance of our name that nobody controls.
    Adopt {
        uid: String,
        owner: OwnerReference,
    },
}

/// What the owner wants, from either of the two fields that say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunStrategy {
    Always,
    Halted,
    Manual,
    RerunOnFailure,
    Once,
}

impl RunStrategy {
    pub fn of(vm: &VirtualMachine) -> Self {
        match (vm.spec.running, vm.spec.run_strategy.as_deref()) {
            (Some(true), _) | (None, Some(strategy::ALWAYS)) => Self::Always,
            (None, Some(strategy::MANUAL)) => Self::Manual,
            (None, Some(strategy::RERUN_ON_FAILURE)) => Self::RerunOnFailure,
            (None, Some(strategy::ONCE)) => Self::Once,
            _ => Self::Halted,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => strategy::ALWAYS,
            Self::Halted => strategy::HALTED,
            Self::Manual => strategy::MANUAL,
            Self::RerunOnFailure => strategy::RERUN_ON_FAILURE,
            Self::Once => strategy::ONCE,
        }
    }
}

/// The step that the strategy asks for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Nothing,
    Start,
    Stop,
    /// Delete the instance and remember that a new one is wanted.
    Replace,
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let Observed { vm, vmi, now } = *observed;
    let time = Time(now);
    let mut status = vm.status.clone();
    let mut plan = Plan { actions: vec![], status: VirtualMachineStatus::default(), notes: vec![], requeue: None };
    let strategy = RunStrategy::of(vm);
    let vmi = vmi.filter(|vmi| is_ours(vm, vmi) || may_adopt(vmi));

    if vm.metadata.deletion_timestamp.is_some() {
        delete_everything(vm, vmi, &mut plan);
    } else if !has_finalizer(vm) {
        plan.actions.push(Action::AddFinalizer);
    } else if let Some(orphan) = vmi.filter(|vmi| may_adopt(vmi)) {
        plan.actions.push(Action::Adopt { uid: uid(orphan), owner: owner_reference(vm) });
    } else {
        note_start_failure(&mut status, vmi, now);
        match decide(vm, vmi, &status, strategy) {
            Step::Start => match back_off(&status, now) {
                Some(wait) => plan.requeue = Some(wait),
                None => {
                    status.state_change_requests.retain(|r| r.action != request::START);
                    plan.actions.push(Action::Create(Box::new(build_instance(vm))));
                }
            },
            Step::Stop => delete_instance(vmi, &mut plan),
            Step::Replace => {
                if !status.state_change_requests.iter().any(|r| r.action == request::START) {
                    status
                        .state_change_requests
                        .push(VirtualMachineStateChangeRequest { action: request::START.into(), ..Default::default() });
                }
                delete_instance(vmi, &mut plan);
            }
            Step::Nothing => {}
        }
        forget_done_requests(&mut status, vmi);
        status.run_strategy = strategy.as_str().into();
    }

    vm_status::fill(&mut status, vm, vmi, strategy, now, &time);
    plan.status = status;
    plan
}

fn decide(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    status: &VirtualMachineStatus,
    strategy: RunStrategy,
) -> Step {
    let wants_start = status.state_change_requests.iter().any(|r| r.action == request::START);
    let first_time = vm.status.run_strategy != strategy.as_str();
    let Some(vmi) = vmi else {
        return match strategy {
            RunStrategy::Always => Step::Start,
            RunStrategy::Halted => Step::Nothing,
            RunStrategy::Manual if wants_start => Step::Start,
            RunStrategy::RerunOnFailure | RunStrategy::Once if wants_start || first_time => Step::Start,
            _ => Step::Nothing,
        };
    };
    if vmi.metadata.deletion_timestamp.is_some() {
        return Step::Nothing;
    }
    let wants_stop = status
        .state_change_requests
        .iter()
        .any(|r| r.action == request::STOP && r.uid.as_deref() == vmi.metadata.uid.as_deref());
    let ended = is_final(vmi);
    match strategy {
        RunStrategy::Halted => Step::Stop,
        RunStrategy::Always if ended || wants_stop => Step::Stop,
        RunStrategy::RerunOnFailure if vmi.status.phase == phase::FAILED && !wants_stop => Step::Replace,
        RunStrategy::Manual | RunStrategy::RerunOnFailure | RunStrategy::Once if wants_stop => Step::Stop,
        RunStrategy::Manual | RunStrategy::RerunOnFailure if ended && wants_start => Step::Stop,
        _ => Step::Nothing,
    }
}

fn delete_everything(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, plan: &mut Plan) {
    let finalizers = vm.metadata.finalizers.as_deref().unwrap_or_default();
    let orphaning = finalizers.iter().any(|f| f == "orphan");
    match vmi {
        // With an orphaning delete the garbage collector cuts the owner reference, and the instance stays.
        Some(vmi) if !orphaning && is_ours(vm, vmi) => delete_instance(Some(vmi), plan),
        _ if has_finalizer(vm) => plan.actions.push(Action::RemoveFinalizer),
        _ => {}
    }
}

fn delete_instance(vmi: Option<&VirtualMachineInstance>, plan: &mut Plan) {
    if let Some(vmi) = vmi.filter(|vmi| vmi.metadata.deletion_timestamp.is_none()) {
        plan.actions.push(Action::Delete { uid: uid(vmi) });
        let name = vmi.metadata.name.as_deref().unwrap_or_default();
        plan.notes.push(Note::normal(
            "SuccessfulDelete",
            format!("Stopped the virtual machine by deleting the virtual machine instance {name}"),
        ));
    }
}

/// A request is done when the instance it speaks of is gone, and a start once there is one.
fn forget_done_requests(status: &mut VirtualMachineStatus, vmi: Option<&VirtualMachineInstance>) {
    let current = vmi.and_then(|vmi| vmi.metadata.uid.as_deref());
    let runs = vmi.is_some_and(|vmi| !is_final(vmi) && vmi.metadata.deletion_timestamp.is_none());
    let stopping =
        status.state_change_requests.iter().any(|r| r.action == request::STOP && r.uid.as_deref() == current);
    status.state_change_requests.retain(|r| match r.action.as_str() {
        request::STOP => r.uid.is_some() && r.uid.as_deref() == current,
        request::START => !runs || stopping,
        _ => false,
    });
}

/// Counts an instance that failed without ever having run, once per instance.
fn note_start_failure(status: &mut VirtualMachineStatus, vmi: Option<&VirtualMachineInstance>, now: Timestamp) {
    let Some(vmi) = vmi else { return };
    if vmi.status.phase == phase::RUNNING {
        status.start_failure = None;
        return;
    }
    let ran = vmi.status.phase_transition_timestamps.iter().any(|t| t.phase == phase::RUNNING);
    if vmi.status.phase != phase::FAILED || ran {
        return;
    }
    let failure = status.start_failure.get_or_insert_with(VirtualMachineStartFailure::default);
    if failure.last_failed_vmiuid == uid(vmi) {
        return;
    }
    failure.last_failed_vmiuid = uid(vmi);
    failure.consecutive_fail_count += 1;
    let exponent = u32::try_from(failure.consecutive_fail_count - 1).unwrap_or(0).min(10);
    let seconds = (BACK_OFF_START << exponent).min(BACK_OFF_MAX);
    failure.retry_after_timestamp = now.checked_add(SignedDuration::from_secs(seconds)).ok().map(Time);
}

/// How long a start must still wait.
pub(crate) fn back_off(status: &VirtualMachineStatus, now: Timestamp) -> Option<Duration> {
    let retry = status.start_failure.as_ref()?.retry_after_timestamp.as_ref()?;
    Duration::try_from(retry.0.duration_since(now)).ok().filter(|wait| !wait.is_zero())
}

fn build_instance(vm: &VirtualMachine) -> VirtualMachineInstance {
    let name = vm.metadata.name.clone().unwrap_or_default();
    let vm_uid = vm.metadata.uid.clone().unwrap_or_default();
    let template = vm.spec.template.clone().unwrap_or_default();
    let mut vmi = VirtualMachineInstance { spec: template.spec, ..Default::default() };
    let metadata = &mut vmi.metadata;
    metadata.name = Some(name.clone());
    metadata.namespace = vm.metadata.namespace.clone();
    let mut labels = template.metadata.labels.unwrap_or_default();
    labels.insert(names::DEPRECATED_VIRTUAL_MACHINE_NAME_LABEL.into(), name);
    metadata.labels = Some(labels);
    let mut annotations = template.metadata.annotations.unwrap_or_default();
    let generation = vm.metadata.generation.unwrap_or_default();
    annotations.insert(names::VIRTUAL_MACHINE_GENERATION_ANNOTATION.into(), generation.to_string());
    metadata.annotations = Some(annotations);
    metadata.finalizers = Some(vec![names::VIRTUAL_MACHINE_INSTANCE_FINALIZER.into()]);
    metadata.owner_references = Some(vec![owner_reference(vm)]);

    // Licences bind to these: they must stay the same over restarts without the owner having to write them down.
    let firmware = vmi.spec.domain.firmware.get_or_insert_default();
    if firmware.uuid.is_empty() {
        firmware.uuid = stable_uuid(&vm_uid, "firmware");
    }
    crate::network::add_default(&mut vmi.spec);
    for interface in &mut vmi.spec.domain.devices.interfaces {
        if interface.mac_address.is_empty() {
            interface.mac_address = stable_mac(&vm_uid, &interface.name);
        }
    }
    vmi
}

fn owner_reference(vm: &VirtualMachine) -> OwnerReference {
    OwnerReference {
        api_version: "kubevirt.io/v1".into(),
        kind: "VirtualMachine".into(),
        name: vm.metadata.name.clone().unwrap_or_default(),
        uid: vm.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn is_ours(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> bool {
    controller_of(vmi).is_some_and(|owner| Some(owner.uid.as_str()) == vm.metadata.uid.as_deref())
}

fn may_adopt(vmi: &VirtualMachineInstance) -> bool {
    controller_of(vmi).is_none() && vmi.metadata.deletion_timestamp.is_none()
}

fn controller_of(vmi: &VirtualMachineInstance) -> Option<&OwnerReference> {
    vmi.metadata.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

fn has_finalizer(vm: &VirtualMachine) -> bool {
    let finalizers = vm.metadata.finalizers.as_deref().unwrap_or_default();
    finalizers.iter().any(|f| f == names::VIRTUAL_MACHINE_CONTROLLER_FINALIZER)
}

pub(crate) fn is_final(vmi: &VirtualMachineInstance) -> bool {
    matches!(vmi.status.phase.as_str(), phase::SUCCEEDED | phase::FAILED)
}

fn uid(vmi: &VirtualMachineInstance) -> String {
    vmi.metadata.uid.clone().unwrap_or_default()
}

#[cfg(test)]
#[path = "vm_tests.rs"]
mod tests;
