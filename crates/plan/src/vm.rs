//! VirtualMachine: should an instance exist, and which one.
//!
//! ```text
//!   strategy        no instance           instance ended                     instance runs
//!   Always          start (back-off)      delete, then start                 delete on a stop request
//!   Halted          –                     delete                             delete
//!   (a start request that asks for a paused guest turns it into Always; any other is void)
//!   Manual          start on request      delete on a start or stop request  delete on a stop request
//!   RerunOnFailure  start on request      delete; failed: start again        delete on a stop request
//!   Once            start the first time  –                                  delete on a stop request
//! ```
//!
//! An instance is never created while another of that name exists, deleted or not: its finalizer is released by the node
//! agent, which saw its processes end.

use std::time::Duration;

use ferrovirt_api::{
    names,
    v1::{
        KubeVirtConfiguration, VirtualMachine, VirtualMachineInstance, VirtualMachineSpec, VirtualMachineStartFailure,
        VirtualMachineStateChangeRequest, VirtualMachineStatus,
        values::{
            state_change_request_action as request, virtual_machine_instance_phase as phase,
            virtual_machine_printable_status as printable, virtual_machine_run_strategy as strategy,
        },
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{
    Note,
    identity::stable_fraction,
    storage::{Storage, Waiting},
    unsupported,
    vm_instance::{self, owner_reference},
    vm_status::{self, Failure},
    vm_volumes,
};

/// Delay after the first failed start; it grows with the square of the number of failures, as upstream's does.
const BACK_OFF_START: i64 = 10;
const BACK_OFF_MAX: i64 = 300;
/// Seconds. An instance that ended sooner after it began to run did not come up, as far as its restarts go.
const SHORT_RUN: i64 = 10;
/// Reasons of ends that somebody else brought about, and that say nothing about the next start.
const FROM_OUTSIDE: [&str; 4] = [names::reason::POD_NOT_EXISTS, "NodeGone", "NodeShutdown", "LauncherTerminated"];
/// Between two looks at what a VM waits for. Watches tell sooner.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

pub struct Observed<'a> {
    pub vm: &'a VirtualMachine,
    pub vmi: Option<&'a VirtualMachineInstance>,
    /// The specification that the instance was made from, if its revision was found.
    pub started_from: Option<&'a VirtualMachineSpec>,
    pub storage: &'a Storage,
    pub configuration: &'a KubeVirtConfiguration,
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

impl Plan {
    /// True if an instance is to be made.
    pub fn creates(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::Create(_)))
    }
}

#[derive(Debug, PartialEq)]
pub enum Action {
    AddFinalizer,
    RemoveFinalizer,
    /// Make the instance, after the revision that remembers what it is made from.
    Create(Box<VirtualMachineInstance>),
    CreateDataVolume(Box<serde_json::Value>),
    /// Tell the instance that it is as the VM's present generation wants it.
    SetGeneration(i64),
    /// Write annotations of the instance that follow the VM's template.
    FollowTemplate {
        uid: String,
        annotations: crate::pod::Changes,
    },
    Delete {
        uid: String,
    },
    /// Want the VM to run from now on.
    WantRunning,
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

    /// Whether instances are started without anybody asking for one.
    fn starts_by_itself(self) -> bool {
        matches!(self, Self::Always | Self::RerunOnFailure | Self::Once)
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
    /// A halted VM was asked to start with a paused guest: that is remembered, and the owner's will becomes to run.
    WantRunning,
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let Observed { vm, vmi, storage, now, .. } = *observed;
    let mut status = vm.status.clone();
    let mut plan = Plan { actions: vec![], status: VirtualMachineStatus::default(), notes: vec![], requeue: None };
    let strategy = RunStrategy::of(vm);
    let vmi = vmi.filter(|vmi| is_ours(vm, vmi) || may_adopt(vmi));
    let mut waiting = None;
    let mut failure = None;

    if vm.metadata.deletion_timestamp.is_some() {
        delete_everything(vm, vmi, &mut plan);
    } else if !has_finalizer(vm) {
        plan.actions.push(Action::AddFinalizer);
    } else if let Some(orphan) = vmi.filter(|vmi| may_adopt(vmi)) {
        plan.actions.push(Action::Adopt { uid: uid(orphan), owner: owner_reference(vm) });
    } else {
        plan.requeue = note_start_failure(&mut status, vmi, strategy, now);
        let step = decide(vm, vmi, &status, strategy);
        let lacking = unsupported::fields(vm);
        if lacking.is_empty() {
            let volumes = vm_volumes::missing(vm, storage, step == Step::Start);
            plan.actions.extend(volumes.into_iter().map(|volume| Action::CreateDataVolume(Box::new(volume))));
        } else {
            failure = Some(Failure { reason: "FeatureNotSupported", message: unsupported::describe(&lacking) });
        }
        waiting = vm_volumes::obstacle(vm, storage);
        let mut held = false;
        match step {
            Step::Start => {
                let wait = back_off(&status, now);
                held = failure.is_some() || waiting.is_some() || wait.is_some();
                match wait {
                    Some(wait) => plan.requeue = Some(wait),
                    None if waiting.is_some() => plan.requeue = Some(LOOK_AGAIN),
                    None if held => {}
                    None => start(observed, &mut status, &mut plan),
                }
            }
            Step::Stop => delete_instance(vmi, &mut plan),
            Step::Replace => {
                if !status.state_change_requests.iter().any(|r| r.action == request::START) {
                    status
                        .state_change_requests
                        .push(VirtualMachineStateChangeRequest { action: request::START.into(), ..Default::default() });
                }
                delete_instance(vmi, &mut plan);
            }
            Step::WantRunning => plan.actions.push(Action::WantRunning),
            Step::Nothing => {}
        }
        if vm_volumes::outlived(vm, storage) {
            plan.requeue = plan.requeue.or(Some(LOOK_AGAIN));
        }
        forget_done_requests(&mut status, vmi, strategy);
        // A first start that is still to come must be recognised as such later.
        if !held {
            status.run_strategy = strategy.as_str().into();
        }
    }

    note_failure(vm, failure.as_ref(), waiting.as_ref(), &mut plan);
    let shown = vm_status::Shown { observed, vmi, strategy, waiting, failure, creating: plan.creates() };
    if vm_status::fill(&mut status, &shown) {
        plan.actions.push(Action::SetGeneration(vm.metadata.generation.unwrap_or_default()));
    }
    plan.actions.extend(vmi.and_then(|vmi| follow_template(vm, vmi)));
    plan.status = status;
    plan
}

/// Some annotations of a template are its instance's as long as that runs, and so its pod's.
fn follow_template(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Option<Action> {
    let template = vm.spec.template.as_ref()?;
    let leaving = vm.metadata.deletion_timestamp.is_some() || vmi.metadata.deletion_timestamp.is_some();
    if leaving || !is_ours(vm, vmi) {
        return None;
    }
    let annotations = crate::pod::outdated_annotations(&template.metadata, &vmi.metadata);
    (!annotations.is_empty()).then(|| Action::FollowTemplate { uid: uid(vmi), annotations })
}

fn start(observed: &Observed<'_>, status: &mut VirtualMachineStatus, plan: &mut Plan) {
    let asked = status.state_change_requests.iter().find(|r| r.action == request::START);
    let paused = asked.is_some_and(|r| vm_instance::asks_for_paused(&r.data));
    status.state_change_requests.retain(|r| r.action != request::START);
    let vmi = vm_instance::build(observed.vm, observed.configuration, paused);
    plan.actions.push(Action::Create(Box::new(vmi)));
}

/// Says once, as an event, what the condition goes on saying.
fn note_failure(vm: &VirtualMachine, failure: Option<&Failure>, waiting: Option<&Waiting>, plan: &mut Plan) {
    if let Some(failure) = failure
        && !vm_status::shows(vm, failure)
    {
        plan.notes.push(Note::warning("FailedCreate", failure.message.clone()));
    }
    if let Some(Waiting::Failed(why)) = waiting
        && vm.status.printable_status != printable::DATA_VOLUME_ERROR
    {
        plan.notes.push(Note::warning("FailedDataVolumeImport", why.clone()));
    }
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
            RunStrategy::Halted if wants_paused(status) => Step::WantRunning,
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
        RunStrategy::RerunOnFailure if ended => Step::Stop,
        RunStrategy::Manual if ended && wants_start => Step::Stop,
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

fn wants_paused(status: &VirtualMachineStatus) -> bool {
    let mut starts = status.state_change_requests.iter().filter(|r| r.action == request::START);
    starts.any(|r| vm_instance::asks_for_paused(&r.data))
}

/// A request is done when the instance it speaks of is gone, and a start once there is one. Who halts a VM that is just
/// being restarted takes its start back: it would never be met, and the VM would show as starting for ever.
fn forget_done_requests(
    status: &mut VirtualMachineStatus,
    vmi: Option<&VirtualMachineInstance>,
    strategy: RunStrategy,
) {
    if strategy == RunStrategy::Halted && !wants_paused(status) {
        status.state_change_requests.retain(|r| r.action != request::START);
    }
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

/// Counts an instance that did not come up, once per instance, and forgets all of that once one did. Says when to look again
/// at one that may have.
fn note_start_failure(
    status: &mut VirtualMachineStatus,
    vmi: Option<&VirtualMachineInstance>,
    strategy: RunStrategy,
    now: Timestamp,
) -> Option<Duration> {
    if !strategy.starts_by_itself() {
        status.start_failure = None;
        return None;
    }
    let vmi = vmi?;
    let grows = match how_it_ran(vmi, strategy, now) {
        Run::Unknown => return None,
        Run::Well => {
            status.start_failure = None;
            return None;
        }
        Run::Beginning(left) => return status.start_failure.is_some().then_some(left),
        Run::Never => 0,
        // Once may be an accident, or somebody's wish.
        Run::Short => 1,
    };
    let failure = status.start_failure.get_or_insert_with(VirtualMachineStartFailure::default);
    if failure.last_failed_vmiuid == uid(vmi) {
        return None;
    }
    failure.last_failed_vmiuid = uid(vmi);
    failure.consecutive_fail_count += 1;
    let count = (failure.consecutive_fail_count - grows).clamp(0, BACK_OFF_MAX);
    let delay = BACK_OFF_START * count * count;
    // Many VMs that failed together do not come back together.
    let spread = stable_fraction(&uid(vmi), delay / 2 + 1);
    let seconds = (delay + spread).min(BACK_OFF_MAX);
    failure.retry_after_timestamp = now.checked_add(SignedDuration::from_secs(seconds)).ok().map(Time);
    None
}

/// What an instance says about the start of another one.
enum Run {
    Unknown,
    /// It runs, and is out of the woods after this time.
    Beginning(Duration),
    /// It failed before it ran.
    Never,
    /// It ended by itself as soon as it ran, and another one would be started at once.
    Short,
    Well,
}

fn how_it_ran(vmi: &VirtualMachineInstance, strategy: RunStrategy, now: Timestamp) -> Run {
    let entered = |phase: &str| vmi.status.phase_transition_timestamps.iter().find(|entered| entered.phase == phase);
    let time = |phase: &str| Some(entered(phase)?.phase_transition_timestamp.as_ref()?.0);
    let ran = |until: Option<Timestamp>| Some(until?.duration_since(time(phase::RUNNING)?).as_secs());
    match vmi.status.phase.as_str() {
        phase::RUNNING => match ran(Some(now)) {
            Some(seconds) if seconds < SHORT_RUN => {
                Run::Beginning(Duration::from_secs(u64::try_from(SHORT_RUN - seconds).unwrap_or(1)))
            }
            _ => Run::Well,
        },
        phase::FAILED if entered(phase::RUNNING).is_none() => Run::Never,
        ended @ (phase::FAILED | phase::SUCCEEDED) if entered(phase::RUNNING).is_some() => {
            let wanted =
                vmi.metadata.deletion_timestamp.is_some() || FROM_OUTSIDE.contains(&vmi.status.reason.as_str());
            let restarts =
                strategy == RunStrategy::Always || (strategy == RunStrategy::RerunOnFailure && ended == phase::FAILED);
            match ran(time(ended)) {
                Some(seconds) if seconds < SHORT_RUN && (wanted || !restarts) => Run::Unknown,
                Some(seconds) if seconds < SHORT_RUN => Run::Short,
                _ => Run::Well,
            }
        }
        _ => Run::Unknown,
    }
}

/// How long a start must still wait.
pub(crate) fn back_off(status: &VirtualMachineStatus, now: Timestamp) -> Option<Duration> {
    let retry = status.start_failure.as_ref()?.retry_after_timestamp.as_ref()?;
    Duration::try_from(retry.0.duration_since(now)).ok().filter(|wait| !wait.is_zero())
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
