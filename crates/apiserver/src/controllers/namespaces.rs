//! Namespace deletion: pods first, then everything else, then the namespace.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferrovirt_store::Key;
use serde_json::json;

use super::client::{Client, collection_path};
use super::follow::{Follower, Seen};
use crate::object;
use crate::registry::Special;
use crate::server::Server;
use crate::storage::parse;

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(2);

pub async fn run(server: Arc<Server>) {
    let busy: Arc<Mutex<HashSet<Arc<str>>>> = Arc::default();
    let mut follower = Follower::new(&server, "namespaces");
    while let Some(seen) = follower.next().await {
        let Seen::Present(entry) = seen else { continue };
        let name = entry.key.name.clone();
        if !entry.meta.deleting || !lock(&busy).insert(name.clone()) {
            continue;
        }
        let (server, busy) = (server.clone(), busy.clone());
        let tasks = server.tasks.clone();
        tasks.spawn(async move {
            let stop = server.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                () = empty(&server, &name) => {}
            }
            lock(&busy).remove(&name);
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Works until the namespace is gone.
async fn empty(server: &Arc<Server>, name: &str) {
    let client = Client::new(server, "serviceaccount:kube-system:namespace-controller");
    let mut pause = SHORT;
    loop {
        let Some(entry) = server.store.get("namespaces", &Key::new("", name)) else {
            return;
        };
        let remaining = delete_contents(server, &client, name).await;
        if remaining.is_empty()
            && let Ok(mut namespace) = parse(&entry)
        {
            namespace["spec"]["finalizers"] = json!([]);
            match client.update_at(&namespace, "finalize").await {
                // Other finalizers may still hold it; then its next change brings us back here.
                Ok(_) => return,
                Err(error) if error.code == 404 => return,
                Err(error) => tracing::debug!(namespace = name, error = error.message(), "cannot finalize yet"),
            }
        } else {
            report(&client, server, name, &remaining).await;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONG);
    }
}

/// Asks for the deletion of everything and returns what is still there.
async fn delete_contents(server: &Arc<Server>, client: &Client, name: &str) -> Vec<String> {
    let snapshot = server.registry.snapshot();
    let mut resources: Vec<_> =
        snapshot.iter().filter(|r| r.namespaced && !r.is_virtual() && !r.shares_storage()).collect();
    resources.sort_by_key(|r| r.special != Special::Pod);
    let mut remaining = Vec::new();
    for resource in resources {
        let entries = server.store.list(&resource.storage, Some(name)).items;
        if entries.is_empty() {
            continue;
        }
        let version = resource.versions.first().map_or("v1", |v| v.name.as_str());
        if entries.iter().any(|e| !e.meta.deleting) {
            let path = collection_path(resource, version, Some(name));
            if let Err(error) = client.delete(&path, &json!({"propagationPolicy": "Background"})).await {
                tracing::debug!(path, error = error.message(), "cannot delete the content of a namespace yet");
            }
        }
        let left = server.store.list(&resource.storage, Some(name)).items.len();
        if left > 0 {
            remaining.push(format!("{} has {left} resource instances", resource.qualified()));
            // Pods may use anything else; nothing goes before they are gone.
            if resource.special == Special::Pod {
                break;
            }
        }
    }
    remaining
}

/// Says in the namespace's status what it waits for.
async fn report(client: &Client, server: &Server, name: &str, remaining: &[String]) {
    let Some(mut namespace) = server.store.get("namespaces", &Key::new("", name)).and_then(|e| parse(&e).ok()) else {
        return;
    };
    let message = format!("Some resources are remaining: {}", remaining.join(", "));
    object::set_condition(&mut namespace, "NamespaceContentRemaining", "True", "SomeResourcesRemain", &message);
    // A conflict means that somebody else changed it; the next round tries again.
    let _ = client.update_at(&namespace, "status").await;
}
