//! Serves streams into this node's guests, and calls about them, to whoever holds a certificate of the installation's own
//! CA: virt-api.
//!
//! `GET /v1/<namespace>/<name>/<uid>/<console|console/replay|vnc|vnc/preserve|portforward/PORT/tcp|udp>` with an upgrade to `ferrovirt-stream`; from
//! then on the connection is the guest's bytes. `POST /v1/<namespace>/<name>/<uid>/call` with a `NodeCall` as JSON is
//! answered with what that call says, or with a `ProtocolError`. Who may do what was decided before, by virt-api; here the
//! certificate is the whole check.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use ferrovirt_api::{chain, v1::VirtualMachineInstance};
use ferrovirt_machine::{
    node_call::{NodeCall, Protocol},
    protocol::{ErrorCode, MAX_FRAME, ProtocolError},
};
use ferrovirt_serve::{Handler, Limits, Peer, Reception};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kube::Api;
use rustls::ServerConfig;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{Agent, StreamKind};

const GONE: &str = "the instance is gone";
const PROTOCOL: &str = "ferrovirt-stream";

impl Agent {
    /// Serves streams until `shutdown` resolves. `tls` must demand client certificates.
    pub async fn serve_streams(
        &self,
        listener: TcpListener,
        tls: watch::Receiver<Arc<ServerConfig>>,
        shutdown: impl Future<Output = ()>,
    ) {
        let agent = self.clone();
        let receive = move || {
            let agent = agent.clone();
            let meet = move |peer: Peer| -> Option<Handler> {
                // TLS let nobody through without one; should that ever change, nothing is served here.
                peer.certificate.as_ref()?;
                peer.guest.known("virt-api").ok()?;
                Some(Box::new(move |request| {
                    let agent = agent.clone();
                    Box::pin(async move {
                        answer(&agent, request).await.map(|body| body.map_err(|never| match never {}).boxed_unsync())
                    })
                }))
            };
            Reception { tls: Some(tls.borrow().clone()), meet: Box::new(meet) }
        };
        ferrovirt_serve::serve(listener, limits(), receive, CancellationToken::new(), shutdown).await;
    }
}

/// A stream into a guest is a connection, and all of them come from a few processes of one name.
fn limits() -> Limits {
    let limits = Limits::new(4096, 0.25);
    Limits { per_peer: limits.total, per_name: limits.total, strangers: limits.total / 16, ..limits }
}

async fn answer(agent: &Agent, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let Some(wanted) = parse(&path).filter(|wanted| wanted.what.method() == *request.method()) else {
        return refuse(StatusCode::NOT_FOUND, "no such stream");
    };
    match wanted.what {
        What::Stream(kind) => stream(agent, request, &wanted, kind).await,
        What::Call => match call(agent, request, &wanted).await {
            Ok(bytes) => Response::new(Full::from(bytes)),
            Err(error) => refuse(status_of(error.code), &serde_json::to_string(&error).unwrap_or_default()),
        },
    }
}

async fn call(agent: &Agent, request: Request<Incoming>, wanted: &Wanted<'_>) -> Result<Bytes, ProtocolError> {
    let refusal = |code, message: String| ProtocolError { code, message };
    let body = Limited::new(request.into_body(), MAX_FRAME as usize).collect().await;
    let body = body.map_err(|error| refusal(ErrorCode::BadRequest, format!("cannot read the call: {error}")))?;
    let call: NodeCall = serde_json::from_slice(&body.to_bytes())
        .map_err(|error| refusal(ErrorCode::BadRequest, format!("not a call: {error}")))?;
    let vmi = match find(agent, wanted).await {
        Ok(vmi) => vmi.ok_or_else(|| refusal(ErrorCode::NotHere, GONE.into()))?,
        Err(error) => return Err(refusal(ErrorCode::Failed, format!("cannot look for the instance: {error}"))),
    };
    agent.call(&vmi, &call).await
}

fn status_of(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::BadRequest | ErrorCode::Version => StatusCode::BAD_REQUEST,
        ErrorCode::Conflict => StatusCode::CONFLICT,
        ErrorCode::NotHere => StatusCode::NOT_FOUND,
        ErrorCode::NoAgent => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::Failed => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

async fn find(agent: &Agent, wanted: &Wanted<'_>) -> Result<Option<VirtualMachineInstance>, kube::Error> {
    let vmis = Api::<VirtualMachineInstance>::namespaced(agent.context().client.clone(), wanted.namespace);
    let vmi = vmis.get_opt(wanted.name).await?;
    // An instance of the same name that came later is another one.
    Ok(vmi.filter(|vmi| vmi.metadata.uid.as_deref() == Some(wanted.uid)))
}

async fn stream(
    agent: &Agent,
    mut request: Request<Incoming>,
    wanted: &Wanted<'_>,
    kind: StreamKind,
) -> Response<Full<Bytes>> {
    if request.headers().get(header::UPGRADE).is_none_or(|protocol| protocol != PROTOCOL) {
        return refuse(StatusCode::UPGRADE_REQUIRED, "this address gives streams only");
    }
    let vmi = match find(agent, wanted).await {
        Ok(Some(vmi)) => vmi,
        Ok(None) => return refuse(StatusCode::NOT_FOUND, GONE),
        Err(error) => {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, &format!("cannot look for the instance: {error}"));
        }
    };
    let mut guest = match agent.open(&vmi, kind).await {
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
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Stream(StreamKind),
    Call,
}

impl What {
    fn method(self) -> Method {
        match self {
            Self::Stream(_) => Method::GET,
            Self::Call => Method::POST,
        }
    }
}

fn parse(path: &str) -> Option<Wanted<'_>> {
    let parts: Vec<&str> = path.split('/').collect();
    let ["", "v1", namespace, name, uid, what @ ..] = parts.as_slice() else { return None };
    let what = match *what {
        ["call"] => What::Call,
        ["console"] => What::Stream(StreamKind::Serial { replay: false }),
        ["console", "replay"] => What::Stream(StreamKind::Serial { replay: true }),
        ["vnc"] => What::Stream(StreamKind::Vnc { preserve: false }),
        ["vnc", "preserve"] => What::Stream(StreamKind::Vnc { preserve: true }),
        ["portforward", port, protocol] => What::Stream(StreamKind::PortForward {
            port: port.parse().ok().filter(|port| *port != 0)?,
            protocol: Protocol::parse(protocol)?,
        }),
        _ => return None,
    };
    let filled = [namespace, name, uid].iter().all(|part| !part.is_empty());
    filled.then_some(Wanted { namespace, name, uid, what })
}

fn refuse(code: StatusCode, message: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(message.to_owned()));
    *response.status_mut() = code;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_one_instance_and_what_is_wanted_of_it() {
        let serial = What::Stream(StreamKind::Serial { replay: false });
        let serial = Wanted { namespace: "default", name: "demo", uid: "u1", what: serial };
        assert_eq!(parse("/v1/default/demo/u1/console"), Some(serial));
        let dns = StreamKind::PortForward { port: 53, protocol: Protocol::Udp };
        let paths = [
            ("vnc", What::Stream(StreamKind::Vnc { preserve: false })),
            ("vnc/preserve", What::Stream(StreamKind::Vnc { preserve: true })),
            ("console/replay", What::Stream(StreamKind::Serial { replay: true })),
            ("call", What::Call),
            ("portforward/53/udp", What::Stream(dns)),
        ];
        for (path, what) in paths {
            assert_eq!(parse(&format!("/v1/a/b/c/{path}")).map(|wanted| wanted.what), Some(what), "{path}");
        }
        for bad in [
            "",
            "/",
            "/v1/a/b/c",
            "/v1/a/b/c/shell",
            "/v1//b/c/vnc",
            "/v2/a/b/c/vnc",
            "/v1/a/b/c/vnc/",
            "/v1/a/b/c/portforward/0/tcp",
            "/v1/a/b/c/portforward/80",
            "/v1/a/b/c/portforward/80/sctp",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
