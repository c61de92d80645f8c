//! Admission webhooks and the aggregated API `subresources.kubevirt.io` (the virt-api role).
//!
//! One HTTP service. On a cluster it is served over TLS behind the API server's aggregation; embedded, the API server calls
//! it in-process under the same service name. In both cases the caller's identity arrives in the front-proxy headers, which
//! whoever mounts this service must have set itself: nothing here trusts a header that a client could write.

mod admission;
mod answer;
mod authorize;
mod discovery;
mod endpoints;
mod eviction;
mod expand;
mod followed;
mod front_proxy;
mod graph;
mod guest;
mod hypervisors;
mod openapi;
mod options;
mod power;
pub mod remote;
mod rights;
mod roles;
mod serve;
mod stream;
mod streams;
mod subresources;
pub mod validate;

use std::{pin::Pin, sync::Arc};

use bytes::Bytes;
use ferrovirt_api::v1::{KubeVirt, VirtualMachineInstance, VirtualMachineInstancePreset};
use ferrovirt_machine::{
    node_call::{NodeCall, Protocol},
    protocol::ProtocolError,
};
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use kube::Client;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use followed::Followed;

pub use front_proxy::{FrontProxy, FrontProxyError};
pub use roles::user_roles;
pub use serve::{Tls, TlsError, serve};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A byte stream into a guest.
pub trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}
pub type BoxStream = Pin<Box<dyn Duplex>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// With `replay` it begins with what the guest wrote last.
    Serial { replay: bool },
    /// With `preserve` only if nobody else looks at the screen.
    Vnc { preserve: bool },
    /// [`Protocol`] says what a stream of each carries.
    PortForward { port: u16, protocol: Protocol },
}

/// Reaches the node that an instance runs on. A stream needs a path of its own: an in-process client has no connection
/// that could be upgraded.
pub trait Nodes: Send + Sync + 'static {
    fn open(&self, vmi: VirtualMachineInstance, kind: StreamKind) -> BoxFuture<'static, Result<BoxStream, BoxError>>;

    /// Asks about an instance; [`NodeCall`] says what each answer is.
    fn call(&self, vmi: VirtualMachineInstance, call: NodeCall) -> BoxFuture<'static, Result<Bytes, ProtocolError>>;
}

/// An extension of a request: until when its caller's proof of identity holds. Streams end with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(pub std::time::SystemTime);

/// What `/metrics` says of this component.
pub fn ready_status() -> ferrovirt_metrics::Family {
    ferrovirt_metrics::Family::gauge("kubevirt_virt_api_ready_status", "Whether virt-api serves.").with([], 1.0)
}

/// Answers for the API group of upload tokens: of a method, a path and a body the status and the object.
pub type UploadGroup = Arc<dyn Fn(Method, String, Bytes) -> BoxFuture<'static, (StatusCode, Value)> + Send + Sync>;

#[derive(Clone)]
pub struct VirtApi {
    client: Client,
    nodes: Arc<dyn Nodes>,
    configuration: Followed<KubeVirt>,
    presets: Followed<VirtualMachineInstancePreset>,
    uploads: Option<UploadGroup>,
}

impl VirtApi {
    pub fn new(client: Client, nodes: Arc<dyn Nodes>) -> Self {
        let configuration = Followed::new(client.clone());
        let presets = Followed::new(client.clone());
        Self { client, nodes, configuration, presets, uploads: None }
    }

    /// Serves the API group of upload tokens, too.
    pub fn with_uploads(self, uploads: UploadGroup) -> Self {
        Self { uploads: Some(uploads), ..self }
    }

    /// Answers one request.
    pub async fn handle(&self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
        match (request.method(), segments.as_slice()) {
            (&Method::POST, [hook]) => admission::handle(self, hook, request).await,
            (&Method::GET, ["healthz"]) => answer::text("ok"),
            (&Method::GET, ["metrics"]) => answer::text(ferrovirt_metrics::to_text(&[ready_status()])),
            (&Method::GET, ["apis"]) if discovery::wants_aggregated(request.headers()) => {
                discovery::aggregated(self.uploads.is_some())
            }
            (&Method::GET, ["openapi", rest @ ..]) => openapi::handle(rest),
            (_, ["apis", "subresources.kubevirt.io", rest @ ..]) => match rest {
                [] => discovery::group(),
                [version] if discovery::serves(version) => discovery::resources(version),
                [version, rest @ ..] if discovery::serves(version) => {
                    subresources::handle(self, request, version, rest).await
                }
                _ => answer::not_found("the server could not find the requested resource"),
            },
            (_, ["apis", "upload.cdi.kubevirt.io", ..]) => self.upload_group(request, path).await,
            _ => answer::not_found("the server could not find the requested resource"),
        }
    }

    /// The API server has asked its authorizer before it passed the call on; nobody else may be the caller.
    async fn upload_group(&self, request: Request<Body>, path: String) -> Response<Body> {
        let Some(uploads) = &self.uploads else {
            return answer::not_found("the server could not find the requested resource");
        };
        let method = request.method().clone();
        if method != Method::GET && !request.headers().contains_key("x-remote-user") {
            return answer::status(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized");
        }
        match options::bytes(request).await {
            Ok(body) => {
                let (status, object) = uploads(method, path, body).await;
                answer::json(status, &object)
            }
            Err(refusal) => refusal,
        }
    }
}
