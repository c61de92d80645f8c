//! The VirtualMachineInstanceReplicaSet controller.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ferrovirt_api::{
    chain,
    v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet},
};
use ferrovirt_plan::{
    Note,
    replicaset::{self, Action, BackOff},
    selector,
};
use futures::StreamExt;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::OwnerReference, jiff::Timestamp};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, PatchParams, PostParams, Preconditions},
    runtime::{controller, reflector::ObjectRef, watcher},
};
use serde_json::json;

use crate::{Error, notes::Notes, status_patch, versioned_patch};

struct State {
    client: Client,
    notes: Notes,
    /// By uid. Lost with the process, which then tries once more at once.
    back_off: Mutex<HashMap<String, BackOff>>,
}

pub(crate) async fn run(client: Client, notes: Notes, shutdown: impl Future<Output = ()> + Send + Sync + 'static) {
    let sets = Api::<VirtualMachineInstanceReplicaSet>::all(client.clone());
    let vmis = Api::<VirtualMachineInstance>::all(client.clone());
    let controller = crate::controller_of(sets);
    let known = controller.store();
    let state = Arc::new(State { client, notes, back_off: Mutex::default() });
    controller
        .watches(vmis, watcher::Config::default(), move |vmi| concerned(&known, &vmi))
        .graceful_shutdown_on(shutdown)
        .run(reconcile, on_error, state)
        .for_each(|result| async {
            if let Err(error) = result {
                tracing::debug!(%error, "replica set reconcile");
            }
        })
        .await;
}

/// The set that owns an instance and those that may want it.
fn concerned(
    known: &kube::runtime::reflector::Store<VirtualMachineInstanceReplicaSet>,
    vmi: &VirtualMachineInstance,
) -> Vec<ObjectRef<VirtualMachineInstanceReplicaSet>> {
    let owners = vmi.owner_references();
    let owner = owners.iter().find(|owner| owner.controller == Some(true));
    if owner.is_some_and(|owner| owner.kind != "VirtualMachineInstanceReplicaSet") {
        return vec![];
    }
    let sets = known.state();
    let concerned = sets.iter().filter(|set| {
        let fits = || set.spec.selector.as_ref().is_some_and(|wanted| selector::matches(wanted, vmi.labels()));
        set.namespace() == vmi.namespace()
            && match owner {
                Some(owner) => Some(&owner.uid) == set.metadata.uid.as_ref(),
                None => fits(),
            }
    });
    concerned.map(|set| ObjectRef::from_obj(set.as_ref())).collect()
}

async fn reconcile(set: Arc<VirtualMachineInstanceReplicaSet>, state: Arc<State>) -> Result<controller::Action, Error> {
    let namespace = set.namespace().ok_or(Error::Missing("namespace"))?;
    let uid = set.uid().ok_or(Error::Missing("uid"))?;
    let vmis = Api::<VirtualMachineInstance>::namespaced(state.client.clone(), &namespace);
    // Read, not taken from a cache: what was made a moment ago must be counted.
    let instances = vmis.list(&ListParams::default()).await?.items;
    let now = Timestamp::now();
    let back_off = {
        let mut all = state.back_off.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = all.entry(uid).or_default();
        mine.observe(&set, &instances, now);
        mine.clone()
    };
    let plan = replicaset::plan(&replicaset::Observed { set: &set, instances: &instances, back_off: &back_off, now });

    let (mut status, mut notes) = (plan.status, plan.notes);
    let mut failed = None;
    for action in plan.actions {
        match apply(&vmis, action).await {
            Ok(note) => notes.extend(note),
            Err((reason, error)) => {
                notes.push(Note::warning(reason, chain(&error)));
                failed = Some((reason, error));
                break;
            }
        }
    }
    let failure = failed.as_ref().map(|(reason, error)| (*reason, chain(error)));
    replicaset::set_failure(&mut status, now, failure.as_ref().map(|(reason, text)| (*reason, text.as_str())));
    if status != set.status && set.metadata.deletion_timestamp.is_none() {
        let sets = Api::<VirtualMachineInstanceReplicaSet>::namespaced(state.client.clone(), &namespace);
        let patch = json!({ "status": status_patch(&set.status, &status)? });
        let patch = versioned_patch(&set.metadata, patch);
        match sets.patch_status(&set.name_any(), &PatchParams::default(), &patch).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    for note in notes {
        state.notes.publish(&set.object_ref(&()), note);
    }
    match failed {
        Some((_, error)) => Err(error),
        None => Ok(plan.requeue.map_or_else(controller::Action::await_change, controller::Action::requeue)),
    }
}

async fn apply(vmis: &Api<VirtualMachineInstance>, action: Action) -> Result<Option<Note>, (&'static str, Error)> {
    match action {
        Action::Create(vmi) => {
            let made =
                vmis.create(&PostParams::default(), &vmi).await.map_err(|error| ("FailedCreate", error.into()))?;
            let text = "Started the virtual machine by creating the new virtual machine instance";
            Ok(Some(Note::normal("SuccessfulCreate", format!("{text} {}", made.name_any()))))
        }
        Action::Delete { name, uid, finished } => {
            let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            match vmis.delete(&name, &params).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => return Ok(None),
                Err(error) => return Err(("FailedDelete", error.into())),
            }
            let text = match finished {
                true => format!("Deleted finished virtual machine: {uid}"),
                false => format!("Stopped the virtual machine by deleting the virtual machine instance {uid}"),
            };
            Ok(Some(Note::normal("SuccessfulDelete", text)))
        }
        Action::Adopt { name, uid, owner } => {
            let change = |owners: Vec<OwnerReference>| owners.into_iter().chain([owner.clone()]).collect();
            owned_by(vmis, &name, &uid, &owner.uid, change).await.map_err(|error| ("FailedAdopt", error))?;
            Ok(None)
        }
        Action::Release { name, uid, owner } => {
            owned_by(vmis, &name, &uid, &owner, |owners| owners).await.map_err(|error| ("FailedRelease", error))?;
            Ok(None)
        }
    }
}

/// Changes the owners of an instance: `change` gets those beside `owner`. Others may own it too, without controlling it.
async fn owned_by(
    vmis: &Api<VirtualMachineInstance>,
    name: &str,
    uid: &str,
    owner: &str,
    change: impl Fn(Vec<OwnerReference>) -> Vec<OwnerReference>,
) -> Result<(), Error> {
    let Some(found) = vmis.get_opt(name).await? else { return Ok(()) };
    let others = found.owner_references().iter().filter(|known| known.uid != owner).cloned().collect();
    let patch = json!({ "metadata": { "uid": uid, "ownerReferences": change(others) } });
    match vmis.patch(name, &PatchParams::default(), &versioned_patch(&found.metadata, patch)).await {
        // It changed, and will be looked at again.
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

fn on_error(set: Arc<VirtualMachineInstanceReplicaSet>, error: &Error, _state: Arc<State>) -> controller::Action {
    tracing::warn!(replicaset = %set.name_any(), error = %chain(error), "cannot reconcile the replica set");
    controller::Action::requeue(Duration::from_secs(2))
}
