//! Aggregated cluster roles show the rules they collect. (Authorization does not wait for this: it aggregates by itself.)

use std::sync::Arc;

use serde_json::Value;

use super::client::Client;
use super::follow::Follower;
use crate::authz::aggregated_rules;
use crate::server::Server;
use crate::storage::parse;

const STORAGE: &str = "rbac.authorization.k8s.io/clusterroles";

pub async fn run(server: Arc<Server>) {
    let client = Client::new(&server, "serviceaccount:kube-system:clusterrole-aggregation-controller");
    let mut follower = Follower::new(&server, STORAGE);
    // Its own writes come back as events too; they find nothing left to do.
    while follower.next().await.is_some() {
        let roles: Vec<Value> = server.store.list(STORAGE, None).items.iter().filter_map(|e| parse(e).ok()).collect();
        for role in &roles {
            if !role.get("aggregationRule").is_some_and(Value::is_object) {
                continue;
            }
            let rules = Value::Array(aggregated_rules(&role["aggregationRule"], &roles));
            if role["rules"] != rules {
                let mut role = role.clone();
                role["rules"] = rules;
                if let Err(error) = client.update(&role).await {
                    tracing::debug!(error = error.message(), "cannot update an aggregated role yet");
                }
            }
        }
    }
}
