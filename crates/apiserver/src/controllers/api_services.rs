//! `Available` of APIServices: the handlers registered in this process, and the servers behind Services, which are asked.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::client::Client;
use super::follow::{Follower, Seen};
use crate::aggregation::{self, Route, STORAGE};
use crate::object;
use crate::server::Server;
use crate::storage::parse;

/// How often servers are asked whether they are still there.
const PERIOD: Duration = Duration::from_secs(30);
const SLICES: &str = "discovery.k8s.io/endpointslices";

/// Looks at all APIServices again, in the background.
pub fn refresh(server: &Arc<Server>) {
    let entries = server.store.list(STORAGE, None).items;
    if entries.is_empty() || server.stop.is_cancelled() {
        return;
    }
    let client = Client::new(server, "apiserver");
    let inner = server.clone();
    server.tasks.spawn(async move {
        for entry in entries {
            let Ok(mut object) = parse(&entry) else {
                continue;
            };
            inner.aggregation.set_condition(&inner, &mut object);
            if let Err(error) = client.update_at(&object, "status").await {
                tracing::debug!(error = error.message(), "cannot update the status of an APIService");
            }
        }
    });
}

/// Asks the servers that are not in this process, again and again and when something changes.
pub async fn run(server: Arc<Server>) {
    let client = Client::new(&server, "apiserver");
    let mut slices = Follower::new(&server, SLICES);
    loop {
        for route in external(&server) {
            let outcome = aggregation::check(&server, &route).await;
            record(&server, &client, &route, outcome).await;
        }
        let again = tokio::time::sleep(PERIOD);
        tokio::pin!(again);
        loop {
            tokio::select! {
                () = server.stop.cancelled() => return,
                () = &mut again => break,
                () = server.aggregation.changed.notified() => break,
                seen = slices.next() => match seen {
                    None => return,
                    Some(Seen::Present(entry) | Seen::Removed(entry)) => {
                        let service = entry.meta.labels().get("kubernetes.io/service-name");
                        let ours = |route: &Route| *route.namespace == *entry.key.namespace && Some(&route.service) == service;
                        if external(&server).iter().any(ours) {
                            break;
                        }
                    }
                },
            }
        }
    }
}

fn external(server: &Server) -> Vec<Route> {
    let mut routes = server.aggregation.routes(server);
    routes.retain(|route| server.in_process(&route.namespace, &route.service).is_none());
    routes
}

async fn record(server: &Server, client: &Client, route: &Route, outcome: Result<(), (&'static str, String)>) {
    let name = format!("{}.{}", route.version, route.group);
    let entry = server.store.get(STORAGE, &ferrovirt_store::Key::new("", name.as_str()));
    let Some(mut object) = entry.and_then(|entry| parse(&entry).ok()) else {
        return;
    };
    let (status, reason, message) = match &outcome {
        Ok(()) => ("True", "Passed", "all checks passed"),
        Err((reason, message)) => ("False", *reason, message.as_str()),
    };
    let told = |c: &Value| c["status"] == status && c["reason"] == reason && c["message"] == message;
    if object::condition(&object, "Available").is_some_and(told) {
        return;
    }
    object::set_condition(&mut object, "Available", status, reason, message);
    if let Err(error) = client.update_at(&object, "status").await {
        tracing::debug!(error = error.message(), name, "cannot update the status of an APIService");
        // Somebody else changed it, and that wakes this controller up again.
    }
}
