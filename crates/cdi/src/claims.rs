//! Follows claims that wait for an upload without a DataVolume, as `virtctl image-upload pvc` makes them.

use std::future::Future;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{Controller, controller};
use kube::{Api, ResourceExt};

use crate::controller::{Context, Error, LATER, act, phase_of, uuid_like};
use crate::pass::Pass;
use crate::plan::{Bare, is_bare, plan_bare, pod_name, waits_for_upload};

pub(crate) async fn run(
    context: Arc<Context>,
    woken: impl Stream<Item = ObjectRef<PersistentVolumeClaim>> + Send + 'static,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    Controller::for_stream(futures::stream::pending(), context.followed.claims.clone())
        .reconcile_on(woken)
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
    // A DataVolume's importers belong to it, and pods that show a claim for a clone to the claim.
    if !is_bare(&claim) {
        return Ok(controller::Action::await_change());
    }
    let namespace = claim.namespace().unwrap_or_default();
    let importer = pod_name(&claim.name_any(), &claim.uid().unwrap_or_default());
    let is_own = |pod: &Pod| pod.owner_references().iter().any(|owner| claim.uid().as_ref() == Some(&owner.uid));
    let cached = context.followed.pods.get(&ObjectRef::new(&importer).within(&namespace));
    let cached = cached.map(Arc::unwrap_or_clone).filter(is_own);
    let (ready, ask_again) = ready(&context, cached.as_ref()).await;
    if !plan(&context, &claim, cached.as_ref(), ready, None)?.is_empty() {
        // Something is to be done, and only what is there for certain decides what.
        let pods = Api::<Pod>::namespaced(context.client.clone(), &namespace);
        let pod = pods.get_opt(&importer).await?.filter(is_own);
        let pass = (pod.is_none() && waits_for_upload(&claim)).then(Pass::make).transpose()?;
        let (ready, _) = self::ready(&context, pod.as_ref()).await;
        let actions = plan(&context, &claim, pod.as_ref(), ready, pass.as_ref())?;
        act(&context, (&namespace, &claim.name_any()), &importer, &actions, pass.as_ref()).await?;
    }
    Ok(match &cached {
        Some(pod) if waits_for_upload(&claim) && !ready && phase_of(pod) == Some("Running") => {
            controller::Action::requeue(ask_again)
        }
        _ => controller::Action::await_change(),
    })
}

/// Whether the importer answers, and when it may be asked again.
async fn ready(context: &Context, pod: Option<&Pod>) -> (bool, std::time::Duration) {
    match pod {
        Some(pod) if phase_of(pod) == Some("Running") => {
            let (progress, again) = context.samples.of(pod, context.followed.running()).await;
            (progress.is_some(), again)
        }
        _ => (false, LATER),
    }
}

fn plan(
    context: &Context,
    claim: &PersistentVolumeClaim,
    pod: Option<&Pod>,
    ready: bool,
    pass: Option<&Pass>,
) -> Result<Vec<crate::plan::Action>, Error> {
    let bare = Bare {
        claim,
        pod,
        ready,
        settings: &context.settings,
        upload_key: &context.upload_key(),
        certificate: pass.map_or("", Pass::certificate),
        random: &uuid_like(),
        knows_importer: context.knows_receiver(pod),
    };
    plan_bare(&bare).map_err(Error::Invalid)
}

fn on_error(claim: Arc<PersistentVolumeClaim>, error: &Error, _: Arc<Context>) -> controller::Action {
    let error = ferrovirt_api::chain(error);
    tracing::warn!(claim = claim.name_any(), error, "cannot make the claim ready for an upload");
    controller::Action::requeue(LATER)
}
