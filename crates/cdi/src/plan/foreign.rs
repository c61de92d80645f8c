//! Clones of claims in other namespaces. No pod can mount both claims, so a pod there shows the one to the importer here.
//!
//! Nothing here asks whether the writer of the DataVolume may read that claim: admission does, before there is a DataVolume.

use ferrovirt_api::cdi::{DataVolume, DataVolumeSource, names};
use k8s_openapi::api::core::v1::Pod;

use super::{Action, Observed, objects};
use crate::job::{CLONE_PORT, DISK_PATH, From};

/// The namespace of the claim that is cloned, if it is another one.
pub fn origin_namespace<'a>(volume: &DataVolume, source: Option<&'a DataVolumeSource>) -> Option<&'a str> {
    let namespace = source?.pvc.as_ref()?.namespace.as_str();
    let own = volume.metadata.namespace.as_deref().unwrap_or_default();
    Some(namespace).filter(|namespace| !namespace.is_empty() && *namespace != own)
}

/// Of the pod that shows the claim. Names of volumes may meet there, their uids do not.
pub fn server_name(volume: &DataVolume) -> String {
    format!("clone-source-{}", volume.metadata.uid.as_deref().unwrap_or_default())
}

/// What must be there before the importer; `None` if it is.
pub(super) fn prepare(observed: &Observed<'_>) -> Option<Vec<Action>> {
    origin_namespace(observed.volume, observed.source)?;
    if !is_held(observed.volume) {
        return Some(vec![Action::Hold(true)]);
    }
    let Some(server) = observed.server else {
        let pod = observed.origin.and_then(|origin| objects::server(observed, origin).ok());
        let secret = objects::secret_name(observed);
        return Some(pod.map(|pod| Action::CreateServer(Box::new(pod), secret)).into_iter().collect());
    };
    match server.status.as_ref().and_then(|status| status.phase.as_deref()) {
        _ if server.metadata.deletion_timestamp.is_some() => Some(vec![]),
        Some("Succeeded" | "Failed") => Some(vec![Action::DeleteServer]),
        // Another process made it, and nobody knows any more what lets an importer in.
        _ if !observed.knows_server => Some(vec![Action::DeleteServer]),
        Some("Running") if shown_by(server).is_some() => None,
        _ => Some(vec![]),
    }
}

/// Why an importer of a claim of another namespace will never get it, if so.
pub(super) fn lost(observed: &Observed<'_>, importer: &Pod) -> Option<&'static str> {
    origin_namespace(observed.volume, observed.source)?;
    let phase_of = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    let ended = |server: &Pod| matches!(phase_of(server).as_str(), "Succeeded" | "Failed");
    let going = |server: &Pod| server.metadata.deletion_timestamp.is_some();
    match phase_of(importer).as_str() {
        "Succeeded" | "Failed" => None,
        _ if observed.server.is_none_or(|server| ended(server) || going(server)) => {
            Some("the pod that showed the claim is gone; the clone begins anew")
        }
        "Running" => None,
        _ => (!observed.knows_importer).then_some("the importer was not told what lets it in; the clone begins anew"),
    }
}

/// Removes what was made in the other namespace, then lets the volume go.
pub(super) fn leave(observed: &Observed<'_>) -> Option<Action> {
    match observed.server {
        Some(_) => Some(Action::DeleteServer),
        None => is_held(observed.volume).then_some(Action::Hold(false)),
    }
}

/// How the importer reaches the claim.
pub(super) fn shown_by(server: &Pod) -> Option<From> {
    let address = server.status.as_ref()?.pod_ip.as_deref().filter(|address| !address.is_empty())?;
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    Some(From::Clone { url: format!("https://{host}:{CLONE_PORT}{DISK_PATH}") })
}

fn is_held(volume: &DataVolume) -> bool {
    volume.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == names::CLONE_FINALIZER)
}
