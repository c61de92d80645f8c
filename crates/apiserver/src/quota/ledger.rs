//! What is used of every quota, and what was promised to writes that are on their way.
//!
//! ```text
//!  write ─> reserve: catch up with the store ─> used + promised + asked <= hard ─> Room ─> commit ─> Room is dropped
//!                                                        └─ only the promises are in the way: wait until one is settled
//! ```
//!
//! The books of all namespaces have one lock, which is held while something is added up and never while anybody waits. Nothing
//! is counted again for a write: what happened since the last look is added. So writes share the log's syncs, with quotas or
//! without, and yet no two of them have the last of a quota.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferrovirt_schema::Quantity;
use ferrovirt_store::{Event, EventKind, Watcher};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::scope::Scopes;
use super::{Amounts, STORAGE, amounts, concerns, differs_by_content, is_terminating, known, unspecified, usage};
use crate::object::at;
use crate::registry::{Resource, Snapshot};
use crate::server::Server;
use crate::storage::{Entry, ObjectMeta, Store, parse};

#[derive(Default)]
pub struct Ledger {
    books: Mutex<Books>,
    /// A promise was kept or broken.
    settled: Notify,
    /// Something was written that may have to be reported.
    stirred: Notify,
}

#[derive(Default)]
struct Books {
    /// The generation of the registry that the accounts were made with.
    generation: u64,
    quotas: Option<Watcher<ObjectMeta>>,
    followed: HashMap<Arc<str>, Followed>,
    /// The quotas of each namespace that has any.
    accounts: HashMap<Arc<str>, BTreeMap<Arc<str>, Quota>>,
    /// Namespaces whose quotas may report old numbers.
    unreported: HashSet<Arc<str>>,
    promises: u64,
}

struct Followed {
    resource: Arc<Resource>,
    watcher: Watcher<ObjectMeta>,
}

struct Quota {
    uid: Arc<str>,
    hard: Amounts,
    scopes: Scopes,
    used: BTreeMap<String, Sum>,
    /// The resources that were counted, each as of a revision. Later events are added.
    counted: HashMap<Arc<str>, u64>,
    /// Has to be counted before anybody relies on it.
    stale: bool,
    promised: HashMap<u64, Amounts>,
}

/// A sum that is exact whatever is added and taken away, where a [`Quantity`] is cut at its maximum.
#[derive(Debug, Clone, Copy)]
struct Sum {
    nanos: i128,
    /// Written like this.
    like: Quantity,
}

impl Sum {
    const ZERO: Self = Self { nanos: 0, like: Quantity::ZERO };

    fn add(&mut self, amount: Quantity) {
        if self.nanos == 0 {
            self.like = amount;
        }
        self.nanos += amount.nanos();
    }

    fn subtract(&mut self, amount: Quantity) {
        self.nanos -= amount.nanos();
    }

    fn amount(self) -> Quantity {
        self.like.with_nanos(self.nanos)
    }
}

/// What a write was promised of the quotas, until this is dropped: when the write is stored, or failed.
pub struct Room {
    server: Weak<Server>,
    namespace: Arc<str>,
    promise: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(server) = self.server.upgrade() else { return };
        {
            let mut books = server.quotas.lock();
            let quotas = books.accounts.get_mut(&self.namespace).into_iter().flat_map(BTreeMap::values_mut);
            quotas.for_each(|quota| drop(quota.promised.remove(&self.promise)));
        }
        server.quotas.settled.notify_waiters();
    }
}

/// What came of asking for room.
enum Answer {
    /// No quota is concerned.
    Free,
    Promised(u64),
    /// Others may get what is left, or may not.
    Wait,
}

/// A write, as quotas see it.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub resource: &'a Resource,
    pub object: &'a Value,
    pub old: Option<&'a Value>,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called after a committed change.
    pub fn stir(&self, store: &Store, entry: &Entry) {
        if !entry.key.namespace.is_empty() && store.count(STORAGE) > 0 {
            self.stirred.notify_one();
        }
    }

    pub async fn stirred(&self) {
        self.stirred.notified().await;
    }

    /// Room for what a write adds, or why there is none.
    pub async fn reserve(
        &self,
        server: &Arc<Server>,
        namespace: &str,
        asked: Asked<'_>,
    ) -> Result<Option<Room>, String> {
        if !counts(asked) || server.store.list(STORAGE, Some(namespace)).items.is_empty() {
            return Ok(None);
        }
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            // From here on, before the look.
            settled.as_mut().enable();
            let answer = self.lock().ask(server, namespace, asked)?;
            match answer {
                Answer::Free => return Ok(None),
                Answer::Promised(promise) => {
                    return Ok(Some(Room { server: Arc::downgrade(server), namespace: namespace.into(), promise }));
                }
                Answer::Wait => settled.await,
            }
        }
    }

    /// Takes in what happened, so that little is to be read when somebody asks.
    pub fn catch_up(&self, server: &Server) {
        self.lock().catch_up(server);
    }

    /// Namespaces whose quotas changed, or what is used of them did, since the last call.
    pub fn unreported(&self, server: &Server) -> Vec<Arc<str>> {
        let mut books = self.lock();
        books.catch_up(server);
        std::mem::take(&mut books.unreported).into_iter().collect()
    }

    /// What a report did not say.
    pub fn report_again(&self, namespace: Arc<str>) {
        self.lock().unreported.insert(namespace);
        self.stirred.notify_one();
    }

    /// What is used of each quota of a namespace, by its name.
    pub fn used(&self, server: &Server, namespace: &str) -> Vec<(Arc<str>, Value)> {
        let mut books = self.lock();
        books.catch_up(server);
        books.recount(server, namespace);
        let quotas = books.accounts.get(namespace).into_iter().flatten();
        quotas.map(|(name, quota)| (name.clone(), quota.report())).collect()
    }
}

/// Whether a write can add to a quota at all. Of a pod that is there, only the end that it gets may move it from one to another.
fn counts(asked: Asked<'_>) -> bool {
    let Some(old) = asked.old else { return true };
    match asked.resource.plural.as_str() {
        "pods" if asked.resource.group.is_empty() => is_terminating(old) != is_terminating(asked.object),
        _ => differs_by_content(asked.resource),
    }
}

impl Books {
    fn ask(&mut self, server: &Arc<Server>, namespace: &str, asked: Asked<'_>) -> Result<Answer, String> {
        self.catch_up(server);
        self.recount(server, namespace);
        let Some(quotas) = self.accounts.get_mut(namespace) else { return Ok(Answer::Free) };
        let now = usage(asked.resource, asked.object);
        let negative: Vec<&str> =
            now.iter().filter(|(_, a)| **a < Quantity::ZERO).map(|(name, _)| name.as_str()).collect();
        let before = asked.old.map(|old| usage(asked.resource, old));
        let mut parts: Vec<(&mut Quota, Amounts)> = Vec::new();
        let mut wait = false;
        for (name, quota) in quotas.iter_mut().filter(|(_, quota)| quota.concerns(asked)) {
            if !negative.is_empty() {
                return Err(format!("quota usage is negative for resource(s): {}", negative.join(",")));
            }
            if asked.resource.group.is_empty() && asked.resource.plural == "pods" {
                let missing = unspecified(&quota.hard, asked.object);
                if !missing.is_empty() {
                    return Err(format!("failed quota: {name}: must specify {}", missing.join("; ")));
                }
            }
            // What it used of this quota already is not added again.
            let had = before.as_ref().filter(|_| asked.old.is_some_and(|old| quota.scopes.hold(asked.resource, old)));
            let mut delta = now.clone();
            delta.retain(|resource, amount| {
                if let Some(had) = had.and_then(|had| had.get(resource)) {
                    *amount = amount.minus(*had);
                }
                quota.hard.contains_key(resource) && *amount > Quantity::ZERO
            });
            if delta.is_empty() {
                continue;
            }
            match quota.room(&delta) {
                Fit::Fits => {}
                Fit::Promised => wait = true,
                Fit::Exceeds(over) => return Err(quota.refusal(name, &over, &delta)),
            }
            parts.push((quota, delta));
        }
        if parts.is_empty() {
            return Ok(Answer::Free);
        }
        if wait {
            return Ok(Answer::Wait);
        }
        self.promises += 1;
        for (quota, delta) in parts {
            quota.promised.insert(self.promises, delta);
        }
        Ok(Answer::Promised(self.promises))
    }

    fn catch_up(&mut self, server: &Server) {
        let snapshot = server.registry.snapshot();
        if snapshot.generation != self.generation {
            // Names that meant nothing may mean something now.
            self.generation = snapshot.generation;
            self.all_stale(|_| true);
        }
        self.follow_quotas(&server.store);
        let mut lost = Vec::new();
        for (storage, Followed { resource, watcher }) in &mut self.followed {
            loop {
                match watcher.try_next() {
                    Ok(Some(event)) => {
                        let Some(quotas) = self.accounts.get_mut(&event.entry.key.namespace) else { continue };
                        let mut seen = Seen::default();
                        for quota in quotas.values_mut() {
                            if quota.add(storage, resource, &event, &mut seen) {
                                self.unreported.insert(event.entry.key.namespace.clone());
                            }
                        }
                    }
                    Ok(None) => break,
                    Err(_) => {
                        lost.push(storage.clone());
                        break;
                    }
                }
            }
        }
        for storage in lost {
            // Whoever counts again follows it again.
            self.followed.remove(&storage);
            self.all_stale(|quota| quota.counted.contains_key(&storage));
        }
    }

    fn all_stale(&mut self, which: impl Fn(&Quota) -> bool) {
        for (namespace, quotas) in &mut self.accounts {
            for quota in quotas.values_mut().filter(|quota| which(quota)) {
                quota.stale = true;
                self.unreported.insert(namespace.clone());
            }
        }
    }

    fn follow_quotas(&mut self, store: &Store) {
        loop {
            let Some(watcher) = &mut self.quotas else {
                let (list, watcher) = store.watch_list(STORAGE, None);
                self.quotas = Some(watcher);
                for (namespace, quotas) in &mut self.accounts {
                    let there = |name: &Arc<str>| {
                        list.items.iter().any(|e| e.key.namespace == *namespace && e.key.name == *name)
                    };
                    quotas.retain(|name, _| there(name));
                }
                self.accounts.retain(|_, quotas| !quotas.is_empty());
                list.items.iter().for_each(|entry| self.open(entry));
                continue;
            };
            match watcher.try_next() {
                Ok(None) => return,
                Ok(Some(event)) if event.kind == EventKind::Deleted => self.close(&event.entry),
                Ok(Some(event)) => self.open(&event.entry),
                Err(_) => self.quotas = None,
            }
        }
    }

    /// A quota came or changed.
    fn open(&mut self, entry: &Entry) {
        let Ok(object) = parse(entry) else { return };
        let (hard, scopes) = (amounts(at(&object, &["spec", "hard"])), Scopes::of(&object));
        self.unreported.insert(entry.key.namespace.clone());
        let quotas = self.accounts.entry(entry.key.namespace.clone()).or_default();
        match quotas.get_mut(&entry.key.name).filter(|quota| quota.uid == entry.meta.uid) {
            Some(quota) => {
                quota.stale |= quota.scopes != scopes || !quota.hard.keys().eq(hard.keys());
                (quota.hard, quota.scopes) = (hard, scopes);
            }
            None => {
                let quota = Quota {
                    uid: entry.meta.uid.clone(),
                    hard,
                    scopes,
                    used: BTreeMap::new(),
                    counted: HashMap::new(),
                    stale: true,
                    promised: HashMap::new(),
                };
                quotas.insert(entry.key.name.clone(), quota);
            }
        }
    }

    fn close(&mut self, entry: &Entry) {
        if let Some(quotas) = self.accounts.get_mut(&entry.key.namespace) {
            quotas.remove(&entry.key.name);
            if quotas.is_empty() {
                self.accounts.remove(&entry.key.namespace);
            }
        }
    }

    /// Counts what is stored, for the quotas of a namespace that rely on nothing yet.
    fn recount(&mut self, server: &Server, namespace: &str) {
        let Some(quotas) = self.accounts.get_mut(namespace) else { return };
        let mut stale = quotas.values_mut().filter(|quota| quota.stale).peekable();
        if stale.peek().is_none() {
            return;
        }
        let snapshot = server.registry.snapshot();
        for quota in stale {
            quota.count(&server.store, &snapshot, namespace, &mut self.followed);
        }
    }
}

/// The two states of an event, read when somebody has to know.
#[derive(Default)]
struct Seen {
    before: Option<Option<(Value, Amounts)>>,
    after: Option<Option<(Value, Amounts)>>,
}

fn read(resource: &Resource, entry: Option<&Entry>, content: bool) -> Option<(Value, Amounts)> {
    let object = if content { parse(entry?).ok()? } else { Value::Null };
    entry.map(|_| {
        let used = usage(resource, &object);
        (object, used)
    })
}

enum Fit {
    Fits,
    /// If nobody else gets what was promised.
    Promised,
    /// Names of what there is not enough of.
    Exceeds(Vec<String>),
}

impl Quota {
    fn concerns(&self, asked: Asked<'_>) -> bool {
        self.hard.keys().any(|name| concerns(asked.resource, name)) && self.scopes.hold(asked.resource, asked.object)
    }

    fn room(&self, delta: &Amounts) -> Fit {
        let used = |name: &str| self.used.get(name).map_or(0, |sum| sum.nanos);
        let promised = |name: &str| self.promised.values().filter_map(|p| p.get(name)).map(|a| a.nanos()).sum::<i128>();
        let limit = |name: &str| self.hard.get(name).map_or(i128::MAX, |hard| hard.nanos());
        let over = delta.iter().filter(|(name, more)| used(name) + more.nanos() > limit(name));
        let over: Vec<String> = over.map(|(name, _)| name.clone()).collect();
        if !over.is_empty() {
            return Fit::Exceeds(over);
        }
        match delta.iter().any(|(name, more)| used(name) + promised(name) + more.nanos() > limit(name)) {
            true => Fit::Promised,
            false => Fit::Fits,
        }
    }

    /// Why there is no room, in upstream's words.
    fn refusal(&self, name: &str, over: &[String], delta: &Amounts) -> String {
        let show = |amount: &dyn Fn(&str) -> Option<Quantity>| {
            let each = over.iter().map(|r| format!("{r}={}", amount(r).unwrap_or(Quantity::ZERO)));
            each.collect::<Vec<_>>().join(",")
        };
        format!(
            "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
            show(&|r| delta.get(r).copied()),
            show(&|r| self.used.get(r).map(|sum| sum.amount())),
            show(&|r| self.hard.get(r).copied())
        )
    }

    /// Adds an event. False if it is about nothing that is counted here.
    fn add(&mut self, storage: &Arc<str>, resource: &Resource, event: &Event<ObjectMeta>, seen: &mut Seen) -> bool {
        if self.stale || self.counted.get(storage).is_none_or(|as_of| event.revision <= *as_of) {
            return false;
        }
        let content = differs_by_content(resource);
        if !content && event.kind == EventKind::Modified {
            return false;
        }
        let before = seen.before.get_or_insert_with(|| read(resource, event.previous.as_deref(), content));
        let there = Some(&*event.entry).filter(|_| event.kind != EventKind::Deleted);
        let after = seen.after.get_or_insert_with(|| read(resource, there, content));
        let inside = |state: &Option<(Value, Amounts)>| {
            state.as_ref().filter(|(object, _)| self.scopes.hold(resource, object)).map(|(_, used)| used.clone())
        };
        let (before, after) = (inside(before).unwrap_or_default(), inside(after).unwrap_or_default());
        for (name, amount) in &before {
            self.used.entry(name.clone()).and_modify(|sum| sum.subtract(*amount));
        }
        for (name, amount) in &after {
            self.used.entry(name.clone()).and_modify(|sum| sum.add(*amount));
        }
        before != after
    }

    fn count(
        &mut self,
        store: &Store,
        snapshot: &Snapshot,
        namespace: &str,
        followed: &mut HashMap<Arc<str>, Followed>,
    ) {
        self.stale = false;
        self.counted.clear();
        self.used = self.hard.keys().map(|name| (name.clone(), Sum::ZERO)).collect();
        let stored = snapshot.iter().filter(|r| r.namespaced && !r.is_virtual() && !r.shares_storage());
        for resource in stored.filter(|r| self.hard.keys().any(|name| concerns(r, name))) {
            // First the events, then the list: what is in both is known by its revision.
            if !followed.contains_key(&resource.storage) {
                let Ok(watcher) = store.watch(&resource.storage, None) else {
                    self.stale = true;
                    continue;
                };
                followed.insert(resource.storage.clone(), Followed { resource: resource.clone(), watcher });
            }
            let list = store.list(&resource.storage, Some(namespace));
            self.counted.insert(resource.storage.clone(), list.revision);
            let content = differs_by_content(resource);
            for entry in &list.items {
                let Some((object, used)) = read(resource, Some(entry), content) else { continue };
                if !self.scopes.hold(resource, &object) {
                    continue;
                }
                for (name, amount) in used {
                    self.used.entry(name).and_modify(|sum| sum.add(amount));
                }
            }
        }
        // Names that nothing ever uses are not reported.
        self.used.retain(|name, _| known(snapshot, name));
    }

    fn report(&self) -> Value {
        self.used.iter().map(|(name, sum)| (name.clone(), json!(sum.amount().to_string()))).collect()
    }
}
