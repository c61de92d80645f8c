//! Clients that mean no good, against a listener with small limits.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ferrovirt_serve::{Guest, Handler, Limits, Patient, Reception};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);

fn limits() -> Limits {
    Limits {
        total: 64,
        per_peer: 48,
        per_name: 8,
        strangers: 16,
        handshake: Duration::from_millis(300),
        stranger_idle: Duration::from_millis(300),
        stranger_request: Duration::from_millis(600),
        idle: Duration::from_secs(600),
        ..Limits::new(64, 0.5)
    }
}

/// `/known/NAME` makes its connection known, `/hang` is never answered, `/upgrade` echoes, `/take` reads the body.
async fn answer(mut request: Request<Incoming>) -> Response<ferrovirt_serve::Body> {
    let say = |code: u16, text: &str| {
        let body = Full::from(text.to_owned()).map_err(|never| match never {}).boxed_unsync();
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(code).unwrap();
        response
    };
    let guest = request.extensions().get::<Guest>().unwrap().clone();
    let path = request.uri().path().to_owned();
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["", "known", name] => match guest.known(name) {
            Ok(()) => say(200, "welcome"),
            Err(_) => say(429, "too many"),
        },
        ["", "cut"] => {
            guest.cut();
            say(200, "never seen")
        }
        ["", "hang"] => std::future::pending().await,
        ["", "take"] => match Patient::new(request.into_body(), Duration::from_millis(200)).collect().await {
            Ok(body) => say(200, &body.to_bytes().len().to_string()),
            Err(error) => say(408, &error.to_string()),
        },
        ["", "upgrade"] => {
            guest.known("streams").unwrap();
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut io = TokioIo::new(upgrade.await.unwrap());
                let mut byte = [0; 1];
                while io.read_exact(&mut byte).await.is_ok() {
                    if byte == *b"x" {
                        guest.cut();
                    }
                    let _ = io.write_all(&byte).await;
                }
            });
            let mut response = say(101, "");
            response.headers_mut().insert(header::CONNECTION, "upgrade".parse().unwrap());
            response.headers_mut().insert(header::UPGRADE, "echo".parse().unwrap());
            response
        }
        _ => say(200, "ok"),
    }
}

fn handler() -> Handler {
    Box::new(|request| Box::pin(answer(request)))
}

struct Served {
    address: SocketAddr,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

async fn start(limits: Limits, tls: Option<Arc<rustls::ServerConfig>>) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, end) = (CancellationToken::new(), CancellationToken::new());
    let receive = move || Reception { tls: tls.clone(), meet: Box::new(|_| Some(handler())) };
    let shutdown = end.clone().cancelled_owned();
    let task = tokio::spawn(ferrovirt_serve::serve(listener, limits, receive, stop, shutdown));
    Served { address, stop: end, task }
}

fn tls(alpn: &[u8]) -> Arc<rustls::ServerConfig> {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key.serialize_der().try_into().unwrap())
        .unwrap();
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

/// Reads until the server ends the connection.
async fn ended(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server ends it").ok();
    String::from_utf8_lossy(&answer).into_owned()
}

async fn ask(stream: &mut TcpStream, path: &str) -> String {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let length = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap_or(0);
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

async fn fresh(address: SocketAddr, path: &str) -> String {
    ask(&mut TcpStream::connect(address).await.unwrap(), path).await
}

/// A connection that says nothing, stops in its headers, drips them, or never takes its answer, does not stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slowloris_is_sent_away() {
    let served = start(limits(), None).await;
    for start in ["", "GET / HT", "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ", "GET /hang HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        ended(&mut stream).await;
    }
    // A byte now and then is no reason to stay.
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nX-Slow: ").await.unwrap();
    let until = Instant::now() + PATIENCE;
    while stream.write_all(b"x").await.is_ok() {
        assert!(Instant::now() < until, "the server never ended it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_without_an_end_is_sent_away() {
    let served = start(limits(), Some(tls(b"http/1.1"))).await;
    for start in [&b""[..], &[0x16, 0x03, 0x01, 0x40, 0x00, 0x01]] {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(start).await.unwrap();
        ended(&mut stream).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http2_connection_without_requests_is_sent_away() {
    let served = start(Limits { streams: Some(4), idle: Duration::from_millis(300), ..limits() }, None).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("http://x/").body(Empty::<Bytes>::new()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    tokio::time::timeout(PATIENCE, connection).await.expect("the server ends it").unwrap().ok();
}

/// Streams that are opened and reset by the thousand end their connection, and nobody else's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_resets_ends_its_connection() {
    let served = start(Limits { streams: Some(100), ..limits() }, None).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    let (mut stream, mut writer) = stream.into_split();
    writer.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    // GET / with a Host, from HPACK's static table, and RST_STREAM right behind it.
    let block = [0x82, 0x84, 0x86, 0x41, 0x01, b'x'];
    let mut flood = Vec::new();
    for id in (1..20_000u32).step_by(2) {
        flood.extend([0, 0, 6, 1, 5]);
        flood.extend(id.to_be_bytes());
        flood.extend(block);
        flood.extend([0, 0, 4, 3, 0]);
        flood.extend(id.to_be_bytes());
        flood.extend(8u32.to_be_bytes());
    }
    let sent = tokio::spawn(async move { writer.write_all(&flood).await.is_ok() });
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server ends it").ok();
    drop(stream);
    let _ = sent.await;
    assert!(fresh(served.address, "/").await.contains("200 OK"));
}

/// Five thousand that say nothing: few are kept, and whoever asks is answered while they come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_idle_clients_keep_nobody_out() {
    let limits = Limits { stranger_idle: Duration::from_secs(600), ..limits() };
    let served = start(limits, None).await;
    let mut friend = TcpStream::connect(served.address).await.unwrap();
    assert!(ask(&mut friend, "/known/friend").await.contains("200 OK"));
    let mut idle = Vec::new();
    for i in 0..5000 {
        idle.push(TcpStream::connect(served.address).await.unwrap());
        if i % 500 == 0 {
            assert!(fresh(served.address, "/").await.contains("200 OK"), "after {i}");
            assert!(ask(&mut friend, "/known/friend").await.contains("200 OK"), "after {i}");
        }
    }
    // All but the last strangers are closed.
    let mut open = 0;
    let kept = idle.split_off(idle.len() - 16);
    for mut stream in idle {
        assert_eq!(ended(&mut stream).await, "");
    }
    for mut stream in kept {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.ok();
        open += usize::from(ended(&mut stream).await.contains("200 OK"));
    }
    assert!((1..=16).contains(&open), "{open}");
}

/// Connections of one name have an end, also those that became streams; and they count until they end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_flood_of_one_user_is_bounded() {
    let served = start(limits(), None).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream
            .write_all(b"GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
            .await
            .unwrap();
        let mut answer = [0; 512];
        let length = stream.read(&mut answer).await.unwrap();
        assert!(String::from_utf8_lossy(&answer[..length]).contains("101 Switching"));
        streams.push(stream);
    }
    assert!(fresh(served.address, "/known/streams").await.contains("429"));
    assert!(fresh(served.address, "/known/another").await.contains("200 OK"));
    // A stream can be cut from the outside, and leaves its place then.
    let mut first = streams.remove(0);
    first.write_all(b"x").await.unwrap();
    ended(&mut first).await;
    let until = Instant::now() + PATIENCE;
    while fresh(served.address, "/known/streams").await.contains("429") {
        assert!(Instant::now() < until, "the place was never given back");
    }
    let mut echo = [0; 1];
    streams[0].write_all(b"y").await.unwrap();
    streams[0].read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"y");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_stalls_is_given_up() {
    let served = start(limits(), None).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc").await.unwrap();
    assert!(ended(&mut stream).await.contains("408"));
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream
        .write_all(b"POST /take HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc")
        .await
        .unwrap();
    assert!(ended(&mut stream).await.ends_with('3'));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_is_orderly() {
    let served = start(Limits { drain: PATIENCE, ..limits() }, None).await;
    let mut known = TcpStream::connect(served.address).await.unwrap();
    assert!(ask(&mut known, "/known/a").await.contains("200 OK"));
    served.stop.cancel();
    ended(&mut known).await;
    served.task.await.unwrap();
    assert!(TcpStream::connect(served.address).await.is_err());
}
