//! Volumes that keep a VM from starting.

use serde_json::Value;

use super::explain::{Facts, Finding, finding, text};

/// Looks at every claim and data volume that a spec names.
pub(super) fn explain(facts: &Facts, spec: &Value, findings: &mut Vec<Finding>) {
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        let data_volume = text(volume, "/dataVolume/name");
        if !data_volume.is_empty() && imported(facts, data_volume, findings) {
            continue;
        }
        let claim = match (data_volume, text(volume, "/persistentVolumeClaim/claimName")) {
            ("", claim) => claim,
            (data_volume, _) => data_volume,
        };
        if !claim.is_empty() {
            bound(facts, claim, findings);
        }
    }
}

/// True if the data volume says it all, and its claim need not be looked at.
fn imported(facts: &Facts, name: &str, findings: &mut Vec<Finding>) -> bool {
    let about = format!("dv/{name}");
    let Some(volume) = facts.data_volumes.iter().find(|volume| text(volume, "/metadata/name") == name) else {
        // Without a data volume a claim of that name will do.
        if facts.claims.iter().any(|claim| text(claim, "/metadata/name") == name) {
            return false;
        }
        findings.push(finding(
            about,
            "there is no such data volume",
            "make it, or correct the name in the VM's volumes",
        ));
        return true;
    };
    match text(volume, "/status/phase") {
        "Succeeded" => false,
        // The claim says what it waits for.
        "WaitForFirstConsumer" | "PendingPopulation" => true,
        "Failed" => {
            let reason = conditions(volume, "Running").map(|c| text(c, "/message")).unwrap_or_default();
            let next = "correct its source, then delete and make it anew";
            findings.push(finding(about, format!("could not be filled: {reason}"), next));
            true
        }
        phase => {
            let progress = text(volume, "/status/progress");
            let restarts = volume["status"]["restartCount"].as_i64().unwrap_or(0);
            let running = conditions(volume, "Running");
            let trouble = running.filter(|c| restarts > 0 || c["reason"] == "Error").map(|c| text(c, "/message"));
            match trouble.filter(|message| !message.is_empty()) {
                Some(message) => {
                    let next = "see that its source can be reached, and that the name in it is right";
                    findings.push(finding(about, format!("failed {restarts} times: {message}"), next));
                }
                None => {
                    let phase = if phase.is_empty() { "not begun" } else { phase };
                    findings.push(finding(about, format!("is being filled ({phase}, {progress})"), "wait for it"));
                }
            }
            true
        }
    }
}

fn bound(facts: &Facts, name: &str, findings: &mut Vec<Finding>) {
    let about = format!("pvc/{name}");
    let Some(claim) = facts.claims.iter().find(|claim| text(claim, "/metadata/name") == name) else {
        findings.push(finding(about, "there is no such claim", "make it, or correct the name in the VM's volumes"));
        return;
    };
    match text(claim, "/status/phase") {
        "Bound" => {}
        "Lost" => findings.push(finding(about, "has lost its volume", "restore the volume, or use another claim")),
        _ => pending(facts, claim, &about, findings),
    }
}

fn pending(facts: &Facts, claim: &Value, about: &str, findings: &mut Vec<Finding>) {
    let wanted = text(claim, "/spec/storageClassName");
    if wanted.is_empty() && claim["spec"]["volumeName"].is_null() {
        let default = facts
            .storage_classes
            .iter()
            .any(|class| class["metadata"]["annotations"][ferrovirt_api::storage::IS_DEFAULT_CLASS] == "true");
        if !default {
            let next = "name one in its spec.storageClassName: kubectl get storageclasses";
            findings.push(finding(about, "names no storage class, and the cluster has no default", next));
        }
        return;
    }
    match facts.storage_classes.iter().find(|class| text(class, "/metadata/name") == wanted) {
        None if !wanted.is_empty() => {
            let next = "correct it: kubectl get storageclasses";
            findings.push(finding(about, format!("asks for the storage class {wanted}, which does not exist"), next));
        }
        // Such a claim waits for the pod; then the pod is what to look at.
        Some(class) if text(class, "/volumeBindingMode") == "WaitForFirstConsumer" => {}
        _ => {
            let name = text(claim, "/metadata/name");
            let event = facts.events.iter().rev().find(|event| {
                event["involvedObject"]["kind"] == "PersistentVolumeClaim"
                    && event["involvedObject"]["name"] == name
                    && event["type"] == "Warning"
            });
            let message = event.map_or("no volume was made for it yet", |event| text(event, "/message"));
            findings.push(finding(about, format!("is not bound: {message}"), "kubectl describe pvc"));
        }
    }
}

fn conditions<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == kind)
}
