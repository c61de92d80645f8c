//! What the plans must know of the cluster: the `KubeVirt` object's configuration and the devices that nodes offer.

use ferrovirt_api::{names, v1::KubeVirt};
use ferrovirt_plan::pod;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, reflector, watcher},
};

/// What is fixed at start.
#[derive(Debug, Clone)]
pub struct Settings {
    pub launcher_image: String,
}

#[derive(Clone)]
pub(crate) struct Cluster {
    settings: Settings,
    kubevirts: reflector::Store<KubeVirt>,
    nodes: reflector::Store<Node>,
}

impl Cluster {
    /// Starts to follow the configuration. Must be called inside a runtime.
    pub(crate) fn start(client: Client, settings: Settings) -> Self {
        let (kubevirts, writer) = reflector::store();
        let stream = watcher(Api::<KubeVirt>::all(client.clone()), watcher::Config::default());
        tokio::spawn(reflector(writer, stream.default_backoff()).for_each(|_| async {}));
        let (nodes, writer) = reflector::store();
        let stream = watcher(Api::<Node>::all(client), watcher::Config::default());
        tokio::spawn(reflector(writer, stream.default_backoff()).for_each(|_| async {}));
        Self { settings, kubevirts, nodes }
    }

    /// Waits until the configuration was read once, so that no pod is made from a guess.
    pub(crate) async fn ready(&self) {
        let _ = tokio::join!(self.kubevirts.wait_until_ready(), self.nodes.wait_until_ready());
    }

    pub(crate) fn pod_config(&self) -> pod::Config {
        let configuration = self.kubevirts.state().first().map(|kv| kv.spec.configuration.clone()).unwrap_or_default();
        let developer = configuration.developer_configuration.unwrap_or_default();
        let device_available = self.nodes.state().iter().any(|node| {
            let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
            allocatable.and_then(|a| a.get(names::KVM_DEVICE)).is_some_and(|q| q.0 != "0")
        });
        pod::Config {
            launcher_image: self.settings.launcher_image.clone(),
            device_available,
            allow_emulation: developer.use_emulation,
            ..pod::Config::default()
        }
    }
}
