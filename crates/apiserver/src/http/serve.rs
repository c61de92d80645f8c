//! The TLS listener: which certificates it believes, and what a connection says of who asks.

use std::future::Future;
use std::io;
use std::sync::Arc;

use ferrovirt_serve::{Limits, Peer, Reception};
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::authn::{self, User};
use crate::http::body::{self, Body};
use crate::http::certificate::ServingCertificate;
use crate::service::ApiService;
use crate::status::ApiError;

/// Connections at a time; see [`Limits::new`] for what follows from it.
const CONNECTIONS: usize = 8192;
/// Requests at a time on one HTTP/2 connection. Watches are requests.
const STREAMS: u32 = 1000;

/// Cancelled when the listener that a request came through shuts down; watches end then.
#[derive(Clone)]
pub struct Draining(pub CancellationToken);

/// A serving certificate, and the PEM text of the CA that signs client certificates.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    pub certificate: ServingCertificate,
    pub client_ca_pem: String,
}

impl TlsConfig {
    fn server_config(&self) -> io::Result<rustls::ServerConfig> {
        let other =
            |e: &dyn std::fmt::Display, what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{what}: {e}"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        for cert in CertificateDer::pem_slice_iter(self.client_ca_pem.as_bytes()) {
            let cert = cert.map_err(|e| other(&e, "client CA"))?;
            roots.add(cert).map_err(|e| other(&e, "client CA"))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|e| other(&e, "client CA"))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| other(&e, "TLS versions"))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(self.certificate.clone()));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// What the listener takes on unless it is told otherwise.
pub fn limits() -> Limits {
    Limits { streams: Some(STREAMS), ..Limits::new(CONNECTIONS, 0.5) }
}

pub async fn serve(
    service: ApiService,
    listener: TcpListener,
    tls: TlsConfig,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let tls = Arc::new(tls.server_config()?);
    let stop = service.stop_token();
    let receive = move || {
        let service = service.clone();
        Reception { tls: Some(tls.clone()), meet: Box::new(move |peer| Some(Box::new(handler(service, &peer)))) }
    };
    ferrovirt_serve::serve(listener, limits, receive, stop, shutdown).await;
    Ok(())
}

/// What answers on one connection. Whatever a request carries, only the connection says who this is.
fn handler(
    service: ApiService,
    peer: &Peer,
) -> impl Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync + 'static {
    let certificate = peer.certificate.as_ref();
    let user = certificate.and_then(|certificate| authn::from_certificate(certificate));
    let expiry = certificate.and_then(|certificate| authn::expiry(certificate));
    let checked = certificate.and_then(|certificate| service.revocations().watch(certificate, &peer.guest));
    let draining = peer.draining.clone();
    move |request| {
        let mut service = service.clone();
        let mut request = request.map(|b| b.map_err(Into::into).boxed_unsync());
        request.extensions_mut().remove::<User>();
        request.extensions_mut().insert(Draining(draining.clone()));
        // A connection may outlive the certificate that it was opened with.
        let expired = expiry.is_some_and(|expiry| expiry.0 <= std::time::SystemTime::now());
        if checked.as_ref().is_some_and(crate::revocation::Checked::is_revoked) {
            // Neither with another credential: whoever holds the key of this one is not who he was.
            return Box::pin(std::future::ready(body::error(&ApiError::unauthorized())));
        }
        if let Some(user) = user.as_ref().filter(|_| !expired) {
            request.extensions_mut().insert(user.clone());
            if let Some(expiry) = expiry {
                request.extensions_mut().insert(expiry);
            }
        }
        let answer = service.call(request);
        Box::pin(async move {
            match answer.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    }
}
