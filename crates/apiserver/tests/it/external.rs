//! An extension API server: a program of its own behind a Service, with TLS, that believes only the front proxy.

use std::sync::Arc;

use ferrovirt_apiserver::{Config, FrontProxy};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::kubectl::Kubectl;
use crate::support::{Answer, Client, Server};

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const GROUP: &str = "/apis/ext.example.com/v1";

/// An authority and what it signed, as PEM texts.
struct Signed {
    authority: String,
    certificate: String,
    key: String,
}

fn sign(authority: &str, common_name: &str, names: &[&str]) -> Signed {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(DnType::CommonName, authority);
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = ca.self_signed(&ca_key).unwrap().pem();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let certificate = params.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap().pem();
    Signed { authority, certificate, key: key.serialize_pem() }
}

fn front_proxy() -> FrontProxy {
    let signed = sign("front-proxy-ca", "front-proxy-client", &[]);
    FrontProxy {
        certificate_pem: signed.certificate,
        key_pem: signed.key,
        authority_pem: signed.authority,
        client_authority_pem: "none".into(),
    }
}

/// Tells what it was asked and by whom; upgrades when asked to, and then sends back what it gets.
async fn answer(mut request: Request<hyper::body::Incoming>) -> Result<Response<Full<bytes::Bytes>>, hyper::Error> {
    if request.headers().contains_key("upgrade") {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let mut buffer = [0; 64];
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        });
        let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        let response = response.header("connection", "Upgrade").header("upgrade", "websocket");
        return Ok(response.body(Full::default()).unwrap());
    }
    let path = request.uri().to_string();
    let all = |name: &str| -> Vec<String> {
        request.headers().get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect()
    };
    let mut seen = json!({
        "path": path, "user": all("x-remote-user"), "groups": all("x-remote-group"), "extra": all("x-remote-extra-color"),
        "host": all("host"), "authorization": all("authorization"),
    });
    if path == GROUP {
        seen = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "ext.example.com/v1", "resources": [
            {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get", "list"]}]});
    }
    let body = request.into_body().collect().await?.to_bytes();
    if !body.is_empty() {
        seen["body"] = serde_json::from_slice(&body).unwrap();
    }
    Ok(Response::new(Full::from(seen.to_string())))
}

/// Serves on loopback, only for those who show a certificate of `clients`. Returns the port.
async fn extension_server(serving: &Signed, clients: &str) -> u16 {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(clients.as_bytes()).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(serving.certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(serving.key.as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let service = hyper::service::service_fn(answer);
                let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
            });
        }
    });
    port
}

fn api_service(tls: Value) -> Value {
    let mut object = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.ext.example.com"},
        "spec": {
            "group": "ext.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
            "service": {"namespace": "default", "name": "ext", "port": 8443},
        },
    });
    for (key, value) in tls.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

fn slice(port: u16) -> Value {
    json!({
        "metadata": {"name": "ext-1", "labels": {"kubernetes.io/service-name": "ext"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}], "ports": [{"name": "https", "port": port}],
    })
}

/// Waits until the condition has this reason, and returns its message.
async fn available(admin: &Client, reason: &str) -> String {
    let mut watch = admin.watch(&format!("{SERVICES}?watch=1&fieldSelector=metadata.name%3Dv1.ext.example.com")).await;
    loop {
        let event = watch.next().await.unwrap();
        let condition = &event["object"]["status"]["conditions"][0];
        if condition["reason"] == reason {
            assert_eq!(condition["status"], if reason == "Passed" { "True" } else { "False" });
            return condition["message"].as_str().unwrap().to_owned();
        }
    }
}

/// Waits until the group is in discovery, or no longer.
async fn discovered(admin: &Client, wanted: bool) {
    let has = |answer: &Answer| {
        answer.body["groups"].as_array().is_some_and(|all| all.iter().any(|group| group["name"] == "ext.example.com"))
    };
    admin.until_that("/apis", |answer| answer.status == 200 && has(answer) == wanted).await;
}

fn bundle(authority: &str) -> Value {
    use base64::Engine as _;
    json!({"caBundle": base64::engine::general_purpose::STANDARD.encode(authority)})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extension_servers_are_reached_and_told_who_asks() {
    let proxy = front_proxy();
    let serving = sign("serving-ca", "ext", &["ext.default.svc"]);
    let port = extension_server(&serving, &proxy.authority_pem).await;
    let server = Server::start_with(Config { front_proxy: Some(proxy.clone()), ..Config::default() }).await;
    let k = Kubectl::start(server).await;
    let admin = k.server.admin();

    // From nothing to a server that answers, with a reason at every step.
    admin.post(SERVICES, &api_service(bundle(&serving.authority))).await.expect(201);
    assert_eq!(available(&admin, "ServiceNotFound").await, "service/ext in \"default\" is not present");
    admin.get(GROUP).await.expect(503);
    let service =
        json!({"metadata": {"name": "ext"}, "spec": {"clusterIP": "None", "ports": [{"name": "https", "port": 8443}]}});
    admin.post("/api/v1/namespaces/default/services", &service).await.expect(201);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let made = admin.post(slices, &slice(port)).await.expect(201);
    assert_eq!(made["endpoints"][0]["addresses"][0], "127.0.0.1");
    assert_eq!(available(&admin, "Passed").await, "all checks passed");
    admin.until(GROUP, 200).await;

    // Identity and content get there; what the client claims to be does not.
    let headers = [("x-remote-user", "root"), ("content-type", "application/json")];
    let path = format!("{GROUP}/namespaces/default/things/a?pretty=1");
    let seen = admin.raw(Method::PUT, &path, &headers, r#"{"x":1}"#).await.expect(200);
    assert_eq!(
        seen,
        json!({
            "path": path, "user": ["admin"], "groups": ["system:masters", "system:authenticated"], "extra": [],
            "host": ["ext.default.svc"], "authorization": [], "body": {"x": 1},
        })
    );
    let headers =
        [("impersonate-user", "jane"), ("impersonate-group", "system:masters"), ("impersonate-extra-color", "blue")];
    let seen = admin.raw(Method::GET, &format!("{GROUP}/things"), &headers, "").await.expect(200);
    assert_eq!((&seen["user"], &seen["extra"]), (&json!(["jane"]), &json!(["blue"])), "{seen}");
    k.server.user("jane", &[]).get(&format!("{GROUP}/things")).await.expect(403);

    // It is in discovery, one document at a time and all at once.
    discovered(&admin, true).await;
    let listed = k.run("api-resources --api-group=ext.example.com", "").await;
    assert!(listed.contains("things") && listed.contains("Thing"), "{listed}");

    // A connection can be upgraded through both of them.
    let mut stream = k.connect().await;
    let request = format!(
        "GET {GROUP}/namespaces/default/things/a/console HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    for word in ["ping", "pong"] {
        stream.write_all(word.as_bytes()).await.unwrap();
        let mut back = [0; 4];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, word.as_bytes());
    }
    drop(stream);

    // The wrong authority is not trusted, unless nobody is to be asked.
    let patch = json!({"spec": bundle(&proxy.authority_pem)});
    admin.merge(&format!("{SERVICES}/v1.ext.example.com"), &patch).await.expect(200);
    let why = available(&admin, "FailedDiscoveryCheck").await;
    assert!(why.contains("tls") && why.contains("UnknownIssuer"), "{why}");
    admin.until(&format!("{GROUP}/things"), 503).await;
    discovered(&admin, false).await;
    let patch = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    admin.merge(&format!("{SERVICES}/v1.ext.example.com"), &patch).await.expect(200);
    available(&admin, "Passed").await;
    assert_eq!(admin.until(&format!("{GROUP}/things"), 200).await["user"], json!(["admin"]));
    k.stop().await;
}

#[tokio::test]
async fn extension_servers_can_look_up_whom_to_believe() {
    let proxy = front_proxy();
    let server = Server::start_with(Config { front_proxy: Some(proxy.clone()), ..Config::default() }).await;
    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let map = server.admin().get(path).await.expect(200);
    assert_eq!(map["data"]["requestheader-client-ca-file"], proxy.authority_pem);
    assert_eq!(map["data"]["requestheader-allowed-names"], "[\"front-proxy-client\"]");
    let role =
        "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/extension-apiserver-authentication-reader";
    server.admin().get(role).await.expect(200);
}
