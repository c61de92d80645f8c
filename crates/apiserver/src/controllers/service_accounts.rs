//! Every namespace has a service account named `default`.

use std::sync::Arc;

use serde_json::json;

use super::client::Client;
use super::follow::{Follower, Seen};
use crate::server::Server;

pub async fn run(server: Arc<Server>) {
    let client = Client::new(&server, "serviceaccount:kube-system:service-account-controller");
    let mut namespaces = Follower::new(&server, "namespaces");
    let mut accounts = Follower::new(&server, "serviceaccounts");
    loop {
        let namespace = tokio::select! {
            seen = namespaces.next() => match seen {
                Some(Seen::Present(entry)) if !entry.meta.deleting => entry.key.name.clone(),
                Some(_) => continue,
                None => return,
            },
            seen = accounts.next() => match seen {
                Some(Seen::Removed(entry)) if &*entry.key.name == "default" => entry.key.namespace.clone(),
                Some(_) => continue,
                None => return,
            },
        };
        ensure(&client, &namespace).await;
    }
}

async fn ensure(client: &Client, namespace: &str) {
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}});
    match client.create_if_absent(&account).await {
        Ok(_) => {}
        // The namespace is going away.
        Err(error) if matches!(error.code, 403 | 404 | 503) => {}
        Err(error) => tracing::warn!(namespace, error = error.message(), "cannot create the default service account"),
    }
}
