//! One tenant that asks for too much, and others who are served meanwhile.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrovirt_apiserver::{Body, Config, Handler, Shares, StaticTokens};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http_body_util::{BodyExt as _, Full};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;

use crate::support::Server;
use crate::support::kubectl::{Kubectl, connect_with};

type Stream = tokio_rustls::client::TlsStream<tokio::net::TcpStream>;

const PATIENCE: Duration = Duration::from_secs(60);
const LOG: &str = "/api/v1/namespaces/default/pods/p/log";
const TOKENS: &str = "greedy,greedy,1,ops\nmodest,modest,2,ops\n";

struct Served {
    k: Kubectl,
    dir: PathBuf,
    /// Each permit lets one request for a log be answered.
    gate: Arc<Semaphore>,
}

async fn start(shares: Shares) -> Served {
    let config = Config { static_tokens: StaticTokens::parse(TOKENS).unwrap(), shares, ..Config::default() };
    let server = Server::start_with(config).await;
    let binding = json!({
        "metadata": {"name": "ops"}, "subjects": [{"kind": "Group", "name": "ops", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    server.admin().post(path, &binding).await.expect(201);
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let handler: Handler = Arc::new(move |_| {
        let gate = held.clone();
        Box::pin(async move {
            gate.acquire().await.unwrap().forget();
            let body: Body = Full::from("log").map_err(|never| match never {}).boxed_unsync();
            http::Response::new(body)
        })
    });
    server.api.register_subresource("", "pods", "log", handler);
    let k = Kubectl::start(server).await;
    let dir = k.server.dir.path().to_owned();
    Served { k, dir, gate }
}

async fn send(address: SocketAddr, dir: &Path, token: &str, path: &str) -> Stream {
    let mut stream = connect_with(address, dir, None).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// The head of the answer.
async fn head(stream: &mut Stream) -> String {
    try_head(stream).await.expect("an answer")
}

/// None if the connection was closed instead: a refusal may not wait for what the client still sends.
async fn try_head(stream: &mut Stream) -> Option<String> {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        bytes.push(tokio::time::timeout(PATIENCE, stream.read_u8()).await.expect("an answer").ok()?);
    }
    Some(String::from_utf8(bytes).unwrap().to_lowercase())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_hammers_does_not_keep_another_out() {
    let shares = Shares { total: 8, most: 4, least: 2, queue: 8, ..Shares::default() };
    let served = start(shares).await;
    let (address, dir) = (served.k.address, served.dir.as_path());
    // Four are in work and eight wait; the rest is told to come again.
    let mut greedy = FuturesUnordered::new();
    for _ in 0..60 {
        let mut stream = send(address, dir, "greedy", LOG).await;
        greedy.push(async move { (head(&mut stream).await, stream) });
    }
    // Nothing else can be answered yet.
    let mut refused = Vec::new();
    while refused.len() < 48 {
        refused.push(greedy.next().await.unwrap().0);
    }
    assert!(refused.iter().all(|answer| answer.starts_with("http/1.1 429") && answer.contains("retry-after: 1")));
    // Others are served, health is told, and the administrator is.
    for (token, path) in [("modest", "/api/v1/namespaces"), ("nobody", "/healthz"), ("modest", "/version")] {
        let answer = head(&mut send(address, dir, token, path).await).await;
        let expected = if token == "nobody" { "http/1.1 401" } else { "http/1.1 200" };
        assert!(answer.starts_with(expected), "{token} {path}: {answer}");
    }
    served.k.server.admin().get("/api/v1/namespaces").await.expect(200);
    // Those that wait get their turn.
    served.gate.add_permits(12);
    while let Some((answer, _)) = greedy.next().await {
        assert!(answer.starts_with("http/1.1 200"), "{answer}");
    }
    served.k.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_watches_is_bounded_by_user() {
    let served = start(Shares { watches: 3, ..Shares::default() }).await;
    let (address, dir) = (served.k.address, served.dir.as_path());
    let path = "/api/v1/namespaces?watch=1";
    let mut watches = Vec::new();
    for _ in 0..3 {
        let mut stream = send(address, dir, "greedy", path).await;
        assert!(head(&mut stream).await.starts_with("http/1.1 200"));
        watches.push(stream);
    }
    let refused = head(&mut send(address, dir, "greedy", path).await).await;
    assert!(refused.starts_with("http/1.1 429") && refused.contains("retry-after"), "{refused}");
    assert!(head(&mut send(address, dir, "modest", path).await).await.starts_with("http/1.1 200"));
    // A watch that ended leaves its place to another.
    drop(watches.pop());
    while head(&mut send(address, dir, "greedy", path).await).await.starts_with("http/1.1 429") {}
    served.k.stop().await;
}

/// Large bodies that never end are bounded by user, so that there is room for those of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_uploads_of_one_tenant_leave_room_for_others() {
    let served = start(Shares { queue: 0, ..Shares::default() }).await;
    let (address, dir) = (served.k.address, served.dir.as_path());
    let path = "/api/v1/namespaces/default/configmaps";
    let begin = |token: &'static str, sent: usize| async move {
        let mut stream = connect_with(address, dir, None).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: 3000000\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let _ = stream.write_all(" ".repeat(sent).as_bytes()).await;
        stream
    };
    // Sixteen are in work, and wait for the rest of what they were promised; the others are told to come again.
    let mut slow = FuturesUnordered::new();
    for _ in 0..60 {
        let mut stream = begin("greedy", 2 << 20).await;
        slow.push(async move { (try_head(&mut stream).await, stream) });
    }
    for _ in 0..44 {
        let (answer, _) = slow.next().await.unwrap();
        assert!(answer.as_ref().is_none_or(|answer| answer.starts_with("http/1.1 429")), "{answer:?}");
    }
    assert_eq!(slow.len(), 16);
    let mut modest = begin("modest", 0).await;
    let object = json!({"metadata": {"name": "large"}, "data": {"x": "x".repeat(900_000)}}).to_string();
    modest.write_all(object.as_bytes()).await.unwrap();
    modest.write_all(" ".repeat(3_000_000 - object.len()).as_bytes()).await.unwrap();
    let answer = head(&mut modest).await;
    assert!(answer.starts_with("http/1.1 201"), "{answer}");
    drop(slow);
    served.k.stop().await;
}
