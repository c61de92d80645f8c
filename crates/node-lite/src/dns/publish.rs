//! The service `kube-dns`, under which pods find the server wherever it listens.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::services::SERVICE_NAME;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
const MANAGER: &str = "ferrovirt-dns";

/// Writes the service and its endpoint. Nothing changes if they are there already.
pub(crate) async fn publish(client: &kube::Client, service: IpAddr, server: SocketAddr) -> Result<(), kube::Error> {
    let params = PatchParams::apply(MANAGER).force();
    let port = |name: &str, protocol: &str| json!({ "name": name, "protocol": protocol, "port": 53 });
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": NAME, "namespace": NAMESPACE, "labels": {
            "k8s-app": NAME, "kubernetes.io/name": "CoreDNS", "kubernetes.io/cluster-service": "true",
        } },
        "spec": { "clusterIP": service.to_string(), "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")] },
    });
    Api::<Service>::namespaced(client.clone(), NAMESPACE).patch(NAME, &params, &Patch::Apply(&object)).await?;
    let port = |name: &str, protocol: &str| json!({ "name": name, "protocol": protocol, "port": server.port() });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": NAME, "namespace": NAMESPACE, "labels": {
            SERVICE_NAME: NAME, "endpointslice.kubernetes.io/managed-by": MANAGER,
        } },
        "addressType": if server.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{ "addresses": [server.ip().to_string()], "conditions": { "ready": true } }],
        "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")],
    });
    Api::<EndpointSlice>::namespaced(client.clone(), NAMESPACE).patch(NAME, &params, &Patch::Apply(&slice)).await?;
    Ok(())
}
