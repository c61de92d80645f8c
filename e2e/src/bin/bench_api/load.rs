//! What is done to a server, and how long it takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::time::Instant;

use crate::Plan;
use crate::http::{Access, Client};
use crate::watcher::{Heard, Watcher};

const SERIAL: &str = "/api/v1/namespaces/bench-serial/configmaps";
const MANY: &str = "/api/v1/namespaces/bench/configmaps";
const WATCHED: &str = "/api/v1/namespaces/bench-watch/configmaps";
/// A watcher that hears nothing for so long has lost something.
const SILENCE: Duration = Duration::from_secs(30);

/// Namespaces, and a role for the user of the load.
pub async fn prepare(admin: &Access, group: &str) -> Result<()> {
    let client = Client::connect(admin).await?;
    for name in ["bench", "bench-serial", "bench-watch"] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        client.create("/api/v1/namespaces", namespace.to_string().into()).await?;
    }
    let api = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "bench"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get", "list", "watch"]}],
    });
    client.create(&format!("{api}/clusterroles"), role.to_string().into()).await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "bench"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bench"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    });
    client.create(&format!("{api}/clusterrolebindings"), binding.to_string().into()).await
}

/// Until the role is known, which upstream takes a moment.
async fn allowed(client: &Client, path: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        let (status, answer) = client.request("GET", &format!("{path}?limit=1"), None).await?;
        if status.is_success() {
            return Ok(());
        }
        ensure!(begun.elapsed() < SILENCE, "{path}: {status}: {}", String::from_utf8_lossy(&answer));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An object of 1 KiB, as it is stored.
fn object(name: &str, text: &str) -> Bytes {
    let filler = "x".repeat(560_usize.saturating_sub(text.len()));
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"app": "bench"}},
        "data": {"at": text, "filler": filler},
    });
    object.to_string().into()
}

/// The middle of the times of creates, one after the other.
pub async fn serial(user: &Access, count: usize) -> Result<Duration> {
    let client = Client::connect(user).await?;
    allowed(&client, SERIAL).await?;
    let mut times = Vec::with_capacity(count);
    for n in 0..count {
        let body = object(&format!("serial-{n}"), "");
        let begun = Instant::now();
        client.create(SERIAL, body).await?;
        times.push(begun.elapsed());
    }
    percentile(&mut times, 50)
}

/// Creates a second, with so many clients that each wait for their answers.
pub async fn parallel(user: &Access, clients: usize, count: usize) -> Result<f64> {
    let next = Arc::new(AtomicUsize::new(0));
    let barrier = Arc::new(Barrier::new(clients + 1));
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let client = Client::connect(user).await?;
        let (next, barrier) = (next.clone(), barrier.clone());
        tasks.push(tokio::spawn(async move {
            barrier.wait().await;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return anyhow::Ok(());
                }
                client.create(MANY, object(&format!("object-{n}"), "")).await?;
            }
        }));
    }
    barrier.wait().await;
    let begun = Instant::now();
    for task in tasks {
        task.await??;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// The middle of the times of whole lists.
pub async fn lists(user: &Access, plan: Plan) -> Result<Duration> {
    let client = Client::connect(user).await?;
    let mut times = Vec::new();
    for round in 0..plan.lists {
        let begun = Instant::now();
        let (status, answer) = client.request("GET", MANY, None).await?;
        times.push(begun.elapsed());
        ensure!(status.is_success(), "the list was answered with {status}");
        if round == 0 {
            let list: Value = serde_json::from_slice(&answer)?;
            let items = list["items"].as_array().context("no items")?;
            // A controller may have put one of its own there.
            ensure!(items.len() >= plan.objects, "{} objects in the list", items.len());
            eprintln!("    {} bytes for {} objects", answer.len(), items.len());
        }
    }
    percentile(&mut times, 50)
}

/// From the moment a create is sent to the moment a watcher has the event: the 99th percentile over all of both, which is about
/// the worst few writes only, and what to say of the round.
pub async fn watch(user: &Access, plan: Plan, round: usize) -> Result<(Duration, String)> {
    let user = user.clone();
    let heard = tokio::task::spawn_blocking(move || watch_once(&user, plan, round)).await??;
    let mut times: Vec<Duration> = heard.iter().flat_map(delays).collect();
    ensure!(times.len() == plan.watchers * plan.watched, "{} events came", times.len());
    let median = percentile(&mut times, 50)?;
    let (most, longest) = (percentile(&mut times, 99)?, percentile(&mut times, 100)?);
    let (median, p99, longest) = (millis(median), millis(most), millis(longest));
    Ok((most, format!("median {median:.1} ms, p99 {p99:.1} ms, longest {longest:.1} ms")))
}

/// The writer and all watchers, on one thread: threads that hand work to each other would take time from the server.
#[tokio::main(flavor = "current_thread")]
async fn watch_once(user: &Access, plan: Plan, round: usize) -> Result<Vec<Heard>> {
    let origin = Instant::now();
    // Only what is new: some servers put objects into a namespace by themselves.
    let writer = Client::connect(user).await?;
    let (_, list) = writer.request("GET", WATCHED, None).await?;
    let list: Value = serde_json::from_slice(&list)?;
    let revision = list["metadata"]["resourceVersion"].as_str().context("the list has no revision")?;
    let path = format!("{WATCHED}?watch=1&resourceVersion={revision}");
    let limit = 2 * SILENCE + plan.pause * u32::try_from(plan.watched)?;
    let mut tasks = Vec::new();
    for _ in 0..plan.watchers {
        let watcher = tokio::time::timeout(SILENCE, Watcher::open(user, &path)).await;
        let watcher = watcher.context("a watch does not begin")??;
        tasks.push(tokio::spawn(tokio::time::timeout(limit, watcher.listen(origin, plan.watched))));
    }
    for n in 0..plan.watched {
        let at = origin.elapsed().as_nanos().to_string();
        writer.create(WATCHED, object(&format!("watched-{round}-{n}"), &at)).await?;
        tokio::time::sleep(plan.pause).await;
    }
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await?.context("a watcher hears nothing")??);
    }
    Ok(all)
}

/// From the pieces that a watcher heard and when: how long each event was on its way. Only afterwards, for the watchers share
/// the processors with the server that is measured.
fn delays(heard: &Heard) -> Vec<Duration> {
    let (mut delays, mut rest) = (Vec::new(), Vec::new());
    for (now, data) in heard {
        rest.extend_from_slice(data);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let sent = sent_at(&rest[..end]);
            rest.drain(..=end);
            delays.extend(sent.map(|at| now.saturating_sub(Duration::from_nanos(at))));
        }
    }
    delays
}

/// What an event says of when it was sent.
fn sent_at(event: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(event).ok().filter(|text| text.contains("\"type\":\"ADDED\""))?;
    let (_, rest) = text.split_once("\"at\":\"")?;
    rest.split_once('"')?.0.parse().ok()
}

pub fn percentile(times: &mut [Duration], percent: usize) -> Result<Duration> {
    times.sort_unstable();
    let last = times.len().checked_sub(1).context("nothing was measured")?;
    Ok(times[(times.len() * percent / 100).min(last)])
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
