//! Which pods this process made. A pod is recorded in its instance's status, and that write may have to be tried again; until
//! then this is all that tells the pod from one that somebody else made first.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Uids of pods by those of their instances.
#[derive(Default)]
pub(crate) struct Made(Mutex<HashMap<String, String>>);

impl Made {
    pub(super) fn note(&self, instance: &str, pod: &str) {
        self.lock().insert(instance.to_owned(), pod.to_owned());
    }

    pub(super) fn of(&self, instance: &str) -> Option<String> {
        self.lock().get(instance).cloned()
    }

    /// It is recorded, or nobody will ask any more.
    pub(super) fn forget(&self, instance: &str) {
        self.lock().remove(instance);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
