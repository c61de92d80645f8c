//! Volumes that keep a VM from starting.

use serde_json::Value;

use super::{
    explain::{Facts, Finding, finding, text, waiting},
    imports,
};

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
        // Of those that are made from the VM's own templates it is the controller's turn.
        let found = finding(about, "there is no such data volume", "make it, or correct the name in the VM's volumes");
        findings.push(found.doubtful());
        return true;
    };
    let running = conditions(volume, "Running");
    let of_running = |field: &str| running.map(|condition| text(condition, field)).unwrap_or_default();
    let (reason, message) = (of_running("/reason"), of_running("/message"));
    match text(volume, "/status/phase") {
        "Succeeded" => false,
        // The claim says what it waits for.
        "WaitForFirstConsumer" | "PendingPopulation" => true,
        "Failed" => {
            let next = match imports::judge(message).next {
                Some(next) => format!("{next}. Then delete it and make it anew"),
                None => "correct its source, then delete it and make it anew".to_owned(),
            };
            findings.push(finding(about, format!("could not be filled: {message}"), next).stuck());
            true
        }
        phase => {
            findings.push(filling(facts, volume, &about, phase, reason, message));
            true
        }
    }
}

/// What a data volume that is on its way waits for.
fn filling(facts: &Facts, volume: &Value, about: &str, phase: &str, reason: &str, message: &str) -> Finding {
    let restarts = volume["status"]["restartCount"].as_i64().unwrap_or(0);
    let in_vain = |what: String, words: &str, otherwise: &str| {
        let judged = imports::judge(words);
        let next = judged.next.unwrap_or(otherwise);
        Finding { outlook: judged.outlook, ..finding(about, what, next) }
    };
    let source = "see that its source can be reached, and that the name in it is right";
    if let Some(pod) = importer(facts, volume)
        && let Some(waiting) = waiting(pod)
    {
        return in_vain(
            format!("its importer does not start: {}: {}", waiting.reason, waiting.message),
            &waiting.message,
            source,
        );
    }
    // Our importers tell what they wait for after how far they are.
    let trouble = message.split_once("transferred; ").map(|(_, trouble)| trouble);
    match (trouble, reason) {
        (Some(trouble), _) => return in_vain(format!("cannot be filled so far: {trouble}"), trouble, source),
        (None, "Retrying") => return in_vain(format!("cannot be filled so far: {message}"), message, source),
        (None, _) if (restarts > 0 || reason == "Error") && !message.is_empty() => {
            return in_vain(format!("failed {restarts} times: {message}"), message, source);
        }
        _ => {}
    }
    // Nothing is made for it until somebody makes or frees what it names.
    let waits = phase == "Pending" && !["", "the claim is being made"].contains(&message);
    if waits || message.contains("nodes are available") || message.contains("is in use by pod") {
        return finding(about, format!("waits: {message}"), "make, free or correct what the message names").doubtful();
    }
    let (phase, progress) = (if phase.is_empty() { "not begun" } else { phase }, text(volume, "/status/progress"));
    let progress = if progress.is_empty() || progress == "N/A" { String::new() } else { format!(", {progress}") };
    let words = if message.is_empty() { String::new() } else { format!(": {message}") };
    finding(about, format!("is being filled ({phase}{progress}){words}"), "wait for it")
}

/// The pod that fills a data volume.
fn importer<'a>(facts: &'a Facts, volume: &Value) -> Option<&'a Value> {
    let (uid, name) = (text(volume, "/metadata/uid"), text(volume, "/metadata/name"));
    facts.pods.iter().find(|pod| {
        let mut owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let named = text(pod, "/metadata/name").starts_with("importer-");
        named
            && owners.any(|owner| {
                text(owner, "/uid") == uid || (owner["kind"] == "DataVolume" && text(owner, "/name") == name)
            })
    })
}

fn bound(facts: &Facts, name: &str, findings: &mut Vec<Finding>) {
    let about = format!("pvc/{name}");
    let Some(claim) = facts.claims.iter().find(|claim| text(claim, "/metadata/name") == name) else {
        let found = finding(about, "there is no such claim", "make it, or correct the name in the VM's volumes");
        findings.push(found.stuck());
        return;
    };
    match text(claim, "/status/phase") {
        "Bound" => {}
        "Lost" => {
            findings.push(finding(about, "has lost its volume", "restore the volume, or use another claim").stuck());
        }
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
            let next = format!("name one in its spec.storageClassName: {}", facts.kubectl("get storageclasses"));
            findings.push(finding(about, "names no storage class, and the cluster has no default", next).stuck());
        }
        return;
    }
    match facts.storage_classes.iter().find(|class| text(class, "/metadata/name") == wanted) {
        None if !wanted.is_empty() => {
            let next = format!("correct it: {}", facts.kubectl("get storageclasses"));
            let message = format!("asks for the storage class {wanted}, which does not exist");
            findings.push(finding(about, message, next).stuck());
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
            let next = facts.kubectl(format!("describe pvc {name}"));
            findings.push(finding(about, format!("is not bound: {message}"), next).doubtful());
        }
    }
}

fn conditions<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == kind)
}
