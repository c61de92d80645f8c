//! Reports in every disruption budget how many of its pods may go.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::client::Client;
use super::follow::{Follower, Seen};
use crate::object::at;
use crate::rest::budget_count;
use crate::server::Server;
use crate::storage::parse;

const STORAGE: &str = "policy/poddisruptionbudgets";
/// Changes that come together are counted once.
const SETTLE: Duration = Duration::from_millis(50);

pub async fn run(server: Arc<Server>) {
    let client = Client::new(&server, "serviceaccount:kube-system:disruption-controller");
    let mut budgets = Follower::new(&server, STORAGE);
    let mut pods = Follower::new(&server, "pods");
    let mut dirty: HashSet<Arc<str>> = HashSet::new();
    loop {
        let seen = tokio::select! {
            seen = budgets.next() => seen,
            seen = pods.next() => seen,
            () = tokio::time::sleep(SETTLE), if !dirty.is_empty() => {
                for namespace in std::mem::take(&mut dirty) {
                    report(&server, &client, &namespace).await;
                }
                continue;
            }
        };
        match seen {
            Some(Seen::Present(entry) | Seen::Removed(entry)) => {
                if server.store.count(STORAGE) > 0 {
                    dirty.insert(entry.key.namespace.clone());
                }
            }
            None => return,
        }
    }
}

async fn report(server: &Arc<Server>, client: &Client, namespace: &str) {
    for entry in server.store.list(STORAGE, Some(namespace)).items {
        let Ok(mut budget) = parse(&entry) else { continue };
        let count = budget_count(&server.store, namespace, &budget);
        let allowed = count.healthy.saturating_sub(count.desired);
        let mut status = json!({
            "expectedPods": count.expected, "currentHealthy": count.healthy, "desiredHealthy": count.desired,
            "disruptionsAllowed": allowed, "observedGeneration": budget["metadata"]["generation"],
        });
        // What others put there stays.
        for key in ["conditions", "disruptedPods"] {
            if let Some(value) = at(&budget, &["status", key]) {
                status[key] = value.clone();
            }
        }
        let before = budget.get("status").cloned().unwrap_or_default();
        budget["status"] = status;
        let (enough, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
        crate::object::set_condition(&mut budget, "DisruptionAllowed", enough, reason, "");
        if budget["status"] == before {
            continue;
        }
        match client.update_at(&budget, "status").await {
            Ok(_) => {}
            // Gone, or changed: the change brings us back.
            Err(error) if matches!(error.code, 404 | 409) => {}
            Err(error) => tracing::warn!(namespace, error = error.message(), "cannot report on a disruption budget"),
        }
    }
}
