//! Which addresses and node ports are taken: by stored services, and by writes of services that are on their way.
//!
//! The stored services are the only record. What they have is kept up with the store's events, so that a write does not read all
//! of them; the lock is held while numbers are chosen, and never while anybody waits.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferrovirt_store::{EventKind, Key, Watcher};
use serde_json::Value;

use crate::object::{at, text};
use crate::server::Server;
use crate::storage::{Entry, ObjectMeta, Store, parse};

const STORAGE: &str = "services";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    Address(IpAddr),
    Port(u32),
}

#[derive(Default)]
pub struct ServiceNumbers {
    numbers: Mutex<Numbers>,
}

#[derive(Default)]
pub struct Numbers {
    watcher: Option<Watcher<ObjectMeta>>,
    by_service: HashMap<Key, HashSet<Number>>,
    /// More than one service only if they were stored before somebody looked after this.
    taken: HashMap<Number, Vec<Key>>,
    /// What writes on their way will take, each of one service.
    promised: HashMap<u64, (Key, HashSet<Number>)>,
    promises: u64,
}

/// Numbers that a write has until this is dropped: when it is stored, or cannot be.
pub struct Taken {
    server: Weak<Server>,
    promise: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(server) = self.server.upgrade() {
            server.service_numbers.lock().promised.remove(&self.promise);
        }
    }
}

impl ServiceNumbers {
    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers as they are now.
    pub fn look(&self, store: &Store) -> MutexGuard<'_, Numbers> {
        let mut numbers = self.lock();
        numbers.catch_up(store);
        numbers
    }
}

impl Numbers {
    /// Whether another service has a number, or is about to.
    pub fn is_taken(&self, number: Number, by_others_than: &Key) -> bool {
        let other = |key: &Key| key != by_others_than;
        self.taken.get(&number).is_some_and(|keys| keys.iter().any(other))
            || self.promised.values().any(|(key, numbers)| other(key) && numbers.contains(&number))
    }

    pub fn promise(&mut self, server: &Arc<Server>, service: Key, numbers: HashSet<Number>) -> Option<Taken> {
        if numbers.is_empty() {
            return None;
        }
        self.promises += 1;
        self.promised.insert(self.promises, (service, numbers));
        Some(Taken { server: Arc::downgrade(server), promise: self.promises })
    }

    fn catch_up(&mut self, store: &Store) {
        loop {
            let Some(watcher) = &mut self.watcher else {
                let (list, watcher) = store.watch_list(STORAGE, None);
                self.watcher = Some(watcher);
                self.by_service.clear();
                self.taken.clear();
                list.items.iter().for_each(|entry| self.set(entry, true));
                continue;
            };
            match watcher.try_next() {
                Ok(None) => return,
                Ok(Some(event)) => self.set(&event.entry, event.kind != EventKind::Deleted),
                Err(_) => self.watcher = None,
            }
        }
    }

    fn set(&mut self, entry: &Entry, there: bool) {
        for number in self.by_service.remove(&entry.key).unwrap_or_default() {
            if let Some(keys) = self.taken.get_mut(&number) {
                keys.retain(|key| *key != entry.key);
                if keys.is_empty() {
                    self.taken.remove(&number);
                }
            }
        }
        let Some(service) = Some(entry).filter(|_| there).and_then(|entry| parse(entry).ok()) else { return };
        let numbers = numbers_of(&service);
        for number in &numbers {
            self.taken.entry(*number).or_default().push(entry.key.clone());
        }
        if !numbers.is_empty() {
            self.by_service.insert(entry.key.clone(), numbers);
        }
    }
}

fn numbers_of(service: &Value) -> HashSet<Number> {
    let more = at(service, &["spec", "clusterIPs"]).and_then(Value::as_array).into_iter().flatten();
    let addresses = more.filter_map(Value::as_str).chain([text(service, &["spec", "clusterIP"])]);
    let addresses = addresses.filter_map(|text| text.parse().ok()).map(Number::Address);
    let ports = at(service, &["spec", "ports"]).and_then(Value::as_array).into_iter().flatten();
    let ports = ports.filter_map(|p| p["nodePort"].as_u64()).filter_map(|p| u32::try_from(p).ok()).map(Number::Port);
    addresses.chain(ports).collect()
}
