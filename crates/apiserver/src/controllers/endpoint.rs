//! The endpoints of the service `kubernetes`: where this server itself listens.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};

use super::client::Client;
use crate::server::Server;

/// Writes the address down. A server that listens everywhere is reached on the loopback address.
pub async fn advertise(server: &Arc<Server>, address: SocketAddr) {
    let client = Client::new(server, "apiserver");
    let (ip, family) = match address.ip() {
        ip if ip.is_unspecified() && ip.is_ipv4() => ("127.0.0.1".to_owned(), "IPv4"),
        ip if ip.is_unspecified() => ("::1".to_owned(), "IPv6"),
        ip => (ip.to_string(), if ip.is_ipv4() { "IPv4" } else { "IPv6" }),
    };
    let port = json!({"name": "https", "port": address.port(), "protocol": "TCP"});
    let meta = |labels: Value| json!({"name": "kubernetes", "namespace": "default", "labels": labels});
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": meta(json!({"endpointslice.kubernetes.io/skip-mirror": "true"})),
        "subsets": [{"addresses": [{"ip": ip}], "ports": [port]}],
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": meta(json!({"kubernetes.io/service-name": "kubernetes"})),
        "addressType": family, "ports": [port],
        "endpoints": [{"addresses": [ip], "conditions": {"ready": true}}],
    });
    for (wanted, keys) in [(endpoints, ["subsets"].as_slice()), (slice, &["ports", "endpoints"])] {
        if let Err(error) = write(&client, &wanted, keys).await {
            tracing::warn!(kind = %wanted["kind"], error = error.message(), "cannot say where the API is");
        }
    }
}

async fn write(client: &Client, wanted: &Value, keys: &[&str]) -> Result<(), crate::status::ApiError> {
    let Some(mut current) = client.create_if_absent(wanted).await? else { return Ok(()) };
    if keys.iter().all(|key| current[*key] == wanted[*key]) {
        return Ok(());
    }
    for key in keys {
        current[*key] = wanted[*key].clone();
    }
    client.update(&current).await.map(|_| ())
}
