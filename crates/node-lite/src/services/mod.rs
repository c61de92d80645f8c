//! Services of the embedded cluster: which pods are behind each (endpoint slices), how packets get there (nftables), and
//! the view of both that DNS answers from. On Kubernetes, its own controllers and kube-proxy do this.

pub(crate) mod balancer;
mod controller;
pub(crate) mod endpoints;
mod legacy;
mod mirror;
mod ports;
pub(crate) mod proxy;
pub(crate) mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

pub(crate) use controller::run;
pub(crate) use mirror::Mirror;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// The label that says whose endpoints a slice holds.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Services and endpoints at one moment.
#[derive(Debug, Default, Clone)]
pub(crate) struct View {
    pub services: BTreeMap<Key, Arc<Service>>,
    pub slices: BTreeMap<Key, Arc<EndpointSlice>>,
}

impl View {
    /// The slices of a service, in a stable order.
    pub fn slices_of<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a EndpointSlice> {
        let (namespace, name) = key;
        // Slices usually begin with their service's name, but nobody has to name them so.
        self.slices.iter().filter_map(move |((in_namespace, _), slice)| {
            let labels = slice.metadata.labels.as_ref()?;
            (in_namespace == namespace && labels.get(SERVICE_NAME) == Some(name)).then_some(&**slice)
        })
    }
}
