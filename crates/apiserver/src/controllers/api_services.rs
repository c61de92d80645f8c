//! `Available` of APIServices follows the handlers registered in this process.

use std::sync::Arc;

use super::client::Client;
use crate::server::Server;
use crate::storage::parse;

/// Looks at all APIServices again, in the background.
pub fn refresh(server: &Arc<Server>) {
    let entries = server.store.list("apiregistration.k8s.io/apiservices", None).items;
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
