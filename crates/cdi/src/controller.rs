//! Follows DataVolumes, their claims and their importers, and does what the plan says.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferrovirt_api::cdi::{DataVolume, names};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{Controller, controller};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;

use crate::cache::{Cache, CachePaths};
use crate::followed::Followed;
use crate::pass::{Pass, PassError};
use crate::plan::{self, Action};
use crate::samples::Samples;
use crate::seen::{Seen, Users, Word};

/// How soon is looked again at what no watch tells of.
pub(crate) const LATER: Duration = Duration::from_secs(2);
const MUCH_LATER: Duration = Duration::from_secs(10);

/// What is fixed at start.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The image with `/usr/bin/ferrovirt`.
    pub image: String,
    pub pull_policy: String,
    /// Where the node keeps images between imports, if this process is on the node.
    pub cache: Option<CachePaths>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the API refused")]
    Api(#[from] kube::Error),
    #[error("an object cannot be encoded")]
    Encode(#[from] serde_json::Error),
    #[error("{0}")]
    Invalid(String),
    #[error("cannot make what lets an importer in")]
    Pass(#[from] PassError),
    #[error("cannot prepare the cache of images")]
    Cache(#[source] std::io::Error),
}

pub(crate) struct Context {
    pub client: Client,
    pub settings: Settings,
    pub followed: Arc<Followed>,
    pub samples: Samples,
    pub users: Users,
    cache: Option<Arc<Cache>>,
    upload_key: watch::Receiver<String>,
    /// By the uids of volumes that are cloned from other namespaces.
    passes: Mutex<HashMap<String, Given>>,
    /// The uids of importers of uploads that got their keys and do not run yet.
    receivers: Mutex<HashSet<String>>,
}

/// What lets an importer in, and the uids of the pods that have it.
struct Given {
    pass: Pass,
    server: String,
    importer: Option<String>,
}

impl Context {
    fn passes(&self) -> MutexGuard<'_, HashMap<String, Given>> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the pod that shows a claim of another namespace, and the importer of a volume, got their secrets from this
    /// process.
    pub fn knows(&self, volume: &DataVolume, server: Option<&Pod>, importer: Option<&Pod>) -> (bool, bool) {
        let is = |pod: Option<&Pod>, uid: &str| pod.and_then(ResourceExt::uid).as_deref() == Some(uid);
        let passes = self.passes();
        let given = volume.uid().and_then(|uid| passes.get(&uid));
        let told = given.and_then(|given| given.importer.as_deref());
        (given.is_some_and(|given| is(server, &given.server)), told.is_some_and(|uid| is(importer, uid)))
    }

    fn receivers(&self) -> MutexGuard<'_, HashSet<String>> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process gave an importer of an upload its key. One that runs has it.
    pub fn knows_receiver(&self, pod: Option<&Pod>) -> bool {
        let Some(uid) = pod.and_then(ResourceExt::uid) else { return false };
        match pod.and_then(phase_of) {
            Some("Running" | "Succeeded" | "Failed") => {
                self.receivers().remove(&uid);
                true
            }
            _ => self.receivers().contains(&uid),
        }
    }

    pub fn upload_key(&self) -> String {
        self.upload_key.borrow().clone()
    }
}

/// Runs until `shutdown`. Importers go on after that. `upload_key` is the public key of those who give out tokens for uploads.
pub async fn run(
    client: Client,
    settings: Settings,
    upload_key: watch::Receiver<String>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let (wake, woken) = futures::channel::mpsc::unbounded();
    let cache = settings.cache.clone().map(|paths| Arc::new(Cache::new(paths, wake)));
    let (followed, ends) = Followed::new(&client);
    let context = Arc::new(Context {
        client,
        settings,
        cache,
        upload_key,
        followed: followed.clone(),
        samples: Samples::default(),
        users: Users::default(),
        passes: Mutex::default(),
        receivers: Mutex::default(),
    });
    // Both end with the same word.
    let shutdown = shutdown.shared();
    let (stopped, of_claims) = (shutdown.clone(), context.clone());
    let controllers = async move {
        followed.ready().await;
        let volumes = Controller::for_stream(futures::stream::pending(), followed.volumes.clone())
            .reconcile_on(ends.volumes)
            .reconcile_on(woken)
            .graceful_shutdown_on(stopped.clone())
            .run(reconcile, on_error, context)
            .for_each(|result| async {
                if let Err(error) = result {
                    tracing::debug!(%error, "data volume reconcile");
                }
            });
        tokio::join!(volumes, crate::claims::run(of_claims, ends.claims, stopped));
    };
    tokio::select! {
        () = ends.watches => {}
        () = controllers => {}
        // The controllers hear of it themselves, once they have begun.
        () = async { shutdown.await; tokio::time::sleep(LATER).await } => {}
    }
}

async fn reconcile(volume: Arc<DataVolume>, context: Arc<Context>) -> Result<controller::Action, Error> {
    let namespace = volume.namespace().unwrap_or_default();
    let upload_key = context.upload_key();
    let is_news = |plan: &plan::Plan| {
        let (old, new) = (&volume.status, &plan.status);
        !plan.actions.is_empty() || (&old.phase, old.restart_count) != (&new.phase, new.restart_count)
    };
    // What is only waited for is seen in the caches. What is made, deleted or said to be over is decided on the API's word.
    let mut word = Word::Cached;
    let (seen, plan, kept) = loop {
        let (mut seen, random) = (Seen::of(&context, &volume, word).await?, uuid_like());
        let entry = plan::cache_entry(&seen.observed(&context, &volume, &upload_key, &random));
        let kept = context.cache.as_ref().zip(entry);
        if let Some((cache, entry)) = kept.as_ref().filter(|_| seen.pod.is_none() && seen.claim.is_some()) {
            seen.same_under_way = !is_turn(cache, entry, &volume, &seen.importer, &context).await;
        }
        let plan = plan::plan(&seen.observed(&context, &volume, &upload_key, &random));
        if word == Word::Certain || !is_news(&plan) {
            break (seen, plan, kept);
        }
        word = Word::Certain;
    };
    // The status comes first: what it says about an importer that ended is not to be found again once that is deleted.
    if plan.status != volume.status {
        let volumes = Api::<DataVolume>::namespaced(context.client.clone(), &namespace);
        let patch = json!({
            "metadata": { "resourceVersion": volume.metadata.resource_version }, "status": plan.status,
        });
        match volumes.patch_status(&volume.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
                return Ok(controller::Action::requeue(Duration::from_millis(50)));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if let Some((cache, entry)) = &kept {
        care_for_cache(cache, entry, &volume, seen.pod.as_ref(), &plan.actions).await?;
    }
    act(&context, (&namespace, &volume.name_any()), &seen.importer, &plan.actions, seen.pass.as_ref()).await?;
    let servers = Api::<Pod>::namespaced(context.client.clone(), &seen.home);
    abroad(&context, &volume, &servers, &plan.actions).await?;
    let waits = !matches!(plan.status.phase.as_str(), names::phase::SUCCEEDED | names::phase::FAILED);
    Ok(match (&seen.pod, waits) {
        (Some(pod), true) if phase_of(pod) == Some("Running") => controller::Action::requeue(seen.ask_again),
        // Pods of users are not watched.
        (None, true) if seen.user.is_some() => controller::Action::requeue(LATER),
        // It is woken when the image is here; this is for an importer that went without a word.
        (None, true) if seen.same_under_way => controller::Action::requeue(MUCH_LATER),
        _ => controller::Action::await_change(),
    })
}

/// Whether a volume need not wait for another one's importer that brings the same image.
async fn is_turn(cache: &Cache, entry: &str, volume: &DataVolume, importer: &str, context: &Context) -> bool {
    let over = matches!(volume.status.phase.as_str(), names::phase::SUCCEEDED | names::phase::FAILED);
    if over || volume.metadata.deletion_timestamp.is_some() || cache.has(entry) {
        return true;
    }
    let namespace = &volume.namespace().unwrap_or_default();
    let busy = |pod: String| async move {
        // One that has just been made is not in the cache yet.
        let known = context.followed.pods.get(&ObjectRef::new(&pod).within(namespace));
        if known.is_some_and(|pod| !matches!(phase_of(&pod), Some("Failed" | "Succeeded"))) {
            return true;
        }
        let pods = Api::<Pod>::namespaced(context.client.clone(), namespace);
        pods.get_opt(&pod).await.ok().flatten().is_some_and(|pod| phase_of(&pod) != Some("Failed"))
    };
    cache.turn(entry, volume, importer, busy).await
}

/// Before an importer is made, and after it has ended: its pod is about to go with what it left for the node.
async fn care_for_cache(
    cache: &Arc<Cache>,
    entry: &str,
    volume: &DataVolume,
    pod: Option<&Pod>,
    actions: &[Action],
) -> Result<(), Error> {
    let uid = volume.uid().unwrap_or_default();
    let (own, name) = (cache.clone(), entry.to_owned());
    let blocking = |work: Result<(), _>| work.map_err(|error: std::io::Error| Error::Cache(error));
    match (actions, pod) {
        (actions, None) if actions.iter().any(|action| matches!(action, Action::CreatePod(_))) => {
            let prepared = tokio::task::spawn_blocking(move || own.prepare(&name)).await;
            return blocking(prepared.unwrap_or_else(|error| Err(std::io::Error::other(error))));
        }
        (actions, Some(pod)) if actions.contains(&Action::DeletePod) && phase_of(pod) == Some("Succeeded") => {
            let pod_uid = pod.uid().unwrap_or_default();
            let entry_name = name.clone();
            let left = tokio::task::spawn_blocking(move || own.left_by(&pod_uid, &entry_name)).await;
            let left = left.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            match left {
                Ok(Some(left)) => {
                    cache.keeping(entry, &uid);
                    // The volume is ready meanwhile.
                    tokio::spawn(cache.clone().keep_in_turn(name, uid, left));
                    return Ok(());
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "what an importer left is not kept"),
            }
        }
        (actions, Some(_)) if !actions.contains(&Action::DeletePod) => return Ok(()),
        _ => {}
    }
    cache.done(entry, &uid);
    Ok(())
}

/// Does what was decided about the claim of this name and its importer.
pub(crate) async fn act(
    context: &Context,
    (namespace, claim): (&str, &str),
    importer: &str,
    actions: &[Action],
    pass: Option<&Pass>,
) -> Result<(), Error> {
    let claims = Api::<PersistentVolumeClaim>::namespaced(context.client.clone(), namespace);
    let pods = Api::<Pod>::namespaced(context.client.clone(), namespace);
    for action in actions {
        match action {
            Action::CreateClaim(claim) => made(claims.create(&PostParams::default(), claim).await)?,
            Action::CreatePod(pod) => made(pods.create(&PostParams::default(), pod).await)?,
            // It waits for its secret, and one that does not get it is not known, and made again.
            Action::CreateReceiver(pod, secret) => {
                let (Some(pass), Some(pod)) = (pass, new(pods.create(&PostParams::default(), pod).await)?) else {
                    continue;
                };
                let secrets = Api::<Secret>::namespaced(context.client.clone(), namespace);
                secrets.create(&PostParams::default(), &pass.of_receiver(secret, &pod)).await?;
                context.receivers().extend(pod.uid());
            }
            Action::MarkClaim { phase, ready } => {
                let annotations = json!({ names::POD_PHASE: phase, names::POD_READY: ready.to_string() });
                let patch = json!({ "metadata": { "annotations": annotations } });
                claims.patch(claim, &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
            Action::DeletePod => match pods.delete(importer, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                result => drop(result?),
            },
            Action::CreateCloner(..) | Action::CreateServer(..) | Action::DeleteServer | Action::Hold(_) => {}
        }
    }
    Ok(())
}

/// Does what was decided about the namespace of a claim that is cloned.
async fn abroad(context: &Context, volume: &DataVolume, servers: &Api<Pod>, actions: &[Action]) -> Result<(), Error> {
    let uid = volume.uid().unwrap_or_default();
    for action in actions {
        match action {
            // A pod waits for its secret. One that is made and does not get it is not known, and made again.
            Action::CreateServer(pod, secret) => {
                let Some(pod) = new(servers.create(&PostParams::default(), pod).await)? else { continue };
                let pass = Pass::make()?;
                let secrets = Api::<Secret>::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
                secrets.create(&PostParams::default(), &pass.of_server(secret, &pod)).await?;
                let given = Given { pass, server: pod.uid().unwrap_or_default(), importer: None };
                context.passes().insert(uid.clone(), given);
            }
            Action::CreateCloner(pod, secret) => {
                let Some(pass) = context.passes().get(&uid).map(|given| given.pass.clone()) else { continue };
                let namespace = volume.namespace().unwrap_or_default();
                let pods = Api::<Pod>::namespaced(context.client.clone(), &namespace);
                let Some(pod) = new(pods.create(&PostParams::default(), pod).await)? else { continue };
                let secrets = Api::<Secret>::namespaced(context.client.clone(), &namespace);
                secrets.create(&PostParams::default(), &pass.of_importer(secret, &pod)).await?;
                if let Some(given) = context.passes().get_mut(&uid) {
                    given.importer = pod.uid();
                }
            }
            Action::DeleteServer => {
                context.passes().remove(&uid);
                match servers.delete(&plan::server_name(volume), &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => {}
                    result => drop(result?),
                }
            }
            Action::Hold(hold) => {
                let namespace = volume.namespace().unwrap_or_default();
                let volumes = Api::<DataVolume>::namespaced(context.client.clone(), &namespace);
                // Others may have added theirs since, and the patch replaces them all.
                let newest = volumes.get_opt(&volume.name_any()).await?;
                let Some(newest) = newest.filter(|newest| newest.uid() == volume.uid()) else { continue };
                let mut finalizers = newest.finalizers().to_vec();
                finalizers.retain(|finalizer| finalizer != names::CLONE_FINALIZER);
                if *hold {
                    finalizers.push(names::CLONE_FINALIZER.to_owned());
                }
                let patch =
                    json!({ "metadata": { "resourceVersion": newest.resource_version(), "finalizers": finalizers } });
                match volumes.patch(&volume.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => {}
                    result => drop(result?),
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn made<T>(result: Result<T, kube::Error>) -> Result<(), Error> {
    new(result).map(drop)
}

/// What was made; `None` if it was there.
fn new<T>(result: Result<T, kube::Error>) -> Result<Option<T>, Error> {
    match result {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
        result => Ok(Some(result?)),
    }
}

pub(crate) fn phase_of(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// Names nobody can guess come from the kernel.
pub(crate) fn uuid_like() -> String {
    let mut bytes = [0_u8; 24];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn on_error(volume: Arc<DataVolume>, error: &Error, _: Arc<Context>) -> controller::Action {
    let text = ferrovirt_api::chain(error);
    tracing::warn!(volume = volume.name_any(), error = text, "cannot reconcile the data volume");
    controller::Action::requeue(LATER)
}
