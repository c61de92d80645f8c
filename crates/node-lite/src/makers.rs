//! Whose pods run here, and what they may ask of the host. A pod is known by who made it, which the API server writes down and
//! nobody can change: names, labels and images are what anybody can copy.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use ferrovirt_api::names;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::ResourceExt;
use kube::runtime::watcher::Event;

/// How far a pod is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// Made by somebody else, in a namespace whose pods an administrator lets run. It gets nothing of the host.
    Tenant,
    /// Made by our controllers, partly from what tenants wrote.
    Controller,
    /// Made by the host itself.
    Host,
}

/// The creators that are trusted, by user name.
pub type Creators = BTreeMap<String, Trust>;

/// What every host trusts.
pub fn default_creators() -> Creators {
    [(names::CONTROLLER_USER.to_owned(), Trust::Controller), (names::UP_USER.to_owned(), Trust::Host)].into()
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this host runs virtual machines, and pods only where that is allowed: this pod was created by {by:?} in the namespace \
     {namespace:?}. An administrator can allow the pods of the namespace: kubectl label namespace {namespace} {label}=true",
    label = names::RUN_PODS_LABEL
)]
pub struct NotAllowed {
    pub by: String,
    pub namespace: String,
}

/// Who may have pods run, as far as it is known now.
#[derive(Clone, Default)]
pub(crate) struct Makers {
    creators: Arc<Creators>,
    namespaces: Arc<RwLock<Namespaces>>,
}

#[derive(Default)]
struct Namespaces {
    open: HashSet<String>,
    /// While a list is not complete: what it named so far.
    listed: Option<HashSet<String>>,
}

impl Makers {
    pub fn new(creators: &Creators) -> Self {
        Self { creators: Arc::new(creators.clone()), namespaces: Arc::default() }
    }

    /// What is known of the namespaces that are open to pods.
    pub fn namespace_event(&self, event: Event<Namespace>) {
        let mut known = self.namespaces.write().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Init => known.listed = Some(HashSet::new()),
            Event::InitApply(namespace) | Event::Apply(namespace) => {
                let name = namespace.name_any();
                let open = namespace.labels().get(names::RUN_PODS_LABEL).is_some_and(|value| value == "true");
                if !open || namespace.metadata.deletion_timestamp.is_some() {
                    known.open.remove(&name);
                    return;
                }
                if let Some(listed) = &mut known.listed {
                    listed.insert(name.clone());
                }
                known.open.insert(name);
            }
            Event::Delete(namespace) => drop(known.open.remove(&namespace.name_any())),
            Event::InitDone => {
                if let Some(listed) = known.listed.take() {
                    known.open = listed;
                }
            }
        }
    }

    /// How far the pod is trusted, if it may run at all.
    pub fn trust(&self, pod: &Pod) -> Result<Trust, NotAllowed> {
        let by = pod.annotations().get(names::CREATED_BY).map(String::as_str).unwrap_or_default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        if let Some(trust) = self.creators.get(by) {
            return Ok(*trust);
        }
        match self.namespaces.read().unwrap_or_else(PoisonError::into_inner).open.contains(namespace) {
            true => Ok(Trust::Tenant),
            false => Err(NotAllowed { by: by.to_owned(), namespace: namespace.to_owned() }),
        }
    }

    /// False for a pod that will not be started, and so takes nothing of the node.
    pub fn counts(&self, pod: &Pod) -> bool {
        let runs = pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
        runs || self.trust(pod).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(by: Option<&str>) -> Pod {
        let annotations = by.map(|by| json!({ names::CREATED_BY: by }));
        serde_json::from_value(json!({
            "metadata": {
                // All that was once believed.
                "name": "virt-launcher-vm-abcde", "namespace": "tenant", "annotations": annotations,
                "labels": { "kubevirt.io": "virt-launcher", names::CREATED_BY: names::CONTROLLER_USER },
                "ownerReferences": [{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm", "uid": "u" }],
            },
            "spec": { "containers": [] },
        }))
        .unwrap()
    }

    fn namespace(label: &str) -> Namespace {
        serde_json::from_value(json!({ "metadata": { "name": "tenant", "labels": { names::RUN_PODS_LABEL: label } } }))
            .unwrap()
    }

    #[test]
    fn a_pod_that_looks_like_a_launcher_is_a_users_unless_our_controller_made_it() {
        let makers = Makers::new(&default_creators());
        assert_eq!(makers.trust(&pod(Some(names::CONTROLLER_USER))), Ok(Trust::Controller));
        assert_eq!(makers.trust(&pod(Some(names::UP_USER))), Ok(Trust::Host));
        for by in [
            None,
            Some(""),
            Some("system:admin"),
            Some("alice"),
            Some("system:serviceaccount:tenant:kubevirt-controller"),
            Some("system:serviceaccount:kubevirt:kubevirt-controller "),
            Some("System:serviceaccount:kubevirt:kubevirt-controller"),
        ] {
            let refused = makers.trust(&pod(by)).unwrap_err().to_string();
            assert!(refused.contains("kubectl label namespace tenant ferrovirt.io/run-pods=true"), "{by:?}: {refused}");
            assert!(!makers.counts(&pod(by)), "{by:?} takes room on the node");
        }
    }

    #[test]
    fn pods_of_users_run_where_an_administrator_says_so() {
        let makers = Makers::new(&default_creators());
        let trust = || makers.trust(&pod(Some("alice"))).ok();
        for (label, expected) in [("false", None), ("True", None), ("true", Some(Trust::Tenant)), ("", None)] {
            makers.namespace_event(Event::Apply(namespace(label)));
            assert_eq!(trust(), expected, "{label}");
        }
        makers.namespace_event(Event::Apply(namespace("true")));
        // A new list without it, and one that names it.
        makers.namespace_event(Event::Init);
        assert_eq!(trust(), Some(Trust::Tenant), "forgotten before the list is complete");
        makers.namespace_event(Event::InitDone);
        assert_eq!(trust(), None);
        makers.namespace_event(Event::Init);
        makers.namespace_event(Event::InitApply(namespace("true")));
        makers.namespace_event(Event::InitDone);
        assert_eq!(trust(), Some(Trust::Tenant));
        makers.namespace_event(Event::Delete(namespace("true")));
        assert_eq!(trust(), None);
    }
}
