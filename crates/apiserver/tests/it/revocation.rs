//! Certificates that are taken back.

use ferrovirt_apiserver::{Config, RevocationList, Revocations};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::Server;
use crate::support::kubectl::Kubectl;

type Stream = tokio_rustls::client::TlsStream<tokio::net::TcpStream>;

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

async fn ask(stream: &mut Stream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    if stream.write_all(request.as_bytes()).await.is_err() {
        return "closed".to_owned();
    }
    let mut answer = [0; 4096];
    let length = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap_or(0);
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

fn revoked(name: &str) -> RevocationList {
    let mut list = RevocationList::default();
    list.add_user(name, i64::MAX);
    list
}

/// A certificate that was taken back opens nothing, and what was opened with it ends: without a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_certificate_is_refused_and_its_watch_ends() {
    let revocations = Revocations::default();
    let config = Config { revocations: revocations.clone(), ..Config::default() };
    let k = Kubectl::start(Server::start_with(config).await).await;
    let mut watch = k.connect().await;
    assert!(ask(&mut watch, "/api/v1/namespaces?watch=1").await.starts_with("HTTP/1.1 200"));
    revocations.replace(revoked("somebody"));
    let mut other = k.connect().await;
    assert!(ask(&mut other, "/api/v1/namespaces/default").await.starts_with("HTTP/1.1 200"));

    revocations.replace(revoked("admin"));
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, watch.read_to_end(&mut rest)).await.expect("the watch ends").ok();
    assert!(!ask(&mut other, "/api/v1/namespaces/default").await.starts_with("HTTP/1.1 200"));
    let refused = ask(&mut k.connect().await, "/api/v1/namespaces/default").await;
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");

    revocations.replace(RevocationList::default());
    assert!(ask(&mut k.connect().await, "/api/v1/namespaces/default").await.starts_with("HTTP/1.1 200"));
    k.stop().await;
}
