//! All objects of a resource, now and from now on.

use std::sync::Arc;

use ferrovirt_store::{EventKind, Watcher};
use tokio_util::sync::CancellationToken;

use crate::server::Server;
use crate::storage::{Entry, ObjectMeta};

#[derive(Debug, Clone)]
pub enum Seen {
    Present(Arc<Entry>),
    Removed(Arc<Entry>),
}

/// Yields every object and then every change, until the server stops. After a gap everything present is seen again.
pub struct Follower {
    server: Arc<Server>,
    storage: Arc<str>,
    stop: CancellationToken,
    listed: std::vec::IntoIter<Arc<Entry>>,
    watcher: Watcher<ObjectMeta>,
}

impl Follower {
    pub fn new(server: &Arc<Server>, storage: &str) -> Self {
        let (list, watcher) = server.store.watch_list(storage, None);
        Self {
            server: server.clone(),
            storage: storage.into(),
            stop: server.stop.clone(),
            listed: list.items.into_iter(),
            watcher,
        }
    }

    pub async fn next(&mut self) -> Option<Seen> {
        loop {
            if let Some(entry) = self.listed.next() {
                return Some(Seen::Present(entry));
            }
            let event = tokio::select! {
                () = self.stop.cancelled() => return None,
                event = self.watcher.next() => event,
            };
            match event {
                Ok(event) if event.kind == EventKind::Deleted => {
                    return Some(Seen::Removed(event.entry.clone()));
                }
                Ok(event) => return Some(Seen::Present(event.entry.clone())),
                Err(_) => {
                    let (list, watcher) = self.server.store.watch_list(&self.storage, None);
                    (self.listed, self.watcher) = (list.items.into_iter(), watcher);
                }
            }
        }
    }
}
