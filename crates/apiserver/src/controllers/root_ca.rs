//! Every namespace has a ConfigMap with the authority of the serving certificate, so that pods can trust the server.

use std::sync::Arc;

use serde_json::json;

use super::client::Client;
use super::follow::{Follower, Seen};
use crate::server::Server;
use crate::storage::parse;

const NAME: &str = "kube-root-ca.crt";

pub async fn run(server: Arc<Server>) {
    let Some(pem) = server.root_ca_pem.clone() else { return };
    let client = Client::new(&server, "serviceaccount:kube-system:root-ca-cert-publisher");
    let mut namespaces = Follower::new(&server, "namespaces");
    let mut maps = Follower::new(&server, "configmaps");
    loop {
        let namespace = tokio::select! {
            seen = namespaces.next() => match seen {
                Some(Seen::Present(entry)) if !entry.meta.deleting => entry.key.name.clone(),
                Some(_) => continue,
                None => return,
            },
            seen = maps.next() => match seen {
                Some(Seen::Removed(entry)) if &*entry.key.name == NAME => entry.key.namespace.clone(),
                Some(Seen::Present(entry)) if &*entry.key.name == NAME => {
                    if parse(&entry).is_ok_and(|map| map["data"] == json!({"ca.crt": pem})) {
                        continue;
                    }
                    entry.key.namespace.clone()
                }
                Some(_) => continue,
                None => return,
            },
        };
        ensure(&client, &namespace, &pem).await;
    }
}

async fn ensure(client: &Client, namespace: &str, pem: &str) {
    let wanted = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": NAME, "namespace": namespace,
            "annotations": {"kubernetes.io/description": "The authority that signed the certificate of this API server."},
        },
        "data": {"ca.crt": pem},
    });
    let result = match client.create_if_absent(&wanted).await {
        Ok(Some(mut current)) if current["data"] != wanted["data"] => {
            current["data"] = wanted["data"].clone();
            if let Some(map) = current.as_object_mut() {
                map.remove("binaryData");
            }
            client.update(&current).await.map(|_| ())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => {}
        // The namespace is going away, or somebody changed the map: its next event brings us back.
        Err(error) if matches!(error.code, 403 | 404 | 409 | 503) => {}
        Err(error) => tracing::warn!(namespace, error = error.message(), "cannot publish the CA certificate"),
    }
}
