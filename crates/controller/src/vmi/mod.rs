//! The VirtualMachineInstance controller: the launcher pod, and the phases until the node agent takes over.

mod kept_state;
pub(crate) mod limits;
pub(crate) mod made;
mod unpaused;
pub(crate) mod vsock;

use std::{future::Future, sync::Arc, time::Duration};

use ferrovirt_api::{
    Folded, chain, names,
    v1::{VirtualMachineInstance, values::virtual_machine_instance_condition_type as condition},
};
use ferrovirt_plan::{
    Note, conditions, consumer, pod,
    storage::{Storage, User, claims_of},
    vmi::{self, Action},
};
use futures::{Stream, StreamExt, channel::mpsc};
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::{WatchStreamExt, controller, watcher},
};
use serde_json::{Value, json};

use crate::{Context, Error, again, references, status_patch, storage, versioned_patch};

/// Between two tries to make a pod that the cluster refused.
const REFUSED_AGAIN: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_millis(50);

pub(crate) async fn run(
    context: Arc<Context>,
    changed: mpsc::Receiver<storage::Key>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    context.cluster.ready().await;
    context.limits.ready().await;
    let vmis = Api::<Folded<VirtualMachineInstance>>::all(context.client.clone());
    let pods = Api::<Pod>::all(context.client.clone());
    let released = released_nodes(context.client.clone());
    let launchers = watcher::Config::default().labels(&format!("{}={}", names::APP_LABEL, names::LAUNCHER_APP));
    let controller = crate::controller_of(vmis);
    context.metrics.set_instances(controller.store());
    controller
        .owns(pods, launchers)
        .reconcile_all_on(released)
        .reconcile_on(references(changed))
        .graceful_shutdown_on(shutdown)
        .run(reconcile, on_error, context)
        .for_each(|result| async {
            if let Err(error) = result {
                tracing::debug!(%error, "virtual machine instance reconcile");
            }
        })
        .await;
}

async fn reconcile(
    seen: Arc<Folded<VirtualMachineInstance>>,
    context: Arc<Context>,
) -> Result<controller::Action, Error> {
    let mut vmi = Box::new(seen.unfold().map_err(Error::Unfold)?);
    drop(seen);
    // One that came past admission means the same. A default that cannot be leaves the rest as it is.
    let cluster = &context.cluster;
    let _ = ferrovirt_plan::defaults::instance(&mut vmi, &cluster.configuration(), &cluster.annotations());
    context.metrics.phases().observe(&vmi);
    if context.versions.is_stale(&vmi.metadata) {
        return Ok(controller::Action::await_change());
    }
    let namespace = vmi.namespace().ok_or(Error::Missing("namespace"))?;
    let pods = Api::<Pod>::namespaced(context.client.clone(), &namespace);
    let pod = match pods.get_opt(&pod::name(&vmi)).await? {
        None => recorded(&pods, &vmi).await?,
        found => found,
    };
    let uid = vmi.uid().ok_or(Error::Missing("uid"))?;
    let made = context.made.of(&uid);
    if made.as_ref().is_some_and(|pod| vmi.status.active_pods.contains_key(pod)) {
        context.made.forget(&uid);
    }
    let (pod, foreign) = match pod {
        Some(pod) if vmi::is_ours(&vmi, &pod, made.as_deref()) => (Some(pod), None),
        other => (None, other),
    };
    // A pod is only called foreign by the newest record.
    if foreign.is_some() && !is_newest(&context, &namespace, &vmi).await? {
        return Ok(controller::Action::requeue(SOON));
    }

    let mut config = context.cluster.pod_config();
    match &pod {
        Some(pod) if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()) => {
            config.unmet = context.cluster.unmet(pod);
        }
        Some(_) => {}
        None => {
            let limits = context.limits.of(&namespace, &context.cluster.configuration());
            (config.auto_cpu_limit, config.auto_memory_limit) = (limits.cpu, limits.memory);
        }
    }
    if pod.is_none() && vmi.metadata.deletion_timestamp.is_none() && ferrovirt_plan::kept_state::is_needed(&vmi.spec) {
        match kept_state::provide(&context, &namespace, &vmi).await {
            Ok(claim) => config.state_claim = Some(claim),
            Err(Error::Api(kube::Error::Api(status))) if matches!(status.code, 403 | 422) => {
                let what = "the claim of the machine's state";
                return refused(&context, &vmi, what, &status.message).await;
            }
            Err(error) => return Err(error),
        }
    }
    if pod.is_none() {
        config.vsock_cid = vsock::provide(&context, &vmi).await?;
    }
    let follows = vmi::follows_data_volumes(&vmi);
    let consumer = match follows {
        true => pods.get_opt(&consumer::name(&vmi)).await?,
        false => None,
    };
    let node_gone = node_gone(&context, &vmi).await?;
    let observe = |storage: &Storage| {
        let mut config = config.clone();
        config.block_claims =
            storage.claims.iter().filter(|(_, claim)| claim.block).map(|(name, _)| name.clone()).collect();
        vmi::plan(&vmi::Observed {
            vmi: &vmi,
            pod: pod.as_ref(),
            foreign: foreign.as_ref(),
            consumer: consumer.as_ref(),
            config: &config,
            storage,
            node_gone,
            now: Timestamp::now(),
        })
    };
    // Once there is a pod, it waits for its volumes itself.
    let waits = (pod.is_none() || follows) && vmi.metadata.deletion_timestamp.is_none();
    let plan = match waits {
        false => {
            context.volumes.forget(&namespace, &vmi.name_any());
            observe(&Storage::default())
        }
        true => {
            context.volumes.note(&namespace, &vmi.name_any(), claims_of(&vmi.spec));
            let owner = vmi.owner_references().iter().find(|owner| owner.kind == "VirtualMachine");
            let user = owner.map(|owner| User { name: &owner.name, uid: &owner.uid });
            let heard =
                context.volumes.is_ready().then(|| context.volumes.known(&namespace, user, claims_of(&vmi.spec)));
            match heard.map(|storage| observe(&storage)) {
                // What was heard is good enough to wait, and not to begin.
                Some(plan) if !plan.creates() => plan,
                _ => observe(&storage::read(&context.client, &namespace, user, claims_of(&vmi.spec)).await?),
            }
        }
    };

    // All that changes on the instance itself goes into one write: it has no status subresource, as upstream's.
    let mut patch = json!({});
    if plan.status != vmi.status {
        patch["status"] = status_patch(&vmi.status, &plan.status)?;
    }
    for action in &plan.actions {
        match (apply(&context, &pods, &vmi, action, &mut patch).await, action) {
            // Somebody was faster. The next look finds whoever it is.
            (Err(Error::Api(kube::Error::Api(status))), Action::CreatePod(_)) if status.is_already_exists() => {
                return Ok(controller::Action::requeue(SOON));
            }
            (Err(Error::Api(kube::Error::Api(status))), Action::CreateConsumer(_)) if status.is_already_exists() => {}
            // A quota, a policy or a webhook of the cluster: for the user to solve, not a failure of ours.
            (Err(Error::Api(kube::Error::Api(status))), Action::CreatePod(_) | Action::CreateConsumer(_))
                if matches!(status.code, 403 | 422) =>
            {
                return refused(&context, &vmi, "pod", &status.message).await;
            }
            (other, _) => other?,
        }
    }
    if patch != json!({}) {
        let vmis = Api::<VirtualMachineInstance>::namespaced(context.client.clone(), &namespace);
        match vmis.patch(&vmi.name_any(), &PatchParams::default(), &versioned_patch(&vmi.metadata, patch)).await {
            Ok(written) => context.versions.wrote(&written.metadata),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    for note in plan.notes {
        context.notes.publish(&vmi.object_ref(&()), note);
    }
    Ok(again(&context, plan.requeue))
}

/// Says why there is no pod, or not what it needs, where users look, and tries again.
async fn refused(
    context: &Context,
    vmi: &VirtualMachineInstance,
    what: &str,
    why: &str,
) -> Result<controller::Action, Error> {
    const REASON: &str = "FailedCreate";
    let message = format!("Error creating {what}: {why}");
    let mut status = vmi.status.clone();
    let time = Time(Timestamp::now());
    conditions::set_vmi(&mut status.conditions, &time, condition::SYNCHRONIZED, false, REASON, &message);
    if status != vmi.status {
        let vmis = Api::<VirtualMachineInstance>::namespaced(
            context.client.clone(),
            &vmi.namespace().ok_or(Error::Missing("namespace"))?,
        );
        let patch = json!({ "status": status_patch(&vmi.status, &status)? });
        vmis.patch(&vmi.name_any(), &PatchParams::default(), &versioned_patch(&vmi.metadata, patch)).await?;
        context.notes.publish(&vmi.object_ref(&()), Note::warning(REASON, message));
    }
    Ok(controller::Action::requeue(REFUSED_AGAIN))
}

/// A pod that was recorded under another name than the one that it would be given today. That none is there is only said when it is
/// certain: a node's agent ends what has no pod.
async fn recorded(pods: &Api<Pod>, vmi: &VirtualMachineInstance) -> Result<Option<Pod>, Error> {
    if vmi.status.active_pods.is_empty() {
        return Ok(None);
    }
    let made_for = format!("{}={}", names::CREATED_BY_LABEL, vmi.uid().unwrap_or_default());
    let found = pods.list(&ListParams::default().labels(&made_for)).await?.items;
    Ok(found.into_iter().find(|pod| pod.uid().is_some_and(|uid| vmi.status.active_pods.contains_key(&uid))))
}

/// True if the instance was on nodes, and an operator gave up every one of them.
async fn node_gone(context: &Context, vmi: &VirtualMachineInstance) -> Result<bool, Error> {
    let mut nodes: Vec<&str> = vmi.status.active_pods.values().map(String::as_str).collect();
    nodes.push(&vmi.status.node_name);
    nodes.retain(|name| !name.is_empty());
    nodes.sort_unstable();
    nodes.dedup();
    for node in &nodes {
        if !context.cluster.is_released(node).await? {
            return Ok(false);
        }
    }
    Ok(!nodes.is_empty())
}

/// Something happens whenever an operator gives up a node.
fn released_nodes(client: Client) -> impl Stream<Item = ()> + Send + Sync + 'static {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        let mut events =
            std::pin::pin!(watcher(Api::<Node>::all(client), watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            let released = match event {
                Ok(watcher::Event::Delete(_)) => true,
                Ok(watcher::Event::Apply(node)) => vmi::node_is_released(&node),
                _ => false,
            };
            if released && sender.send(()).await.is_err() {
                return;
            }
        }
    });
    futures::stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|()| ((), receiver)) })
}

/// True if the API has no newer version of the instance.
async fn is_newest(context: &Context, namespace: &str, vmi: &VirtualMachineInstance) -> Result<bool, Error> {
    let vmis = Api::<VirtualMachineInstance>::namespaced(context.client.clone(), namespace);
    let newest = vmis.get_opt(&vmi.name_any()).await?;
    Ok(newest.is_some_and(|newest| newest.resource_version() == vmi.resource_version()))
}

async fn apply(
    context: &Context,
    pods: &Api<Pod>,
    vmi: &VirtualMachineInstance,
    action: &Action,
    patch: &mut Value,
) -> Result<(), Error> {
    match action {
        Action::AddFinalizer => {
            let mut finalizers = vmi.finalizers().to_vec();
            finalizers.push(names::VIRTUAL_MACHINE_INSTANCE_FINALIZER.into());
            patch["metadata"]["finalizers"] = json!(finalizers);
        }
        Action::RemoveFinalizer => {
            let mut finalizers = vmi.finalizers().to_vec();
            finalizers.retain(|f| f != names::VIRTUAL_MACHINE_INSTANCE_FINALIZER);
            patch["metadata"]["finalizers"] = json!(finalizers);
            context.made.forget(&vmi.uid().unwrap_or_default());
        }
        Action::SetUnpaused { name, uid, unpaused } => unpaused::write(pods, name, uid, *unpaused).await?,
        Action::FollowMetadata { name, uid, labels, annotations } => {
            let patch = json!({ "metadata": { "uid": uid, "labels": labels, "annotations": annotations } });
            match pods.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Action::SetNode { node } => patch["metadata"]["labels"][names::NODE_NAME_LABEL] = json!(node),
        Action::CreatePod(pod) => {
            let made = pods.create(&PostParams::default(), pod).await?;
            let uid = made.uid().ok_or(Error::Missing("uid of the pod"))?;
            context.made.note(&vmi.uid().unwrap_or_default(), &uid);
            // Upstream's shape: a pod that no node has yet.
            patch["status"]["activePods"][uid] = json!("");
        }
        Action::CreateConsumer(pod) => drop(pods.create(&PostParams::default(), pod).await?),
        Action::DeletePod { name, uid, resource_version } => {
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: resource_version.clone(),
                }),
                ..DeleteParams::default()
            };
            match pods.delete(name, &params).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn on_error(vmi: Arc<Folded<VirtualMachineInstance>>, error: &Error, _context: Arc<Context>) -> controller::Action {
    let conflict = matches!(error, Error::Api(kube::Error::Api(status)) if status.is_conflict());
    if conflict {
        return controller::Action::requeue(Duration::from_millis(50));
    }
    tracing::warn!(vmi = %vmi.name_any(), error = %chain(error), "cannot reconcile the virtual machine instance");
    controller::Action::requeue(Duration::from_secs(2))
}
