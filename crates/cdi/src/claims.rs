//! Follows claims that wait for an upload without a DataVolume, as `virtctl image-upload pvc` makes them.

use std::future::Future;
use std::sync::Arc;

use ferrovirt_api::cdi::names;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::runtime::{Controller, controller, watcher};
use kube::{Api, ResourceExt};

use crate::controller::{ASK, Context, Error, LATER, act, phase_of};
use crate::plan::{Bare, is_bare, plan_bare, pod_name, waits_for_upload};

pub(crate) async fn run(context: Arc<Context>, shutdown: impl Future<Output = ()> + Send + Sync + 'static) {
    let claims = Api::<PersistentVolumeClaim>::all(context.client.clone());
    let pods = Api::<Pod>::all(context.client.clone());
    let importers = watcher::Config::default().labels(&format!("{}={}", names::COMPONENT_LABEL, names::IMPORTER));
    Controller::new(claims, watcher::Config::default())
        .owns(pods, importers)
        .graceful_shutdown_on(shutdown)
        .run(reconcile, on_error, context)
        .for_each(|result| async {
            if let Err(error) = result {
                tracing::debug!(%error, "claim reconcile");
            }
        })
        .await;
}

async fn reconcile(claim: Arc<PersistentVolumeClaim>, context: Arc<Context>) -> Result<controller::Action, Error> {
    if !is_bare(&claim) {
        return Ok(controller::Action::await_change());
    }
    let namespace = claim.namespace().unwrap_or_default();
    let pods = Api::<Pod>::namespaced(context.client.clone(), &namespace);
    let importer = pod_name(&claim.name_any(), &claim.uid().unwrap_or_default());
    let pod = pods.get_opt(&importer).await?;
    let pod = pod.filter(|pod| pod.owner_references().iter().any(|owner| claim.uid().as_ref() == Some(&owner.uid)));
    let ready = match &pod {
        Some(pod) if phase_of(pod) == Some("Running") => crate::progress::of(pod).await.is_some(),
        _ => false,
    };
    let (settings, upload_key) = (&context.settings, &context.upload_key());
    let actions = plan_bare(&Bare { claim: &claim, pod: pod.as_ref(), ready, settings, upload_key });
    let actions = actions.map_err(Error::Invalid)?;
    act(&context, &namespace, &claim.name_any(), &importer, &actions).await?;
    Ok(match (&pod, waits_for_upload(&claim)) {
        (Some(_), true) if !ready => controller::Action::requeue(ASK),
        _ => controller::Action::await_change(),
    })
}

fn on_error(claim: Arc<PersistentVolumeClaim>, error: &Error, _: Arc<Context>) -> controller::Action {
    let error = ferrovirt_api::chain(error);
    tracing::warn!(claim = claim.name_any(), error, "cannot make the claim ready for an upload");
    controller::Action::requeue(LATER)
}
