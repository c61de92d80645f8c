//! Calls about one instance of this node: passed on to its launcher, answered in upstream's shapes.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use ferrovirt_api::{chain, v1::VirtualMachineInstance};
use ferrovirt_machine::{
    node_call::NodeCall,
    protocol::{ErrorCode, GuestReport, ProtocolError},
};

use crate::{Context, guest, launcher::LauncherError, pods};

pub(crate) async fn call(
    context: &Context,
    vmi: &VirtualMachineInstance,
    call: &NodeCall,
) -> Result<Bytes, ProtocolError> {
    let mut last = refusal(ErrorCode::NotHere, "the instance does not run on this node");
    for pod in pods::here(context, vmi) {
        let launcher = match context.ground.connect(&pod, pods::user(vmi)).await {
            Ok(launcher) => launcher,
            Err(error) => {
                last = refusal(ErrorCode::NotHere, &chain(&error));
                continue;
            }
        };
        return match launcher.request(call.request()).await {
            Ok(text) => shape(call, text.unwrap_or_default()),
            Err(LauncherError::Refused(error)) => Err(error),
            Err(error) => Err(refusal(ErrorCode::Failed, &chain(&error))),
        };
    }
    Err(last)
}

/// From the launcher's answer to the caller's.
fn shape(call: &NodeCall, text: String) -> Result<Bytes, ProtocolError> {
    let report = || {
        let mut report = serde_json::from_str::<GuestReport>(&text)?;
        guest::bound_report(&mut report);
        Ok::<_, serde_json::Error>(report)
    };
    let bytes = match call {
        NodeCall::GuestInfo {} => report().and_then(|report| serde_json::to_vec(&guest::agent_info(&report))),
        NodeCall::Users {} => report().and_then(|report| serde_json::to_vec(&guest::user_list(&report))),
        NodeCall::Filesystems {} => report().and_then(|report| serde_json::to_vec(&guest::filesystem_list(&report))),
        NodeCall::Screenshot {} => {
            return match STANDARD.decode(&text) {
                Ok(png) => Ok(png.into()),
                Err(error) => Err(refusal(ErrorCode::Failed, &format!("the launcher's picture is damaged: {error}"))),
            };
        }
        _ => return Ok(text.into()),
    };
    let damaged = |error| refusal(ErrorCode::Failed, &format!("the launcher's answer is damaged: {error}"));
    bytes.map(Bytes::from).map_err(damaged)
}

fn refusal(code: ErrorCode, message: &str) -> ProtocolError {
    ProtocolError { code, message: message.to_owned() }
}
