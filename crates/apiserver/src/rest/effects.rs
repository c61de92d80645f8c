//! What a committed change of a special kind means for the server itself.

use std::sync::Arc;

use ferrovirt_store::{CommitError, Write};

use super::Call;
use crate::crd;
use crate::registry::Special;
use crate::server::Server;
use crate::storage::{Entry, ObjectMeta};

type Committed = Result<Arc<Entry>, CommitError<ObjectMeta>>;

/// Writes to the store and applies what follows from it.
pub async fn commit(call: &Call, write: Write<ObjectMeta>) -> Committed {
    let special = call.resource.special;
    if !matches!(special, Special::Rbac | Special::Webhook | Special::Policy | Special::ApiService | Special::Crd) {
        let committed = call.server.store.commit(write).await;
        if let Ok(entry) = &committed {
            call.server.quotas.touch(&call.server, entry);
        }
        return committed;
    }
    // In a task of its own: a client that hangs up now must not leave the server with stale roles or kinds.
    let server = call.server.clone();
    let task = tokio::spawn(async move {
        let entry = server.store.commit(write).await?;
        server.quotas.touch(&server, &entry);
        apply(&server, special, &entry).await;
        Ok(entry)
    });
    task.await.unwrap_or(Err(CommitError::Closed))
}

async fn apply(server: &Arc<Server>, special: Special, entry: &Entry) {
    match special {
        Special::Rbac => server.rbac.invalidate(),
        Special::Webhook => server.webhooks.invalidate(),
        Special::Policy => server.policies.invalidate(),
        Special::ApiService => server.aggregation.invalidate(),
        Special::Crd => crd::sync(server, &entry.key.name).await,
        _ => {}
    }
}
