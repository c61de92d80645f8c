//! Launcher pods as the agent sees them: directories of the kubelet, and what the API says of how they ended.

use std::path::PathBuf;

use ferrovirt_api::{names, v1::VirtualMachineInstance};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};

use crate::Context;

/// Where a pod of this node keeps its sockets.
pub(crate) fn sockets(context: &Context, pod_uid: &str) -> PathBuf {
    directory(context, pod_uid).join("volumes/kubernetes.io~empty-dir/sockets")
}

/// A kubelet removes this directory only after the pod's containers are gone.
pub(crate) fn directory(context: &Context, pod_uid: &str) -> PathBuf {
    context.config.kubelet_root.join("pods").join(pod_uid)
}

/// Uids of the instance's pods on this node.
pub(crate) fn here(context: &Context, vmi: &VirtualMachineInstance) -> Vec<String> {
    let mine = vmi.status.active_pods.iter().filter(|(_, node)| **node == context.config.node_name);
    mine.map(|(uid, _)| uid.clone()).collect()
}

/// How a pod ended, as far as the kubelet told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodEnd {
    /// It has not ended, or nobody knows.
    Unknown,
    Succeeded,
    Failed,
}

pub(crate) async fn end(context: &Context, vmi: &VirtualMachineInstance, pod_uid: &str) -> Result<PodEnd, kube::Error> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let params = ListParams::default().labels(&format!("{}={uid}", names::CREATED_BY_LABEL));
    let pods = Api::<Pod>::namespaced(context.client.clone(), namespace).list(&params).await?;
    let pod = pods.items.into_iter().find(|pod| pod.metadata.uid.as_deref() == Some(pod_uid));
    Ok(match pod.and_then(|pod| pod.status).and_then(|status| status.phase).as_deref() {
        Some("Succeeded") => PodEnd::Succeeded,
        Some("Failed") => PodEnd::Failed,
        _ => PodEnd::Unknown,
    })
}
