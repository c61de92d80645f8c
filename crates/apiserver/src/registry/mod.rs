//! Which resources are served: rows of the built-in table and established CRDs.
//!
//! Readers take a [`Snapshot`]; a CRD change replaces the snapshot as a whole.

mod autoscaler;
mod builtins;
mod columns;
mod custom;
pub mod go_form;
mod last_line;
pub mod printers;
mod resource;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

pub use builtins::{OPENAPI, builtin_definitions, definition_name, definitions_json, proto_table};
pub use columns::Columns;
pub use custom::custom_resource;
pub use resource::{Direction, NameRule, Resource, Scale, Special, Version};

/// Kinds that only a workload controller gives life to. They are stored, and whoever writes one is told that nothing acts
/// on it: this is a host of virtual machines.
const WORKLOADS: &[(&str, &[&str])] = &[
    ("apps", &["deployments", "statefulsets", "daemonsets", "replicasets"]),
    ("batch", &["jobs", "cronjobs"]),
    ("", &["replicationcontrollers"]),
    ("autoscaling", &["horizontalpodautoscalers"]),
    ("networking.k8s.io", &["ingresses"]),
];

/// All served resources at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// By group, then plural.
    resources: BTreeMap<String, BTreeMap<String, Arc<Resource>>>,
    /// Changes with every CRD; caches of derived documents use it as their key.
    pub generation: u64,
}

impl Snapshot {
    pub fn find(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources.get(group)?.get(plural)
    }

    pub fn find_kind(&self, group: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.resources.get(group)?.values().find(|r| r.kind == kind)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values().flat_map(BTreeMap::values)
    }

    /// Groups with their versions in order of preference. The core group is "".
    pub fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = self
            .resources
            .iter()
            .map(|(group, resources)| {
                let mut versions: Vec<&str> =
                    resources.values().flat_map(|r| r.versions.iter().map(|v| v.name.as_str())).collect();
                versions.sort_by(|a, b| compare_versions(a, b));
                versions.dedup();
                (group.as_str(), versions)
            })
            .filter(|(_, versions)| !versions.is_empty())
            .collect();
        // Built-in groups first, as upstream's priorities have it.
        groups.sort_by_key(|(group, _)| (!group.is_empty(), builtins::group_order(group)));
        groups
    }

    pub fn in_version<'a>(
        &'a self,
        group: &str,
        version: &'a str,
    ) -> impl Iterator<Item = (&'a Arc<Resource>, &'a Version)> {
        self.resources
            .get(group)
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter_map(move |r| r.version(version).map(|v| (r, v)))
    }
}

#[derive(Debug)]
pub struct Registry {
    snapshot: RwLock<Arc<Snapshot>>,
    generation: tokio::sync::watch::Sender<u64>,
}

impl Registry {
    /// Only the built-in resources.
    pub fn new() -> Self {
        let mut snapshot = Snapshot::default();
        for resource in builtins::resources() {
            snapshot
                .resources
                .entry(resource.group.clone())
                .or_default()
                .insert(resource.plural.clone(), Arc::new(resource));
        }
        Self { snapshot: RwLock::new(Arc::new(snapshot)), generation: tokio::sync::watch::Sender::new(0) }
    }

    /// Wakes whenever a resource was added, changed or removed.
    pub fn generations(&self) -> tokio::sync::watch::Receiver<u64> {
        self.generation.subscribe()
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds or replaces a custom resource.
    pub fn insert(&self, resource: Resource) {
        self.change(|resources| {
            resources.entry(resource.group.clone()).or_default().insert(resource.plural.clone(), Arc::new(resource));
        });
    }

    pub fn remove(&self, group: &str, plural: &str) {
        self.change(|resources| {
            if let Some(in_group) = resources.get_mut(group) {
                if in_group.get(plural).is_some_and(|r| r.custom) {
                    in_group.remove(plural);
                }
                if in_group.is_empty() {
                    resources.remove(group);
                }
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, BTreeMap<String, Arc<Resource>>>)) {
        let mut slot = self.snapshot.write().unwrap_or_else(PoisonError::into_inner);
        let mut resources = slot.resources.clone();
        change(&mut resources);
        let generation = slot.generation + 1;
        *slot = Arc::new(Snapshot { resources, generation });
        self.generation.send_replace(generation);
    }
}

/// True for resources whose controllers a Kubernetes cluster has and a VM host does not.
pub fn is_workload(group: &str, plural: &str) -> bool {
    WORKLOADS.iter().any(|(g, plurals)| *g == group && plurals.contains(&plural))
}

/// Kubernetes' version order: GA before beta before alpha, higher numbers first, other names last.
pub fn compare_versions(a: &str, b: &str) -> std::cmp::Ordering {
    fn key(version: &str) -> (u8, std::cmp::Reverse<u32>, std::cmp::Reverse<u32>, &str) {
        let parse = || {
            let rest = version.strip_prefix('v')?;
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let major: u32 = rest[..digits].parse().ok()?;
            match &rest[digits..] {
                "" => Some((0, major, 0)),
                tail => {
                    let (rank, number) = tail
                        .strip_prefix("beta")
                        .map(|n| (1, n))
                        .or_else(|| tail.strip_prefix("alpha").map(|n| (2, n)))?;
                    Some((rank, major, number.parse().ok()?))
                }
            }
        };
        match parse() {
            Some((rank, major, minor)) => (rank, std::cmp::Reverse(major), std::cmp::Reverse(minor), ""),
            None => (3, std::cmp::Reverse(0), std::cmp::Reverse(0), version),
        }
    }
    key(a).cmp(&key(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_by_stability() {
        let mut versions = ["foo10", "v1alpha1", "v2", "v1beta2", "v10", "v1", "v1beta1", "foo1"];
        versions.sort_by(|a, b| compare_versions(a, b));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha1", "foo1", "foo10"]);
    }

    #[test]
    fn every_builtin_row_is_sound() {
        let snapshot = Registry::new().snapshot();
        for resource in snapshot.iter() {
            assert!(!resource.versions.is_empty(), "{} has a version", resource.plural);
            assert!(
                resource.version(&resource.storage_version).is_some() || resource.shares_storage(),
                "{}",
                resource.plural
            );
            assert_eq!(resource.plural, resource.plural.to_lowercase());
        }
        assert_eq!(snapshot.groups()[0], ("", vec!["v1"]));
    }
}
