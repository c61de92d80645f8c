//! The versions that this process wrote, so that an older one from a late watch is not acted upon: every write that is
//! planned from it would be refused anyway.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

#[derive(Default)]
pub(crate) struct Versions(Mutex<HashMap<String, u64>>);

impl Versions {
    /// Remembers what a write made of an object.
    pub(crate) fn wrote(&self, metadata: &ObjectMeta) {
        let (Some(uid), Some(version)) = (&metadata.uid, version(metadata)) else { return };
        let mut versions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if metadata.deletion_timestamp.is_some() {
            // Its end is near, and nobody would tell us to forget it later.
            versions.remove(uid);
        } else {
            versions.insert(uid.clone(), version);
        }
    }

    /// True if a newer version of the object is on its way to us.
    pub(crate) fn is_stale(&self, metadata: &ObjectMeta) -> bool {
        let (Some(uid), Some(seen)) = (&metadata.uid, version(metadata)) else { return false };
        let mut versions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match versions.get(uid) {
            Some(wrote) if seen < *wrote => true,
            Some(_) => {
                versions.remove(uid);
                false
            }
            None => false,
        }
    }
}

/// Kubernetes promises that versions of one resource are numbers that grow.
fn version(metadata: &ObjectMeta) -> Option<u64> {
    metadata.resource_version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_older_than_our_own_write_is_stale() {
        let at = |version: &str| ObjectMeta {
            uid: Some("u".into()),
            resource_version: Some(version.into()),
            ..Default::default()
        };
        let versions = Versions::default();
        assert!(!versions.is_stale(&at("5")), "nothing was written");
        versions.wrote(&at("7"));
        assert!(versions.is_stale(&at("6")));
        assert!(versions.is_stale(&at("6")), "and stays so");
        assert!(!versions.is_stale(&at("7")));
        assert!(!versions.is_stale(&at("10")));
    }
}
