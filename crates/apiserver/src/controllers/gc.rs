//! Garbage collection by owner references.
//!
//! The graph holds only edges from owners to dependents. Everything else (do the owners exist, who blocks whom) is looked up in
//! the store when it matters, so there is no second copy of the cluster to go stale.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ferrovirt_store::Key;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::client::{Client, item_path};
use super::follow::{Follower, Seen};
use super::{FOREGROUND, ORPHAN};
use crate::object::{group_of, strings};
use crate::registry::Resource;
use crate::server::Server;
use crate::storage::{self, Entry, Owner};

const PARALLEL: usize = 32;
const ATTEMPTS: usize = 5;

/// An object by where it is stored.
type Reference = (Arc<str>, Key);

struct Collector {
    server: Arc<Server>,
    client: Client,
    /// Owner uid to dependents.
    dependents: HashMap<String, HashSet<Reference>>,
    /// Owner uids of a dependent, to see which edges a change removed.
    owners: HashMap<Reference, Vec<String>>,
    permits: Arc<Semaphore>,
}

pub async fn run(server: Arc<Server>) {
    let (sender, mut seen) = mpsc::channel::<(Arc<str>, Seen)>(1024);
    let mut feeders: HashMap<Arc<str>, CancellationToken> = HashMap::new();
    let mut generations = server.registry.generations();
    let mut collector = Collector {
        client: Client::new(&server, "serviceaccount:kube-system:generic-garbage-collector"),
        server: server.clone(),
        dependents: HashMap::new(),
        owners: HashMap::new(),
        permits: Arc::new(Semaphore::new(PARALLEL)),
    };
    loop {
        generations.mark_unchanged();
        refresh_feeders(&server, &sender, &mut feeders);
        loop {
            tokio::select! {
                () = server.stop.cancelled() => return,
                changed = generations.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    break;
                }
                Some((storage, seen)) = seen.recv() => collector.observe(storage, seen),
            }
        }
    }
}

/// One feeder per stored resource.
fn refresh_feeders(
    server: &Arc<Server>,
    sender: &mpsc::Sender<(Arc<str>, Seen)>,
    feeders: &mut HashMap<Arc<str>, CancellationToken>,
) {
    let snapshot = server.registry.snapshot();
    let wanted: HashSet<Arc<str>> = snapshot.iter().filter(|r| !r.is_virtual()).map(|r| r.storage.clone()).collect();
    feeders.retain(|storage, token| {
        let keep = wanted.contains(storage);
        if !keep {
            token.cancel();
        }
        keep
    });
    for storage in wanted {
        // Events and leases own nothing and are owned rarely; they are the bulk of all writes.
        if feeders.contains_key(&storage) || matches!(&*storage, "events" | "coordination.k8s.io/leases") {
            continue;
        }
        let token = server.stop.child_token();
        feeders.insert(storage.clone(), token.clone());
        let (server, sender) = (server.clone(), sender.clone());
        let tasks = server.tasks.clone();
        tasks.spawn(async move {
            let mut follower = Follower::new(&server, &storage);
            loop {
                let seen = tokio::select! {
                    () = token.cancelled() => return,
                    seen = follower.next() => seen,
                };
                let Some(seen) = seen else { return };
                if sender.send((storage.clone(), seen)).await.is_err() {
                    return;
                }
            }
        });
    }
}

impl Collector {
    fn observe(&mut self, storage: Arc<str>, seen: Seen) {
        match seen {
            Seen::Present(entry) => {
                let reference = (storage, entry.key.clone());
                self.set_owners(&reference, entry.meta.owners());
                if !entry.meta.owners().is_empty() && !entry.meta.deleting {
                    self.check(&reference, &entry);
                }
                if entry.meta.deleting {
                    self.propagate(&reference, &entry);
                    // It may hold its owners no longer.
                    self.propagate_owners(&entry);
                }
            }
            Seen::Removed(entry) => {
                let reference = (storage, entry.key.clone());
                self.set_owners(&reference, &[]);
                self.propagate_owners(&entry);
                let orphaned: Vec<Reference> =
                    self.dependents.get(&*entry.meta.uid).into_iter().flatten().cloned().collect();
                for reference in orphaned {
                    if let Some(dependent) = self.server.store.get(&reference.0, &reference.1)
                        && !dependent.meta.deleting
                    {
                        self.check(&reference, &dependent);
                    }
                }
            }
        }
    }

    /// Owners that wait for their dependents may be done after a change of one.
    fn propagate_owners(&self, dependent: &Entry) {
        for owner in dependent.meta.owners() {
            if let Some((reference, owner)) = self.find_owner(owner, &dependent.key.namespace)
                && owner.meta.deleting
            {
                self.propagate(&reference, &owner);
            }
        }
    }

    fn set_owners(&mut self, reference: &Reference, owners: &[Owner]) {
        let fresh: Vec<String> = owners.iter().map(|o| o.uid.clone()).collect();
        let old = if fresh.is_empty() {
            self.owners.remove(reference)
        } else {
            self.owners.insert(reference.clone(), fresh.clone())
        };
        for uid in old.into_iter().flatten().filter(|uid| !fresh.contains(uid)) {
            if let Some(dependents) = self.dependents.get_mut(&uid) {
                dependents.remove(reference);
                if dependents.is_empty() {
                    self.dependents.remove(&uid);
                }
            }
        }
        for uid in fresh {
            self.dependents.entry(uid).or_default().insert(reference.clone());
        }
    }

    /// The stored owner, if it is there with the same uid.
    fn find_owner(&self, owner: &Owner, namespace: &str) -> Option<(Reference, Arc<Entry>)> {
        let resource = self.resource_of(owner)?;
        let key = storage::key(&resource, Some(namespace), &owner.name);
        let entry = self.server.store.get(&resource.storage, &key).filter(|e| *e.meta.uid == *owner.uid)?;
        Some(((resource.storage.clone(), key), entry))
    }

    fn resource_of(&self, owner: &Owner) -> Option<Arc<Resource>> {
        self.server.registry.snapshot().find_kind(group_of(&owner.api_version), &owner.kind).cloned()
    }

    /// Deletes a dependent whose owners are all gone; drops references to those that are gone while others live.
    fn check(&self, reference: &Reference, entry: &Entry) {
        let mut absent = Vec::new();
        let mut alive = 0;
        let mut waiting = 0;
        for owner in entry.meta.owners() {
            // A kind that is not served (yet) says nothing about its objects.
            if self.resource_of(owner).is_none() {
                alive += 1;
                continue;
            }
            match self.find_owner(owner, &entry.key.namespace) {
                None => absent.push(owner.uid.clone()),
                Some((_, o)) if o.meta.deleting && has(&o, FOREGROUND) => waiting += 1,
                Some(_) => alive += 1,
            }
        }
        if absent.is_empty() && waiting == 0 {
            return;
        }
        if alive > 0 {
            if !absent.is_empty() {
                self.spawn_edit(reference, entry, Edit::DropOwners(absent));
            }
        } else if waiting == 0 || !self.has_dependents(entry) {
            self.spawn_delete(reference, entry, "Background");
        } else {
            // Owners that own each other would wait for each other; this one lets go.
            let circle = self.dependents_of(entry).any(|d| d.meta.deleting && has(&d, FOREGROUND));
            if circle && entry.meta.owners().iter().any(|o| o.block_owner_deletion == Some(true)) {
                // Its change brings it back here.
                self.spawn_edit(reference, entry, Edit::Unblock);
            } else {
                self.spawn_delete(reference, entry, "Foreground");
            }
        }
    }

    fn has_dependents(&self, entry: &Entry) -> bool {
        self.dependents.get(&*entry.meta.uid).is_some_and(|d| !d.is_empty())
    }

    fn dependents_of(&self, entry: &Entry) -> impl Iterator<Item = Arc<Entry>> {
        let references = self.dependents.get(&*entry.meta.uid).into_iter().flatten();
        references.filter_map(|(storage, key)| self.server.store.get(storage, key))
    }

    /// What an object that is being deleted asks of its dependents.
    fn propagate(&self, reference: &Reference, entry: &Entry) {
        let dependents: Vec<(Reference, Arc<Entry>)> = self
            .dependents
            .get(&*entry.meta.uid)
            .into_iter()
            .flatten()
            .filter_map(|r| Some((r.clone(), self.server.store.get(&r.0, &r.1)?)))
            .filter(|(_, e)| e.meta.owners().iter().any(|o| *o.uid == *entry.meta.uid))
            .collect();
        if has(entry, ORPHAN) {
            if dependents.is_empty() {
                self.spawn_edit(reference, entry, Edit::DropFinalizer(ORPHAN));
            }
            for (dependent, state) in &dependents {
                self.spawn_edit(dependent, state, Edit::DropOwners(vec![entry.meta.uid.to_string()]));
            }
            if !dependents.is_empty() {
                // Comes back with the last dependent's change; the object itself gives no event then.
                self.spawn_orphan_end(reference, entry, dependents);
            }
        } else if has(entry, FOREGROUND) {
            let blocking = dependents.iter().any(|(_, e)| {
                e.meta.owners().iter().any(|o| *o.uid == *entry.meta.uid && o.block_owner_deletion == Some(true))
            });
            if !blocking {
                self.spawn_edit(reference, entry, Edit::DropFinalizer(FOREGROUND));
            }
            for (reference, dependent) in dependents.iter().filter(|(_, e)| !e.meta.deleting) {
                self.check(reference, dependent);
            }
        }
    }

    fn spawn_delete(&self, reference: &Reference, entry: &Entry, policy: &'static str) {
        let Some(path) = self.path(reference) else {
            return;
        };
        let (client, permits, uid) = (self.client.clone(), self.permits.clone(), entry.meta.uid.clone());
        self.server.tasks.spawn(async move {
            let _permit = permits.acquire_owned().await;
            let options = json!({"preconditions": {"uid": &*uid}, "propagationPolicy": policy});
            attempt(&path, || client.delete(&path, &options)).await;
        });
    }

    fn spawn_edit(&self, reference: &Reference, entry: &Entry, edit: Edit) {
        let Some(path) = self.path(reference) else {
            return;
        };
        let (client, permits, uid) = (self.client.clone(), self.permits.clone(), entry.meta.uid.to_string());
        self.server.tasks.spawn(async move {
            let _permit = permits.acquire_owned().await;
            attempt(&path, || edit_metadata(&client, &path, &uid, &edit)).await;
        });
    }

    /// Removes the orphan finalizer once the references of the dependents are gone.
    fn spawn_orphan_end(&self, reference: &Reference, entry: &Entry, dependents: Vec<(Reference, Arc<Entry>)>) {
        let Some(path) = self.path(reference) else {
            return;
        };
        let (client, server, uid) = (self.client.clone(), self.server.clone(), entry.meta.uid.to_string());
        let tasks = server.tasks.clone();
        tasks.spawn(async move {
            let still = |server: &Server| {
                dependents.iter().any(|((storage, key), _)| {
                    server.store.get(storage, key).is_some_and(|e| e.meta.owners().iter().any(|o| o.uid == uid))
                })
            };
            while still(&server) {
                tokio::select! {
                    () = server.stop.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_millis(20)) => {}
                }
            }
            attempt(&path, || edit_metadata(&client, &path, &uid, &Edit::DropFinalizer(ORPHAN))).await;
        });
    }

    fn path(&self, reference: &Reference) -> Option<String> {
        let snapshot = self.server.registry.snapshot();
        let resource = snapshot.iter().find(|r| r.storage == reference.0 && !r.shares_storage())?;
        Some(item_path(resource, &reference.1))
    }
}

#[derive(Debug, Clone)]
enum Edit {
    DropOwners(Vec<String>),
    /// Its owners need not wait for it.
    Unblock,
    DropFinalizer(&'static str),
}

fn has(entry: &Entry, finalizer: &str) -> bool {
    entry.meta.finalizers().iter().any(|f| f == finalizer)
}

async fn edit_metadata(client: &Client, path: &str, uid: &str, edit: &Edit) -> Result<Value, crate::status::ApiError> {
    let object = client.request(http::Method::GET, path, "application/json", None).await?;
    let meta = &object["metadata"];
    if meta["uid"] != uid && !matches!(edit, Edit::DropOwners(_)) {
        return Ok(Value::Null);
    }
    let mut patch = json!({"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}});
    match edit {
        Edit::DropOwners(uids) => {
            let kept: Vec<&Value> = meta["ownerReferences"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|o| !uids.iter().any(|u| o["uid"] == u.as_str()))
                .collect();
            patch["metadata"]["ownerReferences"] = if kept.is_empty() { Value::Null } else { json!(kept) };
        }
        Edit::Unblock => {
            let mut owners = meta["ownerReferences"].clone();
            for owner in owners.as_array_mut().into_iter().flatten() {
                owner["blockOwnerDeletion"] = false.into();
            }
            patch["metadata"]["ownerReferences"] = owners;
        }
        Edit::DropFinalizer(name) => {
            let kept: Vec<String> = strings(meta.get("finalizers")).into_iter().filter(|f| f != name).collect();
            patch["metadata"]["finalizers"] = if kept.is_empty() { Value::Null } else { json!(kept) };
        }
    }
    client.merge_patch(path, &patch).await
}

/// Tries until it works, the object is gone, or it is somebody else's turn.
async fn attempt<F: Future<Output = Result<Value, crate::status::ApiError>>>(path: &str, action: impl Fn() -> F) {
    for round in 0..ATTEMPTS {
        match action().await {
            Ok(_) => return,
            Err(error) if error.code == 404 => return,
            // A uid that does not match: the object was replaced by another one.
            Err(error) if error.message().contains("UID in precondition") => return,
            Err(error) if round + 1 == ATTEMPTS => {
                tracing::warn!(path, error = error.message(), "garbage collection failed")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20 << round)).await,
        }
    }
}
