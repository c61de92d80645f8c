//! Deletion of CustomResourceDefinitions: their instances go first.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferrovirt_store::Key;
use serde_json::json;

use super::client::{Client, collection_path};
use super::follow::{Follower, Seen};
use crate::crd::{CLEANUP, STORAGE};
use crate::object::{self, at, strings, text};
use crate::server::Server;
use crate::storage::parse;

pub async fn run(server: Arc<Server>) {
    let busy: Arc<Mutex<HashSet<Arc<str>>>> = Arc::default();
    let mut follower = Follower::new(&server, STORAGE);
    while let Some(seen) = follower.next().await {
        let Seen::Present(entry) = seen else { continue };
        let wanted = entry.meta.deleting && entry.meta.finalizers().iter().any(|f| f == CLEANUP);
        if !wanted || !busy.lock().unwrap_or_else(PoisonError::into_inner).insert(entry.key.name.clone()) {
            continue;
        }
        let (server, busy) = (server.clone(), busy.clone());
        let tasks = server.tasks.clone();
        tasks.spawn(async move {
            let stop = server.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                () = clean_up(&server, &entry.key.name) => {}
            }
            busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&entry.key.name);
        });
    }
}

async fn clean_up(server: &Arc<Server>, name: &str) {
    let client = Client::new(server, "apiserver");
    let mut pause = Duration::from_millis(20);
    loop {
        let Some(mut crd) = server.store.get(STORAGE, &Key::new("", name)).and_then(|e| parse(&e).ok()) else {
            return;
        };
        let (group, plural) =
            (text(&crd, &["spec", "group"]).to_owned(), text(&crd, &["spec", "names", "plural"]).to_owned());
        if let Some(resource) = server.registry.snapshot().find(&group, &plural)
            && let Some(version) = resource.versions.first()
        {
            let objects = server.store.list(&resource.storage, None).items;
            let namespaces: BTreeSet<&str> = objects.iter().map(|entry| &*entry.key.namespace).collect();
            for namespace in namespaces {
                let path = collection_path(resource, &version.name, resource.namespaced.then_some(namespace));
                let _ = client.delete(&path, &json!({})).await;
            }
        }
        if server.store.count(&format!("{group}/{plural}")) == 0 {
            let kept: Vec<String> =
                strings(at(&crd, &["metadata", "finalizers"])).into_iter().filter(|f| f != CLEANUP).collect();
            object::metadata(&mut crd).insert("finalizers".into(), json!(kept));
            match client.update(&crd).await {
                Ok(_) => return,
                Err(error) if error.code == 404 => return,
                Err(error) => tracing::debug!(crd = name, error = error.message(), "cannot finish the deletion yet"),
            }
        } else {
            object::set_condition(
                &mut crd,
                "Terminating",
                "True",
                "InstanceDeletionInProgress",
                "CustomResource deletion is in progress",
            );
            let _ = client.update_at(&crd, "status").await;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}
