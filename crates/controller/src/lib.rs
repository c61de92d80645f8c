//! Cluster controllers: VirtualMachine, VirtualMachineInstance and its ReplicaSet, and the installation's own status (the
//! virt-controller role).
//!
//! Every reconcile is the same pipeline: fetch what the object refers to, ask `ferrovirt-plan` what to do, do it, write the
//! status. The plan has no client; nothing here decides. Controllers know nothing of libvirt and nothing of the mode they
//! run in.

mod cluster;
mod installation;
mod metrics;
mod notes;
mod replicaset;
mod storage;
mod versions;
mod vm;
mod vmi;

use std::{future::Future, sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use kube::{
    Api, Client, Resource,
    runtime::{Controller, WatchStreamExt as _, controller, reflector, watcher},
};
use serde::de::DeserializeOwned;

pub use cluster::Settings;
pub use metrics::Metrics;

/// How many objects of a kind are worked on at once. Without a bound, an API server that gets slow is asked for ever more at a
/// time, and each request holds memory until it is answered.
const AT_ONCE: u16 = 32;

/// Of one controller.
pub(crate) struct Context {
    pub client: Client,
    pub cluster: cluster::Cluster,
    pub notes: notes::Notes,
    pub metrics: Metrics,
    pub versions: versions::Versions,
    pub vsock: vmi::vsock::Chosen,
    pub made: vmi::made::Made,
    pub volumes: storage::Followed,
    pub limits: vmi::limits::Limits,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the API refused")]
    Api(#[from] kube::Error),
    #[error("an object cannot be encoded")]
    Encode(#[from] serde_json::Error),
    #[error("an object of the cache cannot be read")]
    Unfold(#[source] serde_json::Error),
    #[error("the object has no {0}")]
    Missing(&'static str),
}

/// Which controllers to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    VirtualMachines,
    Instances,
    ReplicaSets,
    /// The status of the installation itself.
    Installation,
}

impl Part {
    pub const ALL: [Self; 4] = [Self::VirtualMachines, Self::Instances, Self::ReplicaSets, Self::Installation];
}

/// Runs one controller until `shutdown` resolves. They are started apart so that a host can stop making new instances
/// while the present ones still end in order.
pub async fn run(
    client: Client,
    settings: Settings,
    part: Part,
    metrics: Metrics,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let notes = notes::Notes::new(client.clone(), "virt-controller");
    let cluster = cluster::Cluster::start(client.clone(), settings);
    cluster.tell(&metrics);
    match part {
        Part::ReplicaSets => return replicaset::run(client, notes, shutdown).await,
        Part::Installation => return installation::run(client, notes, shutdown).await,
        Part::VirtualMachines | Part::Instances => {}
    }
    let (versions, vsock, made) = Default::default();
    let (volumes, changed) = storage::Followed::start(client.clone());
    let limits = match part {
        Part::Instances => vmi::limits::Limits::start(&client),
        _ => vmi::limits::Limits::none(),
    };
    let context = Arc::new(Context { client, cluster, notes, metrics, versions, vsock, made, volumes, limits });
    match part {
        Part::Instances => vmi::run(context, changed, shutdown).await,
        _ => vm::run(context, changed, shutdown).await,
    }
}

/// Objects of a kind, as a controller is told to look at them.
pub(crate) fn references<K: Resource<DynamicType = ()>>(
    keys: impl Stream<Item = storage::Key>,
) -> impl Stream<Item = reflector::ObjectRef<K>> {
    keys.map(|(namespace, name)| reflector::ObjectRef::new(&name).within(&namespace))
}

/// Between two looks at volumes that are waited for, where no watch tells of them.
const POLL: Duration = Duration::from_secs(1);

/// When to look again: soon if nobody would say that a volume changed.
pub(crate) fn again(context: &Context, requeue: Option<Duration>) -> controller::Action {
    let requeue = requeue.map(|wait| if context.volumes.is_ready() { wait } else { wait.min(POLL) });
    requeue.map_or_else(controller::Action::await_change, controller::Action::requeue)
}

/// A controller of all objects of a kind. Its cache does not keep managed fields: they are larger than all the rest, and nobody
/// asks for them.
pub(crate) fn controller_of<K>(api: Api<K>) -> Controller<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let objects = watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(|object| object.meta_mut().managed_fields = None)
        .reflect(writer)
        .applied_objects();
    Controller::for_stream(objects, store).with_config(controller::Config::default().concurrency(AT_ONCE))
}

/// A merge patch that only applies to the version that was read.
pub(crate) fn versioned_patch(
    metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    mut patch: serde_json::Value,
) -> kube::api::Patch<serde_json::Value> {
    patch["metadata"]["resourceVersion"] = serde_json::json!(metadata.resource_version);
    kube::api::Patch::Merge(patch)
}

/// The difference between two statuses as a merge patch.
pub(crate) fn status_patch<T: serde::Serialize>(old: &T, new: &T) -> Result<serde_json::Value, Error> {
    let (old, new) = (serde_json::to_value(old)?, serde_json::to_value(new)?);
    Ok(ferrovirt_api::merge_patch(&old, &new).unwrap_or_else(|| serde_json::json!({})))
}
