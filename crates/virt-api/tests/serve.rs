//! The TLS listener believes what a connection says of its caller only if it is the front proxy's.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::{
    node_call::NodeCall,
    protocol::{ErrorCode, ProtocolError},
};
use ferrovirt_virt_api::{BoxError, BoxStream, FrontProxy, Nodes, StreamKind, Tls, VirtApi, serve};
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

const PATH: &str = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/demo/console";

struct NoNodes;

impl Nodes for NoNodes {
    fn open(&self, _: VirtualMachineInstance, _: StreamKind) -> BoxFuture<'static, Result<BoxStream, BoxError>> {
        Box::pin(async { Err("there are no nodes".into()) })
    }

    fn call(&self, _: VirtualMachineInstance, _: NodeCall) -> BoxFuture<'static, Result<Bytes, ProtocolError>> {
        Box::pin(async { Err(ProtocolError { code: ErrorCode::NotHere, message: "there are no nodes".into() }) })
    }
}

struct Ca {
    certificate: String,
    key: String,
}

impl Ca {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names.push(SanType::DnsName("virt-api".try_into().unwrap()));
        params.extended_key_usages = vec![purpose];
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key).unwrap()).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Refuses every access review, and remembers for whom it was asked.
fn refusing_cluster(asked: Arc<Mutex<Vec<Value>>>) -> kube::Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let asked = asked.clone();
        async move {
            // Others ask as well, for the configuration.
            let about_a_caller = request.uri().path().ends_with("/subjectaccessreviews");
            let body = request.into_body().collect().await?.to_bytes();
            let mut review: Value = serde_json::from_slice(&body).unwrap_or_default();
            if about_a_caller {
                asked.lock().unwrap().push(review["spec"].clone());
            }
            review["status"] = json!({ "allowed": false });
            Ok::<_, BoxError>(Response::new(Full::from(review.to_string())))
        }
    });
    kube::Client::new(service, "default")
}

async fn get(address: std::net::SocketAddr, ca: &Ca, identity: Option<(String, String)>) -> StatusCode {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.certificate.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect("virt-api".try_into().unwrap(), stream).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(PATH).header("host", "virt-api").header("X-Remote-User", "alice");
    let request = request.header("X-Remote-Group", "admins").header("X-Remote-Uid", "7");
    let request = request.header("X-Remote-Extra-Acme.com%2fproject", "p").body(Empty::<Bytes>::new()).unwrap();
    sender.send_request(request).await.unwrap().status()
}

#[tokio::test]
async fn only_the_front_proxy_says_who_is_calling() {
    let (serving_ca, proxy_ca) = (Ca::new(), Ca::new());
    let (certificate, key) = serving_ca.sign("virt-api", ExtendedKeyUsagePurpose::ServerAuth);
    let front_proxy = FrontProxy {
        client_ca: proxy_ca.certificate.clone(),
        allowed_names: vec!["front-proxy-client".into()],
        user_headers: vec!["X-Remote-User".into()],
        group_headers: vec!["X-Remote-Group".into()],
        uid_headers: vec!["X-Remote-Uid".into()],
        extra_prefixes: vec!["X-Remote-Extra-".into()],
    };
    let (_keep, tls) = watch::channel(Tls::new(&certificate, &key, front_proxy).unwrap());
    let asked = Arc::new(Mutex::new(vec![]));
    let api = VirtApi::new(refusing_cluster(asked.clone()), Arc::new(NoNodes));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(serve(api, listener, tls, async move { drop(stopped.await) }));

    assert_eq!(get(address, &serving_ca, None).await, StatusCode::UNAUTHORIZED);
    let other = proxy_ca.sign("somebody", ExtendedKeyUsagePurpose::ClientAuth);
    assert_eq!(get(address, &serving_ca, Some(other)).await, StatusCode::UNAUTHORIZED);
    assert!(asked.lock().unwrap().is_empty(), "nobody was named, so nobody was asked about");

    let proxy = proxy_ca.sign("front-proxy-client", ExtendedKeyUsagePurpose::ClientAuth);
    assert_eq!(get(address, &serving_ca, Some(proxy)).await, StatusCode::FORBIDDEN);
    let asked = asked.lock().unwrap().clone();
    assert_eq!((&asked[0]["user"], &asked[0]["groups"]), (&json!("alice"), &json!(["admins"])));
    assert_eq!((&asked[0]["uid"], &asked[0]["extra"]), (&json!("7"), &json!({"acme.com/project": ["p"]})));

    drop(stop);
    server.await.unwrap();
}
