//! Routes under `/apis/subresources.kubevirt.io/<version>`.

use ferrovirt_api::v1::VirtualMachineInstance;
use http::{Method, Request, Response, StatusCode};
use kube::Api;
use serde_json::json;

use crate::{
    Body, StreamKind, VirtApi, answer,
    authorize::{self, Target},
    power, stream,
};

/// What a later release brings. Asking for one is answered in words, not with a 404 that looks like a typing error.
const LATER: &[&str] = &[
    "pause",
    "unpause",
    "reset",
    "softreboot",
    "freeze",
    "unfreeze",
    "portforward",
    "usbredir",
    "vsock",
    "guestosinfo",
    "userlist",
    "filesystemlist",
    "addvolume",
    "removevolume",
    "memorydump",
    "removememorydump",
    "migrate",
    "evacuate",
    "backup",
    "redefine-checkpoint",
    "sev",
    "objectgraph",
    "expand-spec",
];

pub(crate) async fn handle(api: &VirtApi, request: Request<Body>, version: &str, path: &[&str]) -> Response<Body> {
    match path {
        ["version"] => self::version(),
        ["healthz"] => answer::text("ok"),
        [
            "namespaces",
            namespace,
            resource @ ("virtualmachines" | "virtualmachineinstances"),
            name,
            subresource,
            rest @ ..,
        ] => {
            let target = Target {
                verb: if request.method() == Method::PUT { "update" } else { "get" },
                namespace,
                resource,
                name,
                subresource,
            };
            if let Err(refusal) = authorize::check(&api.client, request.headers(), &target).await {
                return refusal;
            }
            dispatch(api, request, &target, rest).await
        }
        _ => answer::not_found(&format!("subresources.kubevirt.io/{version} does not serve /{}", path.join("/"))),
    }
}

async fn dispatch(api: &VirtApi, request: Request<Body>, target: &Target<'_>, rest: &[&str]) -> Response<Body> {
    let kind = match (target.resource, target.subresource) {
        ("virtualmachines", "start" | "stop" | "restart") if request.method() == Method::PUT => {
            return power::handle(api, request, target).await;
        }
        ("virtualmachineinstances", "console") if rest.is_empty() => StreamKind::Serial,
        ("virtualmachineinstances", "vnc") if rest.is_empty() => StreamKind::Vnc,
        (_, later) if LATER.contains(&later) || later == "vnc" => {
            let message = format!("{} is not available in this version of Ferrovirt", target.subresource);
            return answer::status(StatusCode::NOT_IMPLEMENTED, "NotImplemented", &message);
        }
        _ => return answer::not_found(&format!("{} has no {}", target.resource, target.subresource)),
    };
    let vmis = Api::<VirtualMachineInstance>::namespaced(api.client.clone(), target.namespace);
    let vmi = match vmis.get(target.name).await {
        Ok(vmi) => vmi,
        Err(error) => return answer::from_kube(error),
    };
    if vmi.status.phase != "Running" {
        return answer::conflict("virtualmachineinstance", target.name, "VMI is not running");
    }
    let devices = &vmi.spec.domain.devices;
    if kind == StreamKind::Serial && devices.autoattach_serial_console == Some(false) {
        return answer::bad_request("No serial consoles are present.");
    }
    if kind == StreamKind::Vnc && devices.autoattach_graphics_device == Some(false) {
        return answer::bad_request("No graphics devices are present.");
    }
    stream::serve(request, api.nodes.open(vmi, kind)).await
}

fn version() -> Response<Body> {
    answer::json(
        StatusCode::OK,
        &json!({
            "gitVersion": format!("v{}", env!("CARGO_PKG_VERSION")),
            "platform": format!("linux/{}", std::env::consts::ARCH),
        }),
    )
}
