//! What is put into a server, what is done to it, and how long that takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::time::Instant;

use crate::Plan;
use crate::http::{Access, Client};

/// Clients that change what is there, and that list it in chunks, while others create.
const CHANGERS: usize = 4;
const LISTERS: usize = 4;
/// The same to both servers, however fast they are: between two changes, and between two pages.
const CHANGE_PAUSE: Duration = Duration::from_millis(10);
const PAGE_PAUSE: Duration = Duration::from_millis(50);

/// What a round gave.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// A second.
    pub creates: f64,
    /// Of one create.
    pub median: Duration,
    pub p99: Duration,
    /// Of the server's processor time, all that it did meanwhile included.
    pub cost: Duration,
}

fn namespace(plan: Plan, n: usize) -> String {
    format!("load-{}", n % plan.namespaces)
}

/// Runs `count` numbers through `clients` connections.
async fn each<F>(access: &Access, clients: usize, count: usize, work: impl Fn(Client, usize) -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let mut connections = Vec::with_capacity(clients);
    for _ in 0..clients {
        connections.push(Client::connect(access).await?);
    }
    let next = AtomicUsize::new(0);
    let (next, work) = (&next, &work);
    let lanes = connections.into_iter().map(|client| async move {
        loop {
            let n = next.fetch_add(1, Relaxed);
            if n >= count {
                return anyhow::Ok(());
            }
            work(client.clone(), n).await?;
        }
    });
    join(lanes).await
}

/// All of them at once, on this task.
async fn join<F: Future<Output = Result<()>>>(futures: impl Iterator<Item = F>) -> Result<()> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        let mut error = None;
        futures.retain_mut(|future| match future.as_mut().poll(context) {
            std::task::Poll::Ready(Ok(())) => false,
            std::task::Poll::Ready(Err(failed)) => {
                error = Some(failed);
                false
            }
            std::task::Poll::Pending => true,
        });
        match error {
            Some(error) => std::task::Poll::Ready(Err(error)),
            None if futures.is_empty() => std::task::Poll::Ready(Ok(())),
            None => std::task::Poll::Pending,
        }
    })
    .await
}

/// Namespaces, and a role for the user of the load.
pub async fn prepare(admin: &Access, plan: Plan, group: &str) -> Result<()> {
    let client = Client::connect(admin).await?;
    let api = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "bench"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get", "list", "update"]}],
    });
    client.create(&format!("{api}/clusterroles"), role.to_string().into()).await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "bench"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bench"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    });
    client.create(&format!("{api}/clusterrolebindings"), binding.to_string().into()).await?;
    each(admin, 8, plan.namespaces, move |client, n| async move {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace(plan, n)}});
        client.create("/api/v1/namespaces", object.to_string().into()).await
    })
    .await
}

/// An object of 1 KiB, as it is stored.
fn object(name: &str) -> Bytes {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": "bench"}},
        "data": {"filler": "x".repeat(560)},
    });
    object.to_string().into()
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}, {"name": "https", "port": 443}]},
    })
}

fn endpoints(name: &str, n: usize) -> Value {
    let address = |last: usize| format!("10.{}.{}.{last}", 200 + n / 65536 % 50, n / 256 % 256);
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "endpoints": [
            {"addresses": [address(n % 256)], "conditions": {"ready": true}},
            {"addresses": [address((n + 1) % 256)], "conditions": {"ready": true}},
        ],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "https", "port": 443, "protocol": "TCP"}],
    })
}

/// Quotas first, so that everything else is made under them.
pub async fn fill(admin: &Access, plan: Plan) -> Result<()> {
    each(admin, 8, plan.namespaces, move |client, n| async move {
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "all"},
            "spec": {"hard": {
                "count/configmaps": "1000000", "services": "1000000", "pods": "1000", "requests.cpu": "1000",
                "persistentvolumeclaims": "1000", "requests.storage": "1Pi",
            }},
        });
        let path = format!("/api/v1/namespaces/{}/resourcequotas", namespace(plan, n));
        client.create(&path, quota.to_string().into()).await
    })
    .await?;
    each(admin, plan.clients, plan.services, move |client, n| async move {
        let (namespace, name) = (namespace(plan, n), format!("service-{n}"));
        let path = format!("/api/v1/namespaces/{namespace}/services");
        client.create(&path, service(&name).to_string().into()).await?;
        let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
        client.create(&path, endpoints(&name, n).to_string().into()).await
    })
    .await?;
    each(admin, plan.clients, plan.objects, move |client, n| async move {
        let path = format!("/api/v1/namespaces/{}/configmaps", namespace(plan, n));
        client.create(&path, object(&format!("filler-{n}"))).await
    })
    .await
}

/// Creates, while others change and list what is created.
pub async fn round(user: &Access, plan: Plan, round: usize) -> Result<Round> {
    let over = Arc::new(AtomicBool::new(false));
    let next = Arc::new(AtomicUsize::new(0));
    let barrier = Arc::new(Barrier::new(plan.clients + 1));
    let mut creators = Vec::new();
    for _ in 0..plan.clients {
        let (client, next, barrier) = (Client::connect(user).await?, next.clone(), barrier.clone());
        creators.push(tokio::spawn(async move {
            barrier.wait().await;
            let mut times = Vec::new();
            loop {
                let n = next.fetch_add(1, Relaxed);
                if n >= plan.creates {
                    return anyhow::Ok(times);
                }
                let path = format!("/api/v1/namespaces/{}/configmaps", namespace(plan, n));
                let begun = Instant::now();
                client.create(&path, object(&format!("created-{round}-{n}"))).await?;
                times.push(begun.elapsed());
            }
        }));
    }
    let mut others = Vec::new();
    for n in 0..CHANGERS + LISTERS {
        let (client, over, next) = (Client::connect(user).await?, over.clone(), next.clone());
        others.push(tokio::spawn(async move {
            while !over.load(Relaxed) {
                match n < CHANGERS {
                    true => change(&client, plan, round, next.load(Relaxed)).await?,
                    false => list(&client, &over).await?,
                }
            }
            anyhow::Ok(())
        }));
    }
    barrier.wait().await;
    let begun = Instant::now();
    let mut times = Vec::new();
    for creator in creators {
        times.extend(creator.await??);
    }
    let took = begun.elapsed();
    over.store(true, Relaxed);
    for other in others {
        other.await??;
    }
    times.sort_unstable();
    let at = |percent: usize| times.get(times.len() * percent / 100).copied().context("nothing was measured");
    let creates = times.len() as f64 / took.as_secs_f64();
    Ok(Round { creates, median: at(50)?, p99: at(99)?, cost: Duration::ZERO })
}

/// Changes one of the objects that were created some time ago.
async fn change(client: &Client, plan: Plan, round: usize, created: usize) -> Result<()> {
    tokio::time::sleep(CHANGE_PAUSE).await;
    let Some(n) = created.checked_sub(2 * plan.clients) else { return Ok(()) };
    let n = n.min(plan.creates.saturating_sub(1));
    let path = format!("/api/v1/namespaces/{}/configmaps/created-{round}-{n}", namespace(plan, n));
    let changed = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("created-{round}-{n}")},
        "data": {"at": created.to_string(), "filler": "x".repeat(560)},
    });
    let (status, answer) = client.request("PUT", &path, Some(changed.to_string().into())).await?;
    ensure!(status.is_success(), "PUT {path} was answered with {status}: {}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// All objects, page by page. A list that takes so long that nobody knows its state any more may say so.
async fn list(client: &Client, over: &AtomicBool) -> Result<()> {
    let mut token = String::new();
    while !over.load(Relaxed) {
        tokio::time::sleep(PAGE_PAUSE).await;
        let path = format!("/api/v1/configmaps?limit=250&continue={token}");
        let (status, answer) = client.request("GET", &path, None).await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        ensure!(status.is_success() || status == 410, "GET {path} was answered with {status}: {answer}");
        token = answer["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            return Ok(());
        }
    }
    Ok(())
}

/// The middle of the times of new services, one after the other.
pub async fn services(admin: &Access, plan: Plan) -> Result<Duration> {
    let client = Client::connect(admin).await?;
    let mut times = Vec::new();
    for n in 0..plan.serial {
        let path = format!("/api/v1/namespaces/{}/services", namespace(plan, n));
        let body = service(&format!("serial-{n}")).to_string().into();
        let begun = Instant::now();
        client.create(&path, body).await?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times.get(times.len() / 2).copied().context("nothing was measured")
}

/// How many quotas say of how many objects there are what is true.
pub async fn check_quotas(admin: &Access, plan: Plan) -> Result<usize> {
    let client = Client::connect(admin).await?;
    let mut right = 0;
    for n in 0..plan.namespaces {
        let base = format!("/api/v1/namespaces/{}", namespace(plan, n));
        let (_, list) = client.request("GET", &format!("{base}/configmaps"), None).await?;
        let list: Value = serde_json::from_slice(&list)?;
        let count = list["items"].as_array().map_or(0, Vec::len);
        let (_, quota) = client.request("GET", &format!("{base}/resourcequotas/all"), None).await?;
        let quota: Value = serde_json::from_slice(&quota)?;
        right += usize::from(quota["status"]["used"]["count/configmaps"] == *format!("{count}"));
    }
    Ok(right)
}
