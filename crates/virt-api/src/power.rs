//! start, stop and restart of a VirtualMachine.
//!
//! Where the run strategy says what the owner wants for good (`Always`, `Halted`, `running`), the request changes that
//! word. Elsewhere it is a request that the controller takes from the status.

use ferrovirt_api::v1::{
    VirtualMachine, VirtualMachineInstance,
    values::{state_change_request_action as action, virtual_machine_run_strategy as strategy},
};
use http::{Request, Response};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{Body, VirtApi, answer, authorize::Target};

/// How often a decision is taken anew because the object changed under it.
const TRIES: u32 = 10;

pub(crate) async fn handle(api: &VirtApi, _request: Request<Body>, target: &Target<'_>) -> Response<Body> {
    let mut tries = 0;
    loop {
        tries += 1;
        match attempt(api, target).await {
            // Somebody else wrote in between, most often the controller its status. What was decided may no longer hold.
            Err(Refusal::Api(kube::Error::Api(status))) if status.is_conflict() && tries < TRIES => {}
            Ok(()) => return answer::accepted(),
            Err(Refusal::Api(error)) => return answer::from_kube(error),
            Err(Refusal::State(message)) => return answer::conflict("virtualmachine", target.name, &message),
        }
    }
}

enum Refusal {
    Api(kube::Error),
    /// The VM is not in a state in which this could be asked of it.
    State(String),
}

impl From<kube::Error> for Refusal {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

async fn attempt(api: &VirtApi, target: &Target<'_>) -> Result<(), Refusal> {
    let vms = Api::<VirtualMachine>::namespaced(api.client.clone(), target.namespace);
    let vmis = Api::<VirtualMachineInstance>::namespaced(api.client.clone(), target.namespace);
    let vm = vms.get(target.name).await?;
    let vmi = vmis.get_opt(target.name).await?;
    let vmi = vmi.filter(|vmi| !matches!(vmi.status.phase.as_str(), "Succeeded" | "Failed"));
    let uid = vmi.as_ref().and_then(ResourceExt::uid);
    let metadata = json!({ "resourceVersion": vm.resource_version() });
    let params = PatchParams::default();
    match decide(&vm, uid.as_deref(), target.subresource).map_err(Refusal::State)? {
        Change::Spec(spec) => {
            let patch = json!({ "metadata": metadata, "spec": spec });
            vms.patch(target.name, &params, &Patch::Merge(patch)).await?;
        }
        Change::Requests(requests) => {
            let patch = json!({ "metadata": metadata, "status": { "stateChangeRequests": requests } });
            vms.patch_status(target.name, &params, &Patch::Merge(patch)).await?;
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Change {
    Spec(Value),
    Requests(Value),
}

fn decide(vm: &VirtualMachine, running_uid: Option<&str>, subresource: &str) -> Result<Change, String> {
    let declared = match (vm.spec.running, vm.spec.run_strategy.as_deref()) {
        (Some(true), _) => strategy::ALWAYS,
        (Some(false), _) | (None, None) => strategy::HALTED,
        (None, Some(declared)) => declared,
    };
    let set = |on: bool| match vm.spec.running {
        Some(_) => Change::Spec(json!({ "running": on })),
        None => Change::Spec(json!({ "runStrategy": if on { strategy::ALWAYS } else { strategy::HALTED } })),
    };
    match (subresource, declared, running_uid) {
        ("start", _, Some(_)) => Err("VM is already running".into()),
        ("start", strategy::HALTED, None) => Ok(set(true)),
        ("start", strategy::ALWAYS | strategy::ONCE, None) => {
            Err(format!("{declared} does not support manual start requests"))
        }
        ("start", _, None) => Ok(Change::Requests(json!([{ "action": action::START }]))),
        ("stop", strategy::ALWAYS, _) => Ok(set(false)),
        ("stop", strategy::HALTED, _) => Err(format!("{declared} does not support manual stop requests")),
        ("stop", _, Some(uid)) => Ok(Change::Requests(json!([{ "action": action::STOP, "uid": uid }]))),
        ("restart", strategy::HALTED, _) => Err(format!("{declared} does not support manual restart requests")),
        ("restart", _, Some(uid)) => {
            Ok(Change::Requests(json!([{ "action": action::STOP, "uid": uid }, { "action": action::START }])))
        }
        _ => Err("VM is not running".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        running: Option<bool>,
        declared: Option<&str>,
        uid: Option<&str>,
        request: &str,
    ) -> Result<Change, String> {
        let mut vm = VirtualMachine::default();
        vm.spec.running = running;
        vm.spec.run_strategy = declared.map(Into::into);
        decide(&vm, uid, request)
    }

    #[test]
    fn a_declared_will_is_changed_and_anything_else_is_a_request() {
        assert_eq!(check(Some(false), None, None, "start"), Ok(Change::Spec(json!({ "running": true }))));
        assert_eq!(check(None, Some("Halted"), None, "start"), Ok(Change::Spec(json!({ "runStrategy": "Always" }))));
        assert_eq!(check(None, Some("Manual"), None, "start"), Ok(Change::Requests(json!([{ "action": "Start" }]))));
        assert_eq!(
            check(None, Some("Always"), Some("u"), "stop"),
            Ok(Change::Spec(json!({ "runStrategy": "Halted" })))
        );
        assert_eq!(
            check(None, Some("Manual"), Some("u"), "stop"),
            Ok(Change::Requests(json!([{ "action": "Stop", "uid": "u" }])))
        );
        assert_eq!(check(None, Some("Always"), Some("u"), "start"), Err("VM is already running".into()));
        assert_eq!(check(None, Some("Manual"), None, "stop"), Err("VM is not running".into()));
        assert_eq!(check(None, Some("Always"), None, "restart"), Err("VM is not running".into()));
    }
}
