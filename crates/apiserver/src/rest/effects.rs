//! What a committed change of a special kind means for the server itself.

use std::sync::Arc;

use ferrovirt_store::{CommitError, Condition, Write};

use super::Call;
use crate::crd;
use crate::registry::Special;
use crate::server::Server;
use crate::storage::{Entry, ObjectMeta};

type Committed = Result<Arc<Entry>, CommitError<ObjectMeta>>;

/// What a write holds until it is stored, or cannot be, whether its client waits for that or has hung up.
#[derive(Default)]
pub struct Kept(Vec<Box<dyn Send>>);

impl Kept {
    pub fn and(mut self, what: Option<impl Send + 'static>) -> Self {
        self.0.extend(what.map(|what| Box::new(what) as Box<dyn Send>));
        self
    }
}

/// Writes to the store and applies what follows from it.
pub async fn commit(
    call: &Call,
    write: Write<ObjectMeta>,
    conditions: Vec<Condition<ObjectMeta>>,
    kept: Kept,
) -> Committed {
    let special = call.resource.special;
    let plain =
        !matches!(special, Special::Rbac | Special::Webhook | Special::Policy | Special::ApiService | Special::Crd);
    if plain && kept.0.is_empty() {
        let committed = call.server.store.commit_if(write, conditions).await;
        if let Ok(entry) = &committed {
            call.server.quotas.stir(&call.server.store, entry);
        }
        return committed;
    }
    // In a task of its own: a client that hangs up now must not leave the server with stale roles or kinds, nor give others
    // what the write is about to take.
    let server = call.server.clone();
    let task = tokio::spawn(async move {
        let committed = server.store.commit_if(write, conditions).await;
        drop(kept);
        let entry = committed?;
        server.quotas.stir(&server.store, &entry);
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
