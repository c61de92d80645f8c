//! What is to be done about a claim that waits for an upload and belongs to no DataVolume.

use ferrovirt_api::cdi::names;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};

use super::{Action, annotated, marking, objects, outdated, untold};
use crate::Settings;

/// What the plan may know.
pub struct Bare<'a> {
    pub claim: &'a PersistentVolumeClaim,
    pub pod: Option<&'a Pod>,
    /// Whether the importer answers.
    pub ready: bool,
    pub settings: &'a Settings,
    /// The public key of those who give out tokens.
    pub upload_key: &'a str,
    /// What an importer that is made now shows to the proxy.
    pub certificate: &'a str,
    /// For the name of its secret.
    pub random: &'a str,
    /// Whether the importer got its secret from this process.
    pub knows_importer: bool,
}

/// Is it one of those?
pub fn is_bare(claim: &PersistentVolumeClaim) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    annotated(claim.metadata.annotations.as_ref(), names::UPLOAD_REQUEST).is_some()
        && !owners.any(|owner| owner.kind == "DataVolume")
}

/// Is it one of those, and not filled yet?
pub fn waits_for_upload(claim: &PersistentVolumeClaim) -> bool {
    let phase = annotated(claim.metadata.annotations.as_ref(), names::POD_PHASE);
    is_bare(claim) && phase.is_none_or(|phase| phase != "Succeeded")
}

pub fn plan_bare(observed: &Bare<'_>) -> Result<Vec<Action>, String> {
    let claim = observed.claim;
    let Some(pod) = observed.pod else {
        return match waits_for_upload(claim) && claim.metadata.deletion_timestamp.is_none() {
            true => {
                let secret = objects::upload_secret(observed.random);
                Ok(vec![Action::CreateReceiver(Box::new(objects::receiver(observed)?), secret)])
            }
            false => Ok(vec![]),
        };
    };
    // A claim that is going is held by the pods that use it.
    if claim.metadata.deletion_timestamp.is_some() || !waits_for_upload(claim) {
        return Ok(vec![Action::DeletePod]);
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    Ok(match phase {
        Some("Succeeded") => marking(claim, "Succeeded", false).into_iter().chain([Action::DeletePod]).collect(),
        Some("Failed") => marking(claim, "Failed", false).into_iter().chain([Action::DeletePod]).collect(),
        Some("Running") if outdated(pod, observed.upload_key) => vec![Action::DeletePod],
        Some("Running") => marking(claim, "Running", observed.ready).into_iter().collect(),
        _ if untold(pod, observed.knows_importer) => vec![Action::DeletePod],
        _ => marking(claim, "Pending", false).into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(changes: &[(&str, Value)]) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {
                "name": "disk", "namespace": "default", "uid": "u", "annotations": { names::UPLOAD_REQUEST: "" },
            },
            "spec": { "resources": { "requests": { "storage": "1Gi" } } },
        });
        for (pointer, value) in changes {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            claim.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = value.clone();
        }
        serde_json::from_value(claim).unwrap()
    }

    fn pod(phase: &str) -> Pod {
        serde_json::from_value(json!({ "status": { "phase": phase } })).unwrap()
    }

    fn words(claim: &PersistentVolumeClaim, pod: Option<&Pod>, ready: bool) -> Vec<String> {
        let settings = Settings { image: "i".into(), pull_policy: "Never".into(), cache: None };
        let bare = Bare {
            claim,
            pod,
            ready,
            settings: &settings,
            upload_key: "k",
            certificate: "c",
            random: "r",
            knows_importer: false,
        };
        let actions = plan_bare(&bare).unwrap();
        let word = |action: Action| match action {
            Action::CreateReceiver(pod, secret) => {
                format!("create {} with {secret}", pod.metadata.name.unwrap_or_default())
            }
            Action::DeletePod => "delete".to_owned(),
            Action::MarkClaim { phase, ready } => format!("mark {phase} {ready}"),
            other => format!("{other:?}"),
        };
        actions.into_iter().map(word).collect()
    }

    #[test]
    fn a_claim_gets_an_importer_until_it_is_filled() {
        let phase = "/metadata/annotations/cdi.kubevirt.io~1storage.pod.phase";
        let waiting = claim(&[]);
        let filled = claim(&[(phase, "Succeeded".into())]);
        let going = claim(&[("/metadata/deletionTimestamp", "2026-01-01T00:00:00Z".into())]);
        let owned = claim(&[(
            "/metadata/ownerReferences",
            json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk", "uid": "d" }]),
        )]);
        // Made by a process that is gone, before it could make the secret.
        let new = pod("Pending");
        let (running, done) = (pod("Running"), pod("Succeeded"));
        let cases: [(&PersistentVolumeClaim, Option<&Pod>, bool, &[&str]); 10] = [
            (&waiting, None, false, &["create importer-disk with upload-r"]),
            (&waiting, Some(&new), false, &["delete"]),
            (&waiting, Some(&running), false, &["mark Running false"]),
            (&waiting, Some(&running), true, &["mark Running true"]),
            (&waiting, Some(&done), false, &["mark Succeeded false", "delete"]),
            (&filled, Some(&done), false, &["delete"]),
            (&filled, None, false, &[]),
            (&going, Some(&running), true, &["delete"]),
            (&going, None, false, &[]),
            (&owned, None, false, &[]),
        ];
        for (number, (claim, pod, ready, expected)) in cases.into_iter().enumerate() {
            assert_eq!(words(claim, pod, ready), expected, "case {number}");
        }
    }
}
