//! Which namespaces count limits, so that pods of VMs there have some. Followed and not asked for: it is needed for every pod.

use ferrovirt_api::v1::KubeVirtConfiguration;
use ferrovirt_plan::auto_limits::{self, AutoLimits};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::{
        WatchStreamExt, reflector,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;

pub(crate) struct Limits {
    quotas: Store<ResourceQuota>,
    namespaces: Store<Namespace>,
}

impl Limits {
    /// Starts to follow. Must be called inside a runtime.
    pub(crate) fn start(client: &Client) -> Self {
        Self { quotas: follow(client), namespaces: follow(client) }
    }

    /// For a controller that makes no pods.
    pub(crate) fn none() -> Self {
        Self { quotas: reflector::store().0, namespaces: reflector::store().0 }
    }

    pub(crate) async fn ready(&self) {
        let _ = tokio::join!(self.quotas.wait_until_ready(), self.namespaces.wait_until_ready());
    }

    pub(crate) fn of(&self, namespace: &str, configuration: &KubeVirtConfiguration) -> AutoLimits {
        let quotas = self.quotas.state();
        let here = quotas.iter().filter(|quota| quota.namespace().as_deref() == Some(namespace)).map(AsRef::as_ref);
        let known = self.namespaces.get(&ObjectRef::new(namespace));
        let labels = known.map(|namespace| namespace.labels().clone()).unwrap_or_default();
        auto_limits::of(here, &labels, configuration.auto_cpu_limit_namespace_label_selector.as_ref())
    }
}

fn follow<K>(client: &Client) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let stream = watcher(Api::<K>::all(client.clone()), watcher::Config::default());
    let stream = stream.default_backoff().modify(|object| object.meta_mut().managed_fields = None);
    tokio::spawn(reflector(writer, stream).for_each(|_| async {}));
    store
}
