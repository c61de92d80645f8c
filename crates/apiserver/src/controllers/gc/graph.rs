//! Who depends on whom: edges from owners to dependents, and nothing else. Everything else is looked up in the store when it
//! matters, so there is no second copy of the cluster to go stale.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ferrovirt_store::Key;

use crate::storage::Owner;

/// An object by where it is stored.
pub type Reference = (Arc<str>, Key);

#[derive(Default)]
pub struct Graph {
    /// Owner uid to dependents.
    dependents: HashMap<String, HashSet<Reference>>,
    /// Owner uids of a dependent, to see which edges a change removed.
    owners: HashMap<Reference, Vec<String>>,
}

impl Graph {
    pub fn set(&mut self, reference: &Reference, owners: &[Owner]) {
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

    pub fn dependents(&self, uid: &str) -> impl Iterator<Item = &Reference> {
        self.dependents.get(uid).into_iter().flatten()
    }

    /// Everything that has an owner.
    pub fn all(&self) -> impl Iterator<Item = &Reference> {
        self.owners.keys()
    }

    /// Forgets the objects of a resource that are not there.
    pub fn keep(&mut self, storage: &str, there: impl Fn(&Key) -> bool) {
        let gone: Vec<Reference> =
            self.owners.keys().filter(|(of, key)| **of == *storage && !there(key)).cloned().collect();
        for reference in gone {
            self.set(&reference, &[]);
        }
    }
}
