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
    Note, conditions, consumer, pod,
    storage::{Storage, Waiting},
    vm::is_final,
};

/// Reason of an instance that waits for a claim.
pub(crate) const PVC_NOT_FOUND: &str = "FailedPvcNotFound";
const NODE_GONE: &str = "NodeGone";
const FOREIGN_POD: &str = "ForeignPod";
/// Between two looks at volumes that an instance waits for. Watches tell sooner.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Between two looks at a pod that is in the way. It may be anybody's, and no watch tells of it.
const LOOK_AT_OTHER: Duration = Duration::from_secs(1);
const LOOK_AT_NODES: Duration = Duration::from_secs(5);

pub struct Observed<'a> {
    pub vmi: &'a VirtualMachineInstance,
    /// The pod of the name that [`pod::name`] gives, if the controller made it: see [`is_ours`].
    pub pod: Option<&'a Pod>,
    /// Whoever else has that name.
    pub foreign: Option<&'a Pod>,
    /// The pod that goes ahead for volumes that wait for one: see [`consumer`].
    pub consumer: Option<&'a Pod>,
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
    /// Make the pod that goes ahead. It is no launcher, and not recorded as one.
    CreateConsumer(Box<Pod>),
    /// Delete the pod. With a resource version the deletion must not race with its binding to a node.
    DeletePod {
        name: String,
        uid: String,
        resource_version: Option<String>,
    },
    /// Say on the pod whether its guest is paused: one that is gets no requests from Services.
    SetUnpaused {
        name: String,
        uid: String,
        unpaused: bool,
    },
    /// Write labels and annotations of the pod that follow the instance's.
    FollowMetadata {
        name: String,
        uid: String,
        labels: pod::Changes,
        annotations: pod::Changes,
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
        dismiss_consumer(observed, &mut plan);
        note_eviction(&mut plan.status, &time);
        note_data_volumes(observed, &time, &mut plan);
    }
    plan.actions.extend(observed.pod.and_then(|pod| unpaused(pod, &plan.status)));
    plan.actions.extend(observed.pod.and_then(|pod| follow_metadata(vmi, pod)));
    // A bound pod's node must know of the instance, whatever becomes of it: its agent selects by this label.
    let node = plan.status.active_pods.values().rfind(|node| !node.is_empty()).cloned();
    let labelled = vmi.metadata.labels.as_ref().and_then(|labels| labels.get(names::NODE_NAME_LABEL));
    if let Some(node) = node.filter(|node| labelled != Some(node)) {
        plan.actions.push(Action::SetNode { node });
    }
    plan
}

impl Plan {
    /// True if a launcher is to be made, or a pod that goes ahead of it.
    pub fn creates(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::CreatePod(_) | Action::CreateConsumer(_)))
    }
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
                wait_for_storage(observed.vmi, &waiting, time, plan);
                return;
            }
            if observed.storage.needs_consumer(&observed.vmi.spec) {
                go_ahead(observed, time, plan);
                return;
            }
            conditions::remove_vmi(&mut status.conditions, POD_SCHEDULED);
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
            status.reason = names::reason::POD_NOT_EXISTS.into();
            let message = "the launcher pod was removed before the guest started";
            not_ready(status, time, names::reason::POD_NOT_EXISTS, message);
        }
        (phase::SCHEDULED | phase::RUNNING, _) => miss_pod(status, time),
        _ => {}
    }
}

/// A pod that was on a node has no object any more: somebody removed it by force. Whether it still runs there only that node's
/// agent knows. It reads this, ends what is left, and then says how the instance ended.
fn miss_pod(status: &mut VirtualMachineInstanceStatus, time: &Time) {
    let message = "the launcher pod was removed by force; its node ends what is left of it";
    not_ready(status, time, names::reason::POD_NOT_EXISTS, message);
}

/// Shows that the instance is to leave its node.
fn note_eviction(status: &mut VirtualMachineInstanceStatus, time: &Time) {
    if status.evacuation_node_name.is_empty() {
        return conditions::remove_vmi(&mut status.conditions, condition::EVICTION_REQUESTED);
    }
    let reason = names::reason::EVICTION_REQUESTED;
    let type_ = condition::EVICTION_REQUESTED;
    conditions::set_vmi(&mut status.conditions, time, type_, true, reason, "VMI is marked for eviction");
}

/// Whether the DataVolumes of an instance need to be looked at: they are not all filled, as far as it says.
pub fn follows_data_volumes(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.volumes.iter().any(|volume| volume.data_volume.is_some())
        && !is_final(vmi)
        && !conditions::is_true(&vmi.status.conditions, condition::DATA_VOLUMES_READY)
}

/// Sums up the DataVolumes of an instance that uses some, in upstream's words.
fn note_data_volumes(observed: &Observed<'_>, time: &Time, plan: &mut Plan) {
    let volumes = observed.vmi.spec.volumes.iter().filter_map(|volume| volume.data_volume.as_ref());
    let found: Vec<_> = volumes.filter_map(|volume| observed.storage.data_volumes.get(&volume.name)).collect();
    if found.is_empty() {
        return;
    }
    let ready = found.iter().all(|volume| volume.ready);
    let (reason, message) = match ready {
        true => (names::reason::ALL_DVS_READY, "All of the VMI's DVs are bound and ready"),
        false => (names::reason::NOT_ALL_DVS_READY, "Not all of the VMI's DVs are ready"),
    };
    let type_ = condition::DATA_VOLUMES_READY;
    conditions::set_vmi(&mut plan.status.conditions, time, type_, ready, reason, message);
    if !ready {
        plan.requeue = plan.requeue.or(Some(LOOK_AGAIN));
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
    plan.requeue = Some(LOOK_AT_OTHER);
}

/// Lets a pod go ahead that binds volumes to a node, so that they can be filled.
fn go_ahead(observed: &Observed<'_>, time: &Time, plan: &mut Plan) {
    let conditions = &mut plan.status.conditions;
    let message = "a volume waits for its first user; a pod goes ahead to bind it to a node, and then it is filled";
    conditions::remove_vmi(conditions, condition::SYNCHRONIZED);
    conditions::set_vmi(conditions, time, condition::PROVISIONING, true, "Provisioning", message);
    plan.requeue = Some(LOOK_AGAIN);
    match observed.consumer {
        Some(pod) => {
            let told = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
            copy_scheduled_condition(&mut plan.status, &told, time);
        }
        None => {
            let pod = consumer::render(observed.vmi, observed.config);
            plan.actions.push(Action::CreateConsumer(Box::new(pod)));
        }
    }
}

/// Takes the pod that went ahead away once nothing waits for it.
fn dismiss_consumer(observed: &Observed<'_>, plan: &mut Plan) {
    let Some(pod) = observed.consumer.filter(|pod| pod.metadata.deletion_timestamp.is_none()) else { return };
    if !observed.storage.needs_consumer(&observed.vmi.spec) {
        let (name, uid) = (pod.metadata.name.clone().unwrap_or_default(), pod.metadata.uid.clone().unwrap_or_default());
        plan.actions.push(Action::DeletePod { name, uid, resource_version: None });
    }
}

/// Why there is no pod yet, in upstream's words.
fn wait_for_storage(vmi: &VirtualMachineInstance, waiting: &Waiting, time: &Time, plan: &mut Plan) {
    let conditions = &mut plan.status.conditions;
    plan.requeue = Some(LOOK_AGAIN);
    match waiting {
        Waiting::Missing(claim) => {
            let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
            let message = format!("PVC {namespace}/{claim} does not exist, waiting for it to appear");
            let known = conditions::find(conditions, condition::SYNCHRONIZED).is_some_and(|c| c.message == message);
            conditions::set_vmi(conditions, time, condition::SYNCHRONIZED, false, PVC_NOT_FOUND, &message);
            conditions::set_vmi(conditions, time, POD_SCHEDULED, false, UNSCHEDULABLE, &message);
            if !known {
                plan.notes.push(Note::warning(PVC_NOT_FOUND, message));
            }
        }
        Waiting::Provisioning(message) | Waiting::Failed(message) => {
            conditions::remove_vmi(conditions, condition::SYNCHRONIZED);
            conditions::remove_vmi(conditions, POD_SCHEDULED);
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
        if pod.metadata.deletion_timestamp.is_some() {
            not_ready(status, time, names::reason::POD_TERMINATING, "virt-launcher pod is terminating");
        } else if status.phase == phase::RUNNING {
            follow_readiness(status, &pod_status, observed.vmi.spec.readiness_probe.is_some(), time);
        }
        return;
    }
    conditions::enter_phase(status, time, phase::SCHEDULING);
    copy_scheduled_condition(status, &pod_status.conditions.unwrap_or_default(), time);
    if node.is_none()
        && (explain_hypervisor(observed, time, status, &mut plan.notes) || explain_nodes(observed, time, status))
    {
        // What nodes say of themselves changes without a word to the instance.
        plan.requeue = Some(LOOK_AT_NODES);
    }
    let containers = pod_status.container_statuses.unwrap_or_default();
    let starting = pod_status.init_container_statuses.unwrap_or_default();
    let compute = containers.iter().find(|c| c.name == names::COMPUTE_CONTAINER);
    match (pod_phase, node) {
        ("Succeeded" | "Failed", _) => {
            conditions::enter_phase(status, time, phase::FAILED);
            status.reason = "LauncherFailed".into();
            let message = pod_status.message.unwrap_or_else(|| "the launcher ended before the guest started".into());
            not_ready(status, time, "GuestNotRunning", &message);
        }
        (_, Some(node)) if compute.is_some_and(is_running) => {
            conditions::enter_phase(status, time, phase::SCHEDULED);
            status.node_name = node;
            conditions::remove_vmi(&mut status.conditions, condition::SYNCHRONIZED);
        }
        _ => note_waiting(status, starting.iter().chain(&containers), time),
    }
}

/// Keeps the pod's readiness gate: it opens with the pod, closes when the guest is paused and opens again when it goes on.
fn unpaused(pod: &Pod, status: &VirtualMachineInstanceStatus) -> Option<Action> {
    let spec = pod.spec.as_ref().filter(|spec| spec.node_name.is_some())?;
    let ended = matches!(pod.status.as_ref()?.phase.as_deref(), Some("Succeeded" | "Failed"));
    let gated = spec.readiness_gates.iter().flatten().any(|gate| gate.condition_type == pod::UNPAUSED);
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let said = conditions.into_iter().find(|condition| condition.type_ == pod::UNPAUSED);
    let open = said.is_some_and(|condition| condition.status == "True");
    let wanted = !conditions::is_true(&status.conditions, condition::PAUSED);
    (gated && !ended && open != wanted).then(|| Action::SetUnpaused {
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        unpaused: wanted,
    })
}

/// Some labels and annotations of an instance are its pod's as long as that runs.
fn follow_metadata(vmi: &VirtualMachineInstance, pod: &Pod) -> Option<Action> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let (labels, annotations) = pod::outdated(&vmi.metadata, &pod.metadata);
    (!labels.is_empty() || !annotations.is_empty()).then(|| Action::FollowMetadata {
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        labels,
        annotations,
    })
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
        None if !is_final(vmi) => miss_pod(&mut plan.status, &Time(observed.now)),
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
fn note_waiting<'a>(
    status: &mut VirtualMachineInstanceStatus,
    containers: impl Iterator<Item = &'a ContainerStatus>,
    time: &Time,
) {
    let mut waiting = containers.filter_map(|container| container.state.as_ref()?.waiting.as_ref());
    let failed = waiting.find_map(|waiting| {
        let reason =
            waiting.reason.as_deref().filter(|reason| ["ErrImagePull", "ImagePullBackOff"].contains(reason))?;
        Some((reason, waiting.message.as_deref().unwrap_or_default()))
    });
    if let Some((reason, message)) = failed {
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

/// A scheduler says how many nodes do not fit, and not what they lack. True if there is something that all of them lack.
fn explain_nodes(observed: &Observed<'_>, time: &Time, status: &mut VirtualMachineInstanceStatus) -> bool {
    let unmet = &observed.config.unmet;
    let Some(refused) = conditions::find(&status.conditions, POD_SCHEDULED).filter(|_| !unmet.is_empty()) else {
        return false;
    };
    let message = format!("{} {}", refused.message, unmet.join("; "));
    let reason = refused.reason.clone();
    conditions::set_vmi(&mut status.conditions, time, POD_SCHEDULED, false, &reason, message.trim_start());
    true
}

const POD_SCHEDULED: &str = "PodScheduled";
const UNSCHEDULABLE: &str = "Unschedulable";
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
    } else if ready.status == "True" && conditions::is_controllers_word(&status.conditions) {
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
