//! The VirtualMachine controller.

use std::{future::Future, sync::Arc, time::Duration};

use ferrovirt_api::{
    names,
    v1::{VirtualMachine, VirtualMachineInstance},
};
use ferrovirt_plan::{
    Note,
    vm::{self, Action},
};
use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::{Controller, controller, watcher},
};
use serde_json::json;

use crate::{Context, Error, status_patch, versioned_patch};

pub(crate) async fn run(context: Arc<Context>, shutdown: impl Future<Output = ()> + Send + Sync + 'static) {
    context.cluster.ready().await;
    let vms = Api::<VirtualMachine>::all(context.client.clone());
    let vmis = Api::<VirtualMachineInstance>::all(context.client.clone());
    Controller::new(vms, watcher::Config::default())
        .owns(vmis, watcher::Config::default())
        .graceful_shutdown_on(shutdown)
        .run(reconcile, on_error, context)
        .for_each(|result| async {
            if let Err(error) = result {
                tracing::debug!(%error, "virtual machine reconcile");
            }
        })
        .await;
}

async fn reconcile(vm: Arc<VirtualMachine>, context: Arc<Context>) -> Result<controller::Action, Error> {
    let namespace = vm.namespace().ok_or(Error::Missing("namespace"))?;
    let name = vm.name_any();
    let vmis = Api::<VirtualMachineInstance>::namespaced(context.client.clone(), &namespace);

    // Dereference. The instance is read, not taken from a cache: starting a second one must not hang on a late watch.
    let vmi = vmis.get_opt(&name).await?;
    let plan = vm::plan(&vm::Observed { vm: &vm, vmi: vmi.as_ref(), now: Timestamp::now() });

    let mut notes = plan.notes;
    for action in plan.actions {
        if let Some(note) = apply(&context, &vm, &vmis, action).await? {
            notes.push(note);
        }
    }
    let changed = plan.status != vm.status;
    // A VM whose last hold was just released is gone.
    if changed && (vm.metadata.deletion_timestamp.is_none() || vmi.is_some()) {
        let vms = Api::<VirtualMachine>::namespaced(context.client.clone(), &namespace);
        let patch = json!({ "status": status_patch(&vm.status, &plan.status)? });
        match vms.patch_status(&name, &PatchParams::default(), &versioned_patch(&vm.metadata, patch)).await {
            Ok(_) => {}
            // A newer version is on its way to us, and it will be reconciled.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    for note in notes {
        context.notes.publish(&vm.object_ref(&()), note).await;
    }
    Ok(plan.requeue.map_or_else(controller::Action::await_change, controller::Action::requeue))
}

async fn apply(
    context: &Context,
    vm: &VirtualMachine,
    vmis: &Api<VirtualMachineInstance>,
    action: Action,
) -> Result<Option<Note>, Error> {
    let name = vm.name_any();
    let vms = Api::<VirtualMachine>::namespaced(context.client.clone(), &vm.namespace().unwrap_or_default());
    match action {
        Action::AddFinalizer => {
            let mut finalizers = vm.finalizers().to_vec();
            finalizers.push(names::VIRTUAL_MACHINE_CONTROLLER_FINALIZER.into());
            let patch = versioned_patch(&vm.metadata, json!({ "metadata": { "finalizers": finalizers } }));
            vms.patch(&name, &PatchParams::default(), &patch).await?;
        }
        Action::RemoveFinalizer => {
            let mut finalizers = vm.finalizers().to_vec();
            finalizers.retain(|f| f != names::VIRTUAL_MACHINE_CONTROLLER_FINALIZER);
            let patch = versioned_patch(&vm.metadata, json!({ "metadata": { "finalizers": finalizers } }));
            vms.patch(&name, &PatchParams::default(), &patch).await?;
        }
        Action::Create(vmi) => {
            return match vmis.create(&PostParams::default(), &vmi).await {
                Ok(_) => Ok(Some(Note::normal(
                    "SuccessfulCreate",
                    format!("Started the virtual machine by creating the new virtual machine instance {name}"),
                ))),
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
                Err(kube::Error::Api(status)) => {
                    let note = Note::warning(
                        "FailedCreate",
                        format!("Error creating virtual machine instance: {}", status.message),
                    );
                    context.notes.publish(&vm.object_ref(&()), note).await;
                    Err(kube::Error::Api(status).into())
                }
                Err(error) => Err(error.into()),
            };
        }
        Action::Delete { uid } => {
            let params = DeleteParams {
                preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
                ..DeleteParams::default()
            };
            match vmis.delete(&name, &params).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Action::Adopt { uid, owner } => {
            let patch = json!({ "metadata": { "uid": uid, "ownerReferences": [owner] } });
            vmis.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
    }
    Ok(None)
}

fn on_error(vm: Arc<VirtualMachine>, error: &Error, _context: Arc<Context>) -> controller::Action {
    let conflict =
        matches!(error, Error::Api(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found());
    if conflict {
        return controller::Action::requeue(Duration::from_millis(50));
    }
    tracing::warn!(vm = %vm.name_any(), error = %chain(error), "cannot reconcile the virtual machine");
    controller::Action::requeue(Duration::from_secs(2))
}

/// The whole story of an error, for the log.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(next) = source {
        text = format!("{text}: {next}");
        source = next.source();
    }
    text
}
