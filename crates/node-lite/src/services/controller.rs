//! Watches services, pods and slices; keeps the slices and the rules in line with them.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::balancer::Balancer;
use super::endpoints::{self, MANAGED_BY, MANAGER, PodFacts};
use super::legacy;
use super::mirror::Mirror;
use super::ports::Ports;
use super::proxy::Proxy;
use super::{Key, SERVICE_NAME, View};
use crate::events::Events;

/// Changes that come together are handled together.
const GATHER: Duration = Duration::from_millis(10);
/// How often rules that somebody may have removed are written again.
const REPAIR: Duration = Duration::from_secs(60);
/// After something failed: at first, and at most. What cannot be written stays so for a while, and a table that fails is not
/// worth a try each second.
const RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Cluster {
    services: Mirror<Arc<Service>>,
    slices: Mirror<Arc<EndpointSlice>>,
    pods: Mirror<PodFacts>,
    endpoints: Mirror<Arc<Endpoints>>,
    /// The services there were when we last looked.
    served: BTreeSet<Key>,
}

/// Runs for as long as the node does. Publishes what it sees in `views`.
pub(crate) async fn run(client: kube::Client, mut proxy: Proxy, events: Events, views: watch::Sender<Arc<View>>) {
    let config = watcher::Config::default();
    let mut services = pin!(watcher(Api::<Service>::all(client.clone()), config.clone()).default_backoff());
    let mut slices = pin!(watcher(Api::<EndpointSlice>::all(client.clone()), config.clone()).default_backoff());
    let mut pods = pin!(watcher(Api::<Pod>::all(client.clone()), config.clone()).default_backoff());
    let mut endpoints = pin!(watcher(Api::<Endpoints>::all(client.clone()), config).default_backoff());
    let (mut cluster, mut ports, mut balancer) = (Cluster::default(), Ports::default(), Balancer::default());
    let mut repair = tokio::time::interval(REPAIR);
    let mut due: Option<tokio::time::Instant> = None;
    let mut retry = Retry(RETRY);
    loop {
        let mut force = false;
        let changed = tokio::select! {
            Some(event) = services.next() => event.map(|event| cluster.services.apply(event, Arc::new)),
            Some(event) = slices.next() => event.map(|event| cluster.slices.apply(event, Arc::new)),
            Some(event) = pods.next() => event.map(|event| cluster.pods.apply(event, PodFacts::of)),
            Some(event) = endpoints.next() => event.map(|event| cluster.endpoints.apply(event, Arc::new)),
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
        ports.sync(&view, force, &events);
        let ruled = proxy.sync(&view, force);
        if let Err(error) = &ruled {
            tracing::error!(%error, "cannot set the rules of services");
        }
        let balanced = match proxy.limits() {
            Ok(limits) => balancer.sync(&client, &view, &limits, &events).await,
            Err(_) => Err(()),
        };
        if cluster.reconcile(&client, &view).await.is_err() || ruled.is_err() || balanced.is_err() {
            due = Some(tokio::time::Instant::now() + retry.failed());
        } else {
            retry = Retry(RETRY);
        }
    }
}

/// How long to wait after the next failure.
struct Retry(Duration);

impl Retry {
    fn failed(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LAST_RETRY);
        pause
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

    /// Writes the endpoints that differ from what they should be, in both forms.
    async fn reconcile(&mut self, client: &kube::Client, view: &View) -> Result<(), ()> {
        let (Some(pods), Some(old)) = (self.pods.objects(), self.endpoints.objects()) else { return Ok(()) };
        let mut wanted: BTreeSet<Key> = BTreeSet::new();
        let mut failed = false;
        let mut alive: BTreeSet<Key> = BTreeSet::new();
        for (name, service) in &view.services {
            alive.insert(name.clone());
            if service.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let namespace = &name.0;
            // Pods are in order of their namespaces.
            let near = pods.range((namespace.clone(), String::new())..);
            let near = near.take_while(|((of, _), _)| of == namespace).map(|(_, pod)| pod);
            let slices = match endpoints::slices(service, near) {
                Some(slices) => {
                    let endpoints = legacy::endpoints_of(service, &slices);
                    failed |= write(client, old.get(name), endpoints, legacy::same).await.is_err();
                    Some(slices)
                }
                None => old.get(name).and_then(|endpoints| legacy::mirrored(endpoints, service)),
            };
            for slice in slices.into_iter().flatten() {
                let key = (namespace.clone(), slice.metadata.name.clone().unwrap_or_default());
                failed |= write(client, view.slices.get(&key), slice, same).await.is_err();
                wanted.insert(key);
            }
        }
        for (key, slice) in &view.slices {
            let manager = label(&slice.metadata, MANAGED_BY);
            let ours = manager.is_some_and(|manager| manager == MANAGER || manager == legacy::MIRROR_MANAGER);
            if ours && label(&slice.metadata, SERVICE_NAME).is_some() && !wanted.contains(key) {
                failed |= delete::<EndpointSlice>(client, key).await.is_err();
            }
        }
        // Endpoints go with their service, whoever wrote them. Those that never had one are left alone.
        for (key, endpoints) in old {
            let ours = label(&endpoints.metadata, legacy::OLD_MANAGED_BY).is_some_and(|by| by == legacy::OLD_MANAGER);
            let orphan = (ours || self.served.contains(key)) && !alive.contains(key);
            if orphan && delete::<Endpoints>(client, key).await.is_err() {
                failed = true;
                alive.insert(key.clone());
            }
        }
        self.served = alive;
        if failed { Err(()) } else { Ok(()) }
    }
}

fn label<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a String> {
    metadata.labels.as_ref()?.get(name)
}

async fn write<K>(
    client: &kube::Client,
    current: Option<&Arc<K>>,
    mut wanted: K,
    same: fn(&K, &K) -> bool,
) -> Result<(), ()>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + fmt::Debug + Serialize,
    K: DeserializeOwned,
{
    let namespace = wanted.namespace().unwrap_or_default();
    let name = wanted.name_any();
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let result = match current {
        None => api.create(&PostParams::default(), &wanted).await,
        Some(current) if same(current, &wanted) => return Ok(()),
        Some(current) => {
            wanted.meta_mut().resource_version = current.resource_version();
            api.replace(&name, &PostParams::default(), &wanted).await
        }
    };
    match result {
        Ok(_) => Ok(()),
        // The namespace goes away, or the watch has not brought what is there yet: it will, and then we look again.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404 | 409) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, kind = %K::kind(&()), namespace, name, "cannot write endpoints");
            Err(())
        }
    }
}

async fn delete<K>(client: &kube::Client, (namespace, name): &Key) -> Result<(), ()>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => {
            tracing::warn!(%error, kind = %K::kind(&()), namespace, name, "cannot delete endpoints");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_not_tried_each_second_for_ever() {
        let mut retry = Retry(RETRY);
        let seconds: Vec<u64> = (0..8).map(|_| retry.failed().as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
