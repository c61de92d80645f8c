//! What is asked of a running guest, through its node: pausing, resetting, freezing, and what its agent knows.

use ferrovirt_api::v1::{
    FreezeUnfreezeTimeout, PauseOptions, VirtualMachine, VirtualMachineInstance,
    values::{virtual_machine_instance_condition_type as condition, virtual_machine_instance_phase as phase},
};
use ferrovirt_machine::{
    node_call::NodeCall,
    protocol::{ErrorCode, ProtocolError},
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use kube::Api;
use serde_json::Value;

use crate::{Body, VirtApi, answer, authorize::Target, options, subresources};

pub(crate) async fn handle(api: &VirtApi, request: Request<Body>, target: &Target<'_>) -> Response<Body> {
    let raw = request.method() == Method::GET && takes_anything(request.headers());
    match attempt(api, request, target).await {
        Ok(response) => response,
        Err(refusal) if raw => as_text(refusal).await,
        Err(refusal) => refusal,
    }
}

/// Upstream's client reads these answers raw: of a Status it shows nothing, of a text with the code 500 it shows the text,
/// and that is what upstream's server sends. Who asks for JSON alone gets a Status.
fn takes_anything(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    accept.contains("*/*")
}

async fn as_text(refusal: Response<Body>) -> Response<Body> {
    let code = refusal.status();
    let body = refusal.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let status: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut response = Response::new(answer::body(status["message"].as_str().unwrap_or_default().to_owned()));
    *response.status_mut() = match code {
        // A missing object is told by its code.
        StatusCode::NOT_FOUND => code,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

async fn attempt(api: &VirtApi, request: Request<Body>, target: &Target<'_>) -> Result<Response<Body>, Response<Body>> {
    let subresource = target.subresource.as_ref();
    let (call, dry_run) = read(request, subresource).await?;
    if subresource == "unpause" {
        let vms = Api::<VirtualMachine>::namespaced(api.client.clone(), target.namespace);
        let vm = vms.get_opt(target.name).await.map_err(answer::from_kube)?;
        if vm.is_some_and(|vm| vm.status.snapshot_in_progress.is_some()) {
            return Err(answer::conflict("virtualmachine", target.name, "VM snapshot is in progress"));
        }
    }
    let vmi = subresources::instance(api, target).await?;
    check(subresource, &vmi).map_err(|refusal| refusal.answer(target.name))?;
    if dry_run {
        return Ok(answer::done());
    }
    let bytes = api.nodes.call(vmi, call).await.map_err(|error| refused(target, &error))?;
    let mut response = Response::new(answer::body(bytes));
    let kind = match subresource {
        "vnc/screenshot" => "image/png",
        _ => "application/json",
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

/// What to ask the node, and whether only to pretend.
async fn read(request: Request<Body>, subresource: &str) -> Result<(NodeCall, bool), Response<Body>> {
    Ok(match subresource {
        "pause" | "unpause" => {
            let options: PauseOptions = options::read(request).await?;
            let call = if subresource == "pause" { NodeCall::Pause {} } else { NodeCall::Unpause {} };
            (call, options::is_dry_run(&options.dry_run)?)
        }
        "freeze" => {
            let options: FreezeUnfreezeTimeout = options::read(request).await?;
            let seconds = match options.unfreeze_timeout.as_deref().map(go_duration_seconds) {
                None => None,
                Some(Some(seconds)) => Some(seconds),
                Some(None) => return Err(answer::bad_request("unfreezeTimeout is not a duration such as 5m or 30s")),
            };
            (NodeCall::Freeze { unfreeze_timeout_seconds: seconds }, false)
        }
        "unfreeze" => (NodeCall::Unfreeze {}, false),
        "reset" => (NodeCall::Reset {}, false),
        "softreboot" => (NodeCall::SoftReboot {}, false),
        "vnc/screenshot" => (NodeCall::Screenshot {}, false),
        "guestosinfo" => (NodeCall::GuestInfo {}, false),
        "userlist" => (NodeCall::Users {}, false),
        "filesystemlist" => (NodeCall::Filesystems {}, false),
        "stats" => (NodeCall::Stats {}, false),
        other => return Err(answer::not_found(&format!("there is no {other}"))),
    })
}

/// Whole seconds of a duration as Go writes it: `1h2m3.5s`, `300ms`.
fn go_duration_seconds(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let mut rest = text;
    let mut total = 0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let scale = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * scale;
        rest = after;
    }
    // Durations are far below what a float holds exactly, and never negative here.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (!text.is_empty()).then_some(total.ceil() as u64)
}

/// Why an instance cannot do that now, in upstream's words and with upstream's codes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Conflict(String),
    BadRequest(String),
    Forbidden(String),
}

impl Refusal {
    pub(crate) fn answer(&self, name: &str) -> Response<Body> {
        match self {
            Self::Conflict(why) => answer::conflict("virtualmachineinstance", name, why),
            Self::BadRequest(why) => answer::bad_request(why),
            Self::Forbidden(why) => {
                let message = format!("virtualmachineinstance.kubevirt.io \"{name}\" is forbidden: {why}");
                answer::status(StatusCode::FORBIDDEN, "Forbidden", &message)
            }
        }
    }
}

const VM_NOT_RUNNING: &str = "VM is not running";
pub(crate) const VMI_NOT_RUNNING: &str = "VMI is not running";

pub(crate) fn check(subresource: &str, vmi: &VirtualMachineInstance) -> Result<(), Refusal> {
    let conflict = |why: &str| Err(Refusal::Conflict(why.into()));
    let running = vmi.status.phase == phase::RUNNING;
    let paused = has(vmi, condition::PAUSED);
    let agent = has(vmi, condition::AGENT_CONNECTED);
    match subresource {
        "pause" | "freeze" | "softreboot" if !running => conflict(VM_NOT_RUNNING),
        "unpause" | "unfreeze" | "stats" | "guestosinfo" | "userlist" | "filesystemlist" if !running => {
            conflict(VMI_NOT_RUNNING)
        }
        "pause" if vmi.spec.liveness_probe.as_ref().is_some_and(|probe| probe.guest_agent_ping.is_none()) => {
            Err(Refusal::Forbidden("Pausing VMIs with a non-GuestAgentPing LivenessProbe is not supported".into()))
        }
        "pause" if paused => conflict("VMI is already paused"),
        "unpause" if !paused => conflict("VMI is not paused"),
        "softreboot" if paused => conflict("VMI is paused"),
        "softreboot" if !agent && acpi_off(vmi) => {
            conflict("VMI neither have the agent connected nor the ACPI feature enabled")
        }
        "guestosinfo" | "userlist" | "filesystemlist" if !agent => conflict("VMI does not have guest agent connected"),
        "reset" if !running => Err(Refusal::BadRequest(format!(
            "Failed to reset non-running VMI with phase {0}: Unable to connect to VirtualMachineInstance because phase \
             is {0} instead of Running or Scheduled",
            vmi.status.phase
        ))),
        "vnc" | "vnc/screenshot" if vmi.spec.domain.devices.autoattach_graphics_device == Some(false) => {
            Err(Refusal::BadRequest("No graphics devices are present.".into()))
        }
        "console" if vmi.spec.domain.devices.autoattach_serial_console == Some(false) => {
            Err(Refusal::BadRequest("No serial consoles are present.".into()))
        }
        "console" if vmi.status.phase == phase::FAILED => conflict("VMI is in failed status"),
        "vnc" | "vnc/screenshot" | "console" if !running => Err(Refusal::BadRequest(VMI_NOT_RUNNING.into())),
        "portforward" if paused => conflict("VMI is paused"),
        "portforward" if !running => conflict(VMI_NOT_RUNNING),
        "portforward" if vmi.status.interfaces.iter().all(|interface| interface.ip_address.is_empty()) => {
            Err(Refusal::BadRequest("no network interfaces are present".into()))
        }
        _ => Ok(()),
    }
}

fn has(vmi: &VirtualMachineInstance, kind: &str) -> bool {
    vmi.status.conditions.iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn acpi_off(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.domain.features.as_ref().is_some_and(|features| features.acpi.enabled == Some(false))
}

/// What the node said no to, as a status.
fn refused(target: &Target<'_>, error: &ProtocolError) -> Response<Body> {
    let (message, name, subresource) = (&error.message, target.name, &target.subresource);
    let failed = |code, reason, next: &str| {
        let what = format!("{subresource} of virtualmachineinstance {name:?} failed: {message}{next}");
        answer::status(code, reason, &what)
    };
    match error.code {
        // Upstream's code and words: its clients look for both.
        ErrorCode::NoAgent if ["freeze", "unfreeze"].contains(&target.subresource.as_ref()) => {
            let command = if subresource == "freeze" { "Freeze" } else { "Unfreeze" };
            answer::internal(&format!("command {command} failed: QEMU guest agent is not connected: {message}"))
        }
        ErrorCode::Conflict | ErrorCode::NoAgent => answer::conflict("virtualmachineinstance", name, message),
        ErrorCode::NotHere => answer::not_found(message),
        ErrorCode::BadRequest => failed(StatusCode::BAD_REQUEST, "BadRequest", ""),
        // A guest keeps the launcher that it was started with.
        ErrorCode::Version => {
            failed(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "; restart the VM to give it a new launcher")
        }
        ErrorCode::Failed => failed(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", ""),
    }
}

#[cfg(test)]
#[path = "guest_tests.rs"]
mod tests;
