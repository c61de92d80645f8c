//! Where this server calls to: who may say so, and how far that leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::support::{Server, configmap, widgets};

const CMS: &str = "/api/v1/namespaces/default/configmaps";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

fn hook(url: &str, bundle: &str) -> Value {
    json!({"metadata": {"name": "hooks"}, "webhooks": [{
        "name": "a.hooks.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5,
        "clientConfig": {"url": url, "caBundle": bundle},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
    }]})
}

/// An editor of a namespace cannot make the server call anybody.
#[tokio::test]
async fn an_editor_cannot_say_where_the_server_calls() {
    let server = Server::start().await;
    let binding = json!({
        "metadata": {"name": "edit"}, "subjects": [{"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
    });
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    server.admin().post(path, &binding).await.expect(201);
    let eve = server.user("eve", &[]);
    // The roles are there when this works.
    eve.until("/api/v1/namespaces/default/configmaps", 200).await;
    eve.post(CMS, &configmap("a")).await.expect(201);
    let mut crd = widgets();
    crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/"}}});
    let api_service = json!({"metadata": {"name": "v1.evil.example.com"}, "spec": {
        "group": "evil.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
        "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "a"}}});
    let slice = json!({"metadata": {"name": "a", "labels": {"kubernetes.io/service-name": "a"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{"name": "", "port": 22}]});
    let endpoints = json!({"metadata": {"name": "a"}, "subsets": [{"addresses": [{"ip": "169.254.169.254"}], "ports": [{"port": 80}]}]});
    let attempts = [
        (format!("{ADMISSION}/validatingwebhookconfigurations"), hook("https://127.0.0.1:1/", "")),
        (format!("{ADMISSION}/mutatingwebhookconfigurations"), hook("https://127.0.0.1:1/", "")),
        (format!("{ADMISSION}/validatingadmissionpolicies"), json!({"metadata": {"name": "a"}, "spec": {}})),
        (format!("{ADMISSION}/mutatingadmissionpolicies"), json!({"metadata": {"name": "a"}, "spec": {}})),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), crd),
        ("/apis/apiregistration.k8s.io/v1/apiservices".to_owned(), api_service),
        ("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices".to_owned(), slice),
        ("/api/v1/namespaces/default/endpoints".to_owned(), endpoints),
    ];
    for (path, object) in attempts {
        let answer = eve.post(&path, &object).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}: {:#}", answer.body);
    }
}

/// There is no way to ask a pod, a service or a node through this server.
#[tokio::test]
async fn there_are_no_proxies() {
    let server = Server::start().await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    server.admin().post("/api/v1/namespaces/default/services", &service).await.expect(201);
    for path in [
        "/api/v1/namespaces/default/services/s/proxy",
        "/api/v1/namespaces/default/services/https:s:443/proxy/metrics",
        "/api/v1/namespaces/default/pods/p:10250/proxy/",
        "/api/v1/nodes/n/proxy/logs",
        "/api/v1/proxy/namespaces/default/services/s",
    ] {
        let code = server.admin().get(path).await.status.as_u16();
        assert!(matches!(code, 404 | 405), "{path}: {code}");
    }
}

/// Answers every request with a redirect to `target`, if there is one, and counts them.
async fn serve(target: Option<u16>) -> (u16, String, Arc<AtomicUsize>) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let private = rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private.into())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A connection alone is contact enough.
            count.fetch_add(1, Ordering::SeqCst);
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = hyper::service::service_fn(move |_| async move {
                    let mut response = http::Response::builder();
                    if let Some(target) = target {
                        response = response.status(307).header("location", format!("https://127.0.0.1:{target}/"));
                    }
                    response.body(Full::<bytes::Bytes>::from("x".repeat(100_000)))
                });
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (port, certificate.pem(), asked)
}

/// A webhook that answers with a redirect has not answered; nobody is asked in its place, and little of what it said is told.
#[tokio::test]
async fn a_webhook_cannot_send_the_server_elsewhere() {
    let server = Server::start().await;
    let admin = server.admin();
    let (inner, _, inner_asked) = serve(None).await;
    let (outer, pem, outer_asked) = serve(Some(inner)).await;
    let bundle = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    let path = format!("{ADMISSION}/validatingwebhookconfigurations");
    admin.post(&path, &hook(&format!("https://127.0.0.1:{outer}/"), &bundle)).await.expect(201);
    let refused = admin.post(CMS, &configmap("a")).await.expect(500);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("307") && message.len() < 2000, "{message}");
    assert_eq!((outer_asked.load(Ordering::SeqCst), inner_asked.load(Ordering::SeqCst)), (1, 0));
}
