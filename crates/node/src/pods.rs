//! Launcher pods as the agent sees them: directories of the kubelet, and what the API says of how they ended.

use ferrovirt_api::{names, v1::VirtualMachineInstance};
use ferrovirt_machine::last_words;
use ferrovirt_plan::pod;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod, PodStatus};
use kube::{Api, api::ListParams};

use crate::Context;

/// The user of launchers that need not be root.
const RUNTIME_USER: u32 = 107;

/// Uids of the instance's pods on this node.
///
/// The controller records the uids of the pods that it made itself, and only components can write them. No pod is found in any
/// other way: names, labels and owners are up to whoever makes a pod.
pub(crate) fn here(context: &Context, vmi: &VirtualMachineInstance) -> Vec<String> {
    let mine = vmi.status.active_pods.iter().filter(|(_, node)| **node == context.config.node_name);
    mine.map(|(uid, _)| uid).filter(|uid| is_plain(uid)).cloned().collect()
}

/// The user that the launcher's container runs as.
pub(crate) fn user(vmi: &VirtualMachineInstance) -> u32 {
    if pod::is_privileged(vmi) { 0 } else { RUNTIME_USER }
}

/// A name of a directory, and nothing that leads elsewhere.
fn is_plain(uid: &str) -> bool {
    !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// How a pod ended, as far as the kubelet told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodEnd {
    /// It has not ended, as far as the kubelet said.
    NotYet,
    /// There is no such pod any more. That alone proves nothing: its object may have been removed by force.
    NoObject,
    Succeeded,
    /// With the kubelet's words.
    Failed(String),
}

pub(crate) async fn end(context: &Context, vmi: &VirtualMachineInstance, pod_uid: &str) -> Result<PodEnd, kube::Error> {
    let Some(pod) = find(context, vmi, pod_uid).await? else { return Ok(PodEnd::NoObject) };
    Ok(ended(&pod.status.unwrap_or_default()))
}

/// What the kubelet says of a pod.
pub(crate) async fn status(
    context: &Context,
    vmi: &VirtualMachineInstance,
    pod_uid: &str,
) -> Result<PodStatus, kube::Error> {
    let found = find(context, vmi, pod_uid).await?;
    Ok(found.and_then(|pod| pod.status).unwrap_or_default())
}

async fn find(context: &Context, vmi: &VirtualMachineInstance, pod_uid: &str) -> Result<Option<Pod>, kube::Error> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let params = ListParams::default().labels(&format!("{}={uid}", names::CREATED_BY_LABEL));
    let pods = Api::<Pod>::namespaced(context.client.clone(), namespace).list(&params).await?;
    Ok(pods.items.into_iter().find(|pod| pod.metadata.uid.as_deref() == Some(pod_uid)))
}

fn ended(status: &PodStatus) -> PodEnd {
    match status.phase.as_deref() {
        Some("Succeeded") => PodEnd::Succeeded,
        // The launcher knows best: a container runtime that was restarted at that moment makes 255 of any exit code.
        Some("Failed") if last_words(status).is_some_and(|(well, _)| well) => PodEnd::Succeeded,
        Some("Failed") => PodEnd::Failed(why(status)),
        _ => PodEnd::NotYet,
    }
}

/// True if somebody still wants one of the instance's pods: its object is there and not being deleted.
pub(crate) async fn wanted(context: &Context, vmi: &VirtualMachineInstance) -> Result<bool, kube::Error> {
    Ok(objects(context, vmi).await?.iter().any(|pod| pod.metadata.deletion_timestamp.is_none()))
}

/// True if none of the instance's pods has an object any more. That proves nothing about what runs.
pub(crate) async fn removed(context: &Context, vmi: &VirtualMachineInstance) -> Result<bool, kube::Error> {
    Ok(objects(context, vmi).await?.is_empty())
}

async fn objects(context: &Context, vmi: &VirtualMachineInstance) -> Result<Vec<Pod>, kube::Error> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let params = ListParams::default().labels(&format!("{}={uid}", names::CREATED_BY_LABEL));
    let mut pods = Api::<Pod>::namespaced(context.client.clone(), namespace).list(&params).await?.items;
    pods.retain(|pod| pod.metadata.uid.as_ref().is_some_and(|uid| vmi.status.active_pods.contains_key(uid)));
    Ok(pods)
}

fn terminated(status: &PodStatus) -> Option<&ContainerStateTerminated> {
    let containers = status.container_statuses.iter().flatten();
    containers.filter_map(|c| c.state.as_ref()?.terminated.as_ref()).next()
}

fn last_words(status: &PodStatus) -> Option<(bool, &str)> {
    last_words::read(terminated(status)?.message.as_deref()?)
}

fn why(status: &PodStatus) -> String {
    let terminated = terminated(status);
    let words = last_words(status).map(|(_, words)| words.to_owned());
    let words = words.or_else(|| terminated.and_then(|t| t.message.clone())).or_else(|| status.message.clone());
    match (words.filter(|words| !words.is_empty()), terminated) {
        (Some(words), _) => format!("the launcher failed: {words}"),
        (None, Some(terminated)) => format!("the launcher failed with exit code {}", terminated.exit_code),
        (None, None) => "the launcher failed".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_launchers_word_counts_more_than_an_exit_code_that_was_lost() {
        let status = |code: i32, message: &str| -> PodStatus {
            let state = json!({ "terminated": { "exitCode": code, "message": message } });
            let container = json!({
                "name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
            });
            serde_json::from_value(json!({ "phase": "Failed", "containerStatuses": [container] })).unwrap()
        };
        assert_eq!(ended(&status(255, "Succeeded: the guest ended")), PodEnd::Succeeded);
        assert_eq!(ended(&status(1, "Failed: no disk")), PodEnd::Failed("the launcher failed: no disk".into()));
        assert_eq!(ended(&status(255, "")), PodEnd::Failed("the launcher failed with exit code 255".into()));
    }
}
