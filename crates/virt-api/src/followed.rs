//! Objects of a kind, followed as they change from the first question on.

use std::{
    fmt::Debug,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api, Client, Resource,
    runtime::{WatchStreamExt, reflector, watcher},
};
use serde::de::DeserializeOwned;

/// How long a request waits for the first look.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Followed<K: Resource<DynamicType = ()> + Clone + 'static> {
    client: Client,
    store: Arc<OnceLock<reflector::Store<K>>>,
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Clone for Followed<K> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), store: self.store.clone() }
    }
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Followed<K> {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, store: Arc::default() }
    }

    /// All that there are now.
    pub(crate) async fn all(&self) -> Vec<Arc<K>> {
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
