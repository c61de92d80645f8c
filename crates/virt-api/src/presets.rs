//! The presets of all namespaces, followed as they change.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use ferrovirt_api::v1::VirtualMachineInstancePreset;
use futures::StreamExt;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, reflector, watcher},
};

/// How long a request waits for the first look.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Presets {
    client: Client,
    /// Followed from the first question on.
    store: Arc<OnceLock<reflector::Store<VirtualMachineInstancePreset>>>,
}

impl Presets {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, store: Arc::default() }
    }

    /// Those of a namespace, by name.
    pub(crate) async fn of(&self, namespace: &str) -> Vec<VirtualMachineInstancePreset> {
        let store = self.store.get_or_init(|| {
            let (store, writer) = reflector::store();
            let presets = Api::<VirtualMachineInstancePreset>::all(self.client.clone());
            let stream = watcher(presets, watcher::Config::default());
            tokio::spawn(reflector(writer, stream.default_backoff()).for_each(|_| async {}));
            store
        });
        let _ = tokio::time::timeout(PATIENCE, store.wait_until_ready()).await;
        let all = store.state();
        let own = all.iter().filter(|preset| preset.metadata.namespace.as_deref() == Some(namespace));
        let mut own: Vec<_> = own.map(|preset| (**preset).clone()).collect();
        own.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        own
    }
}
