//! Routes under `/apis/subresources.kubevirt.io/<version>`.

use ferrovirt_api::v1::{EvacuateCancelOptions, VirtualMachine, VirtualMachineInstance};
use http::{Method, Request, Response, StatusCode};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    Body, VirtApi, answer,
    authorize::{self, Target},
    endpoints::{self, Endpoint, INSTANCES, MACHINES, Served},
    expand, graph, guest, options, power, streams,
};

pub(crate) async fn handle(api: &VirtApi, request: Request<Body>, version: &str, path: &[&str]) -> Response<Body> {
    match path {
        ["version"] => self::version(),
        ["healthz"] => answer::text("ok"),
        ["guestfs"] => guestfs(),
        ["start-cluster-profiler" | "stop-cluster-profiler" | "dump-cluster-profiler"] => {
            answer::not_implemented("the cluster profiler is not available; each component logs and serves metrics")
        }
        ["namespaces", namespace, "expand-vm-spec"] => {
            if request.method() != Method::PUT {
                return answer::method_not_allowed();
            }
            let target = Target {
                verb: "update",
                namespace,
                resource: "expand-vm-spec",
                name: "",
                subresource: "".into(),
                version,
            };
            match authorize::check(&api.client, request.headers(), &target).await {
                Ok(()) => expand::sent(api, request, namespace).await,
                Err(refusal) => refusal,
            }
        }
        ["namespaces", namespace, resource @ (MACHINES | INSTANCES), name, rest @ ..] => {
            let Some((endpoint, parameters)) = endpoints::find(resource, rest) else {
                return answer::not_found(&format!("{resource} has no {}", rest.join("/")));
            };
            if *request.method() != endpoint.verb.method() {
                return answer::method_not_allowed();
            }
            let target = Target {
                verb: endpoint.verb.name(),
                namespace,
                resource,
                name,
                subresource: endpoint.subresource.into(),
                version,
            };
            if let Err(refusal) = authorize::check(&api.client, request.headers(), &target).await {
                return refusal;
            }
            dispatch(api, request, endpoint, &target, parameters).await
        }
        _ => answer::not_found(&format!("subresources.kubevirt.io/{version} does not serve /{}", path.join("/"))),
    }
}

async fn dispatch(
    api: &VirtApi,
    request: Request<Body>,
    endpoint: &Endpoint,
    target: &Target<'_>,
    parameters: &[&str],
) -> Response<Body> {
    match endpoint.served {
        Served::Power => power::handle(api, request, target).await,
        Served::Guest => guest::handle(api, request, target).await,
        Served::Stream => streams::handle(api, request, target, parameters).await,
        Served::Expand => expand::stored(api, target).await,
        Served::Graph => graph::handle(api, request, target).await,
        Served::EvacuateCancel => evacuate_cancel(api, request, target).await,
        Served::Later(why) => answer::not_implemented(&format!("{} is not served: {why}", target.subresource)),
    }
}

pub(crate) async fn instance(api: &VirtApi, target: &Target<'_>) -> Result<VirtualMachineInstance, Response<Body>> {
    let vmis = Api::<VirtualMachineInstance>::namespaced(api.client.clone(), target.namespace);
    vmis.get(target.name).await.map_err(answer::from_kube)
}

/// The instance of a VM that was asked for by the VM's own name.
pub(crate) async fn instance_of_machine(
    api: &VirtApi,
    target: &Target<'_>,
) -> Result<VirtualMachineInstance, Response<Body>> {
    let vms = Api::<VirtualMachine>::namespaced(api.client.clone(), target.namespace);
    let vm = vms.get(target.name).await.map_err(answer::from_kube)?;
    if !vm.status.created {
        return Err(answer::conflict("virtualmachine", target.name, "VMI is not started"));
    }
    let vmi = instance(api, target).await?;
    let owned = vmi.owner_references().iter().any(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref());
    match owned {
        true => Ok(vmi),
        false => Err(answer::conflict("virtualmachine", target.name, "the instance of this name belongs to no VM")),
    }
}

async fn evacuate_cancel(api: &VirtApi, request: Request<Body>, target: &Target<'_>) -> Response<Body> {
    let found = match target.resource {
        MACHINES => instance_of_machine(api, target).await,
        _ => instance(api, target).await,
    };
    let vmi = match found {
        Ok(vmi) => vmi,
        Err(refusal) => return refusal,
    };
    let options: EvacuateCancelOptions = match options::read(request).await {
        Ok(options) => options,
        Err(refusal) => return refusal,
    };
    if vmi.status.evacuation_node_name.is_empty() {
        return answer::done();
    }
    let path = "/status/evacuationNodeName";
    let patch = json!([
        { "op": "test", "path": path, "value": options.evacuation_node_name },
        { "op": "remove", "path": path },
    ]);
    let patch = match serde_json::from_value(patch) {
        Ok(patch) => Patch::Json::<()>(patch),
        Err(error) => return answer::internal(&error.to_string()),
    };
    let params = PatchParams { dry_run: !options.dry_run.is_empty(), ..Default::default() };
    let vmis = Api::<VirtualMachineInstance>::namespaced(api.client.clone(), target.namespace);
    match vmis.patch(target.name, &params, &patch).await {
        Ok(_) => answer::done(),
        Err(error) => answer::from_kube(error),
    }
}

fn version() -> Response<Body> {
    answer::json(
        StatusCode::OK,
        &json!({
            "gitVersion": format!("v{}", env!("CARGO_PKG_VERSION")),
            "gitCommit": "", "gitTreeState": "", "buildDate": "",
            "goVersion": "", "compiler": "rustc",
            "platform": format!("linux/{}", std::env::consts::ARCH),
        }),
    )
}

/// Which image has libguestfs: none is shipped, and clients that ask must be told a name or fail with one.
fn guestfs() -> Response<Body> {
    answer::json(StatusCode::OK, &json!({ "registry": "", "tag": "", "imagePrefix": "", "gsImage": "" }))
}
