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
        sweep(&server, &client, jiff::Timestamp::now().as_second()).await;
    }
}

/// Deletes the events that are old at the time `now`.
async fn sweep(server: &Server, client: &Client, now: i64) {
    let snapshot = server.registry.snapshot();
    let Some(resource) = snapshot.find("", "events") else {
        return;
    };
    let mut entries = server.store.list("events", None).items;
    entries.retain(|e| expired(e, now));
    for entry in &entries {
        if let Err(error) = client.delete(&item_path(resource, &entry.key), &json!({})).await {
            tracing::debug!(event = %entry.key, error = error.message(), "cannot delete an old event");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{ApiServer, Config};

    #[tokio::test]
    async fn events_go_an_hour_after_they_were_last_seen() {
        let dir = tempfile::tempdir().unwrap();
        let api = ApiServer::start(Config { data_dir: dir.path().to_owned(), ..Config::default() }).await.unwrap();
        let client = Client::new(&api.server, "test");
        let now = jiff::Timestamp::now().as_second();
        // (name, seen this long from now, gone after a sweep in an hour and a minute)
        for (name, last) in [("old", None), ("renewed", Some(1800))] {
            let mut event = json!({
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
                "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "r", "message": "m",
            });
            if let Some(last) = last {
                let time = jiff::Timestamp::from_second(now + last).unwrap();
                event["lastTimestamp"] = crate::object::format_time(time).into();
            }
            client.create_if_absent(&event).await.unwrap();
        }
        let left = || -> Vec<String> {
            api.server.store.list("events", None).items.iter().map(|e| e.key.name.to_string()).collect()
        };
        sweep(&api.server, &client, now + 3500).await;
        assert_eq!(left(), ["old", "renewed"]);
        sweep(&api.server, &client, now + 3660).await;
        assert_eq!(left(), ["renewed"]);
        api.shutdown().await;
    }
}
