//! What is to be done about a DataVolume, and what its status says. Pure.
//!
//! ```text
//! Pending ── the claim is made ──┬── ImportScheduled ── ImportInProgress ──┬── Succeeded
//!                                │   (Clone…, Upload…)      │  ^           └── Failed (for good, with the reason)
//!      WaitForFirstConsumer ─────┘                          └──┘ the importer was killed: another one goes on
//!      (a class that waits, until a VM's pod has bound the claim)
//! ```

mod bare;
mod by_storage;
mod foreign;
mod objects;
mod status;

use ferrovirt_api::cdi::{DataVolume, DataVolumeSource, DataVolumeStatus, names, names::phase};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;

pub use bare::{Bare, is_bare, plan_bare, waits_for_upload};
pub use foreign::{origin_namespace, server_name};
pub use objects::pod_name;

use crate::job::{self, Job, Progress, Verdict};

/// What the plan may know.
pub struct Observed<'a> {
    pub volume: &'a DataVolume,
    /// The source, after a DataSource was looked up.
    pub source: Option<&'a DataVolumeSource>,
    /// The claim of the volume's name.
    pub claim: Option<&'a PersistentVolumeClaim>,
    pub pod: Option<&'a Pod>,
    /// The claim that is cloned.
    pub origin: Option<&'a PersistentVolumeClaim>,
    /// A pod that uses the claim that is cloned.
    pub origin_user: Option<&'a str>,
    /// Where the claim can be; empty if that matters neither for a clone nor for a claim that is not bound.
    pub classes: &'a [StorageClass],
    /// The pod that shows a claim of another namespace.
    pub server: Option<&'a Pod>,
    pub progress: Option<&'a Progress>,
    pub settings: &'a super::Settings,
    /// The public key of those who give out tokens for uploads.
    pub upload_key: &'a str,
    /// Another importer fetches the same image, and the node keeps it for this one.
    pub same_under_way: bool,
    /// For the name of an importer's secret.
    pub random: &'a str,
    /// What an importer that is made for an upload shows to the proxy.
    pub certificate: &'a str,
    /// Whether the pod that shows a claim of another namespace, and the importer, got their secrets from this process.
    pub knows_server: bool,
    pub knows_importer: bool,
    pub now: Timestamp,
}

#[derive(Debug, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub status: DataVolumeStatus,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    CreateClaim(Box<PersistentVolumeClaim>),
    CreatePod(Box<Pod>),
    /// An importer that fetches a claim from another namespace, and the secret of this name for it.
    CreateCloner(Box<Pod>, String),
    /// An importer that takes an upload, and the secret of this name for it.
    CreateReceiver(Box<Pod>, String),
    DeletePod,
    /// In the namespace of the claim that is cloned, with the secret of this name.
    CreateServer(Box<Pod>, String),
    DeleteServer,
    /// Whether the volume stays until what was made in another namespace is gone.
    Hold(bool),
    /// Say on the claim what its importer does, where upstream's clients look.
    MarkClaim {
        phase: &'static str,
        ready: bool,
    },
}

/// What a source is called in phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Import,
    Clone,
    Upload,
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let volume = observed.volume;
    let mut plan = Plan { actions: vec![], status: volume.status.clone() };
    if volume.metadata.deletion_timestamp.is_some() {
        plan.actions.extend(foreign::leave(observed));
        return plan;
    }
    let name = volume.metadata.name.clone().unwrap_or_default();
    plan.status.claim_name.clone_from(&name);
    match volume.status.phase.as_str() {
        phase::SUCCEEDED | phase::FAILED => {
            if observed.pod.is_some() {
                plan.actions.push(Action::DeletePod);
            }
            if let (phase::SUCCEEDED, Some(claim)) = (volume.status.phase.as_str(), observed.claim) {
                mark(claim, &mut plan, "Succeeded", false);
            }
            plan.actions.extend(foreign::leave(observed));
            status::settle(&mut plan.status, observed);
            return plan;
        }
        _ => {}
    }
    if let (Some(reference), None) = (&volume.spec.source_ref, observed.source) {
        let message = format!("the DataSource {:?} does not exist, or names no claim of its namespace", reference.name);
        status::wait(&mut plan.status, observed, phase::PENDING, &message);
        return plan;
    }
    let source = match check(observed) {
        Ok(source) => source,
        Err(message) => {
            status::fail(&mut plan.status, observed, "InvalidDataVolume", &message);
            return plan;
        }
    };
    let Some(claim) = observed.claim else {
        match objects::claim(observed) {
            Ok(Some(claim)) if by_storage::makes(&claim) && observed.origin_user.is_some() => {
                in_use(observed, &mut plan);
                return plan;
            }
            Ok(Some(claim)) => plan.actions.push(Action::CreateClaim(Box::new(claim))),
            Ok(None) => {
                status::wait(&mut plan.status, observed, phase::PENDING, "the claim to be cloned does not exist");
                return plan;
            }
            Err(message) => {
                status::fail(&mut plan.status, observed, "InvalidDataVolume", &message);
                return plan;
            }
        }
        status::wait(&mut plan.status, observed, phase::PENDING, "the claim is being made");
        return plan;
    };
    if annotated(volume.metadata.annotations.as_ref(), names::PREPOPULATED).is_some() {
        status::succeed(&mut plan.status, observed);
        return plan;
    }
    if !owned(claim, volume) {
        let populated = annotated(claim.metadata.annotations.as_ref(), names::POPULATED_FOR) == Some(&name);
        match populated {
            true => status::succeed(&mut plan.status, observed),
            false => {
                let message = format!("a claim {name:?} exists and does not belong to this DataVolume");
                status::wait(&mut plan.status, observed, phase::PENDING, &message);
            }
        }
        return plan;
    }
    transfer(observed, source, claim, &mut plan);
    plan
}

fn transfer(observed: &Observed<'_>, source: &DataVolumeSource, claim: &PersistentVolumeClaim, plan: &mut Plan) {
    if by_storage::makes(claim) {
        return by_storage::follow(observed, claim, plan);
    }
    let way = way(source);
    let Some(pod) = observed.pod else {
        // Whoever uploads is there already, and waits for us.
        if way != Way::Upload && waits_for_consumer(observed, claim) {
            let message = "the volume is bound when it is first used: start a VM that uses it";
            return status::wait(&mut plan.status, observed, phase::WAIT_FOR_FIRST_CONSUMER, message);
        }
        if observed.origin_user.is_some() {
            return in_use(observed, plan);
        }
        if let Some(actions) = foreign::prepare(observed) {
            plan.actions.extend(actions);
            let message = "the claim of the other namespace is being opened";
            status::wait(&mut plan.status, observed, phase::CLONE_SCHEDULED, message);
            return;
        }
        if observed.same_under_way {
            let message = "another import brings the same image";
            return status::wait(&mut plan.status, observed, scheduled(way), message);
        }
        match objects::pod(observed, source, claim) {
            Ok(pod) if foreign::origin_namespace(observed.volume, observed.source).is_some() => {
                plan.actions.push(Action::CreateCloner(Box::new(pod), objects::secret_name(observed)));
            }
            Ok(pod) if way == Way::Upload => {
                let secret = objects::upload_secret(observed.random);
                plan.actions.push(Action::CreateReceiver(Box::new(pod), secret));
            }
            Ok(pod) => plan.actions.push(Action::CreatePod(Box::new(pod))),
            Err(message) => {
                status::fail(&mut plan.status, observed, "InvalidDataVolume", &message);
                return;
            }
        }
        let scheduled = scheduled(way);
        status::wait(&mut plan.status, observed, scheduled, "the importer is being started");
        return;
    };
    if let Some(message) = foreign::lost(observed, pod) {
        plan.actions.push(Action::DeletePod);
        return status::wait(&mut plan.status, observed, scheduled(way), message);
    }
    if way == Way::Upload && untold(pod, observed.knows_importer) {
        plan.actions.push(Action::DeletePod);
        let message = "the importer did not get its key; another one takes its place";
        return status::wait(&mut plan.status, observed, scheduled(way), message);
    }
    let pod_status = pod.status.clone().unwrap_or_default();
    let container = pod_status.container_statuses.unwrap_or_default().into_iter().next().unwrap_or_default();
    match pod_status.phase.as_deref() {
        Some("Succeeded") => {
            status::succeed(&mut plan.status, observed);
            mark(claim, plan, "Succeeded", false);
            plan.actions.push(Action::DeletePod);
        }
        Some("Failed") => {
            let ended = container.state.and_then(|state| state.terminated).unwrap_or_default();
            let verdict = ended.message.as_deref().and_then(verdict);
            plan.actions.push(Action::DeletePod);
            match verdict {
                Some(verdict) => status::fail(&mut plan.status, observed, &verdict.reason, &verdict.message),
                None => {
                    // It was killed, or its node went away: another one goes on where it was.
                    plan.status.restart_count += 1;
                    let message = format!("the importer ended with code {}; another one goes on", ended.exit_code);
                    status::wait(&mut plan.status, observed, scheduled(way), &message);
                }
            }
        }
        Some("Running") if way == Way::Upload && outdated(pod, observed.upload_key) => {
            plan.actions.push(Action::DeletePod);
            let message = "the key of uploads has changed; another importer takes its place";
            status::wait(&mut plan.status, observed, scheduled(way), message);
        }
        Some("Running") => {
            // An upload can begin once the importer answers.
            let ready = observed.progress.is_some();
            let phase = if ready || way != Way::Upload { running(way) } else { scheduled(way) };
            status::run(&mut plan.status, observed, phase);
            mark(claim, plan, "Running", ready);
        }
        _ => {
            let waiting = container.state.and_then(|state| state.waiting).unwrap_or_default();
            if matches!(waiting.reason.as_deref(), Some("ErrImagePull" | "ImagePullBackOff" | "InvalidImageName")) {
                let why = waiting.message.unwrap_or_else(|| container.image.clone());
                let message = format!("failed to pull image: {why}");
                return status::hold(&mut plan.status, observed, scheduled(way), status::PULL_FAILED, &message);
            }
            let unscheduled = pod_status.conditions.unwrap_or_default().into_iter();
            let unscheduled = unscheduled
                .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
                .find_map(|condition| condition.message);
            let message = waiting.message.or(waiting.reason).or(unscheduled);
            let message = message.unwrap_or_else(|| "the importer is being started".to_owned());
            status::wait(&mut plan.status, observed, scheduled(way), &message);
        }
    }
}

/// Whether the claim is bound only once a pod uses it, and nobody asked for it to be filled before.
fn waits_for_consumer(observed: &Observed<'_>, claim: &PersistentVolumeClaim) -> bool {
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let at_once = annotated(claim.metadata.annotations.as_ref(), names::IMMEDIATE_BINDING).is_some();
    let name = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    let class = by_storage::class_of(observed.classes, name);
    let waits = class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    waits && !bound && !at_once
}

fn in_use(observed: &Observed<'_>, plan: &mut Plan) {
    let user = observed.origin_user.unwrap_or_default();
    let message = format!("the claim to be cloned is in use by pod {user:?}; stop it");
    status::wait(&mut plan.status, observed, phase::CLONE_SCHEDULED, &message);
}

fn mark(claim: &PersistentVolumeClaim, plan: &mut Plan, phase: &'static str, ready: bool) {
    plan.actions.extend(marking(claim, phase, ready));
}

fn marking(claim: &PersistentVolumeClaim, phase: &'static str, ready: bool) -> Option<Action> {
    let annotations = claim.metadata.annotations.as_ref();
    let told = annotated(annotations, names::POD_PHASE).is_some_and(|told| told == phase)
        && annotated(annotations, names::POD_READY).is_some_and(|told| *told == ready.to_string());
    (!told).then_some(Action::MarkClaim { phase, ready })
}

/// Exactly one source, and one that we know.
fn check<'a>(observed: &Observed<'a>) -> Result<&'a DataVolumeSource, String> {
    let spec = &observed.volume.spec;
    if spec.pvc.is_some() == spec.storage.is_some() {
        return Err("spec needs one of pvc and storage".to_owned());
    }
    if spec.content_type == "archive" {
        return Err("spec.contentType archive is not supported".to_owned());
    }
    let source = observed.source.ok_or("spec.source is missing")?;
    let known = [
        source.http.is_some(),
        source.registry.is_some(),
        source.pvc.is_some(),
        source.upload.is_some(),
        source.blank.is_some(),
    ];
    let foreign = [
        (source.s3.is_some(), "s3"),
        (source.gcs.is_some(), "gcs"),
        (source.imageio.is_some(), "imageio"),
        (source.vddk.is_some(), "vddk"),
        (source.snapshot.is_some(), "snapshot"),
    ];
    if let Some((_, name)) = foreign.iter().find(|(set, _)| *set) {
        return Err(format!("spec.source.{name} is not supported"));
    }
    match known.iter().filter(|set| **set).count() {
        1 => Ok(source),
        count => Err(format!("spec.source names {count} sources; it needs one")),
    }
}

fn way(source: &DataVolumeSource) -> Way {
    match (&source.pvc, &source.upload) {
        (Some(_), _) => Way::Clone,
        (_, Some(_)) => Way::Upload,
        _ => Way::Import,
    }
}

fn scheduled(way: Way) -> &'static str {
    match way {
        Way::Import => phase::IMPORT_SCHEDULED,
        Way::Clone => phase::CLONE_SCHEDULED,
        Way::Upload => phase::UPLOAD_SCHEDULED,
    }
}

fn running(way: Way) -> &'static str {
    match way {
        Way::Import => phase::IMPORT_IN_PROGRESS,
        Way::Clone => phase::CLONE_IN_PROGRESS,
        Way::Upload => phase::UPLOAD_READY,
    }
}

/// What an importer was told to do.
pub(crate) fn job_of(pod: &Pod) -> Option<Job> {
    let variables = pod.spec.as_ref()?.containers.first()?.env.as_ref()?;
    let job = variables.iter().find(|variable| variable.name == job::VARIABLE)?.value.as_ref()?;
    serde_json::from_str(job).ok()
}

/// Whether an importer knows another key than those who give out tokens have now, or takes uploads in clear as they once came.
fn outdated(pod: &Pod, upload_key: &str) -> bool {
    let from = job_of(pod).map(|job| job.from);
    matches!(from, Some(job::From::Upload { key, certificate, .. }) if key != upload_key || certificate.is_empty())
}

/// Whether an importer waits for a secret that nobody will make: whoever made it forgot the key.
fn untold(pod: &Pod, known: bool) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !known && !matches!(phase, Some("Running" | "Succeeded" | "Failed"))
}

/// The cache's entry of what the volume is filled with.
pub(crate) fn cache_entry(observed: &Observed<'_>) -> Option<String> {
    objects::cache_entry(observed)
}

/// The last line of an importer's log, if it is a verdict.
fn verdict(log: &str) -> Option<Verdict> {
    log.trim().lines().next_back().and_then(|line| serde_json::from_str(line).ok())
}

fn owned(claim: &PersistentVolumeClaim, volume: &DataVolume) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| volume.metadata.uid.as_ref() == Some(&owner.uid))
}

fn annotated<'a>(
    annotations: Option<&'a std::collections::BTreeMap<String, String>>,
    name: &str,
) -> Option<&'a String> {
    annotations?.get(name)
}

#[cfg(test)]
mod tests;
