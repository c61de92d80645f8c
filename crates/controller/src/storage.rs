//! The claims and DataVolumes that specs refer to: followed by watches, and read anew before anything begins to use one.
//!
//! ```text
//!   watches --> caches --> what a VM waits for           (as often as somebody looks, without a request)
//!      |
//!      +----> who uses what --> those are looked at
//!   API    --> what is there for certain                 (once, before an instance or a pod is made)
//! ```
//!
//! A cache may be late, and two of them late by different times. A volume that is going must not be taken for one that stays.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ferrovirt_plan::storage::{Claim, DataVolume, Storage, User};
use futures::{SinkExt, Stream, StreamExt, channel::mpsc};
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, store::Writer},
        watcher,
    },
};
use serde_json::json;

use crate::Error;

/// How often somebody is told that nothing changed but how far a DataVolume is.
const PROGRESS: Duration = Duration::from_secs(5);
/// Objects that changed and were not looked at yet.
const QUEUE: usize = 256;

fn data_volume_kind() -> ApiResource {
    let kind = GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "DataVolume");
    ApiResource::from_gvk_with_plural(&kind, "datavolumes")
}

/// The DataVolumes of a namespace. Read as they are: on a cluster they are CDI's.
pub(crate) fn data_volumes(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &data_volume_kind())
}

/// Namespace and name.
pub(crate) type Key = (String, String);

/// What is followed. Clones follow the same.
#[derive(Clone)]
pub(crate) struct Followed {
    claims: reflector::Store<PersistentVolumeClaim>,
    volumes: reflector::Store<DynamicObject>,
    ready: Arc<[AtomicBool; 2]>,
    users: Arc<Mutex<Users>>,
}

impl Followed {
    /// Begins to follow, and says whose volumes changed. Must be called inside a runtime.
    pub(crate) fn start(client: Client) -> (Self, mpsc::Receiver<Key>) {
        let (claims, claim_writer) = reflector::store();
        let volume_writer = Writer::new(data_volume_kind());
        let volumes = volume_writer.as_reader();
        let (told, changed) = mpsc::channel(QUEUE);
        let followed = Self { claims, volumes, ready: Arc::default(), users: Arc::default() };
        let all_claims = watcher(Api::<PersistentVolumeClaim>::all(client.clone()), watcher::Config::default());
        let all_claims = all_claims.default_backoff().modify(trim_claim).reflect(claim_writer);
        tokio::spawn(followed.clone().follow(all_claims, 0, told.clone(), |claim| (digest_claim(claim), 0)));
        let kind = data_volume_kind();
        let all_volumes = watcher(Api::<DynamicObject>::all_with(client, &kind), watcher::Config::default());
        let all_volumes = all_volumes.default_backoff().modify(trim_volume).reflect(volume_writer);
        tokio::spawn(followed.clone().follow(all_volumes, 1, told, digest_volume));
        (followed, changed)
    }

    /// `digest` sums up an object, and apart from that how far it is.
    async fn follow<K: ResourceExt>(
        self,
        events: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>>,
        index: usize,
        mut told: mpsc::Sender<Key>,
        digest: impl Fn(&K) -> (u64, u64),
    ) {
        let mut events = std::pin::pin!(events);
        let mut known: HashMap<Key, Known> = HashMap::new();
        while let Some(event) = events.next().await {
            let users = match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    let key = key_of(&object);
                    let users = self.lock().of(&key);
                    if users.is_empty() {
                        known.remove(&key);
                        continue;
                    }
                    let now = Instant::now();
                    match Known::is_news(known.get(&key), digest(&object), now) {
                        Some(news) => drop(known.insert(key, news)),
                        None => continue,
                    }
                    users
                }
                Ok(watcher::Event::Delete(object)) => {
                    let key = key_of(&object);
                    known.remove(&key);
                    self.lock().of(&key)
                }
                // What was deleted meanwhile is not told by itself.
                Ok(watcher::Event::InitDone) => {
                    if let Some(ready) = self.ready.get(index) {
                        ready.store(true, Ordering::Release);
                    }
                    self.lock().all()
                }
                Ok(watcher::Event::Init) => continue,
                Err(error) => {
                    tracing::debug!(%error, "cannot watch claims or data volumes; trying again");
                    continue;
                }
            };
            for user in users {
                if told.send(user).await.is_err() {
                    return;
                }
            }
        }
    }

    /// True if the caches have been filled. They may be late, and never empty for want of an answer.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.iter().all(|ready| ready.load(Ordering::Acquire))
    }

    /// Notes who uses which claims, before they are looked at: what changes later is told.
    pub(crate) fn note<'a>(&self, namespace: &str, user: &str, claims: impl Iterator<Item = (&'a str, bool)>) {
        let claims = claims.map(|(name, _)| name.to_owned()).collect();
        self.lock().set((namespace.to_owned(), user.to_owned()), claims);
    }

    /// Nobody is told any more.
    pub(crate) fn forget(&self, namespace: &str, user: &str) {
        self.lock().set((namespace.to_owned(), user.to_owned()), BTreeSet::new());
    }

    /// What was last heard of these.
    pub(crate) fn known<'a>(
        &self,
        namespace: &str,
        user: Option<User<'_>>,
        claims: impl Iterator<Item = (&'a str, bool)>,
    ) -> Storage {
        let mut storage = Storage::default();
        for (name, by_data_volume) in claims {
            let claim = self.claims.get(&ObjectRef::new(name).within(namespace));
            let volume = self.volumes.get(&ObjectRef::new_with(name, data_volume_kind()).within(namespace));
            add(&mut storage, name, by_data_volume, claim.as_deref(), volume.as_deref(), user);
        }
        storage
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `claims` says for each name whether a DataVolume stands for it.
pub(crate) async fn read<'a>(
    client: &Client,
    namespace: &str,
    user: Option<User<'_>>,
    claims: impl Iterator<Item = (&'a str, bool)>,
) -> Result<Storage, Error> {
    let mut storage = Storage::default();
    for (name, by_data_volume) in claims {
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
        let claim = claims.get_opt(name).await?;
        let owned = claim.as_ref().is_some_and(|claim| claim.owner_references().iter().any(|o| o.kind == "DataVolume"));
        // Read after the claim: a DataVolume that is gone by then is the end of its claim, too.
        let volume = match by_data_volume || owned {
            true => data_volumes(client, namespace).get_opt(name).await?,
            false => None,
        };
        add(&mut storage, name, by_data_volume, claim.as_ref(), volume.as_ref(), user);
    }
    Ok(storage)
}

fn add(
    storage: &mut Storage,
    name: &str,
    by_data_volume: bool,
    claim: Option<&PersistentVolumeClaim>,
    volume: Option<&DynamicObject>,
    user: Option<User<'_>>,
) {
    if let Some(volume) = volume.filter(|_| by_data_volume) {
        storage.data_volumes.insert(name.to_owned(), DataVolume::read(&volume.metadata, &volume.data, user));
    }
    if let Some(claim) = claim {
        let uid = volume.and_then(|volume| volume.metadata.uid.as_deref());
        storage.claims.insert(name.to_owned(), Claim::read(claim, uid, user));
    }
}

/// Who uses which claims.
#[derive(Default)]
struct Users {
    by_claim: HashMap<Key, BTreeSet<String>>,
    by_user: HashMap<Key, BTreeSet<String>>,
}

impl Users {
    fn set(&mut self, user: Key, claims: BTreeSet<String>) {
        let (namespace, name) = &user;
        let before = match claims.is_empty() {
            true => self.by_user.remove(&user),
            false if self.by_user.get(&user) == Some(&claims) => return,
            false => self.by_user.insert(user.clone(), claims.clone()),
        };
        for claim in before.unwrap_or_default().difference(&claims) {
            let key = (namespace.clone(), claim.clone());
            if let Some(users) = self.by_claim.get_mut(&key) {
                users.remove(name);
                if users.is_empty() {
                    self.by_claim.remove(&key);
                }
            }
        }
        for claim in claims {
            self.by_claim.entry((namespace.clone(), claim)).or_default().insert(name.clone());
        }
    }

    fn of(&self, claim: &Key) -> Vec<Key> {
        let users = self.by_claim.get(claim).into_iter().flatten();
        users.map(|user| (claim.0.clone(), user.clone())).collect()
    }

    fn all(&self) -> Vec<Key> {
        self.by_user.keys().cloned().collect()
    }
}

/// What somebody was told of an object, and when.
struct Known {
    state: u64,
    progress: u64,
    at: Instant,
}

impl Known {
    fn is_news(before: Option<&Self>, (state, progress): (u64, u64), now: Instant) -> Option<Self> {
        let same = before.filter(|before| before.state == state);
        let dull = same.is_some_and(|before| before.progress == progress || now.duration_since(before.at) < PROGRESS);
        (!dull).then_some(Self { state, progress, at: now })
    }
}

fn key_of(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Only what is asked for is kept.
fn trim_metadata(metadata: &mut ObjectMeta) {
    let all = std::mem::take(metadata);
    *metadata = ObjectMeta {
        name: all.name,
        namespace: all.namespace,
        uid: all.uid,
        resource_version: all.resource_version,
        owner_references: all.owner_references,
        deletion_timestamp: all.deletion_timestamp,
        ..Default::default()
    };
}

fn trim_claim(claim: &mut PersistentVolumeClaim) {
    trim_metadata(&mut claim.metadata);
    let volume_mode = claim.spec.take().and_then(|spec| spec.volume_mode);
    claim.spec = Some(PersistentVolumeClaimSpec { volume_mode, ..Default::default() });
    let phase = claim.status.take().and_then(|status| status.phase);
    claim.status = Some(PersistentVolumeClaimStatus { phase, ..Default::default() });
}

fn trim_volume(volume: &mut DynamicObject) {
    trim_metadata(&mut volume.metadata);
    let status = volume.data["status"].take();
    let kept = ["phase", "progress", "conditions"].map(|key| (key.to_owned(), status[key].clone()));
    volume.data = json!({ "status": kept.into_iter().collect::<serde_json::Map<_, _>>() });
}

fn hash(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

fn digest_metadata(metadata: &ObjectMeta) -> u64 {
    let owners = metadata.owner_references.iter().flatten().map(|owner| (&owner.uid, owner.controller));
    hash((&metadata.uid, metadata.deletion_timestamp.is_some(), owners.collect::<Vec<_>>()))
}

fn digest_claim(claim: &PersistentVolumeClaim) -> u64 {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_ref());
    let mode = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref());
    hash((digest_metadata(&claim.metadata), phase, mode))
}

/// Messages tell how far it is, beside what `progress` tells: only what conditions stand for is news.
fn digest_volume(volume: &DynamicObject) -> (u64, u64) {
    let status = &volume.data["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions = conditions.map(|condition| ["type", "status", "reason"].map(|key| condition[key].as_str()));
    let state = hash((digest_metadata(volume.meta()), status["phase"].as_str(), conditions.collect::<Vec<_>>()));
    (state, hash(status.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("n".into(), name.into())
    }

    #[test]
    fn those_who_use_a_claim_are_known_until_they_use_it_no_more() {
        let mut users = Users::default();
        let set = |users: &mut Users, user: &str, claims: &[&str]| {
            users.set(key(user), claims.iter().map(|claim| (*claim).to_owned()).collect());
        };
        set(&mut users, "one", &["a", "b"]);
        set(&mut users, "two", &["b"]);
        assert_eq!(users.of(&key("a")), [key("one")]);
        assert_eq!(users.of(&key("b")), [key("one"), key("two")]);
        assert!(users.of(&("other".into(), "b".into())).is_empty(), "another namespace's");
        set(&mut users, "one", &["c"]);
        assert_eq!(users.of(&key("b")), [key("two")]);
        assert_eq!(users.of(&key("c")), [key("one")]);
        set(&mut users, "one", &[]);
        set(&mut users, "two", &[]);
        assert!(users.by_claim.is_empty() && users.by_user.is_empty(), "nothing is left of those who went");
    }

    #[test]
    fn progress_is_told_now_and_then_and_everything_else_at_once() {
        let volume = |phase: &str, progress: &str, message: &str| {
            let condition =
                json!({ "type": "Running", "status": "True", "reason": "Pod is running", "message": message });
            let status = json!({ "phase": phase, "progress": progress, "conditions": [condition] });
            let mut volume =
                DynamicObject::new("dv", &data_volume_kind()).data(json!({ "spec": {}, "status": status }));
            trim_volume(&mut volume);
            digest_volume(&volume)
        };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = Known::is_news(None, volume("ImportInProgress", "1%", "1 MiB"), at(0)).unwrap();
        let is_news = |digest, seconds| Known::is_news(Some(&first), digest, at(seconds)).is_some();
        assert!(!is_news(volume("ImportInProgress", "1%", "1 MiB"), 100), "nothing changed");
        assert!(!is_news(volume("ImportInProgress", "2%", "2 MiB"), 1));
        assert!(is_news(volume("ImportInProgress", "2%", "2 MiB"), 5));
        assert!(is_news(volume("Succeeded", "100%", "1 MiB"), 1));
    }
}
