//! VirtualMachineInstance: its launcher pod, and its phases until the node agent takes over.
//!
//! ```text
//!    ""  ->  Pending  ->  Scheduling  ->  Scheduled  ->  Running  ->  Succeeded | Failed
//!            (controller: pod is made)    (pod runs)     (node agent from here on)
//! ```
//!
//! Fencing: an instance whose pod was ever bound to a node keeps its finalizer until that node's agent has seen the
//! processes end. Only an instance that never reached a node is released here, or one whose node an operator declared gone.

use std::time::Duration;

use ferrovirt_api::{
    names,
    v1::{
        VirtualMachineInstance, VirtualMachineInstanceStatus,
        values::{virtual_machine_instance_condition_type as condition, virtual_machine_instance_phase as phase},
    },
};
use k8s_openapi::{
    api::core::v1::{ContainerStatus, Node, Pod, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};

use crate::{
    Note, conditions, pod,
    storage::{Storage, Waiting},
    vm::is_final,
};

/// Reason of an instance that waits for a claim.
pub(crate) const PVC_NOT_FOUND: &str = "FailedPvcNotFound";
const NODE_GONE: &str = "NodeGone";
const FOREIGN_POD: &str = "ForeignPod";
/// Between two looks at what an instance waits for.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOK_AT_NODES: Duration = Duration::from_secs(5);

pub struct Observed<'a> {
    pub vmi: &'a VirtualMachineInstance,
    /// The pod of the name that [`pod::name`] gives, if the controller made it: see [`is_ours`].
    pub pod: Option<&'a Pod>,
    /// Whoever else has that name.
    pub foreign: Option<&'a Pod>,
    pub config: &'a pod::Config,
    pub storage: &'a Storage,
    /// An operator said that every node of the instance is out of service: see [`node_is_released`].
    pub node_gone: bool,
    pub now: Timestamp,
}

#[derive(Debug, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub status: VirtualMachineInstanceStatus,
    pub notes: Vec<Note>,
    /// Look again after this time even if nothing changes.
    pub requeue: Option<Duration>,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    AddFinalizer,
    RemoveFinalizer,
    CreatePod(Box<Pod>),
    /// Delete the pod. With a resource version the deletion must not race with its binding to a node.
    DeletePod {
        name: String,
        uid: String,
        resource_version: Option<String>,
    },
    /// Label the instance with the node that it runs on.
    SetNode {
        node: String,
    },
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let vmi = observed.vmi;
    let time = Time(observed.now);
    let mut plan = Plan { actions: vec![], status: vmi.status.clone(), notes: vec![], requeue: None };
    if vmi.metadata.deletion_timestamp.is_some() {
        delete(observed, &mut plan);
    } else if !has_finalizer(vmi) && !is_final(vmi) {
        plan.actions.push(Action::AddFinalizer);
    } else if observed.node_gone && !is_final(vmi) {
        lose_node(&time, &mut plan);
    } else if !is_final(vmi) {
        match observed.pod {
            None => without_pod(observed, &time, &mut plan),
            Some(pod) => with_pod(observed, pod, &time, &mut plan),
        }
    }
    // A bound pod's node must know of the instance, whatever becomes of it: its agent selects by this label.
    let node = plan.status.active_pods.values().rfind(|node| !node.is_empty()).cloned();
    let labelled = vmi.metadata.labels.as_ref().and_then(|labels| labels.get(names::NODE_NAME_LABEL));
    if let Some(node) = node.filter(|node| labelled != Some(node)) {
        plan.actions.push(Action::SetNode { node });
    }
    plan
}

/// Whether a pod of the instance's name is the one that the controller made for it.
///
/// Name, labels and owner are up to whoever makes a pod, and the name can be known before the pod is there. The uid cannot: the
/// API gives it to the one who makes the pod. The controller records it, in a status that only components write, and nobody
/// works with a pod that is not recorded. `made` is what this process made and may not have been able to record yet.
pub fn is_ours(vmi: &VirtualMachineInstance, pod: &Pod, made: Option<&str>) -> bool {
    let Some(uid) = &pod.metadata.uid else { return false };
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let owned = owners.iter().any(|owner| Some(&owner.uid) == vmi.metadata.uid.as_ref());
    owned && (vmi.status.active_pods.contains_key(uid) || made == Some(uid))
}

/// An operator's word that nothing runs on a node any more: the taint that Kubernetes has for it. A node object that was
/// deleted says the same.
pub fn node_is_released(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == "node.kubernetes.io/out-of-service")
}

fn lose_node(time: &Time, plan: &mut Plan) {
    let message = "the instance's node was declared out of service, or removed";
    conditions::enter_phase(&mut plan.status, time, phase::FAILED);
    plan.status.reason = NODE_GONE.into();
    not_ready(&mut plan.status, time, NODE_GONE, message);
    plan.notes.push(Note::warning(NODE_GONE, message));
}

fn without_pod(observed: &Observed<'_>, time: &Time, plan: &mut Plan) {
    let status = &mut plan.status;
    match (status.phase.as_str(), observed.foreign) {
        // No instance waits for its pod without a record of it.
        (phase::UNSET | phase::PENDING, Some(other)) => make_way(other, time, plan),
        (phase::SCHEDULING, Some(other)) if status.active_pods.is_empty() => make_way(other, time, plan),
        (phase::UNSET | phase::PENDING, None) => {
            conditions::enter_phase(status, time, phase::PENDING);
            not_ready(status, time, "GuestNotRunning", "the guest is not running yet");
            status.runtime_user = if pod::is_privileged(observed.vmi) { 0 } else { pod::RUNTIME_USER as u64 };
            if let Some(waiting) = observed.storage.waiting(&observed.vmi.spec) {
                wait_for_storage(&waiting, time, plan);
                return;
            }
            conditions::remove_vmi(&mut status.conditions, condition::PROVISIONING);
            conditions::remove_vmi(&mut status.conditions, condition::SYNCHRONIZED);
            status.vsockcid = observed.config.vsock_cid;
            status.launcher_container_image_version.clone_from(&observed.config.launcher_image);
            let pod = pod::render(observed.vmi, observed.config);
            let name = pod.metadata.name.clone().unwrap_or_default();
            plan.notes.push(Note::normal("SuccessfulCreate", format!("Created virtual machine pod {name}")));
            plan.actions.push(Action::CreatePod(Box::new(pod)));
            // Written only after the pod was made, so the next phase is reached in the same write.
            conditions::enter_phase(status, time, phase::SCHEDULING);
        }
        (phase::SCHEDULING, _) => {
            conditions::enter_phase(status, time, phase::FAILED);
            status.reason = "PodNotExists".into();
            not_ready(status, time, "PodNotExists", "the launcher pod was removed before the guest started");
        }
        // It was on a node: that node's agent knows whether it still runs.
        _ => {}
    }
}

/// Removes whoever has the pod's name: somebody who was first, or a pod that a controller made before it was cut off. It was
/// never recorded, so no node agent gave it a machine, and nothing is lost with it.
fn make_way(other: &Pod, time: &Time, plan: &mut Plan) {
    let name = other.metadata.name.clone().unwrap_or_default();
    conditions::enter_phase(&mut plan.status, time, phase::PENDING);
    let message = format!(
        "there is a pod {name} that the controller has not made for this instance; it is removed, and another one is made \
         when it is gone"
    );
    let conditions = &mut plan.status.conditions;
    let known = conditions::find(conditions, condition::SYNCHRONIZED).is_some_and(|c| c.message == message);
    conditions::set_vmi(conditions, time, condition::SYNCHRONIZED, false, FOREIGN_POD, &message);
    if !known {
        plan.notes.push(Note::warning(FOREIGN_POD, message));
    }
    if other.metadata.deletion_timestamp.is_none() {
        let uid = other.metadata.uid.clone().unwrap_or_default();
        plan.actions.push(Action::DeletePod { name, uid, resource_version: None });
    }
    plan.requeue = Some(LOOK_AGAIN);
}

/// Why there is no pod yet, in upstream's words.
fn wait_for_storage(waiting: &Waiting, time: &Time, plan: &mut Plan) {
    let conditions = &mut plan.status.conditions;
    plan.requeue = Some(LOOK_AGAIN);
    match waiting {
        Waiting::Missing(claim) => {
            let message = format!("PVC {claim} does not exist, waiting for it to appear");
            let known = conditions::find(conditions, condition::SYNCHRONIZED).is_some_and(|c| c.message == message);
            conditions::set_vmi(conditions, time, condition::SYNCHRONIZED, false, PVC_NOT_FOUND, &message);
            if !known {
                plan.notes.push(Note::warning(PVC_NOT_FOUND, message));
            }
        }
        Waiting::Provisioning(message) | Waiting::Failed(message) => {
            conditions::remove_vmi(conditions, condition::SYNCHRONIZED);
            conditions::set_vmi(conditions, time, condition::PROVISIONING, true, "Provisioning", message);
        }
    }
}

fn with_pod(observed: &Observed<'_>, pod: &Pod, time: &Time, plan: &mut Plan) {
    let status = &mut plan.status;
    let pod_status = pod.status.clone().unwrap_or_default();
    let pod_phase = pod_status.phase.as_deref().unwrap_or("Pending");
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    status.qos_class = pod_status.qos_class.clone();
    record(status, pod);
    if !matches!(status.phase.as_str(), phase::UNSET | phase::PENDING | phase::SCHEDULING) {
        if status.phase == phase::RUNNING {
            follow_readiness(status, &pod_status, observed.vmi.spec.readiness_probe.is_some(), time);
        }
        return;
    }
    conditions::enter_phase(status, time, phase::SCHEDULING);
    copy_scheduled_condition(status, &pod_status.conditions.unwrap_or_default(), time);
    if node.is_none() && explain_hypervisor(observed, time, status, &mut plan.notes) {
        // What nodes say of themselves changes without a word to the instance.
        plan.requeue = Some(LOOK_AT_NODES);
    }
    let compute =
        pod_status.container_statuses.unwrap_or_default().into_iter().find(|c| c.name == names::COMPUTE_CONTAINER);
    match (pod_phase, node) {
        ("Succeeded" | "Failed", _) => {
            conditions::enter_phase(status, time, phase::FAILED);
            status.reason = "LauncherFailed".into();
            let message = pod_status.message.unwrap_or_else(|| "the launcher ended before the guest started".into());
            not_ready(status, time, "GuestNotRunning", &message);
        }
        (_, Some(node)) if compute.as_ref().is_some_and(is_running) => {
            conditions::enter_phase(status, time, phase::SCHEDULED);
            status.node_name = node;
            conditions::remove_vmi(&mut status.conditions, condition::SYNCHRONIZED);
        }
        _ => note_waiting(status, compute.as_ref(), time),
    }
}

/// Notes which pod it is, and its node once it has one.
fn record(status: &mut VirtualMachineInstanceStatus, pod: &Pod) {
    let Some(uid) = &pod.metadata.uid else { return };
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let known = status.active_pods.entry(uid.clone()).or_default();
    if !node.is_empty() {
        *known = node;
    }
}

fn never_on_a_node(status: &VirtualMachineInstanceStatus) -> bool {
    status.node_name.is_empty() && status.active_pods.values().all(String::is_empty)
}

fn delete(observed: &Observed<'_>, plan: &mut Plan) {
    let vmi = observed.vmi;
    if observed.node_gone && has_finalizer(vmi) {
        plan.actions.push(Action::RemoveFinalizer);
        return;
    }
    match observed.pod {
        None if has_finalizer(vmi) && never_on_a_node(&vmi.status) => {
            plan.actions.push(Action::RemoveFinalizer);
        }
        None => {}
        Some(pod) => {
            let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            let running = pod
                .status
                .as_ref()
                .and_then(|s| s.container_statuses.as_ref())
                .is_some_and(|all| all.iter().any(|c| c.name == names::COMPUTE_CONTAINER && is_running(c)));
            record(&mut plan.status, pod);
            // While the launcher runs, the node agent shuts the guest down and the launcher ends by itself.
            if pod.metadata.deletion_timestamp.is_none() && !running {
                plan.actions.push(Action::DeletePod {
                    name: pod.metadata.name.clone().unwrap_or_default(),
                    uid: pod.metadata.uid.clone().unwrap_or_default(),
                    resource_version: pod.metadata.resource_version.clone().filter(|_| !bound),
                });
            }
        }
    }
}

/// Why the pod does not run yet, where people look: in a condition of the instance.
fn note_waiting(status: &mut VirtualMachineInstanceStatus, compute: Option<&ContainerStatus>, time: &Time) {
    let waiting = compute.and_then(|c| c.state.as_ref()).and_then(|s| s.waiting.as_ref());
    let Some(waiting) = waiting else { return };
    let reason = waiting.reason.as_deref().unwrap_or_default();
    if matches!(reason, "ErrImagePull" | "ImagePullBackOff") {
        let message = waiting.message.as_deref().unwrap_or_default();
        conditions::set_vmi(&mut status.conditions, time, condition::SYNCHRONIZED, false, reason, message);
    }
}

/// A pod whose hypervisor no node offers waits for a label that nobody knows; say what it stands for. True if it is so.
fn explain_hypervisor(
    observed: &Observed<'_>,
    time: &Time,
    status: &mut VirtualMachineInstanceStatus,
    notes: &mut Vec<Note>,
) -> bool {
    let name = pod::hypervisor(observed.vmi);
    let Some(why) = observed.config.not_offered.get(name) else {
        return false;
    };
    let message = format!("no node can run the hypervisor {name}: {why}");
    let before = observed.vmi.status.conditions.iter().find(|condition| condition.type_ == POD_SCHEDULED);
    if before.is_none_or(|condition| condition.message != message) {
        notes.push(Note::warning(HYPERVISOR_NOT_AVAILABLE, message.clone()));
    }
    conditions::set_vmi(&mut status.conditions, time, POD_SCHEDULED, false, HYPERVISOR_NOT_AVAILABLE, &message);
    true
}

const POD_SCHEDULED: &str = "PodScheduled";
pub(crate) const HYPERVISOR_NOT_AVAILABLE: &str = "HypervisorNotAvailable";

fn copy_scheduled_condition(status: &mut VirtualMachineInstanceStatus, pod_conditions: &[PodCondition], time: &Time) {
    match pod_conditions.iter().find(|c| c.type_ == POD_SCHEDULED && c.status == "False") {
        Some(c) => {
            let (reason, message) = (c.reason.as_deref().unwrap_or_default(), c.message.as_deref().unwrap_or_default());
            conditions::set_vmi(&mut status.conditions, time, POD_SCHEDULED, false, reason, message);
        }
        None => conditions::remove_vmi(&mut status.conditions, POD_SCHEDULED),
    }
}

/// Whoever runs the pod runs the instance's readiness probe. Without one the node agent says whether the guest is ready, and
/// the pod can only say that nobody hears from its node. A guest that stands still is not ready, whatever it said before.
fn follow_readiness(status: &mut VirtualMachineInstanceStatus, pod: &PodStatus, probed: bool, time: &Time) {
    let ready = pod.conditions.iter().flatten().find(|c| c.type_ == condition::READY);
    let Some(ready) = ready.filter(|_| !conditions::is_true(&status.conditions, condition::PAUSED)) else { return };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    if ready.status != "True" && text(&ready.reason).is_empty() && lost_from_sight(pod) {
        let message = "the cluster has not heard from the instance's node for a while; the guest may still run there";
        not_ready(status, time, names::reason::NODE_NOT_READY, message);
    } else if probed {
        let (reason, message) = (text(&ready.reason), text(&ready.message));
        conditions::set_vmi(&mut status.conditions, time, condition::READY, ready.status == "True", &reason, &message);
    } else if ready.status == "True" && conditions::is_missed(&status.conditions) {
        conditions::set_vmi(&mut status.conditions, time, condition::READY, true, "", "");
    }
}

/// A pod that is not ready although its containers are: when a kubelet falls silent, only the pod's condition is changed for it,
/// without a reason.
fn lost_from_sight(pod: &PodStatus) -> bool {
    let containers = pod.container_statuses.as_deref().unwrap_or_default();
    !containers.is_empty() && containers.iter().all(|container| container.ready && is_running(container))
}

fn not_ready(status: &mut VirtualMachineInstanceStatus, time: &Time, reason: &str, message: &str) {
    conditions::set_vmi(&mut status.conditions, time, condition::READY, false, reason, message);
}

fn is_running(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|state| state.running.is_some())
}

fn has_finalizer(vmi: &VirtualMachineInstance) -> bool {
    let finalizers = vmi.metadata.finalizers.as_deref().unwrap_or_default();
    finalizers.iter().any(|f| f == names::VIRTUAL_MACHINE_INSTANCE_FINALIZER)
}

#[cfg(test)]
#[path = "vmi_tests.rs"]
mod tests;
