//! The `KubeVirt` object's configuration, followed as it changes.

use std::time::Duration;

use ferrovirt_api::v1::{KubeVirt, KubeVirtConfiguration};
use futures::StreamExt;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, reflector, watcher},
};

/// How long a request waits for the first look at the object.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Configuration(reflector::Store<KubeVirt>);

impl Configuration {
    /// Starts to follow the object. Must be called inside a runtime.
    pub(crate) fn follow(client: Client) -> Self {
        let (store, writer) = reflector::store();
        let stream = watcher(Api::<KubeVirt>::all(client), watcher::Config::default());
        tokio::spawn(reflector(writer, stream.default_backoff()).for_each(|_| async {}));
        Self(store)
    }

    /// As it is now; the defaults if there is no such object.
    pub(crate) async fn current(&self) -> KubeVirtConfiguration {
        let _ = tokio::time::timeout(PATIENCE, self.0.wait_until_ready()).await;
        self.0.state().first().map(|kubevirt| kubevirt.spec.configuration.clone()).unwrap_or_default()
    }
}
