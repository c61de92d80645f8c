//! Reports in every quota what is used of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrovirt_store::Key;
use serde_json::{Value, json};

use super::client::Client;
use crate::object::at;
use crate::quota;
use crate::server::Server;
use crate::storage::parse;

/// What happened is taken in this often while anything happens. A report says no more often what it says.
const STEP: Duration = Duration::from_millis(50);
/// Reports take at most one part in so many of the time: those who write do not wait for those who count.
const PART: u32 = 20;
/// But none is later than this for that reason: a round may have taken long because it was held up, not because it worked.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub async fn run(server: Arc<Server>) {
    let client = Client::new(&server, "serviceaccount:kube-system:resourcequota-controller");
    let mut not_before = Instant::now();
    // What was there before this one was.
    let mut waiting = true;
    loop {
        tokio::select! {
            () = server.stop.cancelled() => return,
            () = server.quotas.stirred(), if !waiting => waiting = true,
            () = tokio::time::sleep(STEP), if waiting => {
                server.quotas.catch_up(&server);
                if Instant::now() < not_before {
                    continue;
                }
                let begun = Instant::now();
                for namespace in server.quotas.unreported(&server) {
                    if !report(&server, &client, &namespace).await {
                        server.quotas.report_again(namespace);
                    }
                }
                waiting = false;
                not_before = Instant::now() + (begun.elapsed() * PART).min(LONGEST_PAUSE);
            }
        }
    }
}

/// False if something was not said that has to be.
async fn report(server: &Arc<Server>, client: &Client, namespace: &Arc<str>) -> bool {
    let mut all = true;
    for (name, used) in server.quotas.used(server, namespace) {
        let key = Key::new(namespace.clone(), name);
        let Some(mut quota) = server.store.get(quota::STORAGE, &key).and_then(|entry| parse(&entry).ok()) else {
            continue;
        };
        let status = json!({"hard": at(&quota, &["spec", "hard"]).cloned().unwrap_or(json!({})), "used": used});
        if same(quota.get("status"), &status) {
            continue;
        }
        quota["status"] = status;
        match client.update_at(&quota, "status").await {
            Ok(_) => {}
            Err(error) if error.code == 404 => {}
            Err(error) => {
                tracing::debug!(quota = %key, error = error.message(), "cannot report the use of a quota yet");
                all = false;
            }
        }
    }
    all
}

/// Maps that are empty are not stored.
fn same(before: Option<&Value>, now: &Value) -> bool {
    let part = |status: &Value, key: &str| status.get(key).cloned().unwrap_or_else(|| json!({}));
    let before = before.unwrap_or(&Value::Null);
    ["hard", "used"].iter().all(|key| part(before, key) == part(now, key))
}
