//! What a VM or an instance waits for before it can start: DataVolumes that are being filled, claims that must exist.

use std::collections::BTreeMap;

use ferrovirt_api::v1::{VirtualMachineInstanceSpec, Volume};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::Value;

/// The claims and DataVolumes that a spec refers to, as far as they exist.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Storage {
    pub data_volumes: BTreeMap<String, DataVolume>,
    pub claims: BTreeMap<String, Claim>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    pub bound: bool,
    /// A device, not a file system.
    pub block: bool,
}

/// The little that is needed of a `cdi.kubevirt.io` DataVolume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DataVolume {
    pub phase: String,
    pub progress: String,
    /// What it waits for, in the importer's words.
    pub detail: String,
    /// Why it does not get on, if it said so.
    pub problem: Option<String>,
}

/// What a spec waits for, the worst first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// A DataVolume cannot be filled.
    Failed(String),
    /// A DataVolume is being filled.
    Provisioning(String),
    /// A claim does not exist.
    Missing(String),
}

impl From<&PersistentVolumeClaim> for Claim {
    fn from(claim: &PersistentVolumeClaim) -> Self {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        let mode = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
        Self { bound: phase == Some("Bound"), block: mode == Some("Block") }
    }
}

impl DataVolume {
    pub fn read(object: &Value) -> Self {
        let status = &object["status"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let stuck = conditions.iter().find(|condition| {
            condition["type"] == "Running"
                && condition["status"] == "False"
                && matches!(condition["reason"].as_str(), Some("Error" | "ImagePullFailed"))
        });
        let mut problem = stuck.map(|condition| text(&condition["message"]));
        if status["phase"] == "Failed" {
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
            let said = ready.map(|condition| text(&condition["message"])).filter(|message| !message.is_empty());
            problem = said.or(problem).or_else(|| Some("it is in the phase Failed".into()));
        }
        // What an importer waits for: a server that is away, an image that cannot be pulled.
        let waits = conditions.iter().find(|condition| {
            condition["type"] == "Running" && matches!(condition["reason"].as_str(), Some("Retrying" | "Pending"))
        });
        let detail = waits.map(|condition| text(&condition["message"])).unwrap_or_default();
        Self { phase: text(&status["phase"]), progress: text(&status["progress"]), detail, problem }
    }

    /// True if a guest may have it: it is filled, or is filled once somebody uses it.
    pub fn usable(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "WaitForFirstConsumer" | "PendingPopulation")
    }

    fn describe(&self, name: &str) -> String {
        let phase = if self.phase.is_empty() { "Pending" } else { &self.phase };
        let mut text = match self.progress.as_str() {
            "" | "N/A" => format!("DataVolume {name} is in the phase {phase}"),
            progress => format!("DataVolume {name} is in the phase {phase}, {progress} done"),
        };
        if !self.detail.is_empty() {
            text = format!("{text}: {}", self.detail);
        }
        text
    }
}

/// The claim of a volume, and whether a DataVolume stands for it.
pub fn claim_of(volume: &Volume) -> Option<(&str, bool)> {
    if let Some(data_volume) = &volume.data_volume {
        return Some((&data_volume.name, true));
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some((&claim.claim_name, false));
    }
    let ephemeral = volume.ephemeral.as_ref()?.persistent_volume_claim.as_ref()?;
    Some((&ephemeral.claim_name, false))
}

/// Names of all claims of a spec.
pub fn claims_of(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = (&str, bool)> {
    spec.volumes.iter().filter_map(claim_of)
}

impl Storage {
    /// What must happen before a pod with these volumes can be made.
    pub fn waiting(&self, spec: &VirtualMachineInstanceSpec) -> Option<Waiting> {
        let mut waiting = None;
        for (name, by_data_volume) in claims_of(spec) {
            let data_volume = self.data_volumes.get(name).filter(|_| by_data_volume);
            let found = match data_volume {
                Some(DataVolume { problem: Some(problem), .. }) => {
                    return Some(Waiting::Failed(format!("DataVolume {name}: {problem}")));
                }
                Some(data_volume) if !data_volume.usable() => Some(Waiting::Provisioning(data_volume.describe(name))),
                _ if !self.claims.contains_key(name) => Some(Waiting::Missing(name.to_owned())),
                _ => None,
            };
            waiting = match (waiting, found) {
                (Some(Waiting::Provisioning(text)), _) => Some(Waiting::Provisioning(text)),
                (waiting, None) => waiting,
                (_, found) => found,
            };
        }
        waiting
    }

    /// A claim that exists and waits for its volume.
    pub fn unbound<'a>(&self, spec: &'a VirtualMachineInstanceSpec) -> Option<&'a str> {
        claims_of(spec).map(|(name, _)| name).find(|name| self.claims.get(*name).is_some_and(|claim| !claim.bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec() -> VirtualMachineInstanceSpec {
        serde_json::from_value(json!({ "volumes": [
            { "name": "a", "dataVolume": { "name": "dv" } },
            { "name": "b", "persistentVolumeClaim": { "claimName": "pvc" } },
        ]}))
        .unwrap()
    }

    fn check(data_volume: Value, claims: &[&str], expected: Option<Waiting>) {
        let mut storage = Storage::default();
        if !data_volume.is_null() {
            storage.data_volumes.insert("dv".into(), DataVolume::read(&json!({ "status": data_volume })));
        }
        storage.claims = claims.iter().map(|name| ((*name).to_owned(), Claim { bound: true, block: false })).collect();
        assert_eq!(storage.waiting(&spec()), expected);
    }

    #[test]
    fn the_worst_obstacle_is_told() {
        check(json!({ "phase": "Succeeded" }), &["dv", "pvc"], None);
        check(json!({ "phase": "WaitForFirstConsumer" }), &["dv", "pvc"], None);
        check(json!(null), &["dv", "pvc"], None);
        check(json!(null), &["pvc"], Some(Waiting::Missing("dv".into())));
        check(json!({ "phase": "Succeeded" }), &["dv"], Some(Waiting::Missing("pvc".into())));
        check(
            json!({ "phase": "ImportInProgress", "progress": "42.0%" }),
            &[],
            Some(Waiting::Provisioning("DataVolume dv is in the phase ImportInProgress, 42.0% done".into())),
        );
        check(
            json!({ "phase": "ImportInProgress", "conditions": [
                { "type": "Running", "status": "True", "reason": "Retrying", "message": "cannot connect to h:1" }] }),
            &[],
            Some(Waiting::Provisioning("DataVolume dv is in the phase ImportInProgress: cannot connect to h:1".into())),
        );
        check(
            json!({ "phase": "ImportInProgress", "conditions": [
                { "type": "Running", "status": "False", "reason": "Error", "message": "404 Not Found" }] }),
            &["pvc"],
            Some(Waiting::Failed("DataVolume dv: 404 Not Found".into())),
        );
        check(
            json!({ "phase": "Failed" }),
            &[],
            Some(Waiting::Failed("DataVolume dv: it is in the phase Failed".into())),
        );
    }
}
