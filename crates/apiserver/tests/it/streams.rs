//! Upgraded connections go through the TLS listener to in-process handlers.

use std::sync::Arc;

use ferrovirt_apiserver::{Body, Handler};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::Server;
use crate::support::kubectl::Kubectl;

/// Upgrades any request and sends back what it gets.
fn echo() -> Handler {
    Arc::new(|mut request: Request<Body>| {
        Box::pin(async move {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgrade.await.unwrap());
                let mut buffer = [0; 64];
                loop {
                    match stream.read(&mut buffer).await {
                        Ok(0) | Err(_) => return,
                        Ok(count) => stream.write_all(&buffer[..count]).await.unwrap(),
                    }
                }
            });
            Response::builder()
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .header("connection", "Upgrade")
                .header("upgrade", "websocket")
                .body(Empty::new().map_err(|never| match never {}).boxed_unsync())
                .unwrap()
        })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_reach_the_handler() {
    let k = Kubectl::start(Server::start().await).await;
    let service = json!({
        "metadata": {"name": "v1.sub.example.com"},
        "spec": {"group": "sub.example.com", "version": "v1", "service": {"namespace": "default", "name": "sub"}, "groupPriorityMinimum": 1000, "versionPriority": 15},
    });
    k.server.admin().post("/apis/apiregistration.k8s.io/v1/apiservices", &service).await.expect(201);
    k.server.api.register_in_process("default", "sub", echo());

    let mut stream = k.connect().await;
    let request = "GET /apis/sub.example.com/v1/namespaces/default/vms/a/console HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    for word in ["ping", "pong"] {
        stream.write_all(word.as_bytes()).await.unwrap();
        let mut back = [0; 4];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, word.as_bytes());
    }
    drop(stream);
    k.stop().await;
}
