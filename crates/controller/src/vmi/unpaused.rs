//! The pod's condition behind its readiness gate, in upstream's words.

use ferrovirt_plan::pod;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::Error;

/// Writes the condition beside those that are there. A pod that is another by now, or none, has nothing to be said of.
pub(super) async fn write(pods: &Api<Pod>, name: &str, uid: &str, unpaused: bool) -> Result<(), Error> {
    let (status, reason, message) = match unpaused {
        true => ("True", "NotPaused", "the virtual machine is not paused"),
        false => ("False", "Paused", "the virtual machine is paused"),
    };
    let now = Time(Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default());
    let condition = json!({
        "type": pod::UNPAUSED, "status": status, "reason": reason, "message": message, "lastTransitionTime": now,
    });
    let patch = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
    match pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
