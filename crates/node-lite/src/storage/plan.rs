//! What is to be done about claims and volumes. Pure: objects in, actions out. Each action is one step; what it changes
//! comes back through the watch and leads to the next.
//!
//! ```text
//! claim   Pending ──(a volume fits)── Bind ──┐
//!            │                               ├── Bound ──(volume gone)── Lost
//!            └─(its class is ours)─ Provision┘
//! volume  Available ── Bound ──(claim gone)── Released ──(policy Delete)── Reclaim
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use ferrovirt_api::{Quantity, storage};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use super::binding::{Standing, mode, mountable, standing};

/// The provisioner that this node answers to.
pub const PROVISIONER: &str = "ferrovirt.io/local";
pub const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Namespace and name of a claim.
pub type Key = (String, String);

pub struct World<'a> {
    pub claims: &'a [std::sync::Arc<PersistentVolumeClaim>],
    pub volumes: &'a [std::sync::Arc<PersistentVolume>],
    pub classes: &'a [std::sync::Arc<StorageClass>],
    /// Claims that a pod which has not ended names.
    pub used: &'a HashSet<Key>,
    pub node: &'a str,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A merge patch on the claim, or on its status.
    PatchClaim {
        key: Key,
        patch: Value,
        status: bool,
    },
    PatchVolume {
        name: String,
        patch: Value,
        status: bool,
    },
    /// Make the files of a new volume, as copies of another one's if there is one to be cloned, then the volume.
    Provision {
        key: Key,
        volume: Box<PersistentVolume>,
        like: Option<PathBuf>,
    },
    /// The claim grew: so do its files, then the volume's capacity.
    Grow {
        key: Key,
        volume: String,
        bytes: u64,
        capacity: Value,
    },
    /// Remove the files of a volume that nobody claims any more, then the volume.
    Reclaim {
        volume: String,
    },
    /// Tell the user why the claim waits.
    Say {
        key: Key,
        reason: &'static str,
        message: String,
    },
}

/// What the scheduler needs to know of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimState {
    Bound,
    /// It will be bound in a moment, or once a pod needs it.
    Coming,
    /// It needs somebody's help.
    Stuck(String),
}

/// Finds volumes by their names and claims by their keys: there may be thousands of both.
pub struct Index<'a> {
    volumes: HashMap<&'a str, &'a PersistentVolume>,
    claims: HashMap<(&'a str, &'a str), &'a PersistentVolumeClaim>,
}

impl<'a> Index<'a> {
    pub fn of(world: &World<'a>) -> Self {
        let volumes = world.volumes.iter().filter_map(|volume| Some((volume.metadata.name.as_deref()?, &**volume)));
        let key = |claim: &'a PersistentVolumeClaim| {
            Some((claim.metadata.namespace.as_deref()?, claim.metadata.name.as_deref()?))
        };
        let claims = world.claims.iter().filter_map(|claim| Some((key(claim)?, &**claim)));
        Self { volumes: volumes.collect(), claims: claims.collect() }
    }

    /// The volume that a claim names.
    fn named(&self, claim: &PersistentVolumeClaim) -> Option<&'a PersistentVolume> {
        self.volumes.get(claim.spec.as_ref()?.volume_name.as_deref()?).copied()
    }

    /// The claim that a volume names.
    fn claimant(&self, volume: &PersistentVolume) -> Option<&'a PersistentVolumeClaim> {
        let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
        self.claims.get(&(reference.namespace.as_deref()?, reference.name.as_deref()?)).copied()
    }
}

pub fn plan(world: &World<'_>, index: &Index<'_>, directory: &Path) -> Vec<Action> {
    let mut actions = Vec::new();
    // One volume is promised to one claim in a look.
    let mut promised = HashSet::new();
    for claim in world.claims {
        plan_claim(world, index, claim, directory, &mut promised, &mut actions);
    }
    for volume in world.volumes {
        plan_volume(index, volume, &mut actions);
    }
    actions
}

pub fn state(world: &World<'_>, index: &Index<'_>, claim: &PersistentVolumeClaim) -> ClaimState {
    if phase(claim) == Some("Lost") {
        return ClaimState::Stuck(format!("persistentvolumeclaim {:?} has lost its volume", key_of(claim).1));
    }
    // The claim's own word is not enough: who writes it may name any volume.
    if let Some(volume) = index.named(claim) {
        match (mountable(claim, volume), standing(volume, claim)) {
            (Ok(_), _) => return ClaimState::Bound,
            (Err(why), Standing::Foreign) => {
                return ClaimState::Stuck(format!("persistentvolumeclaim {:?}: {why}", key_of(claim).1));
            }
            _ => return ClaimState::Coming,
        }
    }
    match class_of(world, claim) {
        Some(class) if class.provisioner == PROVISIONER => ClaimState::Coming,
        _ if spec_of(claim).volume_name.is_some_and(|name| !name.is_empty()) => ClaimState::Coming,
        _ => ClaimState::Stuck("pod has unbound immediate PersistentVolumeClaims".to_owned()),
    }
}

pub fn key_of(claim: &PersistentVolumeClaim) -> Key {
    (claim.metadata.namespace.clone().unwrap_or_default(), claim.metadata.name.clone().unwrap_or_default())
}

/// Bytes that a list of resources says under `storage`.
pub fn storage_bytes(
    amounts: Option<&BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
) -> Option<u64> {
    Quantity::try_from(amounts?.get("storage")?).ok().map(|quantity| quantity.as_bytes())
}

fn plan_claim<'a>(
    world: &World<'_>,
    index: &Index<'a>,
    claim: &PersistentVolumeClaim,
    directory: &Path,
    promised: &mut HashSet<&'a str>,
    actions: &mut Vec<Action>,
) {
    let key = key_of(claim);
    let finalizers = claim.metadata.finalizers.clone().unwrap_or_default();
    let protected = finalizers.iter().any(|finalizer| finalizer == CLAIM_FINALIZER);
    if claim.metadata.deletion_timestamp.is_some() {
        if protected && !world.used.contains(&key) {
            let rest: Vec<&String> = finalizers.iter().filter(|finalizer| *finalizer != CLAIM_FINALIZER).collect();
            actions.push(Action::PatchClaim {
                key,
                patch: json!({ "metadata": { "finalizers": rest } }),
                status: false,
            });
        }
        return;
    }
    if !protected {
        let all: Vec<&str> = finalizers.iter().map(String::as_str).chain([CLAIM_FINALIZER]).collect();
        let patch = json!({ "metadata": { "finalizers": all } });
        actions.push(Action::PatchClaim { key: key.clone(), patch, status: false });
    }
    let spec = spec_of(claim);
    let Some(volume_name) = spec.volume_name.clone().filter(|name| !name.is_empty()) else {
        return unbound(world, index, claim, &spec, directory, promised, actions);
    };
    let Some(volume) = index.named(claim) else {
        if phase(claim) == Some("Bound") {
            actions.push(Action::PatchClaim { key, patch: json!({ "status": { "phase": "Lost" } }), status: true });
        }
        return;
    };
    match standing(volume, claim) {
        Standing::Own => {}
        Standing::Free | Standing::Reserved => {
            if let Err(why) = satisfies(volume, &spec) {
                let message = format!("Cannot bind to requested volume {volume_name:?}: {why}");
                return actions.push(Action::Say { key, reason: "VolumeMismatch", message });
            }
            return actions.extend(claim_ref(volume, claim, promised));
        }
        Standing::Foreign if completed(claim) || phase(claim) == Some("Bound") => {
            let message = "Two claims are bound to the same volume, this one is bound incorrectly".to_owned();
            if phase(claim) != Some("Lost") {
                let patch = json!({ "status": { "phase": "Lost" } });
                actions.push(Action::PatchClaim { key: key.clone(), patch, status: true });
            }
            return actions.push(Action::Say { key, reason: "ClaimMisbound", message });
        }
        Standing::Foreign => {
            let message = format!("volume {volume_name:?} already bound to a different claim.");
            return actions.push(Action::Say { key, reason: "FailedBinding", message });
        }
    }
    if mode(spec.volume_mode.as_deref()) != mode(volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref())) {
        let message = format!("Cannot bind to requested volume {volume_name:?}: incompatible volumeMode");
        return actions.push(Action::Say { key, reason: "VolumeMismatch", message });
    }
    let volume_spec = volume.spec.clone().unwrap_or_default();
    let wanted = storage_bytes(spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()));
    let have = storage_bytes(volume_spec.capacity.as_ref());
    if let (Some(wanted), Some(have)) = (wanted, have)
        && wanted > have
        && is_ours(volume)
        && class_of(world, claim).is_some_and(|class| class.allow_volume_expansion == Some(true))
    {
        let asked = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
        let capacity = json!({ "storage": asked.get("storage") });
        actions.push(Action::Grow { key, volume: volume_name, bytes: wanted, capacity });
        return;
    }
    let status = claim.status.clone().unwrap_or_default();
    if status.phase.as_deref() != Some("Bound") || status.capacity != volume_spec.capacity {
        let patch = json!({ "status": {
            "phase": "Bound", "accessModes": volume_spec.access_modes, "capacity": volume_spec.capacity,
        } });
        actions.push(Action::PatchClaim { key, patch, status: true });
    }
}

fn unbound<'a>(
    world: &World<'_>,
    index: &Index<'a>,
    claim: &PersistentVolumeClaim,
    spec: &PersistentVolumeClaimSpec,
    directory: &Path,
    promised: &mut HashSet<&'a str>,
    actions: &mut Vec<Action>,
) {
    let key = key_of(claim);
    if phase(claim).is_none() {
        let patch = json!({ "status": { "phase": "Pending" } });
        actions.push(Action::PatchClaim { key: key.clone(), patch, status: true });
    }
    if spec.storage_class_name.is_none() {
        match default_class(world) {
            Some(class) => {
                let patch = json!({ "spec": { "storageClassName": class } });
                actions.push(Action::PatchClaim { key, patch, status: false });
            }
            None => actions
                .push(say_unbound(key, "no persistent volumes available for this claim and no storage class is set")),
        }
        return;
    }
    let fits = index.volumes.values().copied().filter(|volume| fits(volume, claim, spec, promised));
    let best = fits.min_by_key(|volume| {
        let rank = match standing(volume, claim) {
            Standing::Own => 0,
            Standing::Reserved => 1,
            _ => 2,
        };
        let bytes = storage_bytes(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()));
        (rank, bytes, volume.metadata.name.as_deref())
    });
    if let Some(volume) = best {
        if standing(volume, claim) != Standing::Own {
            return actions.extend(claim_ref(volume, claim, promised));
        }
        let patch = json!({
            "metadata": { "annotations": {
                BIND_COMPLETED: "yes", "pv.kubernetes.io/bound-by-controller": "yes",
            } },
            "spec": { "volumeName": volume.metadata.name },
        });
        actions.push(Action::PatchClaim { key, patch, status: false });
        return;
    }
    let Some(class) = class_of(world, claim) else {
        let name = spec.storage_class_name.as_deref().unwrap_or_default();
        if !name.is_empty() {
            let message = format!("storageclass.storage.k8s.io {name:?} not found");
            actions.push(Action::Say { key, reason: "ProvisioningFailed", message });
        }
        return;
    };
    if class.provisioner != PROVISIONER {
        return;
    }
    let selected = claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(SELECTED_NODE));
    if class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer") && !selected && !world.used.contains(&key) {
        let message = "waiting for first consumer to be created before binding".to_owned();
        actions.push(Action::Say { key, reason: "WaitForFirstConsumer", message });
        return;
    }
    if !well_formed(claim) {
        let message = "the claim's uid cannot be part of a file's name".to_owned();
        return actions.push(Action::Say { key, reason: "ProvisioningFailed", message });
    }
    let like = match cloned(world, index, claim, spec) {
        Ok(like) => like,
        Err(message) => return actions.push(Action::Say { key, reason: "ProvisioningFailed", message }),
    };
    let volume = Box::new(new_volume(claim, spec, class, directory, world.node));
    actions.push(Action::Provision { key, volume, like });
}

/// Where the files are that a claim wants to begin with: those of the claim that its `dataSource` names.
fn cloned(
    world: &World<'_>,
    index: &Index<'_>,
    claim: &PersistentVolumeClaim,
    spec: &PersistentVolumeClaimSpec,
) -> Result<Option<PathBuf>, String> {
    let source = spec.data_source.as_ref().map(|source| (&source.api_group, &source.kind, &source.name));
    let wanted = spec.data_source_ref.as_ref().map(|source| (&source.api_group, &source.kind, &source.name));
    let Some((group, kind, name)) = source.or(wanted) else { return Ok(None) };
    if kind != "PersistentVolumeClaim" || group.as_deref().is_some_and(|group| !group.is_empty()) {
        return Err(format!("spec.dataSource is a {kind}; this storage clones claims only"));
    }
    let own = key_of(claim).0;
    let home = spec.data_source_ref.as_ref().and_then(|source| source.namespace.clone());
    if home.is_some_and(|home| home != own) {
        return Err("spec.dataSourceRef.namespace is another namespace, which this storage does not allow".to_owned());
    }
    let key = (own, name.clone());
    let origin = index.claims.get(&(key.0.as_str(), key.1.as_str()));
    let origin = *origin.ok_or_else(|| format!("persistentvolumeclaim {name:?}, which is to be cloned, not found"))?;
    let origin_spec = spec_of(origin);
    let volume = index.named(origin).filter(|volume| mountable(origin, volume).is_ok());
    let volume =
        volume.ok_or_else(|| format!("persistentvolumeclaim {name:?}, which is to be cloned, is not bound"))?;
    let volume_spec = volume.spec.clone().unwrap_or_default();
    let (have, asked) = (
        storage_bytes(volume_spec.capacity.as_ref()),
        storage_bytes(spec.resources.as_ref().and_then(|resources| resources.requests.as_ref())),
    );
    if !is_ours(volume) {
        return Err(format!("persistentvolumeclaim {name:?}, which is to be cloned, is on another storage"));
    }
    if is_block(&origin_spec) != is_block(spec) {
        return Err(format!("persistentvolumeclaim {name:?}, which is to be cloned, has another volumeMode"));
    }
    if asked < have {
        return Err(format!("persistentvolumeclaim {name:?}, which is to be cloned, is larger than this one"));
    }
    if world.used.contains(&key) {
        return Err(format!(
            "persistentvolumeclaim {name:?}, which is to be cloned, is in use: stop the pod that has it"
        ));
    }
    Ok(volume_spec.local.map(|local| PathBuf::from(local.path)))
}

fn plan_volume(index: &Index<'_>, volume: &PersistentVolume, actions: &mut Vec<Action>) {
    let Some(name) = volume.metadata.name.clone() else { return };
    if volume.metadata.deletion_timestamp.is_some() {
        return;
    }
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let spec = volume.spec.clone().unwrap_or_default();
    let taken =
        spec.claim_ref.as_ref().and_then(|reference| reference.uid.as_deref()).is_some_and(|uid| !uid.is_empty());
    let owned = index.claimant(volume).is_some_and(|claim| standing(volume, claim) == Standing::Own);
    let wanted = match (taken, owned) {
        (false, _) => "Available",
        (true, true) => "Bound",
        // A claim that has the name again is another one.
        (true, false) => "Released",
    };
    if phase != Some(wanted) {
        actions.push(Action::PatchVolume { name, patch: json!({ "status": { "phase": wanted } }), status: true });
    } else if wanted == "Released"
        && is_ours(volume)
        && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete")
    {
        actions.push(Action::Reclaim { volume: name });
    }
}

fn new_volume(
    claim: &PersistentVolumeClaim,
    spec: &PersistentVolumeClaimSpec,
    class: &StorageClass,
    directory: &Path,
    node: &str,
) -> PersistentVolume {
    let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.clone()).unwrap_or_default();
    let mut path = directory.join(&name);
    if is_block(spec) {
        path.push(BLOCK_FILE);
    }
    let (namespace, claim_name) = key_of(claim);
    let volume = json!({
        "metadata": { "name": name, "annotations": { PROVISIONED_BY: PROVISIONER } },
        "spec": {
            "capacity": { "storage": requests.get("storage") },
            "accessModes": spec.access_modes,
            "volumeMode": spec.volume_mode.as_deref().unwrap_or("Filesystem"),
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.metadata.name,
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim_name,
                "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
            },
            "local": { "path": path },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] },
            ] }] } },
        },
    });
    serde_json::from_value(volume).unwrap_or_default()
}

/// The one file of a volume that is to be a block device. QEMU reads it as it is: there is no loop device to set up,
/// to find again after a reboot, or to leak.
pub const BLOCK_FILE: &str = "block.img";

pub fn is_block(spec: &PersistentVolumeClaimSpec) -> bool {
    spec.volume_mode.as_deref() == Some("Block")
}

pub fn is_ours(volume: &PersistentVolume) -> bool {
    volume.metadata.annotations.as_ref().and_then(|all| all.get(PROVISIONED_BY)).is_some_and(|by| by == PROVISIONER)
}

/// Writes the claim into the volume, if the volume is still as it was looked at: an administrator may reserve it meanwhile.
fn claim_ref<'a>(
    volume: &'a PersistentVolume,
    claim: &PersistentVolumeClaim,
    promised: &mut HashSet<&'a str>,
) -> Option<Action> {
    let volume_name = volume.metadata.name.as_deref()?;
    if !promised.insert(volume_name) {
        return None;
    }
    let (namespace, name) = key_of(claim);
    let mut patch = json!({ "spec": { "claimRef": {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name,
        "uid": claim.metadata.uid,
    } } });
    if let Some(version) = &volume.metadata.resource_version {
        patch["metadata"] = json!({ "resourceVersion": version });
    }
    Some(Action::PatchVolume { name: volume_name.to_owned(), patch, status: false })
}

fn fits(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    wanted: &PersistentVolumeClaimSpec,
    promised: &HashSet<&str>,
) -> bool {
    match standing(volume, claim) {
        Standing::Own => true,
        Standing::Foreign => false,
        _ if volume.metadata.name.as_deref().is_none_or(|name| promised.contains(name)) => false,
        Standing::Reserved => satisfies(volume, wanted).is_ok(),
        Standing::Free => {
            let available = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available");
            let labels = volume.metadata.labels.clone().unwrap_or_default();
            let selected = wanted.selector.as_ref().is_none_or(|selector| {
                selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
                    && selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
            });
            available && selected && satisfies(volume, wanted).is_ok()
        }
    }
}

/// Whether a volume has what a claim asks for.
fn satisfies(volume: &PersistentVolume, wanted: &PersistentVolumeClaimSpec) -> Result<(), &'static str> {
    let spec = volume.spec.as_ref().ok_or("it says nothing of itself")?;
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let asked = storage_bytes(wanted.resources.as_ref().and_then(|resources| resources.requests.as_ref()));
    let class = |class: &Option<String>| class.clone().unwrap_or_default();
    if volume.metadata.deletion_timestamp.is_some() {
        Err("it is being deleted")
    } else if storage_bytes(spec.capacity.as_ref()) < asked {
        Err("requested PV is too small")
    } else if class(&spec.storage_class_name) != class(&wanted.storage_class_name) {
        Err("storageClassName does not match")
    } else if mode(spec.volume_mode.as_deref()) != mode(wanted.volume_mode.as_deref()) {
        Err("incompatible volumeMode")
    } else if !wanted.access_modes.iter().flatten().all(|wanted| modes.contains(wanted)) {
        Err("incompatible accessMode")
    } else {
        Ok(())
    }
}

/// Whether the binder has finished with the claim once.
fn completed(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(BIND_COMPLETED))
}

/// The uid becomes a directory's name.
fn well_formed(claim: &PersistentVolumeClaim) -> bool {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    (1..=64).contains(&uid.len()) && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn class_of<'a>(world: &World<'a>, claim: &PersistentVolumeClaim) -> Option<&'a StorageClass> {
    let name = spec_of(claim).storage_class_name.or_else(|| default_class(world))?;
    world.classes.iter().find(|class| class.metadata.name.as_ref() == Some(&name)).map(|class| &**class)
}

fn default_class(world: &World<'_>) -> Option<String> {
    let class = storage::default_class(world.classes.iter().map(|class| &**class));
    class.and_then(|class| class.metadata.name.clone())
}

fn say_unbound(key: Key, message: &str) -> Action {
    Action::Say { key, reason: "FailedBinding", message: message.to_owned() }
}

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref().and_then(|status| status.phase.as_deref())
}

fn spec_of(claim: &PersistentVolumeClaim) -> PersistentVolumeClaimSpec {
    claim.spec.clone().unwrap_or_default()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
