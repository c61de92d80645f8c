//! Who may change what of an instance that exists.
//!
//! An instance is a running machine: its spec says how it was started, its status what it is. Both are written by our own
//! components alone. Labels that our components go by, and who owns the instance, are theirs as well.

use std::collections::BTreeMap;

use ferrovirt_api::{Quantity, names, v1::VirtualMachineInstance};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use serde_json::Value;

use super::{Cause, Cluster, Findings, INVALID};

/// Labels that our components go by.
const RESERVED: &[&str] = &[
    names::CREATED_BY_LABEL,
    names::NODE_NAME_LABEL,
    names::MIGRATION_JOB_LABEL,
    names::MIGRATION_TARGET_NODE_NAME_LABEL,
    names::NODE_SCHEDULABLE,
    names::INSTALL_STRATEGY_LABEL,
];

/// True for those of our own components, and of Kubernetes' own controllers. People cannot have these names: the API server
/// gives `system:` to nobody that it did not make itself.
pub fn is_component(user: &str) -> bool {
    let ours = ["kubevirt-apiserver", "kubevirt-controller", "kubevirt-handler"];
    user.starts_with("system:ferrovirt:")
        || user.starts_with("system:kube-")
        || user.starts_with("system:serviceaccount:kube-system:")
        || user == "system:apiserver"
        || user.strip_prefix("system:serviceaccount:kubevirt:").is_some_and(|account| ours.contains(&account))
}

/// What someone who is no component may not have written into a new instance.
pub fn created(vmi: &VirtualMachineInstance) -> Vec<Cause> {
    let mut found = Findings::default();
    labels(vmi.metadata.labels.as_ref(), "metadata", &mut found);
    if owners(vmi).any(is_ours) {
        found.unsupported(
            "metadata.ownerReferences".into(),
            "only the controllers make instances of VirtualMachines and VirtualMachineInstanceReplicaSets",
        );
    }
    found.0
}

/// Labels that only components give to instances, also by way of a template.
pub(super) fn labels(labels: Option<&BTreeMap<String, String>>, path: &str, found: &mut Findings) {
    if labels.is_some_and(|all| all.keys().any(|key| RESERVED.contains(&key.as_str()))) {
        found.unsupported(
            format!("{path}.labels"),
            "creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited",
        );
    }
}

/// What someone who is no component may not have changed.
pub fn changed(old: &VirtualMachineInstance, new: &VirtualMachineInstance) -> Vec<Cause> {
    let mut found = Findings::default();
    if old.spec != new.spec {
        found.unsupported("spec".into(), "update of VMI object is restricted");
    }
    if old.status != new.status {
        found.unsupported("status".into(), "the status of a VMI is written by the components that know it");
    }
    if reserved(old) != reserved(new) {
        found.unsupported(
            "metadata.labels".into(),
            "modification of the following reserved kubevirt.io/ labels on a VMI object is prohibited",
        );
    }
    let kept = |vmi: &VirtualMachineInstance| owners(vmi).filter(|owner| is_ours(owner)).cloned().collect::<Vec<_>>();
    if kept(old) != kept(new) {
        found.unsupported("metadata.ownerReferences".into(), "who controls a VMI is not changed by hand");
    }
    let held = |vmi: &VirtualMachineInstance| {
        let finalizers = vmi.metadata.finalizers.as_deref().unwrap_or_default();
        finalizers.iter().any(|finalizer| finalizer == names::VIRTUAL_MACHINE_INSTANCE_FINALIZER)
    };
    if held(old) && !held(new) {
        found.unsupported(
            "metadata.finalizers".into(),
            "only the node agent lets go of a VMI, after its processes have ended. If the node is gone for good, delete the \
             node or taint it node.kubernetes.io/out-of-service",
        );
    }
    found.0
}

/// What nobody may change of an instance that runs: how far it can grow was settled when its machine was made.
pub fn resized(old: &Value, new: &Value) -> Option<Cause> {
    let domain = |vmi: &Value| vmi["spec"]["domain"].clone();
    let (old, new) = (domain(old), domain(new));
    let most = |domain: &Value| domain["cpu"]["maxSockets"].as_u64().unwrap_or_default();
    let memory = |domain: &Value| domain["memory"]["maxGuest"].as_str().and_then(|text| Quantity::parse(text).ok());
    let (field, message) = if most(&old) != most(&new) {
        ("spec.domain.cpu.maxSockets", "CPU topology maxSockets changed")
    } else if matches!((memory(&old), memory(&new)), (Some(old), Some(new)) if old != new) {
        ("spec.domain.memory.maxGuest", "Memory maxGuest changed")
    } else {
        return None;
    };
    Some(Cause { reason: INVALID, field: field.into(), message: message.into() })
}

/// What stands against a node agent's write of an instance on another node. Its token says which node it is on; embedded
/// there is one node, and no token.
pub fn elsewhere(review: &Value, cluster: &Cluster<'_>) -> Option<Cause> {
    let request = &review["request"];
    let user = &request["userInfo"];
    let node = user["extra"]["authentication.kubernetes.io/node-name"][0].as_str()?;
    let is_node_agent = user["username"].as_str()?.ends_with(":kubevirt-handler");
    if !is_node_agent || !cluster.gate("NodeRestriction") {
        return None;
    }
    let (old, new) = (&request["oldObject"]["status"], &request["object"]["status"]);
    let target = |status: &Value| status["migrationState"]["targetNode"].as_str().unwrap_or_default().to_owned();
    // An instance that never ran has only a pod on its node, and the agent there lets go of it, too.
    let unborn = old["nodeName"].as_str().unwrap_or_default().is_empty();
    let bound = unborn && old["activePods"].as_object().is_some_and(|pods| pods.values().any(|on| on == node));
    let message = if old["nodeName"] != *node && target(old) != node && !bound {
        "Node restriction, virt-handler is only allowed to modify VMIs it owns"
    } else if target(old).is_empty() && !target(new).is_empty() {
        "Node restriction, virt-handler is not allowed to set target node"
    } else {
        return None;
    };
    Some(Cause { reason: INVALID, field: String::new(), message: message.into() })
}

fn reserved(vmi: &VirtualMachineInstance) -> BTreeMap<&str, &str> {
    let labels = vmi.metadata.labels.iter().flatten();
    labels
        .filter(|(key, _)| RESERVED.contains(&key.as_str()))
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect()
}

fn owners(vmi: &VirtualMachineInstance) -> impl Iterator<Item = &OwnerReference> {
    vmi.metadata.owner_references.iter().flatten()
}

fn is_ours(owner: &OwnerReference) -> bool {
    owner.api_version.starts_with("kubevirt.io/")
        && ["VirtualMachine", "VirtualMachineInstanceReplicaSet"].contains(&owner.kind.as_str())
}
