//! The TLS listener that a cluster's API server talks to.
//!
//! Admission reviews and health checks come without a client certificate. Requests to the aggregated API come through the
//! front proxy, and only a connection with its certificate may say who the caller is.

use std::{future::Future, sync::Arc, time::Duration};

use ferrovirt_serve::{Handler, Limits, Patient, Peer, Reception};
use http::Request;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{FrontProxy, VirtApi};

/// How long a body may send nothing.
const BODY_STALL: Duration = Duration::from_secs(30);
/// The API server sends objects of at most 3 MiB; a review holds two of them.
const MAX_BODY: usize = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the {0} is not valid PEM")]
    Pem(&'static str, #[source] rustls_pki_types::pem::Error),
    #[error("the {0} cannot be used")]
    Unusable(&'static str, #[source] rustls::Error),
    #[error("the front proxy's CA cannot be used")]
    ClientCa(#[source] rustls::server::VerifierBuilderError),
}

/// What a listener needs for its next connection. Certificates change while it runs.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    front_proxy: Arc<FrontProxy>,
}

impl Tls {
    /// From PEM texts of the serving certificate and its key.
    pub fn new(certificate: &str, key: &str, front_proxy: FrontProxy) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(front_proxy.client_ca.as_bytes()) {
            let ca = ca.map_err(|error| TlsError::Pem("front proxy's CA", error))?;
            roots.add(ca).map_err(|error| TlsError::Unusable("front proxy's CA", error))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(TlsError::ClientCa)?;
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| TlsError::Pem("serving certificate", error))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| TlsError::Pem("serving key", error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Unusable("TLS library", error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| TlsError::Unusable("serving certificate", error))?;
        // Streams need a connection that can be upgraded.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), front_proxy: Arc::new(front_proxy) })
    }
}

/// What the listener takes on. The API server is one peer and one name, whoever asks through it.
fn limits() -> Limits {
    let limits = Limits::new(2048, 0.25);
    Limits { per_peer: limits.total, per_name: limits.total, ..limits }
}

/// Serves until `shutdown` resolves, then lets open requests end.
pub async fn serve(api: VirtApi, listener: TcpListener, tls: watch::Receiver<Tls>, shutdown: impl Future<Output = ()>) {
    let receive = move || {
        let (api, tls) = (api.clone(), tls.borrow().clone());
        let front_proxy = tls.front_proxy;
        let meet = move |peer: Peer| -> Option<Handler> {
            let trusted = peer.certificate.as_ref().is_some_and(|certificate| front_proxy.is(certificate));
            if trusted && peer.guest.known("front proxy").is_err() {
                return None;
            }
            Some(Box::new(move |mut request: Request<Incoming>| {
                front_proxy.identify(request.headers_mut(), trusted);
                let request = request.map(|body| Limited::new(Patient::new(body, BODY_STALL), MAX_BODY).boxed_unsync());
                let api = api.clone();
                Box::pin(async move { api.handle(request).await })
            }))
        };
        Reception { tls: Some(tls.config), meet: Box::new(meet) }
    };
    ferrovirt_serve::serve(listener, limits(), receive, CancellationToken::new(), shutdown).await;
}
