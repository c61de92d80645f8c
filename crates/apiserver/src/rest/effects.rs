//! What a committed change of a special kind means for the server itself.

use std::sync::Arc;

use crate::crd;
use crate::registry::{Resource, Special};
use crate::server::Server;
use crate::storage::Entry;

pub async fn changed(server: &Arc<Server>, resource: &Resource, entry: &Entry) {
    match resource.special {
        Special::Rbac => server.rbac.invalidate(),
        Special::Webhook => server.webhooks.invalidate(),
        Special::ApiService => server.aggregation.invalidate(),
        Special::Crd => crd::sync(server, &entry.key.name).await,
        _ => {}
    }
}

pub async fn removed(server: &Arc<Server>, resource: &Resource, entry: &Entry) {
    changed(server, resource, entry).await;
}
