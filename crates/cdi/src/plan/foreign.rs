//! Clones of claims in other namespaces. No pod can mount both claims, so a pod there shows the one to the importer here.
//!
//! Nothing here asks whether the writer of the DataVolume may read that claim: admission does, before there is a DataVolume.

use ferrovirt_api::cdi::{DataVolume, DataVolumeSource, names};
use k8s_openapi::api::core::v1::Pod;

use super::{Action, Observed, job_of, objects};
use crate::job::{DISK_PATH, From, PORT};

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
        return Some(pod.map(|pod| Action::CreateServer(Box::new(pod))).into_iter().collect());
    };
    match server.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Succeeded" | "Failed") => Some(vec![Action::DeleteServer]),
        Some("Running") if shown_by(server).is_some() => None,
        _ => Some(vec![]),
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
    let From::Serve { token, .. } = job_of(server)?.from else { return None };
    Some(From::Http {
        url: format!("http://{host}:{PORT}{DISK_PATH}"),
        headers: vec![format!("Authorization: Bearer {token}")],
        checksum: String::new(),
        insecure: false,
        login: false,
        certificates: false,
        verbatim: true,
    })
}

fn is_held(volume: &DataVolume) -> bool {
    volume.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == names::CLONE_FINALIZER)
}
