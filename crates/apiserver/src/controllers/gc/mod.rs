//! Garbage collection by owner references.
//!
//! ```text
//!  the store's events ─> edges ─> queue ─> facts of the moment ─> decision ─> request
//!                                   └──────── did not work: later again ────────┘
//! ```
//!
//! What must go is always found from what is stored: at the start, after a gap in the events, and every few minutes everything
//! with an owner is looked at again. An event is only a reason to look at once.

mod decision;
mod graph;
mod queue;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use ferrovirt_store::{Event, EventKind, Gone, Key, Watcher};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::client::{Client, item_path};
use super::{FOREGROUND, ORPHAN};
use crate::object::{self, at, group_of};
use crate::registry::Resource;
use crate::server::Server;
use crate::status::ApiError;
use crate::storage::{self, Entry, ObjectMeta, Owner, parse};
use decision::{Action, DependentState, Facts, OwnerState, decide};
use graph::{Graph, Reference};
use queue::{Outcome, Queue};

const PARALLEL: usize = 32;
/// Events that come together are taken in together.
const SETTLE: Duration = Duration::from_millis(2);
/// Everything is looked at again after this time, whatever was seen of it.
const RESYNC: Duration = Duration::from_secs(300);
/// Looks for an owner in other namespaces cost the more, the more objects there are.
const SEARCH_PAUSE: Duration = Duration::from_millis(100);

type Seen = Result<Arc<Event<ObjectMeta>>, Gone>;

struct Collector {
    server: Arc<Server>,
    client: Client,
    watchers: HashMap<Arc<str>, Watcher<ObjectMeta>>,
    graph: Graph,
    queue: Queue<Reference>,
    results: mpsc::UnboundedSender<(Reference, Outcome)>,
    searched: Option<Instant>,
}

pub async fn run(server: Arc<Server>) {
    let (results, mut finished) = mpsc::unbounded_channel();
    let mut generations = server.registry.generations();
    let mut collector = Collector {
        client: Client::new(&server, "serviceaccount:kube-system:generic-garbage-collector"),
        server: server.clone(),
        watchers: HashMap::new(),
        graph: Graph::default(),
        queue: Queue::default(),
        results,
        searched: None,
    };
    collector.follow_registry();
    let mut resync = Instant::now() + RESYNC;
    loop {
        collector.catch_up();
        collector.work().await;
        let wake = collector.queue.next_due().map_or(resync, |due| due.min(resync));
        tokio::select! {
            () = server.stop.cancelled() => return,
            changed = generations.changed() => match changed {
                Ok(()) => collector.follow_registry(),
                Err(_) => return,
            },
            (storage, seen) = next_event(&mut collector.watchers) => {
                collector.observe(storage, seen);
                tokio::time::sleep(SETTLE).await;
            }
            Some((reference, outcome)) = finished.recv() => collector.queue.done(reference, outcome, Instant::now()),
            () = tokio::time::sleep_until(wake.into()) => {
                if Instant::now() >= resync {
                    collector.look_at_everything();
                    resync = Instant::now() + RESYNC;
                }
            }
        }
    }
}

/// The next event of any resource. Nothing is lost if nobody waits for it any more.
async fn next_event(watchers: &mut HashMap<Arc<str>, Watcher<ObjectMeta>>) -> (Arc<str>, Seen) {
    std::future::poll_fn(|context| {
        for (storage, watcher) in watchers.iter_mut() {
            if let Poll::Ready(seen) = watcher.poll_next(context) {
                return Poll::Ready((storage.clone(), seen));
            }
        }
        Poll::Pending
    })
    .await
}

impl Collector {
    /// One watcher for each stored resource.
    fn follow_registry(&mut self) {
        let snapshot = self.server.registry.snapshot();
        // Events own nothing and nobody owns them, and there are many.
        let stored = snapshot.iter().filter(|r| !r.is_virtual() && &*r.storage != "events");
        let wanted: HashSet<Arc<str>> = stored.map(|r| r.storage.clone()).collect();
        let unwanted: Vec<Arc<str>> = self.watchers.keys().filter(|s| !wanted.contains(*s)).cloned().collect();
        for storage in unwanted {
            self.watchers.remove(&storage);
            self.graph.keep(&storage, |_| false);
        }
        for storage in wanted {
            if !self.watchers.contains_key(&storage) {
                self.list(storage);
            }
        }
        // Owners of kinds that nobody knew may be known now.
        self.look_at_everything();
    }

    fn list(&mut self, storage: Arc<str>) {
        let (list, watcher) = self.server.store.watch_list(&storage, None);
        self.watchers.insert(storage.clone(), watcher);
        let there: HashSet<&Key> = list.items.iter().map(|entry| &entry.key).collect();
        self.graph.keep(&storage, |key| there.contains(key));
        for entry in &list.items {
            self.present(&storage, entry, None);
        }
    }

    /// Everything with an owner, and everything that waits for its dependents.
    fn look_at_everything(&mut self) {
        self.graph.all().cloned().for_each(|reference| self.queue.add(reference));
        for storage in self.watchers.keys() {
            let entries = self.server.store.list(storage, None).items;
            for entry in entries.iter().filter(|e| e.meta.deleting && (has(e, FOREGROUND) || has(e, ORPHAN))) {
                self.queue.add((storage.clone(), entry.key.clone()));
            }
        }
    }

    /// Takes in all that happened, so that what is decided is decided with all edges that there are.
    fn catch_up(&mut self) {
        let storages: Vec<Arc<str>> = self.watchers.keys().cloned().collect();
        for storage in storages {
            while let Some(watcher) = self.watchers.get_mut(&storage) {
                match watcher.try_next() {
                    Ok(None) => break,
                    Ok(Some(event)) => self.observe(storage.clone(), Ok(event)),
                    Err(gone) => self.observe(storage.clone(), Err(gone)),
                }
            }
        }
    }

    fn observe(&mut self, storage: Arc<str>, seen: Seen) {
        match seen {
            Ok(event) if event.kind == EventKind::Deleted => self.removed(storage, &event.entry),
            Ok(event) => self.present(&storage, &event.entry, event.previous.as_deref()),
            Err(_) => {
                // Nobody knows who went in between.
                self.list(storage);
                self.look_at_everything();
            }
        }
    }

    fn present(&mut self, storage: &Arc<str>, entry: &Entry, before: Option<&Entry>) {
        let reference = (storage.clone(), entry.key.clone());
        let owners = entry.meta.owners();
        let had = before.map_or(&[][..], |before| before.meta.owners());
        if before.is_none() || owners != had {
            self.graph.set(&reference, owners);
            self.report_strangers(storage, entry, had);
        }
        let going = |entry: &Entry| entry.meta.deleting.then(|| entry.meta.finalizers().to_vec());
        let starts_to_go = entry.meta.deleting && before.and_then(going) != going(entry);
        if starts_to_go {
            self.look_at_dependents(&entry.meta.uid);
        }
        if !owners.is_empty() || starts_to_go {
            self.queue.add(reference);
        }
        // Owners that wait may be done after a change of one that they wait for.
        self.look_at_waiting(owners.iter().chain(had), &entry.key.namespace);
    }

    fn removed(&mut self, storage: Arc<str>, entry: &Entry) {
        self.graph.set(&(storage, entry.key.clone()), &[]);
        self.look_at_waiting(entry.meta.owners().iter(), &entry.key.namespace);
        self.look_at_dependents(&entry.meta.uid);
    }

    fn look_at_dependents(&mut self, uid: &str) {
        self.graph.dependents(uid).cloned().for_each(|reference| self.queue.add(reference));
    }

    fn look_at_waiting<'a>(&mut self, owners: impl Iterator<Item = &'a Owner>, namespace: &str) {
        for owner in owners {
            if let Some((reference, entry)) = self.find_owner(owner, namespace)
                && entry.meta.deleting
            {
                self.queue.add(reference);
            }
        }
    }

    fn resource_of(&self, owner: &Owner) -> Option<Arc<Resource>> {
        self.server.registry.snapshot().find_kind(group_of(&owner.api_version), &owner.kind).cloned()
    }

    /// The stored owner, if it is there with the same uid.
    fn find_owner(&self, owner: &Owner, namespace: &str) -> Option<(Reference, Arc<Entry>)> {
        let resource = self.resource_of(owner)?;
        let key = storage::key(&resource, Some(namespace), &owner.name);
        let entry = self.server.store.get(&resource.storage, &key).filter(|e| *e.meta.uid == *owner.uid)?;
        Some(((resource.storage.clone(), key), entry))
    }

    fn state_of(&self, owner: &Owner, namespace: &str) -> OwnerState {
        let Some(resource) = self.resource_of(owner) else { return OwnerState::Unknown };
        if resource.namespaced && namespace.is_empty() {
            return OwnerState::Unknown;
        }
        match self.find_owner(owner, namespace) {
            None => OwnerState::Absent,
            Some((_, owner)) if owner.meta.deleting && has(&owner, ORPHAN) => OwnerState::Orphaning,
            Some((_, owner)) if owner.meta.deleting && has(&owner, FOREGROUND) => OwnerState::Waiting,
            Some(_) => OwnerState::Solid,
        }
    }

    fn facts(&self, entry: &Entry) -> Facts {
        let owners = entry.meta.owners();
        // Whoever knows a uid can write it down anywhere. An owner of a namespace has its dependents there, and waits for no others.
        let home = &entry.key.namespace;
        let dependents = self.graph.dependents(&entry.meta.uid);
        let dependents = dependents.filter(|(_, key)| home.is_empty() || key.namespace == *home);
        let dependents = dependents.filter_map(|(storage, key)| self.server.store.get(storage, key));
        let state = |dependent: Arc<Entry>| {
            let mine = dependent.meta.owners().iter().find(|o| *o.uid == *entry.meta.uid)?;
            Some(DependentState {
                blocking: mine.block_owner_deletion == Some(true),
                foreground: dependent.meta.deleting && has(&dependent, FOREGROUND),
            })
        };
        Facts {
            deleting: entry.meta.deleting,
            orphan: has(entry, ORPHAN),
            foreground: has(entry, FOREGROUND),
            owners: owners.iter().map(|o| (o.uid.clone(), self.state_of(o, &entry.key.namespace))).collect(),
            blocks: owners.iter().any(|o| o.block_owner_deletion == Some(true)),
            dependents: dependents.filter_map(state).collect(),
        }
    }

    /// Begins what there is to do, as far as there are hands for it.
    async fn work(&mut self) {
        let mut looked_at = 0_usize;
        while self.queue.in_work() < PARALLEL {
            let Some(reference) = self.queue.next(Instant::now()) else { return };
            let entry = self.server.store.get(&reference.0, &reference.1);
            let action = entry.as_ref().map_or(Action::Nothing, |entry| decide(&self.facts(entry)));
            match entry.filter(|_| action != Action::Nothing) {
                None => self.queue.done(reference, Outcome::Done, Instant::now()),
                Some(entry) => self.begin(reference, &entry, action),
            }
            looked_at += 1;
            if looked_at.is_multiple_of(256) {
                tokio::task::yield_now().await;
                self.catch_up();
            }
        }
    }

    fn begin(&mut self, reference: Reference, entry: &Entry, action: Action) {
        let Some(path) = self.path(&reference) else {
            // Not served any more; if it is again, everything is looked at.
            return self.queue.done(reference, Outcome::Done, Instant::now());
        };
        let request = match Request::new(entry, &action) {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(path, error = error.message(), "garbage collection cannot read an object");
                return self.queue.done(reference, Outcome::Failed, Instant::now());
            }
        };
        let (client, results) = (self.client.clone(), self.results.clone());
        self.server.tasks.spawn(async move {
            let answer = match &request {
                Request::Delete(options) => client.delete(&path, options).await,
                Request::Patch(patch) => client.merge_patch(&path, patch).await,
            };
            let outcome = match answer {
                Ok(_) => Outcome::Done,
                Err(error) if error.code == 404 => Outcome::Done,
                Err(error) if error.code == 409 => Outcome::Changed,
                Err(error) => {
                    tracing::warn!(path, ?action, error = error.message(), "garbage collection failed, it tries again");
                    Outcome::Failed
                }
            };
            // Nobody there to hear it: the server stops.
            let _ = results.send((reference, outcome));
        });
    }

    fn path(&self, reference: &Reference) -> Option<String> {
        let snapshot = self.server.registry.snapshot();
        let resource = snapshot.iter().find(|r| r.storage == reference.0 && !r.shares_storage())?;
        Some(item_path(resource, &reference.1))
    }

    /// Says on a dependent that it names an owner of another namespace: it will go, or cannot, for that reason.
    fn report_strangers(&mut self, storage: &Arc<str>, entry: &Entry, had: &[Owner]) {
        let namespace = entry.key.namespace.clone();
        for owner in entry.meta.owners().iter().filter(|o| had.iter().all(|h| h.uid != o.uid)) {
            if self.searched.is_some_and(|at| at.elapsed() < SEARCH_PAUSE)
                || self.find_owner(owner, &namespace).is_some()
            {
                continue;
            }
            let Some(resource) = self.resource_of(owner).filter(|r| r.namespaced) else { continue };
            self.searched = Some(Instant::now());
            let elsewhere = self.server.store.list(&resource.storage, None).items;
            if !elsewhere.iter().any(|e| *e.meta.uid == *owner.uid && e.key.namespace != namespace) {
                continue;
            }
            let identity = format!(
                "[{}/{}, namespace: {namespace}, name: {}, uid: {}]",
                owner.api_version, owner.kind, owner.name, owner.uid
            );
            let message = format!("ownerRef {identity} does not exist in namespace {:?}", &*namespace);
            self.warn(storage, entry, message);
        }
    }

    fn warn(&self, storage: &Arc<str>, entry: &Entry, message: String) {
        let snapshot = self.server.registry.snapshot();
        let Some(about) = snapshot.iter().find(|r| r.storage == *storage && !r.shares_storage()) else { return };
        let version = about.versions.first().map_or("v1", |v| v.name.as_str());
        let home = if entry.key.namespace.is_empty() { "default" } else { &entry.key.namespace };
        let (name, now) = (&*entry.key.name, object::now());
        let component = "garbage-collector-controller";
        let mut event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": format!("{name}."), "namespace": home},
            "involvedObject": {
                "apiVersion": about.api_version(version), "kind": about.kind, "name": name, "uid": &*entry.meta.uid,
            },
            "reason": "OwnerRefInvalidNamespace", "message": message, "type": "Warning", "count": 1,
            "firstTimestamp": now, "lastTimestamp": now, "source": {"component": component},
            "reportingComponent": component, "reportingInstance": "",
        });
        if !entry.key.namespace.is_empty() {
            event["involvedObject"]["namespace"] = home.into();
        }
        let (client, path) = (self.client.clone(), format!("/api/v1/namespaces/{home}/events"));
        self.server.tasks.spawn(async move {
            let made = client.request(http::Method::POST, &path, "application/json", Some(&event)).await;
            if let Err(error) = made {
                tracing::debug!(path, error = error.message(), "cannot report an owner of another namespace");
            }
        });
    }
}

fn has(entry: &Entry, finalizer: &str) -> bool {
    entry.meta.finalizers().iter().any(|f| f == finalizer)
}

/// What is asked of the API, of the very state that the decision is about.
enum Request {
    Delete(Value),
    Patch(Value),
}

impl Request {
    fn new(entry: &Entry, action: &Action) -> Result<Self, ApiError> {
        let version = entry.revision.to_string();
        let same = json!({"uid": &*entry.meta.uid, "resourceVersion": version});
        if let Action::Delete { policy } = action {
            return Ok(Self::Delete(json!({"preconditions": same, "propagationPolicy": policy})));
        }
        let object = parse(entry)?;
        let list = |key: &str| at(&object, &["metadata", key]).and_then(Value::as_array).cloned().unwrap_or_default();
        let (key, kept) = match action {
            Action::DropOwners(uids) => {
                let mut owners = list("ownerReferences");
                owners.retain(|owner| !uids.iter().any(|uid| owner["uid"] == uid.as_str()));
                ("ownerReferences", owners)
            }
            Action::Unblock => {
                let mut owners = list("ownerReferences");
                owners.iter_mut().for_each(|owner| owner["blockOwnerDeletion"] = false.into());
                ("ownerReferences", owners)
            }
            Action::DropFinalizer(name) => {
                let mut finalizers = list("finalizers");
                finalizers.retain(|finalizer| finalizer != name);
                ("finalizers", finalizers)
            }
            Action::Nothing | Action::Delete { .. } => return Ok(Self::Patch(json!({}))),
        };
        let mut patch = json!({"metadata": same});
        patch["metadata"][key] = if kept.is_empty() { Value::Null } else { json!(kept) };
        Ok(Self::Patch(patch))
    }
}
