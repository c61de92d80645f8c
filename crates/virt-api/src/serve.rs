//! The TLS listener that a cluster's API server talks to.
//!
//! Admission reviews and health checks come without a client certificate. Requests to the aggregated API come through the
//! front proxy, and only a connection with its certificate may say who the caller is.

use std::{future::Future, io, sync::Arc, time::Duration};

use http::Request;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{FrontProxy, VirtApi};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(100);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
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

/// Serves until `shutdown` resolves, then lets open requests end.
pub async fn serve(api: VirtApi, listener: TcpListener, tls: watch::Receiver<Tls>, shutdown: impl Future<Output = ()>) {
    let connections = TaskTracker::new();
    let stop = CancellationToken::new();
    tokio::pin!(shutdown);
    loop {
        let stream = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let _ = stream.set_nodelay(true);
        let tls = tls.borrow().clone();
        connections.spawn(connection(api.clone(), tls, stream, stop.clone()));
    }
    drop(listener);
    stop.cancel();
    connections.close();
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, connections.wait()).await;
}

async fn connection(api: VirtApi, tls: Tls, stream: TcpStream, stop: CancellationToken) {
    let acceptor = tokio_rustls::TlsAcceptor::from(tls.config);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let front_proxy = tls.front_proxy;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let trusted = certificate.is_some_and(|certificate| front_proxy.is(certificate));
    let handler = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        front_proxy.identify(request.headers_mut(), trusted);
        let request = request.map(|body| Limited::new(body, MAX_BODY).boxed_unsync());
        let api = api.clone();
        async move { Ok::<_, io::Error>(api.handle(request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), handler)
        .with_upgrades();
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}
