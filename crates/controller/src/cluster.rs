//! What the plans must know of the cluster: the `KubeVirt` object's configuration and the devices that nodes offer.

use std::{collections::BTreeMap, sync::Arc};

use ferrovirt_api::{
    names,
    v1::{KubeVirt, KubeVirtConfiguration},
};
use ferrovirt_machine::hypervisor;
use ferrovirt_plan::{cluster_defaults::feature_gate, pod, vmi};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, reflector, watcher},
};

/// The hypervisors that no node runs, each with what a node says about it.
fn not_offered(nodes: &[Arc<Node>]) -> BTreeMap<String, String> {
    let key = |name: &str| format!("{}{name}", names::HYPERVISOR_LABEL);
    let drivers = hypervisor::KNOWN.iter().filter(|known| known.driver.is_ok());
    let missing = drivers.filter(|known| {
        !nodes
            .iter()
            .any(|node| node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(&key(known.name))))
    });
    let why = |name: &str| {
        let said = nodes.iter().find_map(|node| node.metadata.annotations.as_ref()?.get(&key(name)).cloned());
        said.unwrap_or_else(|| "none has tried it yet".into())
    };
    missing.map(|known| (known.name.into(), why(known.name))).collect()
}

/// What is fixed at start.
#[derive(Debug, Clone)]
pub struct Settings {
    pub launcher_image: String,
    /// The components' own image, where they are pods.
    pub component_image: Option<String>,
}

#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
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
        let stream = watcher(Api::<Node>::all(client.clone()), watcher::Config::default());
        tokio::spawn(reflector(writer, stream.default_backoff()).for_each(|_| async {}));
        Self { client, settings, kubevirts, nodes }
    }

    /// Lets scrapes see the configuration.
    pub(crate) fn tell(&self, metrics: &crate::Metrics) {
        metrics.set_kubevirts(self.kubevirts.clone());
    }

    /// Waits until the configuration was read once, so that no pod is made from a guess.
    pub(crate) async fn ready(&self) {
        let _ = tokio::join!(self.kubevirts.wait_until_ready(), self.nodes.wait_until_ready());
    }

    /// The `KubeVirt` object's configuration as it is now.
    pub(crate) fn configuration(&self) -> KubeVirtConfiguration {
        self.kubevirts.state().first().map(|kubevirt| kubevirt.spec.configuration.clone()).unwrap_or_default()
    }

    /// The `KubeVirt` object's annotations, some of which instances get.
    pub(crate) fn annotations(&self) -> BTreeMap<String, String> {
        self.kubevirts.state().first().and_then(|kubevirt| kubevirt.metadata.annotations.clone()).unwrap_or_default()
    }

    /// True if an operator said that nothing runs on a node any more: see [`vmi::node_is_released`].
    pub(crate) async fn is_released(&self, name: &str) -> Result<bool, kube::Error> {
        let state = self.nodes.state();
        if let Some(node) = state.iter().find(|node| node.metadata.name.as_deref() == Some(name)) {
            return Ok(vmi::node_is_released(node));
        }
        // The cache may be late; a node that is not there must not be there for certain.
        let node = Api::<Node>::all(self.client.clone()).get_opt(name).await?;
        Ok(node.is_none_or(|node| vmi::node_is_released(&node)))
    }

    /// What a pod that waits for a node asks for and no node has.
    pub(crate) fn unmet(&self, pod: &Pod) -> Vec<String> {
        let Some(selector) = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref()) else { return vec![] };
        let nodes = self.nodes.state();
        pod::unmet(selector, nodes.iter().filter_map(|node| node.metadata.labels.as_ref()))
    }

    pub(crate) fn pod_config(&self) -> pod::Config {
        let kubevirts = self.kubevirts.state();
        let secrets = kubevirts.first().map(|kubevirt| kubevirt.spec.image_pull_secrets.as_slice()).unwrap_or_default();
        let pull_secrets = secrets.iter().map(|secret| secret.name.clone()).collect();
        let configuration = self.configuration();
        let base = pod::Config::configured(&configuration);
        let image_volumes = feature_gate(&configuration, "ImageVolume");
        let developer = configuration.developer_configuration.unwrap_or_default();
        let device_available = self.nodes.state().iter().any(|node| {
            let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
            allocatable.and_then(|a| a.get(names::KVM_DEVICE)).is_some_and(|q| q.0 != "0")
        });
        pod::Config {
            launcher_image: self.settings.launcher_image.clone(),
            device_available,
            allow_emulation: developer.use_emulation,
            not_offered: not_offered(&self.nodes.state()),
            copy_images_with: self.settings.component_image.clone().filter(|_| !image_volumes),
            pull_secrets,
            ..base
        }
    }
}
