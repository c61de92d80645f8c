//! What a VM or an instance waits for before it can start: DataVolumes that are being filled, claims that must exist.

use std::collections::BTreeMap;

use ferrovirt_api::v1::{VirtualMachineInstanceSpec, Volume};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
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
    /// It is being deleted, or will be: nothing may begin to use it.
    pub going: bool,
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
    /// It is being deleted, or will be: nothing may begin to use it.
    pub going: bool,
    /// It is filled, says its condition.
    pub ready: bool,
}

/// The VM that volumes are looked at for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User<'a> {
    pub name: &'a str,
    pub uid: &'a str,
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

impl Claim {
    /// `data_volume` is the uid of the DataVolume of the same name, if there is one.
    pub fn read(claim: &PersistentVolumeClaim, data_volume: Option<&str>, user: Option<User<'_>>) -> Self {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        let mode = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
        let owner = controller(&claim.metadata);
        let outlived = owner.is_some_and(|owner| owner.kind == "DataVolume" && Some(owner.uid.as_str()) != data_volume);
        Self {
            bound: phase == Some("Bound"),
            block: mode == Some("Block"),
            going: outlived || is_going(&claim.metadata, user),
        }
    }
}

fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether an object is on its way out. What belongs to an earlier VM of the same name is deleted with it, only a little later:
/// a new VM that took it would lose what it writes.
fn is_going(metadata: &ObjectMeta, user: Option<User<'_>>) -> bool {
    let of_an_earlier_one = controller(metadata).zip(user).is_some_and(|(owner, user)| {
        owner.kind == "VirtualMachine" && owner.name == user.name && owner.uid != user.uid
    });
    metadata.deletion_timestamp.is_some() || of_an_earlier_one
}

impl DataVolume {
    pub fn read(metadata: &ObjectMeta, object: &Value, user: Option<User<'_>>) -> Self {
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
        // What an importer waits for: a node, another import of the same image.
        let waits =
            conditions.iter().find(|condition| condition["type"] == "Running" && condition["reason"] == "Pending");
        let detail = waits.map(|condition| text(&condition["message"])).unwrap_or_default();
        let going = is_going(metadata, user);
        let ready = conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        Self { phase: text(&status["phase"]), progress: text(&status["progress"]), detail, problem, going, ready }
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
                _ if self.is_going(name) => Some(Waiting::Provisioning(format!(
                    "{name} is the volume of a VM that was deleted, and is made anew once it is gone"
                ))),
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

    /// True if something that the spec uses is filled once a pod that uses it has got a node. Nothing may run with it before.
    pub fn needs_consumer(&self, spec: &VirtualMachineInstanceSpec) -> bool {
        let mut used = claims_of(spec).filter(|(_, by_data_volume)| *by_data_volume);
        used.any(|(name, _)| self.data_volumes.get(name).is_some_and(|volume| volume.phase == "WaitForFirstConsumer"))
    }

    /// True if the claim, or the DataVolume that stands for it, is on its way out.
    pub fn is_going(&self, name: &str) -> bool {
        self.claims.get(name).is_some_and(|claim| claim.going) || self.data_volumes.get(name).is_some_and(|dv| dv.going)
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
            storage
                .data_volumes
                .insert("dv".into(), DataVolume::read(&ObjectMeta::default(), &json!({ "status": data_volume }), None));
        }
        storage.claims =
            claims.iter().map(|name| ((*name).to_owned(), Claim { bound: true, ..Claim::default() })).collect();
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
                { "type": "Running", "status": "False", "reason": "Pending", "message": "0/1 nodes" }] }),
            &[],
            Some(Waiting::Provisioning("DataVolume dv is in the phase ImportInProgress: 0/1 nodes".into())),
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

    fn owned(kind: &str, name: &str, uid: &str) -> ObjectMeta {
        serde_json::from_value(json!({ "ownerReferences": [
            { "apiVersion": "x/v1", "kind": kind, "name": name, "uid": uid, "controller": true }] }))
        .unwrap()
    }

    /// `delete`, and at once a VM of the same name: the collector has not come to the old VM's volumes yet.
    #[test]
    fn volumes_of_an_earlier_vm_of_the_name_are_not_taken() {
        let user = Some(User { name: "a", uid: "new" });
        let dying: ObjectMeta = serde_json::from_value(json!({ "deletionTimestamp": "2026-11-18T00:00:00Z" })).unwrap();
        for (metadata, data_volume, expected) in [
            (ObjectMeta::default(), None, false),
            (dying.clone(), None, true),
            (owned("VirtualMachine", "a", "old"), None, true),
            (owned("VirtualMachine", "a", "new"), None, false),
            // Another VM's, which may share it.
            (owned("VirtualMachine", "b", "old"), None, false),
            (owned("DataVolume", "dv", "dv-old"), Some("dv-new"), true),
            (owned("DataVolume", "dv", "dv-old"), None, true),
            (owned("DataVolume", "dv", "dv-new"), Some("dv-new"), false),
        ] {
            let claim = PersistentVolumeClaim { metadata: metadata.clone(), ..Default::default() };
            assert_eq!(Claim::read(&claim, data_volume, user).going, expected, "{metadata:?}");
        }
        assert!(DataVolume::read(&dying, &json!({}), user).going);
        assert!(DataVolume::read(&owned("VirtualMachine", "a", "old"), &json!({}), user).going);
        assert!(!DataVolume::read(&owned("VirtualMachine", "a", "new"), &json!({}), user).going);

        let mut storage = Storage::default();
        storage.claims.insert("dv".into(), Claim { bound: true, going: true, ..Claim::default() });
        storage.claims.insert("pvc".into(), Claim { bound: true, ..Claim::default() });
        assert!(
            matches!(storage.waiting(&spec()), Some(Waiting::Provisioning(text)) if text.contains("dv is the volume"))
        );
    }
}
