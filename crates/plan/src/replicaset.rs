//! VirtualMachineInstanceReplicaSet: as many instances of one template as asked for.
//!
//! ```text
//!   instances in the namespace
//!     ├─ of somebody else                 left alone
//!     ├─ ours, labels no longer fit       released
//!     ├─ nobody's, labels fit             adopted
//!     └─ ours ─┬─ active                  counted: too few -> create, too many -> delete the least useful
//!              └─ ended, or its pod goes  deleted; its place is filled again, with back-off after failures
//! ```

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use ferrovirt_api::{
    names,
    v1::{
        VirtualMachineInstance, VirtualMachineInstanceReplicaSet, VirtualMachineInstanceReplicaSetCondition,
        VirtualMachineInstanceReplicaSetStatus,
        values::{virtual_machine_instance_condition_type as condition, virtual_machine_instance_phase as phase},
    },
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
    jiff::{SignedDuration, Timestamp},
};

use crate::{Note, conditions, selector, vm::is_final};

/// The most instances that are made or deleted in one go.
const BURST: usize = 250;
const BACK_OFF_START: i64 = 10;
const BACK_OFF_MAX: i64 = 300;
const PAUSED: &str = "ReplicaPaused";
const FAILURE: &str = "ReplicaFailure";

pub struct Observed<'a> {
    pub set: &'a VirtualMachineInstanceReplicaSet,
    /// All instances of the namespace.
    pub instances: &'a [VirtualMachineInstance],
    pub back_off: &'a BackOff,
    pub now: Timestamp,
}

/// What is remembered of instances that never ran, so that they are not replaced in a circle.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BackOff {
    failures: i64,
    counted: BTreeSet<String>,
    retry_after: Option<Timestamp>,
}

#[derive(Debug, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub status: VirtualMachineInstanceReplicaSetStatus,
    pub notes: Vec<Note>,
    pub requeue: Option<Duration>,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Create(Box<VirtualMachineInstance>),
    Delete { name: String, uid: String, finished: bool },
    Adopt { name: String, uid: String, owner: OwnerReference },
    Release { name: String, uid: String, owner: String },
}

impl BackOff {
    /// Counts failures that are new, and forgets them all once an instance runs.
    pub fn observe(&mut self, set: &VirtualMachineInstanceReplicaSet, all: &[VirtualMachineInstance], now: Timestamp) {
        let mine = || all.iter().filter(|vmi| is_ours(set, vmi));
        if mine().any(|vmi| vmi.status.phase == phase::RUNNING) {
            *self = Self::default();
        }
        let mut failed = false;
        for vmi in mine().filter(|vmi| vmi.status.phase == phase::FAILED && !ran(vmi)) {
            failed |= self.counted.insert(vmi.metadata.uid.clone().unwrap_or_default());
        }
        if failed {
            self.failures += 1;
            let seconds = (BACK_OFF_START * self.failures * self.failures).min(BACK_OFF_MAX);
            self.retry_after = now.checked_add(SignedDuration::from_secs(seconds)).ok();
        }
    }

    fn wait(&self, now: Timestamp) -> Option<Duration> {
        Duration::try_from(self.retry_after?.duration_since(now)).ok().filter(|wait| !wait.is_zero())
    }
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let Observed { set, instances, back_off, now } = *observed;
    let mut plan = Plan { actions: vec![], status: set.status.clone(), notes: vec![], requeue: None };
    let Some(chosen) = usable_selector(set) else {
        return plan;
    };
    let deleting = set.metadata.deletion_timestamp.is_some();
    let mut claimed = vec![];
    for vmi in instances {
        let fits = selector::matches(chosen, vmi.metadata.labels.as_ref().unwrap_or(&Default::default()));
        match controller_of(vmi) {
            Some(owner) if Some(&owner.uid) == set.metadata.uid.as_ref() && fits => claimed.push(vmi),
            Some(owner) if Some(&owner.uid) == set.metadata.uid.as_ref() && !deleting => {
                plan.actions.push(Action::Release { name: name(vmi), uid: uid(vmi), owner: owner.uid.clone() });
            }
            None if fits && !deleting && vmi.metadata.deletion_timestamp.is_none() => {
                plan.actions.push(Action::Adopt { name: name(vmi), uid: uid(vmi), owner: owner_reference(set) });
                claimed.push(vmi);
            }
            _ => {}
        }
    }
    let going = |vmi: &&&VirtualMachineInstance| vmi.metadata.deletion_timestamp.is_none();
    let active: Vec<&VirtualMachineInstance> =
        claimed.iter().filter(going).filter(|vmi| !is_over(vmi)).copied().collect();
    if !set.spec.paused && !deleting {
        scale(set, &active, back_off.wait(now), &mut plan);
        for vmi in claimed.iter().filter(going).filter(|vmi| is_over(vmi)).take(BURST) {
            plan.actions.push(Action::Delete { name: name(vmi), uid: uid(vmi), finished: true });
        }
    }
    let ready = active.iter().filter(|vmi| conditions::is_true(&vmi.status.conditions, condition::READY)).count();
    plan.status.replicas = i32::try_from(active.len()).unwrap_or(i32::MAX);
    plan.status.ready_replicas = i32::try_from(ready).unwrap_or(i32::MAX);
    plan.status.label_selector = selector::to_text(chosen);
    note_pause(set, now, &mut plan);
    plan
}

/// Whether it has ended, or is about to and nothing will keep it: somebody deletes its pod.
fn is_over(vmi: &VirtualMachineInstance) -> bool {
    let ready = conditions::find(&vmi.status.conditions, condition::READY);
    is_final(vmi) || ready.is_some_and(|c| c.status == "False" && c.reason == names::reason::POD_TERMINATING)
}

/// Sets or removes the condition that says why replicas could not be made or deleted.
pub fn set_failure(status: &mut VirtualMachineInstanceReplicaSetStatus, now: Timestamp, failure: Option<(&str, &str)>) {
    match failure {
        Some((reason, message)) => set_condition(status, now, FAILURE, reason, message),
        None => status.conditions.retain(|c| c.type_ != FAILURE),
    }
}

fn scale(
    set: &VirtualMachineInstanceReplicaSet,
    active: &[&VirtualMachineInstance],
    wait: Option<Duration>,
    plan: &mut Plan,
) {
    let wanted = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0);
    if active.len() < wanted {
        if wait.is_some() {
            plan.requeue = wait;
            return;
        }
        let missing = (wanted - active.len()).min(BURST);
        plan.actions.extend((0..missing).map(|_| Action::Create(Box::new(build(set)))));
    } else if active.len() > wanted {
        let mut order: Vec<&&VirtualMachineInstance> = active.iter().collect();
        order
            .sort_by_key(|vmi| (worth(vmi), Reverse(vmi.metadata.creation_timestamp.as_ref().map(|t| t.0)), name(vmi)));
        for vmi in order.into_iter().take((active.len() - wanted).min(BURST)) {
            plan.actions.push(Action::Delete { name: name(vmi), uid: uid(vmi), finished: false });
        }
    }
}

/// What is lost with an instance: the least useful goes first, and of equals the youngest.
fn worth(vmi: &VirtualMachineInstance) -> u8 {
    match vmi.status.phase.as_str() {
        phase::UNSET | phase::PENDING => 0,
        phase::SCHEDULING => 1,
        phase::SCHEDULED => 2,
        _ if !conditions::is_true(&vmi.status.conditions, condition::READY) => 3,
        _ => 4,
    }
}

fn note_pause(set: &VirtualMachineInstanceReplicaSet, now: Timestamp, plan: &mut Plan) {
    let shown = plan.status.conditions.iter().any(|c| c.type_ == PAUSED);
    if set.spec.paused && !shown {
        set_condition(&mut plan.status, now, PAUSED, "Paused", "Controller got paused");
        plan.notes.push(Note::normal("SuccessfulPaused", "Paused"));
    } else if !set.spec.paused && shown {
        plan.status.conditions.retain(|c| c.type_ != PAUSED);
        plan.notes.push(Note::normal("SuccessfulResumed", "Resumed"));
    }
}

fn set_condition(
    status: &mut VirtualMachineInstanceReplicaSetStatus,
    now: Timestamp,
    type_: &str,
    reason: &str,
    message: &str,
) {
    if let Some(condition) = status.conditions.iter_mut().find(|c| c.type_ == type_) {
        condition.reason = reason.into();
        condition.message = message.into();
        return;
    }
    status.conditions.push(VirtualMachineInstanceReplicaSetCondition {
        type_: type_.into(),
        status: "True".into(),
        last_transition_time: Some(Time(now)),
        reason: reason.into(),
        message: message.into(),
        ..Default::default()
    });
}

fn build(set: &VirtualMachineInstanceReplicaSet) -> VirtualMachineInstance {
    let template = set.spec.template.clone().unwrap_or_default();
    let mut vmi = VirtualMachineInstance { spec: template.spec, ..Default::default() };
    let metadata = &mut vmi.metadata;
    let named = [template.metadata.name, template.metadata.generate_name, set.metadata.name.clone()];
    metadata.generate_name = named.into_iter().flatten().find(|name| !name.is_empty());
    metadata.namespace = set.metadata.namespace.clone();
    metadata.labels = template.metadata.labels;
    metadata.annotations = template.metadata.annotations;
    metadata.owner_references = Some(vec![owner_reference(set)]);
    vmi
}

/// A selector that does not fit the template would make instances forever.
fn usable_selector(
    set: &VirtualMachineInstanceReplicaSet,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector> {
    let chosen = set.spec.selector.as_ref()?;
    let labels = set.spec.template.as_ref()?.metadata.labels.as_ref().filter(|labels| !labels.is_empty())?;
    selector::matches(chosen, labels).then_some(chosen)
}

fn owner_reference(set: &VirtualMachineInstanceReplicaSet) -> OwnerReference {
    OwnerReference {
        api_version: "kubevirt.io/v1".into(),
        kind: "VirtualMachineInstanceReplicaSet".into(),
        name: set.metadata.name.clone().unwrap_or_default(),
        uid: set.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn is_ours(set: &VirtualMachineInstanceReplicaSet, vmi: &VirtualMachineInstance) -> bool {
    controller_of(vmi).is_some_and(|owner| Some(&owner.uid) == set.metadata.uid.as_ref())
}

fn controller_of(vmi: &VirtualMachineInstance) -> Option<&OwnerReference> {
    vmi.metadata.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

fn ran(vmi: &VirtualMachineInstance) -> bool {
    vmi.status.phase_transition_timestamps.iter().any(|t| t.phase == phase::RUNNING)
}

fn name(vmi: &VirtualMachineInstance) -> String {
    vmi.metadata.name.clone().unwrap_or_default()
}

fn uid(vmi: &VirtualMachineInstance) -> String {
    vmi.metadata.uid.clone().unwrap_or_default()
}

#[cfg(test)]
#[path = "replicaset_tests.rs"]
mod tests;
