//! Where a client goes when it is sent elsewhere, and what it brings along.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use ferrovirt_disks::budget::Budget;
use ferrovirt_disks::store::ImageStore;
use ferrovirt_disks::unpacker::Unpacker;
use ferrovirt_fetch::guard::Reach;
use ferrovirt_fetch::http::{Client, HttpError, Trust};
use ferrovirt_fetch::registry::{Credentials, PullError, Puller, Registries, Registry};
use http::{HeaderMap, Method};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Heard = Arc<Mutex<Vec<String>>>;

/// Answers every request with what `answer` says of it, and keeps what it heard.
async fn server(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> (u16, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, heard) = (listener.local_addr().unwrap().port(), Heard::default());
    let (kept, answer) = (heard.clone(), Arc::new(answer));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (kept, answer) = (kept.clone(), answer.clone());
            tokio::spawn(async move { talk(stream, &kept, &*answer).await });
        }
    });
    (port, heard)
}

async fn talk(
    mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin,
    heard: &Heard,
    answer: &(dyn Fn(&str) -> String + Sync),
) {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).await.is_ok_and(|read| read == 1) {
        request.extend_from_slice(&byte);
        // Somebody tries TLS.
        if request[0] == 0x16 {
            return;
        }
    }
    let request = String::from_utf8(request).unwrap().to_lowercase();
    heard.lock().unwrap().push(request.clone());
    let _ = stream.write_all(answer(&request).as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn go(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n")
}

const FINE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

fn secrets() -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in
        [("authorization", "Basic c2VjcmV0"), ("cookie", "secret"), ("x-api-key", "secret"), ("range", "bytes=0-0")]
    {
        headers.insert(name, value.parse().unwrap());
    }
    headers
}

#[tokio::test]
async fn a_redirect_to_another_port_gets_no_credentials() {
    let (port, elsewhere) = server(|_| FINE.to_owned()).await;
    let (first, here) = server(move |_| go(&format!("http://127.0.0.1:{port}/x"))).await;
    let client = Client::new(&Trust::default()).unwrap();
    let url = format!("http://127.0.0.1:{first}/");
    client.send(&Method::GET, &url, &secrets()).await.unwrap();
    assert!(here.lock().unwrap()[0].contains("x-api-key: secret"));
    let heard = elsewhere.lock().unwrap()[0].clone();
    assert!(heard.contains("range: bytes=0-0"), "{heard}");
    assert!(!heard.contains("secret") && !heard.contains("c2vjcmv0"), "{heard}");
}

#[tokio::test]
async fn a_redirect_on_the_same_server_keeps_the_login() {
    let (port, heard) = server(|request| if request.starts_with("get /a ") { go("/b") } else { FINE.to_owned() }).await;
    let client = Client::new(&Trust::default()).unwrap();
    client.send(&Method::GET, &format!("http://127.0.0.1:{port}/a"), &secrets()).await.unwrap();
    assert!(heard.lock().unwrap()[1].contains("authorization: basic"));
}

/// A server with TLS that sends everyone to `to`.
async fn secure(to: String) -> u16 {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let heard = Heard::default();
        while let Ok((stream, _)) = listener.accept().await {
            let stream: tokio_rustls::server::TlsStream<TcpStream> = acceptor.accept(stream).await.unwrap();
            talk(stream, &heard, &|_| go(&to)).await;
        }
    });
    port
}

#[tokio::test]
async fn a_redirect_from_https_to_http_is_refused_with_credentials() {
    let (port, heard) = server(|_| FINE.to_owned()).await;
    let tls = secure(format!("http://localhost:{port}/x")).await;
    let client = Client::new(&Trust { insecure: true, ..Trust::default() }).unwrap();
    let url = format!("https://localhost:{tls}/");
    let refused = client.send(&Method::GET, &url, &secrets()).await;
    assert!(matches!(refused, Err(HttpError::Downgrade { .. })), "{refused:?}");
    assert!(heard.lock().unwrap().is_empty());
    // Who has no secret may be sent where nobody listens in.
    client.send(&Method::GET, &url, &HeaderMap::new()).await.unwrap();
}

#[tokio::test]
async fn a_client_that_follows_nobody_asks_once() {
    let (port, heard) = server(|_| go("/again")).await;
    let client = Client::new(&Trust::default()).unwrap();
    let url = format!("http://127.0.0.1:{port}/");
    let (_, answer) = client.clone().without_redirects().send(&Method::GET, &url, &HeaderMap::new()).await.unwrap();
    assert_eq!((answer.status().as_u16(), heard.lock().unwrap().len()), (302, 1));
    let circle = client.send(&Method::GET, &url, &HeaderMap::new()).await;
    assert!(matches!(circle, Err(HttpError::Redirects(_))));
    assert!(heard.lock().unwrap().len() < 20);
}

#[tokio::test]
async fn an_image_on_the_hosts_loopback_is_not_pulled_unless_listed() {
    let (port, heard) = server(|_| "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned()).await;
    let home = tempfile::tempdir().unwrap();
    let puller = Puller::new(
        ImageStore::open(&home.path().join("images"), Unpacker::here(Budget::default())).unwrap(),
        &home.path().join("blobs"),
    );
    for host in ["127.0.0.1", "localhost"] {
        let reference = format!("{host}:{port}/x:1");
        let pulled = puller.pull(&reference, &Credentials::default(), &Registries::default(), false, &|_| {}).await;
        assert!(matches!(pulled, Err(PullError::Http(HttpError::Unreachable { .. }))), "{host}: {pulled:?}");
    }
    assert!(heard.lock().unwrap().is_empty(), "the host asked itself");
    let listed = Registry { host: format!("127.0.0.1:{port}"), insecure: true, ..Registry::default() };
    let registries = Registries { registries: vec![listed] };
    let pulled =
        puller.pull(&format!("127.0.0.1:{port}/x:1"), &Credentials::default(), &registries, false, &|_| {}).await;
    assert!(matches!(pulled, Err(PullError::NotFound(_))), "{pulled:?}");
}

#[tokio::test]
async fn a_redirect_does_not_lead_to_the_host_either() {
    let (port, heard) = server(|_| FINE.to_owned()).await;
    let client = Client::new(&Trust::default()).unwrap().within(Reach::NotThisHost);
    let refused = client.send(&Method::GET, &format!("http://[::ffff:127.0.0.1]:{port}/"), &HeaderMap::new()).await;
    assert!(matches!(refused, Err(HttpError::Unreachable { .. })), "{refused:?}");
    assert!(heard.lock().unwrap().is_empty());
}
