//! Events live for an hour after they were last seen.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::client::{Client, item_path};
use crate::server::Server;
use crate::storage::Entry;

const TTL_SECONDS: i64 = 3600;
const SWEEP: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outline {
    metadata: Metadata,
    last_timestamp: Option<String>,
    event_time: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    creation_timestamp: Option<String>,
}

pub async fn run(server: Arc<Server>) {
    let client = Client::new(&server, "apiserver");
    loop {
        tokio::select! {
            () = server.stop.cancelled() => return,
            () = tokio::time::sleep(SWEEP) => {}
        }
        let now = jiff::Timestamp::now().as_second();
        let snapshot = server.registry.snapshot();
        let Some(resource) = snapshot.find("", "events") else {
            continue;
        };
        let mut entries = server.store.list("events", None).items;
        entries.retain(|e| expired(e, now));
        for entry in &entries {
            let _ = client.delete(&item_path(resource, &entry.key), &json!({})).await;
        }
    }
}

fn expired(entry: &Entry, now: i64) -> bool {
    let Ok(outline) = serde_json::from_slice::<Outline>(&entry.bytes) else {
        return false;
    };
    [outline.last_timestamp, outline.event_time, outline.metadata.creation_timestamp]
        .into_iter()
        .flatten()
        .filter_map(|t| t.parse::<jiff::Timestamp>().ok())
        .map(jiff::Timestamp::as_second)
        .max()
        .is_some_and(|seen| now - seen > TTL_SECONDS)
}
