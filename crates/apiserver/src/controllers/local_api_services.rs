//! Every group version that this server serves itself has an APIService without a service, as the aggregator upstream
//! registers them.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::client::Client;
use crate::object::{at, text};
use crate::server::Server;
use crate::storage::parse;

const STORAGE: &str = "apiregistration.k8s.io/apiservices";
/// Marks objects that come and go with what they stand for.
const LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";

pub async fn run(server: Arc<Server>) {
    let client = Client::new(&server, "apiserver");
    let mut changes = server.registry.generations();
    loop {
        changes.mark_unchanged();
        sync(&server, &client).await;
        tokio::select! {
            () = server.stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

async fn sync(server: &Arc<Server>, client: &Client) {
    let snapshot = server.registry.snapshot();
    let mut wanted = BTreeSet::new();
    for (position, (group, versions)) in snapshot.groups().into_iter().enumerate() {
        let custom = snapshot.iter().filter(|r| r.group == group).all(|r| r.custom);
        for (rank, version) in versions.into_iter().enumerate() {
            let name = format!("{version}.{group}");
            if server.store.get(STORAGE, &ferrovirt_store::Key::new("", name.as_str())).is_none() {
                create(client, &object(&name, group, version, custom, position, rank)).await;
            }
            wanted.insert(name);
        }
    }
    for entry in server.store.list(STORAGE, None).items {
        let managed = entry.meta.labels().contains_key(LABEL);
        if !managed || wanted.contains(&*entry.key.name) {
            continue;
        }
        // Somebody may have turned it into one that leads elsewhere.
        let local = parse(&entry).is_ok_and(|o| at(&o, &["spec", "service"]).is_none_or(Value::is_null));
        if local {
            let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{}", entry.key.name);
            let _ = client.delete(&path, &json!({})).await;
        }
    }
}

fn object(name: &str, group: &str, version: &str, custom: bool, position: usize, rank: usize) -> Value {
    let (label, priority, version_priority) = match custom {
        true => ("true", 1000, 100),
        false => ("onstart", 18000 - 100 * position.min(100), 15),
    };
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": name, "labels": {LABEL: label}},
        "spec": {
            "group": group, "version": version, "groupPriorityMinimum": priority,
            "versionPriority": version_priority.max(rank + 1) - rank,
        },
    })
}

async fn create(client: &Client, object: &Value) {
    if let Err(error) = client.create_if_absent(object).await
        && error.code != 503
    {
        tracing::warn!(
            name = text(object, &["metadata", "name"]),
            error = error.message(),
            "cannot register a group version"
        );
    }
}
