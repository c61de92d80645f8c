//! Does what the plan of a VirtualMachine says.

use ferrovirt_api::{
    names,
    v1::{VirtualMachine, VirtualMachineInstance, values::virtual_machine_run_strategy as run_strategy},
};
use ferrovirt_plan::{Note, vm::Action, vm_instance, vm_status::Failure};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::DynamicObject,
};
use serde_json::json;

use crate::{Context, Error, storage, versioned_patch};

/// An action that did not work out, and what people should learn of it.
pub(super) struct Stopped {
    pub failure: Option<Failure>,
    pub note: Option<Note>,
    pub error: Error,
}

impl<E: Into<Error>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self { failure: None, note: None, error: error.into() }
    }
}

/// Puts our finalizer on a VM that lacks it, so that one reconcile holds it and starts it. Returns the VM as it is then.
pub(super) async fn hold(vms: &Api<VirtualMachine>, vm: &VirtualMachine) -> Result<Option<VirtualMachine>, Error> {
    let finalizer = names::VIRTUAL_MACHINE_CONTROLLER_FINALIZER;
    if vm.metadata.deletion_timestamp.is_some() || vm.finalizers().iter().any(|f| f == finalizer) {
        return Ok(None);
    }
    let mut finalizers = vm.finalizers().to_vec();
    finalizers.push(finalizer.into());
    let patch = versioned_patch(&vm.metadata, json!({ "metadata": { "finalizers": finalizers } }));
    Ok(Some(vms.patch(&vm.name_any(), &PatchParams::default(), &patch).await?))
}

pub(super) async fn apply(
    context: &Context,
    vm: &VirtualMachine,
    vmis: &Api<VirtualMachineInstance>,
    action: Action,
) -> Result<Option<Note>, Stopped> {
    let name = vm.name_any();
    let namespace = vm.namespace().unwrap_or_default();
    match action {
        // Done before the plan was made.
        Action::AddFinalizer => {}
        Action::RemoveFinalizer => {
            let vms = Api::<VirtualMachine>::namespaced(context.client.clone(), &namespace);
            let mut finalizers = vm.finalizers().to_vec();
            finalizers.retain(|f| f != names::VIRTUAL_MACHINE_CONTROLLER_FINALIZER);
            let patch = versioned_patch(&vm.metadata, json!({ "metadata": { "finalizers": finalizers } }));
            vms.patch(&name, &PatchParams::default(), &patch).await?;
        }
        Action::CreateDataVolume(volume) => return create_volume(context, &namespace, *volume).await,
        Action::Create(vmi) => return create(context, vm, vmis, &vmi).await,
        Action::SetGeneration(generation) => {
            let annotation = names::VIRTUAL_MACHINE_GENERATION_ANNOTATION;
            let patch = json!({ "metadata": { "annotations": { annotation: generation.to_string() } } });
            ignore_gone(vmis.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await)?;
        }
        Action::FollowTemplate { uid, annotations } => {
            let patch = json!({ "metadata": { "uid": uid, "annotations": annotations } });
            ignore_gone(vmis.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await)?;
        }
        Action::Delete { uid } => {
            let params = DeleteParams {
                preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
                ..DeleteParams::default()
            };
            match vmis.delete(&name, &params).await {
                Err(kube::Error::Api(status)) if !status.is_not_found() && !status.is_conflict() => {
                    let message = format!("Error deleting virtual machine instance {name}: {}", status.message);
                    return Err(refused("FailedDelete", message, status));
                }
                Err(error @ kube::Error::Api(_)) => tracing::debug!(%error, vm = name, "nothing to delete"),
                other => drop(other?),
            }
        }
        Action::WantRunning => {
            let vms = Api::<VirtualMachine>::namespaced(context.client.clone(), &namespace);
            let spec = match vm.spec.running {
                Some(_) => json!({ "running": true }),
                None => json!({ "runStrategy": run_strategy::ALWAYS }),
            };
            vms.patch(&name, &PatchParams::default(), &versioned_patch(&vm.metadata, json!({ "spec": spec }))).await?;
        }
        Action::Adopt { uid, owner } => {
            // Others may own it too, without controlling it.
            let found = vmis.get(&name).await?;
            let owners: Vec<_> =
                found.owner_references().iter().filter(|known| known.uid != owner.uid).cloned().collect();
            let owners: Vec<_> = owners.into_iter().chain([owner]).collect();
            let patch = json!({ "metadata": { "uid": uid, "ownerReferences": owners } });
            vmis.patch(&name, &PatchParams::default(), &versioned_patch(&found.metadata, patch)).await?;
        }
    }
    Ok(None)
}

async fn create(
    context: &Context,
    vm: &VirtualMachine,
    vmis: &Api<VirtualMachineInstance>,
    vmi: &VirtualMachineInstance,
) -> Result<Option<Note>, Stopped> {
    remember(context, vm).await?;
    match vmis.create(&PostParams::default(), vmi).await {
        Ok(_) => Ok(Some(Note::normal(
            "SuccessfulCreate",
            format!("Started the virtual machine by creating the new virtual machine instance {}", vm.name_any()),
        ))),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
        Err(kube::Error::Api(status)) => {
            let message = format!("Error creating virtual machine instance: {}", status.message);
            Err(refused("FailedCreate", message, status))
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes down what the next instance is made from, and drops older memories: nothing runs from them any more.
async fn remember(context: &Context, vm: &VirtualMachine) -> Result<(), Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let revisions = Api::<ControllerRevision>::namespaced(context.client.clone(), &namespace);
    match revisions.create(&PostParams::default(), &vm_instance::revision(vm)).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        Err(error) => return Err(error.into()),
    }
    if vm.metadata.generation.unwrap_or_default() <= 1 {
        return Ok(());
    }
    for old in revisions.list_metadata(&ListParams::default()).await? {
        if vm_instance::is_older_revision(vm, &old.name_any()) {
            match revisions.delete(&old.name_any(), &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                other => drop(other?),
            }
        }
    }
    Ok(())
}

async fn create_volume(context: &Context, namespace: &str, volume: serde_json::Value) -> Result<Option<Note>, Stopped> {
    let object: DynamicObject = serde_json::from_value(volume)?;
    let name = object.name_any();
    match storage::data_volumes(&context.client, namespace).create(&PostParams::default(), &object).await {
        Ok(_) => Ok(Some(Note::normal("SuccessfulDataVolumeCreate", format!("Created DataVolume {name}")))),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
        Err(kube::Error::Api(status)) => {
            let message = format!("Error creating DataVolume {name}: {}", status.message);
            Err(refused("FailedDataVolumeCreate", message, status))
        }
        Err(error) => Err(error.into()),
    }
}

fn refused(reason: &'static str, message: String, status: Box<kube::core::Status>) -> Stopped {
    Stopped {
        failure: Some(Failure { reason, message: message.clone() }),
        note: Some(Note::warning(reason, message)),
        error: kube::Error::Api(status).into(),
    }
}

fn ignore_gone<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}
