//! Conditions of VMs and VMIs: set one, keeping its transition time while its status stays the same.

use ferrovirt_api::{
    names,
    v1::{
        VirtualMachineCondition, VirtualMachineInstanceCondition,
        VirtualMachineInstancePhaseTransitionTimestamp as PhaseTransition, VirtualMachineInstanceStatus, values,
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

macro_rules! set {
    ($name:ident, $condition:ty) => {
        /// Adds or changes a condition.
        pub fn $name(
            conditions: &mut Vec<$condition>,
            now: &Time,
            type_: &str,
            status: bool,
            reason: &str,
            message: &str,
        ) {
            let status = if status { "True" } else { "False" };
            match conditions.iter_mut().find(|c| c.type_ == type_) {
                Some(condition) => {
                    if condition.status != status {
                        condition.last_transition_time = Some(now.clone());
                    }
                    condition.status = status.into();
                    condition.reason = reason.into();
                    condition.message = message.into();
                }
                None => conditions.push(<$condition>::from(NewCondition { now, type_, status, reason, message })),
            }
        }
    };
}

struct NewCondition<'a> {
    now: &'a Time,
    type_: &'a str,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
}

macro_rules! from_new {
    ($condition:ty) => {
        impl From<NewCondition<'_>> for $condition {
            fn from(new: NewCondition<'_>) -> Self {
                Self {
                    type_: new.type_.into(),
                    status: new.status.into(),
                    last_transition_time: Some(new.now.clone()),
                    reason: new.reason.into(),
                    message: new.message.into(),
                    ..Self::default()
                }
            }
        }
    };
}

from_new!(VirtualMachineCondition);
from_new!(VirtualMachineInstanceCondition);
set!(set_vm, VirtualMachineCondition);
set!(set_vmi, VirtualMachineInstanceCondition);

pub fn find<'a>(
    conditions: &'a [VirtualMachineInstanceCondition],
    type_: &str,
) -> Option<&'a VirtualMachineInstanceCondition> {
    conditions.iter().find(|c| c.type_ == type_)
}

pub fn is_true(conditions: &[VirtualMachineInstanceCondition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == "True")
}

/// True if the instance is not ready because nobody hears from its node. That is the controller's to say, not the agent's.
pub fn is_missed(conditions: &[VirtualMachineInstanceCondition]) -> bool {
    find(conditions, values::virtual_machine_instance_condition_type::READY)
        .is_some_and(|c| c.status == "False" && c.reason == names::reason::NODE_NOT_READY)
}

/// True if the instance is not ready for a reason that only the controller knows, who sees the pod. The agent sees the guest, and
/// does not contradict.
pub fn is_controllers_word(conditions: &[VirtualMachineInstanceCondition]) -> bool {
    let theirs = [names::reason::NODE_NOT_READY, names::reason::POD_NOT_EXISTS, names::reason::POD_TERMINATING];
    find(conditions, values::virtual_machine_instance_condition_type::READY)
        .is_some_and(|c| c.status == "False" && theirs.contains(&c.reason.as_str()))
}

/// True if the controller found that a pod which was on a node has no object any more.
pub fn lost_its_pod(conditions: &[VirtualMachineInstanceCondition]) -> bool {
    find(conditions, values::virtual_machine_instance_condition_type::READY)
        .is_some_and(|c| c.status == "False" && c.reason == names::reason::POD_NOT_EXISTS)
}

pub fn remove_vmi(conditions: &mut Vec<VirtualMachineInstanceCondition>, type_: &str) {
    conditions.retain(|c| c.type_ != type_);
}

pub fn remove_vm(conditions: &mut Vec<VirtualMachineCondition>, type_: &str) {
    conditions.retain(|c| c.type_ != type_);
}

/// Moves an instance to a phase and notes when.
pub fn enter_phase(status: &mut VirtualMachineInstanceStatus, now: &Time, phase: &str) {
    if status.phase == phase {
        return;
    }
    status.phase = phase.into();
    if !status.phase_transition_timestamps.iter().any(|t| t.phase == phase) {
        status
            .phase_transition_timestamps
            .push(PhaseTransition { phase: phase.into(), phase_transition_timestamp: Some(now.clone()) });
    }
}
