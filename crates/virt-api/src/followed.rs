//! Kinds that requests are judged by, followed as they change.

use std::{
    fmt::Debug,
    sync::{Arc, OnceLock},
    time::Duration,
};

use ferrovirt_api::v1::{KubeVirt, VirtualMachineInstancePreset};
use futures::StreamExt;
use kube::{
    Api, Client, Resource,
    runtime::{WatchStreamExt, reflector, watcher},
};
use serde::de::DeserializeOwned;

/// How long a request waits for the first look.
const PATIENCE: Duration = Duration::from_secs(5);

/// All objects of a kind.
pub(crate) struct Followed<K: Resource<DynamicType = ()> + 'static> {
    client: Client,
    /// Followed from the first question on.
    store: Arc<OnceLock<reflector::Store<K>>>,
}

impl<K: Resource<DynamicType = ()>> Clone for Followed<K> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), store: self.store.clone() }
    }
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Followed<K> {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, store: Arc::default() }
    }

    /// As they are now.
    async fn all(&self) -> Vec<Arc<K>> {
        let store = self.store.get_or_init(|| {
            let (store, writer) = reflector::store();
            let stream = watcher(Api::<K>::all(self.client.clone()), watcher::Config::default());
            tokio::spawn(reflector(writer, stream.default_backoff()).for_each(|_| async {}));
            store
        });
        let _ = tokio::time::timeout(PATIENCE, store.wait_until_ready()).await;
        store.state()
    }
}

impl Followed<KubeVirt> {
    /// The object of the installation; an empty one if there is none.
    pub(crate) async fn object(&self) -> Arc<KubeVirt> {
        self.all().await.first().cloned().unwrap_or_default()
    }
}

impl Followed<VirtualMachineInstancePreset> {
    /// Those of a namespace, by name.
    pub(crate) async fn of(&self, namespace: &str) -> Vec<VirtualMachineInstancePreset> {
        let all = self.all().await;
        let own = all.iter().filter(|preset| preset.metadata.namespace.as_deref() == Some(namespace));
        let mut own: Vec<_> = own.map(|preset| (**preset).clone()).collect();
        own.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        own
    }
}
