//! Calls about one instance of this node: passed on to its launcher, answered in upstream's shapes.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use ferrovirt_api::{chain, v1::VirtualMachineInstance};
use ferrovirt_machine::{
    node_call::NodeCall,
    protocol::{Answer, ErrorCode, ProtocolError},
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
            Ok(answer) => shape(call, answer),
            Err(LauncherError::Refused(error)) => Err(error),
            Err(error) => Err(refusal(ErrorCode::Failed, &chain(&error))),
        };
    }
    Err(last)
}

/// From the launcher's answer to the caller's.
fn shape(call: &NodeCall, answer: Answer) -> Result<Bytes, ProtocolError> {
    let bytes = match answer {
        Answer::Done {} => return Ok(Bytes::new()),
        Answer::DomainXml { xml } => return Ok(xml.into()),
        Answer::Screenshot { png } => {
            return match STANDARD.decode(&png) {
                Ok(png) => Ok(png.into()),
                Err(error) => Err(refusal(ErrorCode::Failed, &format!("the launcher's picture is damaged: {error}"))),
            };
        }
        Answer::Report { mut report } => {
            guest::bound_report(&mut report);
            match call {
                NodeCall::Users {} => serde_json::to_vec(&guest::user_list(&report)),
                NodeCall::Filesystems {} => serde_json::to_vec(&guest::filesystem_list(&report)),
                _ => serde_json::to_vec(&guest::agent_info(&report)),
            }
        }
        Answer::Exec { result } => serde_json::to_vec(&result),
        Answer::Stats { counters } => serde_json::to_vec(&counters),
    };
    bytes.map(Bytes::from).map_err(|error| refusal(ErrorCode::Failed, &format!("the answer cannot be said: {error}")))
}

fn refusal(code: ErrorCode, message: &str) -> ProtocolError {
    ProtocolError { code, message: message.to_owned() }
}
