//! Follows DataVolumes, their claims and their importers, and does what the plan says.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferrovirt_api::cdi::{DataVolume, DataVolumeSource, DataVolumeSourcePvc, names};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::runtime::{Controller, controller, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;

use crate::cache::{Cache, CachePaths};
use crate::pass::{Pass, PassError};
use crate::plan::{self, Action, Observed};
use crate::progress;

/// How often a running importer is asked how far it is.
pub(crate) const ASK: Duration = Duration::from_secs(1);
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
    cache: Option<Arc<Cache>>,
    upload_key: watch::Receiver<String>,
    /// By the uids of volumes that are cloned from other namespaces.
    passes: Mutex<HashMap<String, Given>>,
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
    let context = Arc::new(Context { client: client.clone(), settings, cache, upload_key, passes: Mutex::default() });
    let volumes = Api::<DataVolume>::all(client.clone());
    let claims = Api::<PersistentVolumeClaim>::all(client.clone());
    let pods = Api::<Pod>::all(client);
    let importers = watcher::Config::default().labels(&format!("{}={}", names::COMPONENT_LABEL, names::IMPORTER));
    // Both end with the same word.
    let shutdown = shutdown.shared();
    let volumes = Controller::new(volumes, watcher::Config::default())
        .owns(claims, watcher::Config::default())
        .owns(pods, importers)
        .reconcile_on(woken)
        .graceful_shutdown_on(shutdown.clone())
        .run(reconcile, on_error, context.clone())
        .for_each(|result| async {
            if let Err(error) = result {
                tracing::debug!(%error, "data volume reconcile");
            }
        });
    tokio::join!(volumes, crate::claims::run(context, shutdown));
}

async fn reconcile(volume: Arc<DataVolume>, context: Arc<Context>) -> Result<controller::Action, Error> {
    let namespace = volume.namespace().unwrap_or_default();
    let claims = Api::<PersistentVolumeClaim>::namespaced(context.client.clone(), &namespace);
    let pods = Api::<Pod>::namespaced(context.client.clone(), &namespace);
    let claim = claims.get_opt(&volume.name_any()).await?;
    let importer = plan::pod_name(&volume.name_any(), &volume.uid().unwrap_or_default());
    let pod = pods.get_opt(&importer).await?;
    let pod = pod.filter(|pod| pod.owner_references().iter().any(|owner| volume.uid().as_ref() == Some(&owner.uid)));
    let source = source(&context.client, &volume).await?;
    let home = plan::origin_namespace(&volume, source.as_ref()).unwrap_or(&namespace).to_owned();
    let (origin, user) = match source.as_ref().and_then(|source| source.pvc.as_ref()) {
        Some(wanted) => {
            let there = Api::<PersistentVolumeClaim>::namespaced(context.client.clone(), &home);
            let origin = filled(&context.client, &home, there.get_opt(&wanted.name).await?).await?;
            let users = Api::<Pod>::namespaced(context.client.clone(), &home);
            let user = if pod.is_none() { user_of(&users, &wanted.name).await? } else { None };
            (origin, user)
        }
        None => (None, None),
    };
    let unbound = claim.as_ref().is_some_and(|claim| {
        pod.is_none() && claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound")
    });
    let classes = match (&claim, &origin) {
        _ if volume.metadata.deletion_timestamp.is_some() => vec![],
        (None, Some(_)) => Api::<StorageClass>::all(context.client.clone()).list(&ListParams::default()).await?.items,
        _ if unbound => Api::<StorageClass>::all(context.client.clone()).list(&ListParams::default()).await?.items,
        _ => vec![],
    };
    let servers = Api::<Pod>::namespaced(context.client.clone(), &home);
    let server = match home == namespace {
        true => None,
        false => servers.get_opt(&plan::server_name(&volume)).await?,
    };
    let progress = match &pod {
        Some(pod) if phase_of(pod) == Some("Running") => progress::of(pod).await,
        _ => None,
    };
    let (knows_server, knows_importer) = {
        let is = |pod: &Option<Pod>, uid: &str| pod.as_ref().and_then(ResourceExt::uid).as_deref() == Some(uid);
        let passes = context.passes();
        let given = volume.uid().and_then(|uid| passes.get(&uid));
        let importer = given.and_then(|given| given.importer.as_deref());
        (given.is_some_and(|given| is(&server, &given.server)), importer.is_some_and(|uid| is(&pod, uid)))
    };
    let (random, upload_key) = (uuid_like(), context.upload_key());
    let mut observed = Observed {
        volume: &volume,
        source: source.as_ref(),
        claim: claim.as_ref(),
        pod: pod.as_ref(),
        origin: origin.as_ref(),
        origin_user: user.as_deref(),
        classes: &classes,
        server: server.as_ref(),
        progress: progress.as_ref(),
        settings: &context.settings,
        upload_key: &upload_key,
        same_under_way: false,
        random: &random,
        knows_server,
        knows_importer,
        now: Timestamp::now(),
    };
    let kept = context.cache.as_ref().zip(plan::cache_entry(&observed));
    if let Some((cache, entry)) = kept.as_ref().filter(|_| observed.pod.is_none() && observed.claim.is_some()) {
        observed.same_under_way = !is_turn(cache, entry, &volume, &importer, &pods).await;
    }
    let plan = plan::plan(&observed);
    let waits_for_same = observed.same_under_way;
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
        care_for_cache(cache, entry, &volume, pod.as_ref(), &plan.actions).await?;
    }
    act(&context, &namespace, &volume.name_any(), &importer, &plan.actions).await?;
    abroad(&context, &volume, &servers, &plan.actions).await?;
    // What happens in another namespace is not watched.
    let abroad = server.is_some() || plan.actions.iter().any(|action| matches!(action, Action::Hold(_)));
    let waits = abroad || !matches!(plan.status.phase.as_str(), names::phase::SUCCEEDED | names::phase::FAILED);
    Ok(match (&pod, waits) {
        (Some(pod), true) if phase_of(pod) == Some("Running") => controller::Action::requeue(ASK),
        (_, true) if source.as_ref().is_some_and(|source| source.pvc.is_some()) => controller::Action::requeue(LATER),
        // It is woken when the image is here; this is for an importer that went without a word.
        (None, true) if waits_for_same => controller::Action::requeue(MUCH_LATER),
        _ => controller::Action::await_change(),
    })
}

/// Whether a volume need not wait for another one's importer that brings the same image.
async fn is_turn(cache: &Cache, entry: &str, volume: &DataVolume, importer: &str, pods: &Api<Pod>) -> bool {
    let over = matches!(volume.status.phase.as_str(), names::phase::SUCCEEDED | names::phase::FAILED);
    if over || volume.metadata.deletion_timestamp.is_some() || cache.has(entry) {
        return true;
    }
    let busy = |pod: String| async move {
        let found = pods.get_opt(&pod).await.ok().flatten();
        found.is_some_and(|pod| phase_of(&pod) != Some("Failed"))
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
    namespace: &str,
    claim: &str,
    importer: &str,
    actions: &[Action],
) -> Result<(), Error> {
    let claims = Api::<PersistentVolumeClaim>::namespaced(context.client.clone(), namespace);
    let pods = Api::<Pod>::namespaced(context.client.clone(), namespace);
    for action in actions {
        match action {
            Action::CreateClaim(claim) => made(claims.create(&PostParams::default(), claim).await)?,
            Action::CreatePod(pod) => made(pods.create(&PostParams::default(), pod).await)?,
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

/// The volume's own source, or the one that its DataSource stands for.
async fn source(client: &Client, volume: &DataVolume) -> Result<Option<DataVolumeSource>, Error> {
    let Some(reference) = &volume.spec.source_ref else { return Ok(volume.spec.source.clone()) };
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(names::GROUP, "v1beta1", "DataSource"));
    let namespace = reference.namespace.clone().or_else(|| volume.namespace()).unwrap_or_default();
    let sources = Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &kind);
    let Some(found) = sources.get_opt(&reference.name).await? else { return Ok(None) };
    let claim = &found.data["spec"]["source"]["pvc"];
    let pvc: Option<DataVolumeSourcePvc> = serde_json::from_value(claim.clone()).ok();
    // Admission judged by the namespace of the DataSource, which can be written anew afterwards.
    let pvc = pvc.filter(|pvc| pvc.namespace.is_empty() || pvc.namespace == namespace);
    Ok(pvc.map(|pvc| DataVolumeSource {
        pvc: Some(DataVolumeSourcePvc { namespace, ..pvc }),
        ..DataVolumeSource::default()
    }))
}

/// A claim that a DataVolume is still filling does not count as there.
async fn filled(
    client: &Client,
    namespace: &str,
    claim: Option<PersistentVolumeClaim>,
) -> Result<Option<PersistentVolumeClaim>, Error> {
    let Some(claim) = claim else { return Ok(None) };
    let owner = claim.owner_references().iter().find(|owner| owner.kind == "DataVolume");
    let Some(owner) = owner else { return Ok(Some(claim)) };
    let volume = Api::<DataVolume>::namespaced(client.clone(), namespace).get_opt(&owner.name).await?;
    let done = volume.is_none_or(|volume| volume.status.phase == names::phase::SUCCEEDED);
    Ok(done.then_some(claim))
}

/// A pod that has the claim in use and has not ended.
async fn user_of(pods: &Api<Pod>, claim: &str) -> Result<Option<String>, Error> {
    let all = pods.list(&ListParams::default()).await?;
    let uses = |pod: &&Pod| {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
        !matches!(phase_of(pod), Some("Succeeded" | "Failed"))
            && claims.any(|used| used.claim_name == claim && used.read_only != Some(true))
    };
    Ok(all.items.iter().find(uses).map(ResourceExt::name_any))
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
