//! Watches policies, pods and namespaces, and keeps the rules in line with them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ferrovirt_net::nft::Program;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::{Facts, Labels, PodFacts, Request, plan, table_name};
use crate::services::Mirror;

/// Changes that come together are handled together.
const GATHER: Duration = Duration::from_millis(10);
/// How often rules that somebody may have removed are looked for.
const REPAIR: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);

/// A pod of the API, with its uid.
struct Known {
    uid: String,
    facts: PodFacts,
    finished: bool,
}

#[derive(Default)]
struct Cluster {
    policies: Mirror<Arc<NetworkPolicy>>,
    pods: Mirror<Known>,
    namespaces: Mirror<Labels>,
    /// What this node knows better than the API: the addresses of its pods, by uid.
    own: BTreeMap<String, PodFacts>,
}

/// Runs for as long as the node does. `group` is that of the interfaces that lead to pods.
pub(crate) async fn run(
    client: kube::Client,
    instance: &str,
    group: u32,
    mut requests: mpsc::UnboundedReceiver<Request>,
    mut names: watch::Receiver<Option<SocketAddr>>,
) {
    let config = watcher::Config::default();
    let mut policies = pin!(watcher(Api::<NetworkPolicy>::all(client.clone()), config.clone()).default_backoff());
    let mut pods = pin!(watcher(Api::<Pod>::all(client.clone()), config.clone()).default_backoff());
    let mut namespaces = pin!(watcher(Api::<Namespace>::all(client), config).default_backoff());
    let mut cluster = Cluster::default();
    let mut table = Table { name: table_name(instance), group, applied: None };
    let mut waiting: Vec<oneshot::Sender<()>> = vec![];
    let mut repair = tokio::time::interval(REPAIR);
    let mut due: Option<Instant> = None;
    loop {
        let mut check = false;
        let changed = tokio::select! {
            Some(event) = policies.next() => event.map(|event| cluster.policies.apply(event, Arc::new)),
            Some(event) = pods.next() => event.map(|event| cluster.pods.apply(event, known)),
            Some(event) = namespaces.next() => {
                event.map(|event| cluster.namespaces.apply(event, |n: Namespace| n.metadata.labels.unwrap_or_default()))
            }
            Some(request) = requests.recv() => {
                cluster.take(request, &mut waiting);
                if !waiting.is_empty() && requests.is_empty() {
                    // A machine waits for this.
                    due = Some(Instant::now());
                }
                Ok(true)
            }
            Ok(()) = names.changed() => Ok(true),
            _ = repair.tick() => {
                check = true;
                Ok(false)
            }
            () = until(due) => Ok(false),
        };
        match changed {
            Ok(true) => due = due.or_else(|| Some(Instant::now() + GATHER)),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "a watch of network policies was interrupted"),
        }
        if !check && due.is_none_or(|at| at > Instant::now()) {
            continue;
        }
        let Some(facts) = cluster.facts(*names.borrow_and_update()) else { continue };
        due = None;
        match table.sync(&facts, check) {
            Ok(()) => {
                for done in waiting.drain(..) {
                    // Who does not wait any more has given up on the pod.
                    let _ = done.send(());
                }
            }
            Err(error) => {
                tracing::error!(%error, "cannot write the rules of network policies; new pods wait");
                due = Some(Instant::now() + RETRY);
            }
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

struct Table {
    name: String,
    group: u32,
    applied: Option<Program>,
}

impl Table {
    fn sync(&mut self, facts: &Facts, check: bool) -> io::Result<()> {
        if check && self.applied.as_ref().is_some_and(|program| !program.is_there().unwrap_or(false)) {
            self.applied = None;
        }
        let program = plan::program(&self.name, self.group, facts);
        match self.applied.take() {
            // It may not be what we think it is.
            Some(old) => program.update(&old).or_else(|_| program.replace())?,
            None => program.replace()?,
        }
        self.applied = Some(program);
        Ok(())
    }
}

impl Cluster {
    fn take(&mut self, request: Request, waiting: &mut Vec<oneshot::Sender<()>>) {
        match request {
            Request::Admit { uid, pod, done } => {
                self.own.insert(uid, *pod);
                waiting.push(done);
            }
            Request::Forget { uid } => drop(self.own.remove(&uid)),
        }
    }

    /// None before everything was seen once.
    fn facts(&self, names: Option<SocketAddr>) -> Option<Facts> {
        let (policies, pods, namespaces) = (self.policies.objects()?, self.pods.objects()?, self.namespaces.objects()?);
        let mut own = self.own.clone();
        let mut facts = Facts {
            namespaces: namespaces.iter().map(|((_, name), labels)| (name.clone(), labels.clone())).collect(),
            pods: vec![],
            policies: policies.values().cloned().collect(),
            names,
        };
        // An address is one pod's: the API may still show it on one that is gone.
        let taken: BTreeSet<IpAddr> = own.values().flat_map(|pod| pod.addresses.clone()).collect();
        for pod in pods.values().filter(|pod| !pod.finished) {
            let mut seen = pod.facts.clone();
            match own.remove(&pod.uid) {
                Some(here) => seen.addresses = here.addresses,
                None => seen.addresses.retain(|address| !taken.contains(address)),
            }
            facts.pods.push(seen);
        }
        // Pods that the watch has not brought yet, and those that are gone from the API but not from here.
        facts.pods.extend(own.into_values());
        Some(facts)
    }
}

fn known(pod: Pod) -> Known {
    let finished = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let finished = matches!(finished, Some("Succeeded" | "Failed"));
    let addresses = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten());
    let addresses = addresses.filter_map(|ip| ip.ip.parse().ok()).collect();
    Known { uid: pod.metadata.uid.clone().unwrap_or_default(), facts: PodFacts { addresses, ..facts(&pod) }, finished }
}

/// What policies go by, but for addresses.
pub(crate) fn facts(pod: &Pod) -> PodFacts {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
        let protocol = crate::services::rules::protocol(port.protocol.as_deref())?;
        Some((port.name.clone()?, protocol, u16::try_from(port.container_port).ok()?))
    });
    PodFacts {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        addresses: vec![],
        ports: ports.collect(),
    }
}
