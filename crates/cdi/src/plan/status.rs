//! What a DataVolume's status says in each situation, with upstream's conditions.

use ferrovirt_api::cdi::{DataVolumeCondition, DataVolumeStatus, names::condition, names::phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Observed;

/// Reasons by which KubeVirt knows that a transfer does not get on. Ours goes on by itself once it can.
pub(super) const PULL_FAILED: &str = "ImagePullFailed";
const ERROR: &str = "Error";

/// Nothing moves yet.
pub(super) fn wait(status: &mut DataVolumeStatus, observed: &Observed<'_>, phase: &str, message: &str) {
    hold(status, observed, phase, "Pending", message);
}

/// Nothing moves, for this reason.
pub(super) fn hold(status: &mut DataVolumeStatus, observed: &Observed<'_>, phase: &str, reason: &str, message: &str) {
    status.phase = phase.to_owned();
    if status.progress.is_empty() {
        status.progress = "N/A".to_owned();
    }
    bound(status, observed);
    set(status, observed, condition::RUNNING, "False", reason, message);
    set(status, observed, condition::READY, "False", "TransferRunning", message);
}

pub(super) fn run(status: &mut DataVolumeStatus, observed: &Observed<'_>, entered: &str) {
    status.phase = entered.to_owned();
    let message = match observed.progress {
        Some(progress) => {
            status.progress = progress.percent();
            progress.describe()
        }
        None => "the importer runs".to_owned(),
    };
    bound(status, observed);
    let troubled = observed.progress.is_some_and(|progress| !progress.trouble.is_empty());
    match troubled {
        // What was last heard of a client that uploads is no reason not to wait for it.
        true if entered != phase::UPLOAD_READY => set(status, observed, condition::RUNNING, "False", ERROR, &message),
        _ => set(status, observed, condition::RUNNING, "True", "Pod is running", &message),
    }
    set(status, observed, condition::READY, "False", "TransferRunning", &message);
}

pub(super) fn succeed(status: &mut DataVolumeStatus, observed: &Observed<'_>) {
    status.phase = phase::SUCCEEDED.to_owned();
    status.progress = "100.0%".to_owned();
    bound(status, observed);
    set(status, observed, condition::RUNNING, "False", "Completed", "the transfer is complete");
    set(status, observed, condition::READY, "True", "", "");
}

/// For good: the user must change something.
pub(super) fn fail(status: &mut DataVolumeStatus, observed: &Observed<'_>, reason: &str, message: &str) {
    status.phase = phase::FAILED.to_owned();
    bound(status, observed);
    set(status, observed, condition::RUNNING, "False", reason, message);
    set(status, observed, condition::READY, "False", reason, message);
}

/// After the end only the claim can change.
pub(super) fn settle(status: &mut DataVolumeStatus, observed: &Observed<'_>) {
    bound(status, observed);
}

fn bound(status: &mut DataVolumeStatus, observed: &Observed<'_>) {
    let name = observed.volume.metadata.name.as_deref().unwrap_or_default();
    let claim_phase = observed
        .claim
        .map(|claim| claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending"));
    match claim_phase {
        Some("Bound") => set(status, observed, condition::BOUND, "True", "Bound", &format!("PVC {name} Bound")),
        Some(other) => set(status, observed, condition::BOUND, "False", other, &format!("PVC {name} {other}")),
        None => set(status, observed, condition::BOUND, "Unknown", "NotFound", "No PVC found"),
    }
}

fn set(status: &mut DataVolumeStatus, observed: &Observed<'_>, type_: &str, value: &str, reason: &str, message: &str) {
    let now = Time(observed.now);
    let position = status.conditions.iter().position(|condition| condition.type_ == type_);
    let known = position.and_then(|position| status.conditions.get_mut(position));
    let Some(known) = known else {
        status.conditions.push(DataVolumeCondition {
            type_: type_.to_owned(),
            status: value.to_owned(),
            last_transition_time: Some(now.clone()),
            last_heartbeat_time: Some(now),
            reason: reason.to_owned(),
            message: message.to_owned(),
        });
        return;
    };
    if known.status != value {
        value.clone_into(&mut known.status);
        known.last_transition_time = Some(now.clone());
    }
    if known.reason != reason || known.message != message {
        reason.clone_into(&mut known.reason);
        message.clone_into(&mut known.message);
        known.last_heartbeat_time = Some(now);
    }
}
