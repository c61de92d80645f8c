//! virt-api's client and the node agent's server, with the certificates that virt-controller makes.

use std::{fs, os::fd::BorrowedFd, sync::Arc};

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_node::{Ground, Launcher, LauncherError, ProcessError};
use ferrovirt_virt_api::{BoxError, StreamKind, remote};
use futures::future::BoxFuture;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener},
    sync::watch,
};

use super::certificates::{
    authority::{Authority, Data, Lifetimes, holders},
    material::Material,
};

fn vmi() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": "demo", "namespace": "default", "uid": "vmi-1" },
        "spec": { "domain": { "devices": {} } },
        "status": { "phase": "Running", "nodeName": "node1", "activePods": { "pod-1": "node1" } },
    })
}

fn cluster() -> kube::Client {
    let service = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
        let known = request.uri().path().ends_with("/virtualmachineinstances/demo");
        let (code, body) = match known {
            true => (200, vmi()),
            false => (404, json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 })),
        };
        Ok::<_, BoxError>(http::Response::builder().status(code).body(Full::from(body.to_string()))?)
    });
    kube::Client::new(service, "default")
}

/// A node whose guests are tasks of this process, which is in nobody's pod.
struct Here;

impl Ground for Here {
    fn has_pod(&self, _uid: &str) -> bool {
        true
    }

    fn connect<'a>(&'a self, _uid: &'a str, _user: u32) -> BoxFuture<'a, Result<Launcher, LauncherError>> {
        Box::pin(async { Err(LauncherError::Closed) })
    }

    fn check(&self, _stream: BorrowedFd<'_>, _uid: &str) -> Result<(), ProcessError> {
        Ok(())
    }
}

#[tokio::test]
async fn a_stream_reaches_the_guest_and_needs_the_client_certificate() {
    let scratch = tempfile::tempdir().unwrap();
    let (now, lifetimes) = (time::OffsetDateTime::now_utc(), Lifetimes::default());
    let authority = Authority::advance(&Data::new(), now, lifetimes.ca).unwrap();
    let [api, handler] = holders("kubevirt")
        .map(|holder| Material(holder.renew(&Data::new(), &authority, now, lifetimes.leaf).unwrap()));

    let private = scratch.path().join("pods/pod-1/volumes/kubernetes.io~empty-dir/private/vmi-1");
    fs::create_dir_all(&private).unwrap();
    let console = UnixListener::bind(private.join("virt-serial0")).unwrap();
    tokio::spawn(async move {
        let (mut guest, _) = console.accept().await.unwrap();
        guest.write_all(b"login: ").await.unwrap();
        let (mut from, mut to) = guest.split();
        let _ = tokio::io::copy(&mut from, &mut to).await;
    });

    let config = ferrovirt_node::Config::new("node1", scratch.path().to_owned());
    let agent = ferrovirt_node::agent_on(cluster(), config, Arc::new(Here));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_keep, serving) = watch::channel(handler.server().unwrap());
    tokio::spawn(async move { agent.serve_streams(listener, serving, std::future::pending()).await });

    let dial = |tls: Arc<rustls::ClientConfig>| async move {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = "virt-handler.kubevirt.svc".try_into().unwrap();
        tokio_rustls::TlsConnector::from(tls).connect(name, stream).await
    };
    let vmi: VirtualMachineInstance = serde_json::from_value(vmi()).unwrap();
    let connection = dial(api.client().unwrap()).await.unwrap();
    let mut stream = remote::open(connection, &vmi, StreamKind::Serial { replay: false }).await.unwrap();
    let mut prompt = [0u8; 7];
    stream.read_exact(&mut prompt).await.unwrap();
    assert_eq!(&prompt, b"login: ");
    stream.write_all(b"demo").await.unwrap();
    let mut echo = [0u8; 4];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"demo");

    // An instance of the same name that came later is another one.
    let mut later = vmi.clone();
    later.metadata.uid = Some("vmi-2".into());
    let connection = dial(api.client().unwrap()).await.unwrap();
    let refused = remote::open(connection, &later, StreamKind::Serial { replay: false }).await.err().unwrap();
    assert_eq!(refused.to_string(), "the node agent refused: the instance is gone");

    // A serving certificate of the same CA is no client's.
    let mut wrong = handler.clone();
    for suffix in ["crt", "key"] {
        wrong.0.insert(format!("client.{suffix}"), handler.get(&format!("tls.{suffix}")).unwrap().to_owned());
    }
    let refused = match dial(wrong.client().unwrap()).await {
        Ok(connection) => remote::open(connection, &vmi, StreamKind::Serial { replay: false }).await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
}
