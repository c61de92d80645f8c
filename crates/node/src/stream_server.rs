//! Serves streams into this node's guests to whoever holds a certificate of the installation's own CA: virt-api.
//!
//! `GET /v1/<namespace>/<name>/<uid>/<console|vnc>` with an upgrade to `ferrovirt-stream`; from then on the connection is
//! the guest's bytes. Who may open one was decided before, by virt-api; here the certificate is the whole check.

use std::{future::Future, io, sync::Arc, time::Duration};

use bytes::Bytes;
use ferrovirt_api::v1::VirtualMachineInstance;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::Api;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{Agent, StreamKind};

const PROTOCOL: &str = "ferrovirt-stream";
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

impl Agent {
    /// Serves streams until `shutdown` resolves. `tls` must demand client certificates.
    pub async fn serve_streams(
        &self,
        listener: TcpListener,
        tls: watch::Receiver<Arc<ServerConfig>>,
        shutdown: impl Future<Output = ()>,
    ) {
        tokio::pin!(shutdown);
        loop {
            let stream = tokio::select! {
                () = &mut shutdown => return,
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
            let config = tls.borrow().clone();
            tokio::spawn(connection(self.clone(), config, stream));
        }
    }
}

async fn connection(agent: Agent, tls: Arc<ServerConfig>, stream: TcpStream) {
    let handshake = tokio_rustls::TlsAcceptor::from(tls).accept(stream);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let handler = hyper::service::service_fn(move |request| {
        let agent = agent.clone();
        async move { Ok::<_, io::Error>(answer(&agent, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), handler)
        .with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "stream connection ended");
    }
}

async fn answer(agent: &Agent, mut request: Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let Some(wanted) = parse(&path).filter(|_| request.method() == Method::GET) else {
        return refuse(StatusCode::NOT_FOUND, "no such stream");
    };
    if request.headers().get(header::UPGRADE).is_none_or(|protocol| protocol != PROTOCOL) {
        return refuse(StatusCode::UPGRADE_REQUIRED, "this address gives streams only");
    }
    let vmis = Api::<VirtualMachineInstance>::namespaced(agent.context().client.clone(), wanted.namespace);
    let vmi = match vmis.get_opt(wanted.name).await {
        Ok(vmi) => vmi.filter(|vmi| vmi.metadata.uid.as_deref() == Some(wanted.uid)),
        Err(error) => {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, &format!("cannot look for the instance: {error}"));
        }
    };
    let Some(vmi) = vmi else {
        return refuse(StatusCode::NOT_FOUND, "the instance is gone");
    };
    let mut guest = match agent.open(&vmi, wanted.kind).await {
        Ok(stream) => stream,
        Err(error) => return refuse(StatusCode::SERVICE_UNAVAILABLE, &chain(&error)),
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => {
                let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(upgraded), &mut guest).await;
            }
            Err(error) => tracing::debug!(%error, "the client left before its stream began"),
        }
    });
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    response
}

#[derive(Debug, PartialEq, Eq)]
struct Wanted<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    kind: StreamKind,
}

fn parse(path: &str) -> Option<Wanted<'_>> {
    let parts: Vec<&str> = path.split('/').collect();
    let ["", "v1", namespace, name, uid, kind] = parts.as_slice() else { return None };
    let kind = match *kind {
        "console" => StreamKind::Serial,
        "vnc" => StreamKind::Vnc,
        _ => return None,
    };
    let filled = [namespace, name, uid].iter().all(|part| !part.is_empty());
    filled.then_some(Wanted { namespace, name, uid, kind })
}

fn refuse(code: StatusCode, message: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(message.to_owned()));
    *response.status_mut() = code;
    response
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_one_instance_and_one_of_its_streams() {
        let serial = Wanted { namespace: "default", name: "demo", uid: "u1", kind: StreamKind::Serial };
        assert_eq!(parse("/v1/default/demo/u1/console"), Some(serial));
        assert_eq!(parse("/v1/a/b/c/vnc").map(|wanted| wanted.kind), Some(StreamKind::Vnc));
        for bad in ["", "/", "/v1/a/b/c", "/v1/a/b/c/shell", "/v1//b/c/vnc", "/v2/a/b/c/vnc", "/v1/a/b/c/vnc/"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
