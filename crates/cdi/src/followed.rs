//! What DataVolumes wait for, followed by watches: volumes, claims, importers, DataSources and storage classes.
//!
//! ```text
//!   watches --> caches --> what a volume waits for        (as often as somebody looks, without a request)
//!      |
//!      +----> who waits for what --> those are looked at
//!   API    --> what is there for certain                  (once, before anything is made, deleted or said to be over)
//! ```

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrovirt_api::cdi::{DataVolume, names};
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::future::join_all;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::reflector::{self, ObjectRef, Store, store::Writer};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::plan::is_bare;

/// What a volume may wait for, by namespace and name; a pod of another namespace by the uid of the volume that it is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Awaited {
    /// Or the DataVolume of its name, which fills it.
    Claim(String, String),
    Source(String, String),
    Server(String),
}

type Reference = ObjectRef<DataVolume>;

pub(crate) struct Followed {
    pub volumes: Store<DataVolume>,
    pub claims: Store<PersistentVolumeClaim>,
    /// Importers, and the pods that show claims to them.
    pub pods: Store<Pod>,
    pub sources: Store<DynamicObject>,
    pub classes: Store<StorageClass>,
    waiting: Mutex<Waiting>,
    wake_volume: UnboundedSender<Reference>,
    wake_claim: UnboundedSender<ObjectRef<PersistentVolumeClaim>>,
}

/// The other ends: what is to be looked at, and the watches, which are to be run.
pub(crate) struct Ends {
    pub volumes: UnboundedReceiver<Reference>,
    pub claims: UnboundedReceiver<ObjectRef<PersistentVolumeClaim>>,
    pub watches: futures::future::BoxFuture<'static, ()>,
}

pub(crate) fn source_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(names::GROUP, "v1beta1", "DataSource"))
}

impl Followed {
    pub fn new(client: &Client) -> (Arc<Self>, Ends) {
        let (volumes, volume_writer) = reflector::store();
        let (claims, claim_writer) = reflector::store();
        let (pods, pod_writer) = reflector::store();
        let (classes, class_writer) = reflector::store();
        let source_writer = Writer::new(source_kind());
        let (wake_volume, woken_volumes) = unbounded();
        let (wake_claim, woken_claims) = unbounded();
        let followed = Arc::new(Self {
            volumes,
            claims,
            pods,
            classes,
            sources: source_writer.as_reader(),
            waiting: Mutex::default(),
            wake_volume,
            wake_claim,
        });
        let all = watcher::Config::default;
        let importers = all().labels(&format!("{}={}", names::COMPONENT_LABEL, names::IMPORTER));
        let watches = [
            followed.follow(Api::<DataVolume>::all(client.clone()), all(), volume_writer, Self::volume).boxed(),
            followed
                .follow(Api::<PersistentVolumeClaim>::all(client.clone()), all(), claim_writer, Self::claim)
                .boxed(),
            followed.follow(Api::<Pod>::all(client.clone()), importers, pod_writer, Self::pod).boxed(),
            followed.follow(Api::all_with(client.clone(), &source_kind()), all(), source_writer, Self::source).boxed(),
            followed.follow(Api::<StorageClass>::all(client.clone()), all(), class_writer, |_, _| {}).boxed(),
        ];
        let ends = Ends { volumes: woken_volumes, claims: woken_claims, watches: join_all(watches).map(drop).boxed() };
        (followed, ends)
    }

    /// Resolves when the caches have been filled: they may be late after that, and never empty for want of an answer.
    pub async fn ready(&self) {
        // An error says that the watches were dropped, and so is this.
        let _ = tokio::join!(
            self.volumes.wait_until_ready(),
            self.claims.wait_until_ready(),
            self.pods.wait_until_ready(),
            self.classes.wait_until_ready(),
            self.sources.wait_until_ready(),
        );
    }

    /// Notes what a volume waits for, before that is looked at: what changes later is told.
    pub fn waits(&self, volume: &DataVolume, things: HashSet<Awaited>) {
        self.lock().set(ObjectRef::from_obj(volume), things);
    }

    /// How many importers run.
    pub fn running(&self) -> usize {
        self.pods.state().iter().filter(|pod| crate::controller::phase_of(pod) == Some("Running")).count()
    }

    /// Keeps a cache, and tells `changed` of every object that is new, changed or gone.
    fn follow<K>(
        self: &Arc<Self>,
        api: Api<K>,
        config: watcher::Config,
        writer: Writer<K>,
        changed: fn(&Self, &K),
    ) -> impl Future<Output = ()> + Send + 'static
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
        K::DynamicType: std::fmt::Debug + Eq + Hash + Clone + Send + Sync,
    {
        let followed = self.clone();
        let events = watcher(api, config)
            .default_backoff()
            .modify(|object| object.meta_mut().managed_fields = None)
            .reflect(writer);
        events.for_each(move |event| {
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::Delete(object)) => changed(&followed, &object),
                // What was deleted meanwhile is not told by itself.
                Ok(watcher::Event::InitDone) => followed.look_at_all(),
                Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
                Err(error) => tracing::debug!(%error, "cannot watch what volumes wait for; trying again"),
            }
            std::future::ready(())
        })
    }

    fn volume(&self, volume: &DataVolume) {
        self.wake(ObjectRef::from_obj(volume));
        if self.volumes.get(&ObjectRef::from_obj(volume)).is_none() {
            self.lock().set(ObjectRef::from_obj(volume), HashSet::new());
        }
        self.wake_waiting(&Awaited::Claim(volume.namespace().unwrap_or_default(), volume.name_any()));
    }

    fn claim(&self, claim: &PersistentVolumeClaim) {
        let namespace = claim.namespace().unwrap_or_default();
        self.wake_owner(claim, &namespace);
        if is_bare(claim) {
            let _ = self.wake_claim.unbounded_send(ObjectRef::from_obj(claim));
        }
        self.wake_waiting(&Awaited::Claim(namespace, claim.name_any()));
    }

    fn pod(&self, pod: &Pod) {
        let namespace = pod.namespace().unwrap_or_default();
        self.wake_owner(pod, &namespace);
        for owner in pod.owner_references().iter().filter(|owner| owner.kind == "PersistentVolumeClaim") {
            let _ = self.wake_claim.unbounded_send(ObjectRef::new(&owner.name).within(&namespace));
        }
        if let Some(uid) = pod.labels().get(names::CREATED_BY_LABEL) {
            self.wake_waiting(&Awaited::Server(uid.clone()));
        }
    }

    fn source(&self, source: &DynamicObject) {
        self.wake_waiting(&Awaited::Source(source.namespace().unwrap_or_default(), source.name_any()));
    }

    fn look_at_all(&self) {
        self.volumes.state().iter().for_each(|volume| self.wake(ObjectRef::from_obj(&**volume)));
        for claim in self.claims.state().iter().filter(|claim| is_bare(claim)) {
            let _ = self.wake_claim.unbounded_send(ObjectRef::from_obj(&**claim));
        }
    }

    fn wake_owner(&self, object: &impl ResourceExt, namespace: &str) {
        for owner in object.owner_references().iter().filter(|owner| owner.kind == "DataVolume") {
            self.wake(ObjectRef::new(&owner.name).within(namespace));
        }
    }

    fn wake_waiting(&self, thing: &Awaited) {
        let waiting = self.lock().by_thing.get(thing).cloned().unwrap_or_default();
        waiting.into_iter().for_each(|volume| self.wake(volume));
    }

    fn wake(&self, volume: Reference) {
        // Nobody listens at the end of the process.
        let _ = self.wake_volume.unbounded_send(volume);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who waits for what, both ways.
#[derive(Default)]
struct Waiting {
    by_thing: HashMap<Awaited, HashSet<Reference>>,
    by_volume: HashMap<Reference, HashSet<Awaited>>,
}

impl Waiting {
    fn set(&mut self, volume: Reference, things: HashSet<Awaited>) {
        for thing in self.by_volume.remove(&volume).unwrap_or_default() {
            if let Some(waiting) = self.by_thing.get_mut(&thing) {
                waiting.remove(&volume);
                if waiting.is_empty() {
                    self.by_thing.remove(&thing);
                }
            }
        }
        for thing in &things {
            self.by_thing.entry(thing.clone()).or_default().insert(volume.clone());
        }
        if !things.is_empty() {
            self.by_volume.insert(volume, things);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_something_else_is_not_told_any_more() {
        let mut waiting = Waiting::default();
        let (one, two) = (Reference::new("one").within("a"), Reference::new("two").within("a"));
        let claim = |name: &str| Awaited::Claim("b".into(), name.into());
        waiting.set(one.clone(), [claim("x"), Awaited::Server("u".into())].into());
        waiting.set(two.clone(), [claim("x")].into());
        assert_eq!(waiting.by_thing[&claim("x")], [one.clone(), two.clone()].into());
        waiting.set(one.clone(), [claim("y")].into());
        assert_eq!(waiting.by_thing[&claim("x")], [two.clone()].into());
        waiting.set(one, HashSet::new());
        waiting.set(two, HashSet::new());
        assert!(waiting.by_thing.is_empty() && waiting.by_volume.is_empty());
    }
}
