//! The TLS listener.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;

use crate::authn::{self, User};
use crate::http::certificate::ServingCertificate;
use crate::service::ApiService;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take for the headers of a request. Counts from the end of the previous request, so it is also the
/// idle timeout; clients give up idle connections after 90 s, and they should be the ones to do it.
const HEADER_TIMEOUT: Duration = Duration::from_secs(100);
/// What a connection may hold of headers, and of an answer that its client does not read. A thousand watches that nobody
/// reads hold a thousand of these.
const CONNECTION_BUFFER: usize = 128 << 10;
/// How long open requests may run on after shutdown began. Watches end at once, on their own.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

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

pub async fn serve(
    service: ApiService,
    listener: TcpListener,
    tls: TlsConfig,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls.server_config()?));
    let stop = service.stop_token();
    let connections = TaskTracker::new();
    tokio::pin!(shutdown);
    loop {
        let stream = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, or a client that went away; neither may end the server.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let _ = stream.set_nodelay(true);
        connections.spawn(connection(service.clone(), acceptor.clone(), stream, stop.clone()));
    }
    drop(listener);
    stop.cancel();
    connections.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "connections still open at the end of the drain");
    }
    Ok(())
}

/// Boxed, so that all of HTTP and TLS is compiled here: a plain future would be compiled with the program that polls it, for
/// size.
fn connection(
    service: ApiService,
    acceptor: tokio_rustls::TlsAcceptor,
    stream: TcpStream,
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(converse(service, acceptor, stream, stop))
}

async fn converse(
    service: ApiService,
    acceptor: tokio_rustls::TlsAcceptor,
    stream: TcpStream,
    stop: CancellationToken,
) {
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let user = certificate.and_then(|certificate| authn::from_certificate(certificate));
    let expiry = certificate.and_then(|certificate| authn::expiry(certificate));
    let draining = stop.clone();
    let handler = hyper::service::service_fn(move |request: Request<Incoming>| {
        let mut service = service.clone();
        let mut request = request.map(|b| b.map_err(Into::into).boxed_unsync());
        // Whatever was there before, only the connection says who this is.
        request.extensions_mut().remove::<User>();
        request.extensions_mut().insert(Draining(draining.clone()));
        // A connection may outlive the certificate that it was opened with.
        let expired = expiry.is_some_and(|expiry| expiry.0 <= std::time::SystemTime::now());
        if let Some(user) = user.as_ref().filter(|_| !expired) {
            request.extensions_mut().insert(user.clone());
            if let Some(expiry) = expiry {
                request.extensions_mut().insert(expiry);
            }
        }
        async move { service.call(request).await }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(CONNECTION_BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(30))
        .max_concurrent_streams(1000)
        .max_send_buf_size(CONNECTION_BUFFER);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), handler);
    tokio::pin!(connection);
    let result = tokio::select! {
        biased;
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
