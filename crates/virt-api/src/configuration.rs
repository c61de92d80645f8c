//! The `KubeVirt` object's configuration, followed as it changes.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use ferrovirt_api::v1::KubeVirt;
use futures::StreamExt;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, reflector, watcher},
};

/// How long a request waits for the first look at the object.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Configuration {
    client: Client,
    /// Followed from the first question on.
    store: Arc<OnceLock<reflector::Store<KubeVirt>>>,
}

impl Configuration {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, store: Arc::default() }
    }

    /// The object as it is now; an empty one if there is none.
    pub(crate) async fn object(&self) -> Arc<KubeVirt> {
        let store = self.store.get_or_init(|| {
            let (store, writer) = reflector::store();
            let stream = watcher(Api::<KubeVirt>::all(self.client.clone()), watcher::Config::default());
            tokio::spawn(reflector(writer, stream.default_backoff()).for_each(|_| async {}));
            store
        });
        let _ = tokio::time::timeout(PATIENCE, store.wait_until_ready()).await;
        store.state().first().cloned().unwrap_or_default()
    }
}
