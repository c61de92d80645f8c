//! start, stop and restart of a VirtualMachine.
//!
//! Where the run strategy says what the owner wants for good (`Always`, `Halted`, `Once`, `running`), the request changes
//! that word. Elsewhere it is a request that the controller takes from the status. What is decided here is decided from one
//! version of the VM and written only if that version still stands.
//!
//! ```text
//!   strategy        start                    stop                              restart
//!   Always          refused                  becomes Halted                    stop and start request
//!   Halted          becomes Always           refused, or sooner if it stops    refused
//!   Manual          start request            stop request                      stop and start request
//!   RerunOnFailure  start request            stop request                      stop and start request
//!   Once            refused                  becomes Halted                    refused
//! ```

use ferrovirt_api::v1::{
    RestartOptions, StartOptions, StopOptions, VirtualMachine, VirtualMachineInstance,
    VirtualMachineStateChangeRequest,
    values::{
        state_change_request_action as action, virtual_machine_instance_phase as phase,
        virtual_machine_run_strategy as strategy,
    },
};
use http::{Request, Response};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{Body, VirtApi, answer, authorize::Target, options};

/// How often a decision is taken anew because the object changed under it.
const TRIES: u32 = 10;
/// A forced restart leaves the guest this long: nothing that a guest could use, enough for the disk caches of the host.
const FORCED_GRACE: i64 = 1;
const DEFAULT_GRACE: i64 = 30;

#[derive(Debug, Clone, PartialEq)]
enum Wish {
    Start { paused: bool },
    Stop { grace: Option<i64> },
    Restart { force: bool },
}

pub(crate) async fn handle(api: &VirtApi, request: Request<Body>, target: &Target<'_>) -> Response<Body> {
    let (wish, dry_run) = match read(request, &target.subresource).await {
        Ok(read) => read,
        Err(refusal) => return refusal,
    };
    let mut tries = 0;
    loop {
        tries += 1;
        match attempt(api, target, &wish, dry_run).await {
            // Somebody else wrote in between, most often the controller its status. What was decided may no longer hold.
            Err(Refusal::Api(kube::Error::Api(status))) if status.is_conflict() && tries < TRIES => {}
            Ok(()) => return answer::accepted(),
            Err(Refusal::Api(error)) => return answer::from_kube(error),
            Err(Refusal::State(message)) => return answer::conflict("virtualmachine", target.name, &message),
        }
    }
}

async fn read(request: Request<Body>, subresource: &str) -> Result<(Wish, bool), Response<Body>> {
    Ok(match subresource {
        "start" => {
            let options: StartOptions = options::read(request).await?;
            (Wish::Start { paused: options.paused }, options::is_dry_run(&options.dry_run)?)
        }
        "stop" => {
            let options: StopOptions = options::read(request).await?;
            if options.grace_period.is_some_and(|seconds| seconds < 0) {
                return Err(answer::bad_request("gracePeriod has to be greater or equal to 0"));
            }
            (Wish::Stop { grace: options.grace_period }, options::is_dry_run(&options.dry_run)?)
        }
        _ => {
            let options: RestartOptions = options::read(request).await?;
            match options.grace_period_seconds.map(i64::signum) {
                Some(1) => {
                    return Err(answer::bad_request("For force restart, only gracePeriod=0 is supported for now"));
                }
                Some(-1) => return Err(answer::bad_request("gracePeriod has to be greater or equal to 0")),
                _ => {}
            }
            let force = options.grace_period_seconds == Some(0);
            (Wish::Restart { force }, options::is_dry_run(&options.dry_run)?)
        }
    })
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

async fn attempt(api: &VirtApi, target: &Target<'_>, wish: &Wish, dry_run: bool) -> Result<(), Refusal> {
    let vms = Api::<VirtualMachine>::namespaced(api.client.clone(), target.namespace);
    let vmis = Api::<VirtualMachineInstance>::namespaced(api.client.clone(), target.namespace);
    let vm = vms.get(target.name).await?;
    let vmi = vmis.get_opt(target.name).await?;
    let params = PatchParams { dry_run, ..Default::default() };
    let decision = decide(&vm, vmi.as_ref(), wish).map_err(Refusal::State)?;
    if let (Some(seconds), Some(vmi)) = (decision.grace, &vmi) {
        let patch = json!({
            "metadata": { "uid": vmi.uid(), "resourceVersion": vmi.resource_version() },
            "spec": { "terminationGracePeriodSeconds": seconds },
        });
        vmis.patch(target.name, &params, &Patch::Merge(patch)).await?;
    }
    let metadata = json!({ "resourceVersion": vm.resource_version() });
    match decision.change {
        Change::Spec(spec) => {
            let patch = json!({ "metadata": metadata, "spec": spec });
            vms.patch(target.name, &params, &Patch::Merge(patch)).await?;
        }
        Change::Requests(requests) => {
            let patch = json!({
                "metadata": metadata,
                // Whoever asks by hand has seen the failure; the wait after it is over.
                "status": { "stateChangeRequests": requests, "startFailure": null },
            });
            vms.patch_status(target.name, &params, &Patch::Merge(patch)).await?;
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
struct Decision {
    /// The instance's grace period is set to this first.
    grace: Option<i64>,
    change: Change,
}

#[derive(Debug, PartialEq)]
enum Change {
    Spec(Value),
    Requests(Value),
}

impl From<Change> for Decision {
    fn from(change: Change) -> Self {
        Self { grace: None, change }
    }
}

fn decide(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, wish: &Wish) -> Result<Decision, String> {
    let declared = match (vm.spec.running, vm.spec.run_strategy.as_deref()) {
        (Some(true), _) => strategy::ALWAYS,
        (Some(false), _) | (None, None) => strategy::HALTED,
        (None, Some(declared)) => declared,
    };
    match wish {
        Wish::Start { paused } => start(vm, vmi, declared, *paused),
        Wish::Stop { grace } => stop(vm, vmi, declared, *grace),
        Wish::Restart { force } => restart(vm, vmi, declared, *force),
    }
}

fn start(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    declared: &str,
    paused: bool,
) -> Result<Decision, String> {
    if vmi.is_some_and(|vmi| !ended(vmi)) {
        return Err("VM is already running".into());
    }
    let mut request = json!({ "action": action::START });
    if paused {
        request["data"] = json!({ "paused": "true" });
    }
    match declared {
        strategy::HALTED if paused => requests(vm, vmi, vec![request]),
        strategy::HALTED => Ok(will(vm, true).into()),
        strategy::MANUAL | strategy::RERUN_ON_FAILURE => match vmi {
            Some(vmi) if declared == strategy::RERUN_ON_FAILURE && vmi.status.phase == phase::FAILED => {
                Err(format!("{declared} does not support starting VM from failed state"))
            }
            Some(ended) => requests(vm, vmi, vec![stop_request(ended), request]),
            None => requests(vm, vmi, vec![request]),
        },
        _ => Err(format!("{declared} does not support manual start requests")),
    }
}

fn stop(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    declared: &str,
    grace: Option<i64>,
) -> Result<Decision, String> {
    let running = vmi.filter(|vmi| !ended(vmi));
    let grace_of = |vmi: &VirtualMachineInstance| vmi.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
    let change = match declared {
        strategy::ALWAYS | strategy::ONCE => will(vm, false),
        strategy::HALTED => {
            let vmi = running.ok_or(NOT_RUNNING)?;
            if grace.is_none_or(|seconds| seconds >= grace_of(vmi)) {
                return Err(format!("{declared} only supports manual stop requests with a shorter graceperiod"));
            }
            Change::Requests(json!([stop_request(vmi)]))
        }
        _ => Change::Requests(json!([stop_request(running.ok_or(NOT_RUNNING)?)])),
    };
    Ok(Decision { grace: grace.filter(|_| running.is_some()), change })
}

fn restart(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    declared: &str,
    force: bool,
) -> Result<Decision, String> {
    if [strategy::HALTED, strategy::ONCE].contains(&declared) {
        // The missing letter is upstream's, and so is whoever looks for it.
        return Err(format!("RunStategy {declared} does not support manual restart requests"));
    }
    let running = vmi.ok_or_else(|| format!("{NOT_RUNNING}: {}", strategy::HALTED))?;
    let decision = requests(vm, vmi, vec![stop_request(running), json!({ "action": action::START })])?;
    Ok(Decision { grace: force.then_some(FORCED_GRACE), ..decision })
}

const NOT_RUNNING: &str = "VM is not running";

fn stop_request(vmi: &VirtualMachineInstance) -> Value {
    json!({ "action": action::STOP, "uid": vmi.uid() })
}

/// Requests replace none that the controller has not yet met. The stop of an instance that has ended is met: the VM shows as
/// stopped from then on, and whoever sees that may start it again, though the controller has not taken the request back yet.
fn requests(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, wanted: Vec<Value>) -> Result<Decision, String> {
    let running = vmi.filter(|vmi| !ended(vmi)).and_then(|vmi| vmi.metadata.uid.as_deref());
    let is_met = |request: &VirtualMachineStateChangeRequest| {
        request.action == action::STOP && request.uid.is_some() && request.uid.as_deref() != running
    };
    if !vm.status.state_change_requests.iter().all(is_met) {
        return Err("unable to complete request: stop/start already underway".into());
    }
    Ok(Change::Requests(wanted.into()).into())
}

/// Writes the owner's will into whichever of the two fields holds it.
fn will(vm: &VirtualMachine, on: bool) -> Change {
    match vm.spec.running {
        Some(_) => Change::Spec(json!({ "running": on })),
        None => Change::Spec(json!({ "runStrategy": if on { strategy::ALWAYS } else { strategy::HALTED } })),
    }
}

fn ended(vmi: &VirtualMachineInstance) -> bool {
    matches!(vmi.status.phase.as_str(), phase::SUCCEEDED | phase::FAILED)
}

#[cfg(test)]
#[path = "power_tests.rs"]
mod tests;
