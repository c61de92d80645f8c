//! Reports in every quota what is used of it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::client::Client;
use crate::object::at;
use crate::quota;
use crate::server::Server;

pub async fn run(server: Arc<Server>) {
    let client = Client::new(&server, "serviceaccount:kube-system:resourcequota-controller");
    for entry in server.store.list(quota::STORAGE, None).items {
        report(&server, &client, &entry.key.namespace).await;
    }
    loop {
        let namespaces = tokio::select! {
            () = server.stop.cancelled() => return,
            namespaces = server.quotas.next() => namespaces,
        };
        for namespace in namespaces {
            report(&server, &client, &namespace).await;
        }
    }
}

async fn report(server: &Arc<Server>, client: &Client, namespace: &str) {
    for mut quota in quota::quotas(server, namespace) {
        let used: Value =
            quota::used(server, namespace, &quota).into_iter().map(|(name, q)| (name, json!(q.to_string()))).collect();
        let status = json!({"hard": at(&quota, &["spec", "hard"]).cloned().unwrap_or(json!({})), "used": used});
        if quota.get("status") == Some(&status) {
            continue;
        }
        quota["status"] = status;
        match client.update_at(&quota, "status").await {
            Ok(_) => {}
            // Gone, or changed: the change brings us back.
            Err(error) if matches!(error.code, 404 | 409) => {}
            Err(error) => tracing::warn!(namespace, error = error.message(), "cannot report the use of a quota"),
        }
    }
}
