//! Uploads, by upstream's protocol: a token from the API, then the image to the upload proxy, which hands it to the importer of the
//! claim. Tokens are signed, name one claim, and are good for minutes.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferrovirt_api::cdi::{UploadTokenRequest, names};
use ferrovirt_serve::{Guest, Handler, Limits, Patient, Peer, Reception};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Client, ResourceExt};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::job::{From, UPLOAD_FILE, UPLOAD_OFFSET, UPLOAD_PORT};
use crate::pass;
use crate::plan::{job_of, pod_name};
use crate::progress;
pub use crate::token::Key;
use crate::token::{Claims, judge, now};

/// How long an upload may send nothing.
pub(crate) const STALL: Duration = Duration::from_secs(120);
/// How long the importer may take to be there.
const CONNECT: Duration = Duration::from_secs(10);
/// How long it may take from the first word of its answer to the last, and how long that is.
const ANSWER: Duration = Duration::from_secs(30);
const MOST_ANSWER: usize = 64 << 10;
const API: &str = "/apis/upload.cdi.kubevirt.io/v1beta1";
const PROXY: &str = "/v1beta1/upload";

/// Gives out tokens and takes uploads.
pub struct Uploads {
    client: Client,
    key: watch::Receiver<Key>,
}

impl Uploads {
    /// Tokens are good for all that have this key, as long as they do.
    pub fn with_key(client: Client, key: watch::Receiver<Key>) -> Self {
        Self { client, key }
    }

    /// Answers for the API group of upload tokens. Who may ask is decided before.
    pub async fn api(&self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        if path == API && method == Method::GET {
            return (StatusCode::OK, resources());
        }
        let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let ["apis", _, _, "namespaces", namespace, "uploadtokenrequests"] = segments.as_slice() else {
            return refuse(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource");
        };
        if method != Method::POST {
            return refuse(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "upload tokens can only be created");
        }
        let Ok(mut asked) = serde_json::from_slice::<UploadTokenRequest>(body) else {
            return refuse(StatusCode::BAD_REQUEST, "BadRequest", "the body is not an UploadTokenRequest");
        };
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), namespace);
        let uid = match claims.get_opt(&asked.spec.pvc_name).await {
            Ok(Some(claim)) => claim.uid().unwrap_or_default(),
            Ok(None) => {
                let message = format!("persistentvolumeclaims {:?} not found", asked.spec.pvc_name);
                return refuse(StatusCode::NOT_FOUND, "NotFound", &message);
            }
            Err(error) => {
                return refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &ferrovirt_api::chain(&error));
            }
        };
        asked.status.token = self.key.borrow().sign(namespace, &asked.spec.pvc_name, &uid);
        asked.metadata.namespace = Some((*namespace).to_owned());
        if asked.metadata.name.is_none() {
            asked.metadata.name = asked.metadata.generate_name.take().map(|prefix| format!("{prefix}{}", now()));
        }
        (StatusCode::CREATED, serde_json::to_value(&asked).unwrap_or_default())
    }

    /// Takes uploads until `shutdown`. Certificates change, so each connection asks for its own.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        limits: Limits,
        tls: impl Fn() -> Arc<rustls::ServerConfig> + Send,
        shutdown: impl Future<Output = ()>,
    ) {
        let receive = move || {
            let uploads = self.clone();
            let meet = move |_: Peer| -> Option<Handler> {
                Some(Box::new(move |request| {
                    let uploads = uploads.clone();
                    Box::pin(async move {
                        uploads.take(request).await.map(|body| body.map_err(|never| match never {}).boxed_unsync())
                    })
                }))
            };
            Reception { tls: Some(tls()), meet: Box::new(meet) }
        };
        ferrovirt_serve::serve(listener, limits, receive, CancellationToken::new(), shutdown).await;
    }

    /// What a proxy takes on: few at a time upload, and each of them has shown a token.
    pub fn limits() -> Limits {
        Limits::new(512, 0.125)
    }

    async fn take(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let say = |status: StatusCode, text: String| {
            let mut response = Response::new(Full::new(Bytes::from(text)));
            *response.status_mut() = status;
            response
        };
        if !request.uri().path().starts_with(PROXY) {
            return say(StatusCode::NOT_FOUND, "there is nothing here\n".to_owned());
        }
        let token = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.and_then(|value| value.strip_prefix("Bearer "));
        let public = self.key.borrow().public();
        let Some(claims) = token.and_then(|token| judge(&public, token)) else {
            return say(StatusCode::UNAUTHORIZED, "the token is not valid, or not any more\n".to_owned());
        };
        // However many connections one claim's token opens, others' uploads go on.
        let guest = request.extensions().get::<Guest>();
        if guest.is_some_and(|guest| guest.known(&format!("{}/{}", claims.namespace, claims.name)).is_err()) {
            return say(StatusCode::TOO_MANY_REQUESTS, "too many connections for one claim\n".to_owned());
        }
        if request.method() == Method::HEAD && !request.headers().contains_key(UPLOAD_FILE) {
            return say(StatusCode::OK, String::new());
        }
        match self.forward(&claims, request).await {
            Ok(response) => response,
            Err(Refusal::Unready(why)) => say(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            Err(Refusal::Broken(error)) => say(StatusCode::BAD_GATEWAY, format!("{error}\n")),
        }
    }

    async fn forward(&self, claims: &Claims, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Refusal> {
        let unready = |why: &str| Refusal::Unready(why.to_owned());
        let broken = |error: &dyn std::error::Error| Refusal::Broken(ferrovirt_api::chain(error));
        let held = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &claims.namespace);
        let claim = held.get_opt(&claims.name).await.map_err(|error| broken(&error))?;
        let claim = claim.filter(|claim| claim.uid().as_ref() == Some(&claims.uid));
        let claim = claim.ok_or_else(|| unready("the claim is gone"))?;
        let owner = claim.owner_references().iter().find(|owner| owner.kind == "DataVolume");
        let owner = owner.map(|owner| owner.uid.clone()).or(claim.uid()).unwrap_or_default();
        let pods = Api::<Pod>::namespaced(self.client.clone(), &claims.namespace);
        let pod = pods.get_opt(&pod_name(&claims.name, &owner)).await.map_err(|error| broken(&error))?;
        let pod = pod.ok_or_else(|| unready("the claim does not wait for an upload"))?;
        // A pod of the name that is not the claim's is somebody else's, and gets nothing.
        let made = pod.owner_references().iter().any(|reference| reference.uid == owner);
        let certificate = match job_of(&pod).map(|job| job.from) {
            Some(From::Upload { claim, certificate, .. }) if claim == claims.uid => Some(certificate),
            _ => None,
        };
        let certificate =
            certificate.filter(|_| made).ok_or_else(|| unready("the claim does not wait for an upload"))?;
        let address = progress::address(&pod).ok_or_else(|| unready("the importer is not ready"))?;
        // The importer judges the token itself: it has the public key.
        let passed: Vec<_> = [AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, HeaderName::from_static(UPLOAD_FILE)]
            .into_iter()
            .filter_map(|name| request.headers().get(&name).cloned().map(|value| (name, value)))
            .collect();
        let asks = request.method() == Method::HEAD;
        let mut inner = Request::new(Patient::new(request.into_body(), STALL));
        *inner.method_mut() = if asks { Method::HEAD } else { Method::POST };
        *inner.uri_mut() = http::Uri::from_static(PROXY);
        let headers = inner.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("importer"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.extend(passed);
        let response = hand_over(SocketAddr::new(address, UPLOAD_PORT), &certificate, inner).await?;
        told(response).await
    }
}

/// What an importer answers. Its tenant may have entered it, and make it talk for ever.
async fn told<B>(response: Response<B>) -> Result<Response<Full<Bytes>>, Refusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (parts, body) = response.into_parts();
    let body = tokio::time::timeout(ANSWER, Limited::new(body, MOST_ANSWER).collect()).await;
    let body = body.map_err(|_| Refusal::Broken("the importer does not end its answer".to_owned()))?;
    let body = body.map_err(|error| Refusal::Broken(format!("the importer's answer: {error}")))?.to_bytes();
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = parts.status;
    let offset = parts.headers.get(UPLOAD_OFFSET).cloned();
    response.headers_mut().extend(offset.map(|offset| (HeaderName::from_static(UPLOAD_OFFSET), offset)));
    Ok(response)
}

#[derive(Debug)]
enum Refusal {
    Unready(String),
    Broken(String),
}

/// Sends a request to the importer that has the key of this certificate. Whoever else is at its address gets nothing of it:
/// neither the image nor the token.
async fn hand_over<B>(
    address: SocketAddr,
    certificate: &str,
    request: Request<B>,
) -> Result<Response<Incoming>, Refusal>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let silent = || Refusal::Unready("the importer does not answer".to_owned());
    let broken = |error: &dyn std::error::Error| Refusal::Broken(ferrovirt_api::chain(error));
    // An importer of an earlier version is replaced soon.
    let tls = pass::client_of(certificate.as_bytes())
        .map_err(|_| Refusal::Unready("the importer has no certificate yet".to_owned()))?;
    let connected = async {
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::from(address.ip());
        tokio_rustls::TlsConnector::from(tls).connect(name, stream).await
    };
    let stream = tokio::time::timeout(CONNECT, connected).await.map_err(|_| silent())?;
    let stream = stream.map_err(|error| broken(&error))?;
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| broken(&error))?;
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(|error| broken(&error))
}

fn resources() -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{}/v1beta1", names::UPLOAD_GROUP),
        "resources": [{
            "name": "uploadtokenrequests", "singularName": "uploadtokenrequest", "namespaced": true,
            "kind": "UploadTokenRequest", "verbs": ["create"], "shortNames": ["utr", "utrs"],
        }],
    })
}

fn refuse(code: StatusCode, reason: &str, message: &str) -> (StatusCode, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "message": message, "code": code.as_u16(),
    });
    (code, status)
}

/// A listener's address as clients should use it.
pub fn proxy_url(listener: &TcpListener) -> io::Result<String> {
    Ok(format!("https://{}", listener.local_addr()?))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn uploads() -> Uploads {
        let service = tower::service_fn(|_: Request<kube::client::Body>| async {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"{}"))))
        });
        Uploads::with_key(Client::new(service, "default"), watch::channel(Key::of(b"secret").unwrap()).1)
    }

    /// A listener that keeps what it gets, and answers as an importer does if its TLS is accepted.
    async fn listen(tls: Option<Arc<rustls::ServerConfig>>) -> (SocketAddr, tokio::task::JoinHandle<(bool, Vec<u8>)>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let got = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut got = vec![];
            let Some(tls) = tls else {
                // The client waits for a TLS answer and gets nonsense.
                let mut first = [0; 1024];
                let length = stream.read(&mut first).await.unwrap();
                got.extend_from_slice(&first[..length]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                let _ = stream.read_to_end(&mut got).await;
                return (false, got);
            };
            match tokio_rustls::TlsAcceptor::from(tls).accept(stream).await {
                Ok(mut stream) => {
                    let mut piece = [0; 1024];
                    while !got.ends_with(IMAGE) {
                        match stream.read(&mut piece).await {
                            Ok(length) if length > 0 => got.extend_from_slice(&piece[..length]),
                            _ => return (true, got),
                        }
                    }
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                    (true, got)
                }
                Err(_) => (false, got),
            }
        });
        (address, got)
    }

    const IMAGE: &[u8] = b"the bytes of a private disk";

    fn upload() -> Request<Full<Bytes>> {
        let request = Request::post(PROXY).header(HOST, "importer").header(AUTHORIZATION, "Bearer precious");
        request.body(Full::new(Bytes::from_static(IMAGE))).unwrap()
    }

    #[tokio::test]
    async fn an_upload_goes_to_the_importer_that_it_is_for_and_to_nobody_else() {
        let (mounted, other) = (pass::tests::receiver(), pass::tests::receiver());
        let certificate = mounted.certificate.as_str();
        let (address, got) = listen(Some(pass::server(mounted.directory.path()).unwrap())).await;
        assert_eq!(hand_over(address, certificate, upload()).await.unwrap().status(), 200);
        let (_, got) = got.await.unwrap();
        assert!(got.ends_with(IMAGE), "{}", String::from_utf8_lossy(&got));

        // Somebody else has the address: without TLS, and with a certificate of their own.
        for impostor in [None, Some(pass::server(other.directory.path()).unwrap())] {
            let (address, got) = listen(impostor).await;
            let refused = hand_over(address, certificate, upload()).await.unwrap_err();
            assert!(matches!(&refused, Refusal::Broken(_)), "{refused:?}");
            let (accepted, got) = got.await.unwrap();
            assert!(!accepted);
            let holds = |secret: &[u8]| got.windows(secret.len()).any(|window| window == secret);
            assert!(!holds(IMAGE) && !holds(b"precious"), "{}", String::from_utf8_lossy(&got));
        }
        // An importer of before, which took uploads in clear.
        let (address, got) = listen(None).await;
        assert!(matches!(hand_over(address, "", upload()).await, Err(Refusal::Unready(_))));
        drop(got);
    }

    #[tokio::test]
    async fn an_importer_that_talks_for_ever_is_cut_short() {
        let endless = futures::stream::repeat_with(|| {
            Ok::<_, Infallible>(hyper::body::Frame::data(Bytes::from_static(&[b'x'; 1024])))
        });
        let response = Response::new(http_body_util::StreamBody::new(endless));
        assert!(matches!(told(response).await, Err(Refusal::Broken(why)) if why.contains("length limit")));
        let mut response = Response::new(Full::new(Bytes::from_static(b"the upload goes on at 5, not at 3\n")));
        *response.status_mut() = StatusCode::CONFLICT;
        response.headers_mut().insert(UPLOAD_OFFSET, 5.into());
        let Ok(passed) = told(response).await else { panic!("an honest answer is not passed on") };
        assert_eq!((passed.status(), &passed.headers()[UPLOAD_OFFSET]), (StatusCode::CONFLICT, &HeaderValue::from(5)));
    }

    /// Idle clients, and those that stop in the middle, were kept for ever and took every descriptor.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn idle_clients_of_the_proxy_leave_room_for_uploads() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.serialize_der().try_into().unwrap())
            .unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (uploads, tls, client) = (Arc::new(uploads()), Arc::new(tls), Arc::new(client));
        let token = uploads.key.borrow().sign("a", "disk", "u1");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let soon = Duration::from_millis(500);
        let limits =
            Limits { total: 40, per_peer: 30, strangers: 8, stranger_idle: soon, handshake: soon, ..Uploads::limits() };
        tokio::spawn(uploads.serve(listener, limits, move || tls.clone(), std::future::pending()));
        let connect = || async {
            let stream = TcpStream::connect(address).await.unwrap();
            tokio_rustls::TlsConnector::from(client.clone()).connect("localhost".try_into().unwrap(), stream).await
        };
        let honest = format!("HEAD /v1beta1/upload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
        let ask = |stream: tokio_rustls::client::TlsStream<TcpStream>| {
            let honest = honest.clone();
            async move {
                let mut stream = stream;
                stream.write_all(honest.as_bytes()).await.unwrap();
                let mut answer = [0; 512];
                let length = stream.read(&mut answer).await.unwrap();
                assert!(
                    answer[..length].starts_with(b"HTTP/1.1 200"),
                    "{}",
                    String::from_utf8_lossy(&answer[..length])
                );
                stream
            }
        };
        let mut friend = ask(connect().await.unwrap()).await;
        let mut idle = Vec::new();
        for round in 0..300 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // The start of a TLS record that promises more.
            let _ = stream.write_all(&[0x16, 0x03, 0x01, 0x40, 0x00, 0x01][..if round % 2 == 0 { 0 } else { 6 }]).await;
            idle.push(stream);
            if round % 100 == 0 {
                ask(connect().await.unwrap()).await;
                friend = ask(friend).await;
            }
        }
        for mut stream in idle {
            let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut Vec::new())).await;
            ended.expect("an idle client is sent away").ok();
        }
        // One that has shown a token may think about it.
        ask(friend).await;
    }
}
