//! Watches services, pods and slices; keeps the slices and the rules in line with them.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use tokio::sync::watch;

use super::endpoints::{self, MANAGED_BY, MANAGER, PodFacts};
use super::mirror::Mirror;
use super::proxy::Proxy;
use super::{Key, SERVICE_NAME, View};

/// Changes that come together are handled together.
const GATHER: Duration = Duration::from_millis(10);
/// How often rules that somebody may have removed are written again.
const REPAIR: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Cluster {
    services: Mirror<Arc<Service>>,
    slices: Mirror<Arc<EndpointSlice>>,
    pods: Mirror<PodFacts>,
}

/// Runs for as long as the node does. Publishes what it sees in `views`.
pub(crate) async fn run(client: kube::Client, mut proxy: Proxy, views: watch::Sender<Arc<View>>) {
    let config = watcher::Config::default();
    let mut services = pin!(watcher(Api::<Service>::all(client.clone()), config.clone()).default_backoff());
    let mut slices = pin!(watcher(Api::<EndpointSlice>::all(client.clone()), config.clone()).default_backoff());
    let mut pods = pin!(watcher(Api::<Pod>::all(client.clone()), config).default_backoff());
    let mut cluster = Cluster::default();
    let mut repair = tokio::time::interval(REPAIR);
    let mut due: Option<tokio::time::Instant> = None;
    loop {
        let mut force = false;
        let changed = tokio::select! {
            Some(event) = services.next() => event.map(|event| cluster.services.apply(event, Arc::new)),
            Some(event) = slices.next() => event.map(|event| cluster.slices.apply(event, Arc::new)),
            Some(event) = pods.next() => event.map(|event| cluster.pods.apply(event, PodFacts::of)),
            _ = repair.tick() => {
                force = true;
                due = Some(tokio::time::Instant::now());
                Ok(false)
            }
            () = until(due) => Ok(false),
        };
        match changed {
            Ok(true) => due = due.or_else(|| Some(tokio::time::Instant::now() + GATHER)),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "a watch of services was interrupted"),
        }
        if !force && due.is_none_or(|at| at > tokio::time::Instant::now()) {
            continue;
        }
        due = None;
        let Some(view) = cluster.view() else { continue };
        views.send_replace(Arc::new(view.clone()));
        if let Err(error) = proxy.sync(&view, force) {
            tracing::error!(%error, "cannot set the rules of services");
            due = Some(tokio::time::Instant::now() + RETRY);
        }
        if cluster.reconcile(&client, &view).await.is_err() {
            due = Some(tokio::time::Instant::now() + RETRY);
        }
    }
}

async fn until(due: Option<tokio::time::Instant>) {
    match due {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Cluster {
    fn view(&self) -> Option<View> {
        self.pods.objects()?;
        Some(View { services: self.services.objects()?.clone(), slices: self.slices.objects()?.clone() })
    }

    /// Writes the slices that differ from what they should be.
    async fn reconcile(&self, client: &kube::Client, view: &View) -> Result<(), ()> {
        let Some(pods) = self.pods.objects() else { return Ok(()) };
        let mut wanted: BTreeSet<Key> = BTreeSet::new();
        let mut failed = false;
        for ((namespace, _), service) in &view.services {
            if service.metadata.deletion_timestamp.is_some() {
                continue;
            }
            // Pods are in order of their namespaces.
            let near = pods.range((namespace.clone(), String::new())..);
            let near = near.take_while(|((of, _), _)| of == namespace).map(|(_, pod)| pod);
            for slice in endpoints::slices(service, near).into_iter().flatten() {
                let key = (namespace.clone(), slice.metadata.name.clone().unwrap_or_default());
                failed |= write(client, view.slices.get(&key), slice).await.is_err();
                wanted.insert(key);
            }
        }
        for (key, slice) in &view.slices {
            let labels = slice.metadata.labels.as_ref();
            let label = |name: &str| labels.and_then(|labels| labels.get(name));
            let ours = label(MANAGED_BY).is_some_and(|manager| manager == MANAGER) && label(SERVICE_NAME).is_some();
            if ours && !wanted.contains(key) {
                let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &key.0);
                match api.delete(&key.1, &DeleteParams::default()).await {
                    Ok(_) => {}
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    Err(error) => {
                        tracing::warn!(%error, namespace = key.0, name = key.1, "cannot delete endpoints");
                        failed = true;
                    }
                }
            }
        }
        if failed { Err(()) } else { Ok(()) }
    }
}

async fn write(
    client: &kube::Client,
    current: Option<&Arc<EndpointSlice>>,
    mut wanted: EndpointSlice,
) -> Result<(), ()> {
    let namespace = wanted.metadata.namespace.clone().unwrap_or_default();
    let name = wanted.metadata.name.clone().unwrap_or_default();
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &namespace);
    let result = match current {
        None => api.create(&PostParams::default(), &wanted).await,
        Some(current) if same(current, &wanted) => return Ok(()),
        Some(current) => {
            wanted.metadata.resource_version = current.metadata.resource_version.clone();
            api.replace(&name, &PostParams::default(), &wanted).await
        }
    };
    match result {
        Ok(_) => Ok(()),
        // The namespace goes away, or the watch has not brought what is there yet: it will, and then we look again.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404 | 409) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, namespace, name, "cannot write endpoints");
            Err(())
        }
    }
}

fn same(current: &EndpointSlice, wanted: &EndpointSlice) -> bool {
    let ports = |slice: &EndpointSlice| slice.ports.clone().unwrap_or_default();
    let endpoints = |slice: &EndpointSlice| slice.endpoints.clone().unwrap_or_default();
    endpoints(current) == endpoints(wanted)
        && ports(current) == ports(wanted)
        && current.metadata.labels == wanted.metadata.labels
        && current.metadata.owner_references == wanted.metadata.owner_references
}
