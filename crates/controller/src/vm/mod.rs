//! The VirtualMachine controller.

mod apply;

use std::{future::Future, sync::Arc, time::Duration};

use ferrovirt_api::{
    Folded, chain,
    v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineSpec},
};
use ferrovirt_plan::{
    storage::{Storage, User, claims_of},
    vm, vm_instance, vm_status,
};
use futures::{StreamExt, channel::mpsc};
use k8s_openapi::{api::apps::v1::ControllerRevision, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, Resource, ResourceExt,
    api::PatchParams,
    runtime::{controller, watcher},
};
use serde_json::json;

use crate::{Context, Error, again, references, status_patch, storage, versioned_patch};

pub(crate) async fn run(
    context: Arc<Context>,
    changed: mpsc::Receiver<storage::Key>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    context.cluster.ready().await;
    let vms = Api::<Folded<VirtualMachine>>::all(context.client.clone());
    let vmis = Api::<VirtualMachineInstance>::all(context.client.clone());
    let controller = crate::controller_of(vms);
    context.metrics.set_machines(controller.store());
    controller
        .owns(vmis, watcher::Config::default())
        .reconcile_on(references(changed))
        .graceful_shutdown_on(shutdown)
        .run(reconcile, on_error, context)
        .for_each(|result| async {
            if let Err(error) = result {
                tracing::debug!(%error, "virtual machine reconcile");
            }
        })
        .await;
}

async fn reconcile(seen: Arc<Folded<VirtualMachine>>, context: Arc<Context>) -> Result<controller::Action, Error> {
    if context.versions.is_stale(seen.meta()) {
        return Ok(controller::Action::await_change());
    }
    let seen = Box::new(seen.unfold().map_err(Error::Unfold)?);
    let namespace = seen.namespace().ok_or(Error::Missing("namespace"))?;
    let name = seen.name_any();
    let client = &context.client;
    let vms = Api::<VirtualMachine>::namespaced(client.clone(), &namespace);
    let vmis = Api::<VirtualMachineInstance>::namespaced(client.clone(), &namespace);
    let vm = match apply::hold(&vms, &seen).await? {
        Some(held) => {
            context.versions.wrote(&held.metadata);
            Box::new(held)
        }
        None => seen,
    };

    // Dereference. The instance is read, not taken from a cache: starting a second one must not hang on a late watch.
    let vmi = vmis.get_opt(&name).await?;
    let started_from = started_from(&context, &vm, vmi.as_ref()).await?;
    let template = vm.spec.template.as_ref().map(|template| &template.spec);
    let templates = vm.spec.data_volume_templates.iter().filter_map(|t| Some((t.metadata.name.as_deref()?, true)));
    let uid = vm.uid().unwrap_or_default();
    let user = Some(User { name: &name, uid: &uid });
    let claims: Vec<_> = template.into_iter().flat_map(claims_of).chain(templates).collect();
    let configuration = context.cluster.configuration();
    let observe = |storage: &Storage| {
        vm::plan(&vm::Observed {
            vm: &vm,
            vmi: vmi.as_ref(),
            started_from: started_from.as_ref(),
            storage,
            configuration: &configuration,
            now: Timestamp::now(),
        })
    };
    let plan = match vm.metadata.deletion_timestamp {
        Some(_) => {
            context.volumes.forget(&namespace, &name);
            observe(&Storage::default())
        }
        None => {
            context.volumes.note(&namespace, &name, claims.iter().copied());
            let heard =
                context.volumes.is_ready().then(|| context.volumes.known(&namespace, user, claims.iter().copied()));
            match heard.map(|storage| observe(&storage)) {
                // What was heard is good enough to wait, and not to begin.
                Some(plan) if !plan.creates() => plan,
                _ => observe(&storage::read(client, &namespace, user, claims.iter().copied()).await?),
            }
        }
    };

    let (mut notes, mut status) = (plan.notes, plan.status);
    let mut failed = None;
    for action in plan.actions {
        match apply::apply(&context, &vm, &vmis, action).await {
            Ok(note) => notes.extend(note),
            Err(apply::Stopped { failure, note, error }) => {
                notes.extend(note);
                if failure.is_some() {
                    // What was to be made does not exist.
                    status.created = vmi.is_some();
                    vm_status::set_failure(&mut status, &Time(Timestamp::now()), failure.as_ref());
                }
                failed = Some(error);
                break;
            }
        }
    }
    // A VM whose last hold was just released is gone.
    if status != vm.status && (vm.metadata.deletion_timestamp.is_none() || vmi.is_some()) {
        let patch = json!({ "status": status_patch(&vm.status, &status)? });
        match vms.patch_status(&name, &PatchParams::default(), &versioned_patch(&vm.metadata, patch)).await {
            Ok(written) => context.versions.wrote(&written.metadata),
            // A newer version is on its way to us, and it will be reconciled.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    for note in notes {
        context.notes.publish(&vm.object_ref(&()), note);
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(again(&context, plan.requeue)),
    }
}

/// What the instance was made from. Read only if the VM was changed since.
async fn started_from(
    context: &Context,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
) -> Result<Option<VirtualMachineSpec>, Error> {
    let Some(vmi) = vmi else { return Ok(None) };
    let name = &vmi.status.virtual_machine_revision_name;
    if name.is_empty() || *name == vm_instance::revision_name(vm) {
        return Ok(None);
    }
    let namespace = vm.namespace().unwrap_or_default();
    let revisions = Api::<ControllerRevision>::namespaced(context.client.clone(), &namespace);
    Ok(revisions.get_opt(name).await?.as_ref().and_then(vm_instance::revision_spec))
}

fn on_error(vm: Arc<Folded<VirtualMachine>>, error: &Error, _context: Arc<Context>) -> controller::Action {
    let conflict =
        matches!(error, Error::Api(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found());
    if conflict {
        return controller::Action::requeue(Duration::from_millis(50));
    }
    tracing::warn!(vm = %vm.name_any(), error = %chain(error), "cannot reconcile the virtual machine");
    controller::Action::requeue(Duration::from_secs(2))
}
