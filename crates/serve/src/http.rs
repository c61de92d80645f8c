//! One connection: TLS, then HTTP until its client, its time or its server is at the end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::body::{Body, Counted};
use crate::door::Guest;
use crate::held::Held;
use crate::limits::Limits;

/// HTTP/2 streams that a client reset before they were looked at. A flood of them ends its connection.
const MOST_RESETS: usize = 20;
/// The same for streams that we reset.
const MOST_LOCAL_RESETS: usize = 256;
const MOST_HEADERS: u32 = 64 << 10;

/// Who is at the other end.
pub struct Peer {
    pub address: SocketAddr,
    /// Its certificate, which was verified as the listener's TLS configuration says.
    pub certificate: Option<CertificateDer<'static>>,
    pub guest: Guest,
    /// Cancelled when the listener ends: answers without an end should end then.
    pub draining: CancellationToken,
}

/// Answers the requests of one connection. Requests carry the [`Guest`] as an extension.
pub type Handler = Box<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// How the next connection is received.
pub struct Reception {
    /// None: without TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// None: the connection is ended.
    pub meet: Box<dyn FnOnce(Peer) -> Option<Handler> + Send>,
}

/// What belongs to every connection of a listener.
pub struct Connection {
    pub limits: Limits,
    pub address: SocketAddr,
    pub stop: CancellationToken,
    /// One request, and no more: there are hardly any descriptors left.
    pub scarce: bool,
}

/// Boxed, so that all of HTTP and TLS is compiled here: a plain future would be compiled with the program that polls it, for
/// size.
pub fn converse(connection: Connection, held: Held, reception: Reception) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let guest = held.guest.clone();
        let Some(tls) = reception.tls else {
            return connection.speak(held, guest, None, reception.meet).await;
        };
        let handshake = tokio_rustls::TlsAcceptor::from(tls).accept(held);
        let stream = match tokio::time::timeout(connection.limits.handshake, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake timed out"),
        };
        guest.touch();
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let certificate = certificate.map(|certificate| certificate.clone().into_owned());
        connection.speak(stream, guest, certificate, reception.meet).await;
    })
}

impl Connection {
    async fn speak<I>(
        &self,
        io: I,
        guest: Guest,
        certificate: Option<CertificateDer<'static>>,
        meet: Box<dyn FnOnce(Peer) -> Option<Handler> + Send>,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let peer = Peer { address: self.address, certificate, guest: guest.clone(), draining: self.stop.clone() };
        let Some(handler) = meet(peer) else { return };
        let activity = Activity::new();
        let service = {
            let (activity, guest) = (activity.clone(), guest.clone());
            hyper::service::service_fn(move |mut request: Request<Incoming>| {
                let busy = activity.begin();
                guest.touch();
                request.extensions_mut().insert(guest.clone());
                let answer = handler(request);
                async move { Ok::<_, Infallible>(answer.await.map(|inner| Counted::new(inner, busy))) }
            })
        };
        let limits = &self.limits;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.idle)
            .max_buf_size(limits.buffer)
            .keep_alive(!self.scarce);
        match limits.streams {
            Some(streams) => {
                builder
                    .http2()
                    .timer(TokioTimer::new())
                    .keep_alive_interval(Duration::from_secs(30))
                    .max_concurrent_streams(streams)
                    .max_send_buf_size(limits.buffer)
                    .max_header_list_size(MOST_HEADERS)
                    .max_pending_accept_reset_streams(MOST_RESETS)
                    .max_local_error_reset_streams(MOST_LOCAL_RESETS);
            }
            None => builder = builder.http1_only(),
        }
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
        tokio::pin!(connection);
        let quiet = self.too_quiet(&activity, &guest);
        tokio::pin!(quiet);
        let result = tokio::select! {
            biased;
            result = connection.as_mut() => result,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = quiet => {
                // In good order, if the client takes part in it.
                connection.as_mut().graceful_shutdown();
                match tokio::time::timeout(Duration::from_secs(1), connection).await {
                    Ok(result) => result,
                    Err(_) => return,
                }
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "connection ended");
        }
    }

    /// Ends when the connection was of no use for too long.
    async fn too_quiet(&self, activity: &Activity, guest: &Guest) {
        loop {
            let (busy, since) = activity.state();
            let allowed = match (guest.is_known(), busy) {
                (true, true) => self.limits.idle.saturating_add(since),
                (true, false) => self.limits.idle,
                (false, true) => self.limits.stranger_request,
                // A client that keeps its connection for later gives it up itself, so that it never asks one that is just closed.
                (false, false) if activity.has_asked() => self.limits.idle,
                (false, false) => self.limits.stranger_idle,
            };
            match allowed.checked_sub(since).filter(|left| !left.is_zero()) {
                Some(left) => tokio::time::sleep(left).await,
                None => return,
            }
        }
    }
}
