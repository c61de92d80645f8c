//! Local storage: binds claims to volumes, and makes volumes of the class `local` as files in the data directory.
//!
//! `plan` decides, `files` does what concerns the disk, and this module is the task between them and the API.

pub(crate) mod binding;
mod files;
mod plan;
mod usage;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use tokio::sync::Notify;

pub use plan::{ClaimState, Key, PROVISIONER};
pub use usage::{Usage, usage};

use ferrovirt_api::{
    cdi::names::{CLONE_STRATEGY, CSI_CLONE},
    storage::IS_DEFAULT_CLASS,
};

use crate::Config;
use crate::events::{Events, Severity};
use files::{FilesError, Space};
use plan::{Action, World};

const COMPONENT: &str = "persistentvolume-controller";
/// How often the space that is left is looked at, and failed steps are tried again.
const TICK: Duration = Duration::from_secs(30);
/// Events of one change come together; they are answered once.
const SETTLE: Duration = Duration::from_millis(5);
const NEARLY_FULL_PERCENT: u64 = 85;

/// The classes that every host has. The first is the default. One machine has nothing to wait for, so it binds at once.
pub fn classes() -> Vec<Value> {
    let class = |name: &str, mode: &str, is_default: bool| {
        let mut class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
            "provisioner": PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": mode, "allowVolumeExpansion": true,
        });
        if is_default {
            class["metadata"]["annotations"] = json!({ IS_DEFAULT_CLASS: "true" });
        }
        class
    };
    vec![class("local", "Immediate", true), class("local-wait", "WaitForFirstConsumer", false)]
}

/// What the scheduler and the storage tell each other.
#[derive(Default)]
pub(crate) struct Claims {
    inner: Mutex<Inner>,
    users_changed: Notify,
    states_changed: Notify,
}

#[derive(Default)]
struct Inner {
    users: HashMap<Key, HashSet<String>>,
    of_pod: HashMap<String, Vec<Key>>,
    states: HashMap<Key, ClaimState>,
    synced: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// Something will happen without the user.
    Later,
    Never(String),
}

impl Claims {
    /// A pod is there, and has not ended.
    pub fn used_by(&self, uid: &str, pod: &Pod) {
        let keys = claims_of(pod);
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let before = inner.of_pod.get(uid).cloned().unwrap_or_default();
        if before == keys {
            return;
        }
        for key in &keys {
            inner.users.entry(key.clone()).or_default().insert(uid.to_owned());
        }
        inner.of_pod.insert(uid.to_owned(), keys);
        self.users_changed.notify_one();
    }

    /// A pod has ended or is gone.
    pub fn released_by(&self, uid: &str) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = inner.of_pod.remove(uid).unwrap_or_default();
        for key in &keys {
            if let Some(users) = inner.users.get_mut(key) {
                users.remove(uid);
                if users.is_empty() {
                    inner.users.remove(key);
                }
            }
        }
        if !keys.is_empty() {
            self.users_changed.notify_one();
        }
    }

    /// Whether a pod's claims let it be scheduled.
    pub fn readiness(&self, pod: &Pod) -> Readiness {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answer = Readiness::Ready;
        for key in claims_of(pod) {
            match inner.states.get(&key) {
                Some(ClaimState::Bound) => {}
                _ if !inner.synced => answer = Readiness::Later,
                Some(ClaimState::Coming) => answer = Readiness::Later,
                Some(ClaimState::Stuck(why)) => return Readiness::Never(why.clone()),
                None => return Readiness::Never(format!("persistentvolumeclaim {:?} not found", key.1)),
            }
        }
        answer
    }

    pub async fn changed(&self) {
        self.states_changed.notified().await;
    }

    fn used(&self) -> HashSet<Key> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).users.keys().cloned().collect()
    }

    fn learn(&self, states: HashMap<Key, ClaimState>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.states != states || !inner.synced {
            inner.states = states;
            inner.synced = true;
            self.states_changed.notify_one();
        }
    }
}

fn claims_of(pod: &Pod) -> Vec<Key> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| volume.persistent_volume_claim.as_ref())
        .map(|claim| (namespace.clone(), claim.claim_name.clone()))
        .collect()
}

#[derive(Debug, thiserror::Error)]
enum StorageError {
    #[error("the API refused")]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Files(#[from] FilesError),
}

struct Storage {
    client: kube::Client,
    events: Events,
    node: String,
    directory: PathBuf,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    classes: Store<StorageClass>,
    shared: Arc<Claims>,
    /// Whether a copy takes no time.
    shares: bool,
    /// Claims whose files are being copied byte by byte, beside everything else.
    copying: Arc<Mutex<HashMap<Key, Copying>>>,
}

enum Copying {
    Going,
    Failed(FilesError),
}

/// Cares for claims until it is dropped.
pub(crate) async fn run(client: kube::Client, config: &Config, events: Events, shared: Arc<Claims>) {
    let directory = config.data_dir.join("volumes");
    if let Err(error) = std::fs::create_dir_all(&directory) {
        tracing::error!(%error, directory = %directory.display(), "cannot make the directory of volumes");
    }
    let (claims, claim_writer) = reflector::store();
    let (volumes, volume_writer) = reflector::store();
    let (classes, class_writer) = reflector::store();
    let any = watcher::Config::default;
    let mut claim_events =
        pin!(watcher(Api::<PersistentVolumeClaim>::all(client.clone()), any()).default_backoff().reflect(claim_writer));
    let mut volume_events =
        pin!(watcher(Api::<PersistentVolume>::all(client.clone()), any()).default_backoff().reflect(volume_writer));
    let mut class_events =
        pin!(watcher(Api::<StorageClass>::all(client.clone()), any()).default_backoff().reflect(class_writer));
    files::sweep(&directory);
    let storage = Storage {
        client,
        events,
        node: config.node_name.clone(),
        shares: files::shares(&directory),
        directory,
        claims,
        volumes,
        classes,
        shared,
        copying: Arc::default(),
    };
    let ready = async {
        let _ = storage.claims.wait_until_ready().await;
        let _ = storage.volumes.wait_until_ready().await;
        let _ = storage.classes.wait_until_ready().await;
    };
    let mut ready = pin!(ready);
    let mut synced = false;
    let mut tick = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            () = &mut ready, if !synced => {
                synced = true;
                storage.say_what_it_can().await;
            }
            event = claim_events.next() => if event.is_none() { return },
            event = volume_events.next() => if event.is_none() { return },
            event = class_events.next() => if event.is_none() { return },
            () = storage.shared.users_changed.notified() => {}
            _ = tick.tick() => storage.look_at_space(),
        }
        if !synced {
            continue;
        }
        tokio::time::sleep(SETTLE).await;
        // Whatever else has come meanwhile belongs to the same look.
        while let Some(Some(_)) = futures::FutureExt::now_or_never(claim_events.next()) {}
        while let Some(Some(_)) = futures::FutureExt::now_or_never(volume_events.next()) {}
        storage.step().await;
    }
}

impl Storage {
    async fn step(&self) {
        let (claims, volumes, classes) = (self.claims.state(), self.volumes.state(), self.classes.state());
        let used = self.shared.used();
        let world = World { claims: &claims, volumes: &volumes, classes: &classes, used: &used, node: &self.node };
        let index = plan::Index::of(&world);
        let states = claims.iter().map(|claim| (plan::key_of(claim), plan::state(&world, &index, claim)));
        self.shared.learn(states.collect());
        for action in plan::plan(&world, &index, &self.directory) {
            if let Err(error) = self.apply(&claims, &volumes, &action).await {
                let text = ferrovirt_api::chain(&error);
                tracing::warn!(error = text, ?action, "local storage");
                if let Action::Provision { key, .. } | Action::Grow { key, .. } = &action {
                    self.say(&claims, key, Severity::Warning, "ProvisioningFailed", &text);
                }
            }
        }
    }

    async fn apply(
        &self,
        claims: &[Arc<PersistentVolumeClaim>],
        volumes: &[Arc<PersistentVolume>],
        action: &Action,
    ) -> Result<(), StorageError> {
        let all = Api::<PersistentVolume>::all(self.client.clone());
        match action {
            Action::PatchClaim { key, patch, status } => {
                let api = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &key.0);
                patch_one(&api, &key.1, patch, *status).await
            }
            Action::PatchVolume { name, patch, status } => patch_one(&all, name, patch, *status).await,
            Action::Provision { key, volume, like } => {
                let spec = volume.spec.clone().unwrap_or_default();
                let path = spec.local.map(|local| PathBuf::from(local.path)).unwrap_or_default();
                let bytes = plan::storage_bytes(spec.capacity.as_ref()).unwrap_or_default();
                let block = spec.volume_mode.as_deref() == Some("Block");
                let directory = self.directory.clone();
                match like.clone() {
                    None => blocking(move || files::make(&directory, &path, block, bytes)).await?,
                    Some(_) if files::is_there(&directory, &path)? => {}
                    Some(like) => {
                        let work = move || files::copy(&directory, &like, &path, block, bytes);
                        if !self.copied(key, work).await? {
                            return Ok(());
                        }
                    }
                }
                match all.create(&PostParams::default(), volume).await {
                    Err(kube::Error::Api(status)) if status.is_already_exists() => return Ok(()),
                    result => drop(result?),
                }
                let name = volume.metadata.name.clone().unwrap_or_default();
                let message = format!("Successfully provisioned volume {name}");
                self.say(claims, key, Severity::Normal, "ProvisioningSucceeded", &message);
                Ok(())
            }
            Action::Grow { volume, bytes, capacity, .. } => {
                if let Some(path) = path_of(volumes, volume) {
                    let (directory, bytes) = (self.directory.clone(), *bytes);
                    blocking(move || files::grow(&directory, &path, bytes)).await?;
                }
                patch_one(&all, volume, &json!({ "spec": { "capacity": capacity } }), false).await
            }
            Action::Reclaim { volume } => {
                if let Some(path) = path_of(volumes, volume) {
                    let directory = self.directory.clone();
                    blocking(move || files::remove(&directory, &path)).await?;
                }
                match all.delete(volume, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                    result => result.map(drop).map_err(StorageError::from),
                }
            }
            Action::Say { key, reason, message } => {
                let severity = if *reason == "WaitForFirstConsumer" { Severity::Normal } else { Severity::Warning };
                self.say(claims, key, severity, reason, message);
                Ok(())
            }
        }
    }

    /// Does what makes a copy: at once if it takes no time, else beside everything else, and the next look finds it. Says
    /// whether it is there.
    async fn copied(
        &self,
        key: &Key,
        work: impl FnOnce() -> Result<(), FilesError> + Send + 'static,
    ) -> Result<bool, FilesError> {
        if self.shares {
            return blocking(work).await.map(|()| true);
        }
        {
            let mut copying = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
            match copying.remove(key) {
                Some(Copying::Failed(error)) => return Err(error),
                Some(Copying::Going) => {
                    copying.insert(key.clone(), Copying::Going);
                    return Ok(false);
                }
                None => drop(copying.insert(key.clone(), Copying::Going)),
            }
        }
        let (copying, shared, key) = (self.copying.clone(), self.shared.clone(), key.clone());
        tokio::spawn(async move {
            let result = blocking(work).await;
            let mut copying = copying.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(()) => drop(copying.remove(&key)),
                Err(error) => drop(copying.insert(key, Copying::Failed(error))),
            }
            shared.users_changed.notify_one();
        });
        Ok(false)
    }

    /// Whoever wants a clone of one of our volumes looks at the class for how to get it.
    async fn say_what_it_can(&self) {
        if !self.shares {
            return;
        }
        let classes = Api::<StorageClass>::all(self.client.clone());
        for class in self.classes.state() {
            let annotations = class.metadata.annotations.as_ref();
            let said = annotations.is_some_and(|annotations| annotations.contains_key(CLONE_STRATEGY));
            let at_once = class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer");
            if class.provisioner == PROVISIONER && at_once && !said {
                let patch = json!({ "metadata": { "annotations": { CLONE_STRATEGY: CSI_CLONE } } });
                let name = class.metadata.name.as_deref().unwrap_or_default();
                if let Err(error) = patch_one(&classes, name, &patch, false).await {
                    tracing::warn!(error = ferrovirt_api::chain(&error), class = name, "cannot say how to clone");
                }
            }
        }
    }

    fn say(&self, claims: &[Arc<PersistentVolumeClaim>], key: &Key, severity: Severity, reason: &str, message: &str) {
        let Some(claim) = claims.iter().find(|claim| plan::key_of(claim) == *key) else { return };
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: Some(key.0.clone()),
            name: Some(key.1.clone()),
            uid: claim.metadata.uid.clone(),
            ..Default::default()
        };
        self.events.publish_about(COMPONENT, about, severity, reason, message);
    }

    /// Sparse files promise more than there is; a user should hear of it before guests do.
    fn look_at_space(&self) {
        let Ok(space) = Space::of(&self.directory) else { return };
        let used = space.used_percent();
        if used < NEARLY_FULL_PERCENT {
            return;
        }
        let message = format!(
            "the disk under {} is {used}% full, {} MiB are left: VMs pause when they write more. Free space, or delete volumes",
            self.directory.display(),
            space.available >> 20,
        );
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.node.clone()),
            uid: Some(self.node.clone()),
            ..Default::default()
        };
        self.events.publish_about(COMPONENT, about, Severity::Warning, "VolumesNearlyFull", &message);
    }
}

async fn patch_one<K>(api: &Api<K>, name: &str, patch: &Value, status: bool) -> Result<(), StorageError>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let params = PatchParams::default();
    let result = match status {
        true => api.patch_status(name, &params, &Patch::Merge(patch)).await,
        false => api.patch(name, &params, &Patch::Merge(patch)).await,
    };
    match result {
        // Gone, or written by somebody else meanwhile: the watch tells, and the next look decides anew.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        result => result.map(drop).map_err(StorageError::from),
    }
}

async fn blocking(work: impl FnOnce() -> Result<(), FilesError> + Send + 'static) -> Result<(), FilesError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The runtime is going away, and what was not done is done by the next one.
        Err(_) => Ok(()),
    }
}

fn path_of(volumes: &[Arc<PersistentVolume>], name: &str) -> Option<PathBuf> {
    let volume = volumes.iter().find(|volume| volume.metadata.name.as_deref() == Some(name))?;
    volume.spec.as_ref()?.local.as_ref().map(|local| Path::new(&local.path).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(claims: &[&str]) -> Pod {
        let volumes: Vec<Value> =
            claims.iter().map(|name| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } })).collect();
        serde_json::from_value(
            json!({ "metadata": { "namespace": "a", "name": "p" }, "spec": { "containers": [], "volumes": volumes } }),
        )
        .unwrap()
    }

    #[test]
    fn a_pod_waits_until_every_claim_is_bound() {
        let claims = Claims::default();
        let key = |name: &str| ("a".to_owned(), name.to_owned());
        assert_eq!(claims.readiness(&pod(&["x"])), Readiness::Later, "nothing is known yet");
        assert_eq!(claims.readiness(&pod(&[])), Readiness::Ready);
        claims.learn(HashMap::from([(key("x"), ClaimState::Bound), (key("y"), ClaimState::Coming)]));
        assert_eq!(claims.readiness(&pod(&["x"])), Readiness::Ready);
        assert_eq!(claims.readiness(&pod(&["x", "y"])), Readiness::Later);
        let never = Readiness::Never("persistentvolumeclaim \"z\" not found".to_owned());
        assert_eq!(claims.readiness(&pod(&["y", "z"])), never);
    }

    #[test]
    fn a_claim_is_used_until_the_last_pod_ended() {
        let claims = Claims::default();
        claims.used_by("1", &pod(&["x", "y"]));
        claims.used_by("2", &pod(&["x"]));
        claims.released_by("1");
        assert_eq!(claims.used(), HashSet::from([("a".to_owned(), "x".to_owned())]));
        claims.released_by("2");
        claims.released_by("2");
        assert!(claims.used().is_empty());
    }
}
