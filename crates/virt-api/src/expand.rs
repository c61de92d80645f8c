//! A VM as it would run: with its instance type and its preference filled in.

use ferrovirt_api::v1::VirtualMachine;
use http::{Request, Response, StatusCode};
use kube::Api;
use serde_json::Value;

use crate::{Body, VirtApi, answer, authorize::Target, options};

/// Of a VM that exists.
pub(crate) async fn stored(api: &VirtApi, target: &Target<'_>) -> Response<Body> {
    let vms = Api::<VirtualMachine>::namespaced(api.client.clone(), target.namespace);
    match vms.get(target.name).await {
        Ok(vm) => expand(vm),
        Err(error) => answer::from_kube(error),
    }
}

/// Of a VM that the caller sent.
pub(crate) async fn sent(_api: &VirtApi, request: Request<Body>, namespace: &str) -> Response<Body> {
    let bytes = match options::bytes(request).await {
        Ok(bytes) if bytes.is_empty() => return answer::bad_request("empty request body"),
        Ok(bytes) => bytes,
        Err(refusal) => return refusal,
    };
    match parse(&bytes, namespace) {
        Ok(vm) => expand(vm),
        Err(message) => answer::bad_request(&message),
    }
}

fn parse(bytes: &[u8], namespace: &str) -> Result<VirtualMachine, String> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("Can not unmarshal Request body to struct, error: {error}"))?;
    let mut vm: VirtualMachine =
        serde_json::from_value(value).map_err(|error| format!("Object is not a valid VirtualMachine: {error}"))?;
    match vm.metadata.namespace.as_deref().unwrap_or_default() {
        "" => {}
        own if own == namespace => {}
        _ => return Err(format!("VM namespace must be empty or {namespace}")),
    }
    vm.metadata.namespace = Some(namespace.into());
    Ok(vm)
}

fn expand(vm: VirtualMachine) -> Response<Body> {
    if vm.spec.instancetype.is_some() || vm.spec.preference.is_some() {
        return answer::not_implemented("instance types and preferences are not available yet");
    }
    match serde_json::to_value(&vm) {
        Ok(value) => answer::json(StatusCode::OK, &value),
        Err(error) => answer::internal(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_expanded_in_the_namespace_of_the_request() {
        let vm = r#"{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","metadata":{"name":"a"},"spec":{}}"#;
        assert_eq!(parse(vm.as_bytes(), "b").unwrap().metadata.namespace.as_deref(), Some("b"));
        let foreign = vm.replace(r#""name":"a""#, r#""name":"a","namespace":"c""#);
        assert_eq!(parse(foreign.as_bytes(), "b").unwrap_err(), "VM namespace must be empty or b");
        assert!(parse(b"{", "b").unwrap_err().starts_with("Can not unmarshal"));
        assert!(parse(br#"{"kind":"Pod","apiVersion":"v1"}"#, "b").unwrap_err().contains("not a valid VirtualMachine"));
    }
}
