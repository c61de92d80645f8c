//! The part of each object that is needed, kept up to date by a watch.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::runtime::watcher::Event;

use super::Key;

pub(crate) struct Mirror<T> {
    objects: BTreeMap<Key, T>,
    /// What a list has brought so far; it replaces everything when it is complete.
    listing: Option<BTreeMap<Key, T>>,
    complete: bool,
}

impl<T> Default for Mirror<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), listing: None, complete: false }
    }
}

impl<T> Mirror<T> {
    /// Takes an event in. True if what is known has changed.
    pub fn apply<K: ResourceExt>(&mut self, event: Event<K>, keep: impl Fn(K) -> T) -> bool {
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            Event::Init => {
                self.listing = Some(BTreeMap::new());
                return false;
            }
            Event::InitApply(object) => {
                let key = key(&object);
                self.listing.get_or_insert_default().insert(key, keep(object));
                return false;
            }
            Event::InitDone => {
                self.objects = self.listing.take().unwrap_or_default();
                self.complete = true;
            }
            Event::Apply(object) => {
                let key = key(&object);
                self.objects.insert(key, keep(object));
            }
            Event::Delete(object) => {
                self.objects.remove(&key(&object));
            }
        }
        true
    }

    /// Everything, once the first list is complete.
    pub fn objects(&self) -> Option<&BTreeMap<Key, T>> {
        self.complete.then_some(&self.objects)
    }
}
