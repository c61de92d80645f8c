//! The `KubeVirt` object's status, and the kinds that are not worked on yet.
//!
//! Whoever leads writes it, so one process at a time does.

use std::{future::Future, sync::Arc, time::Duration};

use ferrovirt_api::{
    chain,
    v1::{KubeVirt, VirtualMachineInstanceMigration},
};
use ferrovirt_plan::{
    Note,
    installation::{self, Component, DAEMON_SETS, DEPLOYMENTS, Pods},
    migration,
};
use futures::StreamExt;
use k8s_openapi::{
    api::apps::v1::{DaemonSet, Deployment},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::controller,
};
use serde_json::json;

use crate::{Error, notes::Notes, status_patch, versioned_patch};

/// Components come and go without a change of the object.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
const AFTER_AN_ERROR: Duration = Duration::from_secs(2);

struct State {
    client: Client,
    notes: Notes,
}

pub(crate) async fn run(client: Client, notes: Notes, shutdown: impl Future<Output = ()> + Send + Sync + 'static) {
    let context = Arc::new(State { client, notes });
    let (sender, stopped) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        shutdown.await;
        sender.send_replace(true);
    });
    let stop = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
        drop(stopped.wait_for(|stop| *stop).await);
    };
    let objects = crate::controller_of(Api::<KubeVirt>::all(context.client.clone()))
        .graceful_shutdown_on(stop(stopped.clone()))
        .run(told, again, context.clone())
        .for_each(|result| async {
            if let Err(error) = result {
                tracing::debug!(%error, "KubeVirt reconcile");
            }
        });
    let migrations = crate::controller_of(Api::<VirtualMachineInstanceMigration>::all(context.client.clone()))
        .graceful_shutdown_on(stop(stopped))
        .run(ended, again, context)
        .for_each(|result| async {
            if let Err(error) = result {
                tracing::debug!(%error, "migration reconcile");
            }
        });
    tokio::join!(objects, migrations);
}

async fn told(kubevirt: Arc<KubeVirt>, context: Arc<State>) -> Result<controller::Action, Error> {
    let namespace = kubevirt.namespace().ok_or(Error::Missing("namespace"))?;
    let mut components = vec![];
    for name in DEPLOYMENTS {
        let found = Api::<Deployment>::namespaced(context.client.clone(), &namespace).get_opt(name).await?;
        components.push(Component { name, pods: found.as_ref().map(of_deployment) });
    }
    for name in DAEMON_SETS {
        let found = Api::<DaemonSet>::namespaced(context.client.clone(), &namespace).get_opt(name).await?;
        components.push(Component { name, pods: found.as_ref().map(of_daemon_set) });
    }
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    let status = installation::status(&kubevirt, &components, &version, &Time(Timestamp::now()));
    if status != kubevirt.status {
        let patch = json!({ "status": status_patch(&kubevirt.status, &status)? });
        let api = Api::<KubeVirt>::namespaced(context.client.clone(), &namespace);
        api.patch_status(&kubevirt.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    Ok(controller::Action::requeue(LOOK_AGAIN))
}

fn of_deployment(found: &Deployment) -> Pods {
    let wanted = found.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = found.status.clone().unwrap_or_default();
    let seen = status.observed_generation.unwrap_or_default() >= found.metadata.generation.unwrap_or_default();
    let settled = seen && status.updated_replicas.unwrap_or_default() >= wanted;
    // Two serve while one is replaced; one that serves is enough to be available.
    let ready = status.ready_replicas.unwrap_or_default();
    Pods { wanted: wanted.min(1), ready, settled: settled && ready >= wanted }
}

fn of_daemon_set(found: &DaemonSet) -> Pods {
    let status = found.status.clone().unwrap_or_default();
    let wanted = status.desired_number_scheduled;
    let seen = status.observed_generation.unwrap_or_default() >= found.metadata.generation.unwrap_or_default();
    let settled = seen && status.updated_number_scheduled.unwrap_or_default() >= wanted;
    Pods { wanted, ready: status.number_ready, settled: settled && status.number_ready >= wanted }
}

async fn ended(
    migration: Arc<VirtualMachineInstanceMigration>,
    context: Arc<State>,
) -> Result<controller::Action, Error> {
    let namespace = migration.namespace().ok_or(Error::Missing("namespace"))?;
    let api = Api::<VirtualMachineInstanceMigration>::namespaced(context.client.clone(), &namespace);
    let (name, parameters) = (migration.name_any(), PatchParams::default());
    let written = match migration::plan(&migration, &Time(Timestamp::now())) {
        None => return Ok(controller::Action::await_change()),
        Some(migration::Action::Write(status)) => {
            let patch = json!({ "status": status_patch(&migration.status, &*status)? });
            let written = api.patch_status(&name, &parameters, &versioned_patch(&migration.metadata, patch)).await;
            if written.is_ok() {
                let note = Note::warning("FailedMigration", migration::MESSAGE);
                context.notes.publish(&migration.object_ref(&()), note);
            }
            written
        }
        Some(migration::Action::Release(finalizers)) => {
            let patch = json!({ "metadata": { "finalizers": finalizers } });
            api.patch(&name, &parameters, &versioned_patch(&migration.metadata, patch)).await
        }
    };
    match written {
        Ok(_) => {}
        // The next look finds whoever was faster.
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    Ok(controller::Action::await_change())
}

fn again<K: Resource<DynamicType = ()>>(object: Arc<K>, error: &Error, _context: Arc<State>) -> controller::Action {
    let kind = K::kind(&());
    tracing::warn!(object = %object.name_any(), %kind, error = %chain(error), "cannot reconcile");
    controller::Action::requeue(AFTER_AN_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_counted_by_what_their_makers_say() {
        let deployment = |status: serde_json::Value| -> Pods {
            let object = json!({ "metadata": { "generation": 2 }, "spec": { "replicas": 2, "selector": {}, "template": {} }, "status": status });
            of_deployment(&serde_json::from_value(object).unwrap())
        };
        let all = json!({ "observedGeneration": 2, "updatedReplicas": 2, "readyReplicas": 2 });
        assert_eq!(deployment(all), Pods { wanted: 1, ready: 2, settled: true });
        let rolling = json!({ "observedGeneration": 2, "updatedReplicas": 1, "readyReplicas": 1 });
        assert_eq!(deployment(rolling), Pods { wanted: 1, ready: 1, settled: false });
        let unseen = json!({ "observedGeneration": 1, "updatedReplicas": 2, "readyReplicas": 2 });
        assert!(!deployment(unseen).settled);
    }
}
