//! Nodes of a cluster: each has an agent that opens streams into its guests, and answers calls about them, for those who
//! hold our client certificate.

use std::{future::Future, io, sync::Arc, time::Duration};

use bytes::Bytes;
use ferrovirt_api::{chain, v1::VirtualMachineInstance};
use ferrovirt_machine::{
    node_call::NodeCall,
    protocol::{ErrorCode, ProtocolError},
};
use futures::future::BoxFuture;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{net::TcpStream, sync::watch};

use crate::{BoxError, BoxStream, Nodes, StreamKind};

/// The protocol that a connection to an agent is upgraded to: the guest's bytes as they are.
const PROTOCOL: &str = "ferrovirt-stream";
const AGENTS: &str = "kubevirt.io=virt-handler";
/// More than any answer of a launcher, whose frames have 8 MiB.
const LONGEST_ANSWER: usize = 16 << 20;
const LONGEST_REFUSAL: usize = 64 << 10;
/// Within the cluster's own network.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("the instance has no node yet")]
    NoNode,
    #[error("no node agent runs on {0}")]
    NoAgent(String),
    #[error("cannot look for the node agent")]
    Find(#[from] kube::Error),
    #[error("cannot connect to the node agent of {node}")]
    Connect { node: String, source: io::Error },
    #[error("the node agent of {0} did not answer in time")]
    Timeout(String),
    #[error("the connection to the node agent broke")]
    Http(#[from] hyper::Error),
    #[error("the node agent's answer broke off, or has more than {0} bytes")]
    Body(usize),
    #[error("the node agent's address is not valid")]
    Address(#[from] http::Error),
    #[error("the node agent refused: {0}")]
    Refused(String),
    #[error("cannot encode the call")]
    Encode(#[from] serde_json::Error),
    #[error(transparent)]
    Answer(ProtocolError),
}

pub struct RemoteNodes {
    client: Client,
    namespace: String,
    port: u16,
    /// The name in every agent's certificate, whatever its address.
    server_name: ServerName<'static>,
    tls: watch::Receiver<Arc<ClientConfig>>,
}

impl RemoteNodes {
    pub fn new(
        client: Client,
        namespace: &str,
        port: u16,
        server_name: ServerName<'static>,
        tls: watch::Receiver<Arc<ClientConfig>>,
    ) -> Self {
        Self { client, namespace: namespace.into(), port, server_name, tls }
    }
}

impl Nodes for RemoteNodes {
    fn open(&self, vmi: VirtualMachineInstance, kind: StreamKind) -> BoxFuture<'static, Result<BoxStream, BoxError>> {
        let connection = self.connection(&vmi);
        Box::pin(async move { Ok(open(connection.await?, &vmi, kind).await?) })
    }

    fn call(&self, vmi: VirtualMachineInstance, call: NodeCall) -> BoxFuture<'static, Result<Bytes, ProtocolError>> {
        let connection = self.connection(&vmi);
        Box::pin(async move {
            let failed = |error: RemoteError| match error {
                RemoteError::Answer(error) => error,
                error => ProtocolError { code: ErrorCode::Failed, message: chain(&error) },
            };
            self::call(connection.await.map_err(failed)?, &vmi, &call).await.map_err(failed)
        })
    }
}

impl RemoteNodes {
    /// A connection to the agent of the instance's node.
    fn connection(
        &self,
        vmi: &VirtualMachineInstance,
    ) -> impl Future<Output = Result<tokio_rustls::client::TlsStream<TcpStream>, RemoteError>> + Send + use<> {
        let agents = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let (port, name, tls) = (self.port, self.server_name.clone(), self.tls.borrow().clone());
        let node = vmi.status.node_name.clone();
        async move {
            if node.is_empty() {
                return Err(RemoteError::NoNode);
            }
            let params = ListParams::default().labels(AGENTS).fields(&format!("spec.nodeName={node}"));
            let found = agents.list(&params).await.map_err(RemoteError::Find)?;
            let running = found.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
            let address = running.filter_map(|pod| pod.status?.pod_ip).next();
            let address = address.ok_or_else(|| RemoteError::NoAgent(node.clone()))?;
            let connect = connect(&node, &address, port, name, tls);
            tokio::time::timeout(CONNECT_TIMEOUT, connect).await.map_err(|_| RemoteError::Timeout(node.clone()))?
        }
    }
}

async fn connect(
    node: &str,
    address: &str,
    port: u16,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, RemoteError> {
    let failed = |source| RemoteError::Connect { node: node.into(), source };
    let address = address.parse().map_err(|_| failed(io::Error::other("the agent's pod has no valid address")))?;
    let stream = TcpStream::connect(std::net::SocketAddr::new(address, port)).await.map_err(failed)?;
    let _ = stream.set_nodelay(true);
    tokio_rustls::TlsConnector::from(tls).connect(name, stream).await.map_err(failed)
}

/// Asks an agent for a stream, over a connection to it.
pub async fn open<S>(connection: S, vmi: &VirtualMachineInstance, kind: StreamKind) -> Result<BoxStream, RemoteError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(connection)).await?;
    tokio::spawn(connection.with_upgrades());
    let kind = match kind {
        StreamKind::Serial { replay: false } => "console".to_owned(),
        StreamKind::Serial { replay: true } => "console/replay".to_owned(),
        StreamKind::Vnc { preserve: false } => "vnc".to_owned(),
        StreamKind::Vnc { preserve: true } => "vnc/preserve".to_owned(),
        StreamKind::PortForward { port, protocol } => format!("portforward/{port}/{}", protocol.name()),
    };
    let request = Request::get(path(vmi, &kind))
        .header(header::HOST, "virt-handler")
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, HeaderValue::from_static(PROTOCOL))
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let body = read(response.into_body(), LONGEST_REFUSAL).await?;
        return Err(RemoteError::Refused(String::from_utf8_lossy(&body).into_owned()));
    }
    let upgraded = hyper::upgrade::on(response).await?;
    Ok(Box::pin(TokioIo::new(upgraded)))
}

/// Asks an agent about an instance, over a connection to it.
pub async fn call<S>(connection: S, vmi: &VirtualMachineInstance, call: &NodeCall) -> Result<Bytes, RemoteError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(connection)).await?;
    tokio::spawn(connection);
    let request = Request::post(path(vmi, "call"))
        .header(header::HOST, "virt-handler")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::<Bytes>::from(serde_json::to_vec(call)?))?;
    let response = sender.send_request(request).await?;
    let code = response.status();
    let longest = if code == StatusCode::OK { LONGEST_ANSWER } else { LONGEST_REFUSAL };
    let body = read(response.into_body(), longest).await?;
    if code == StatusCode::OK {
        return Ok(body);
    }
    match serde_json::from_slice::<ProtocolError>(&body) {
        Ok(error) => Err(RemoteError::Answer(error)),
        Err(_) => Err(RemoteError::Refused(String::from_utf8_lossy(&body).into_owned())),
    }
}

/// A node may be somebody else's by now: what it says costs no more than this.
async fn read(body: hyper::body::Incoming, most: usize) -> Result<Bytes, RemoteError> {
    Limited::new(body, most).collect().await.map(|body| body.to_bytes()).map_err(|_| RemoteError::Body(most))
}

fn path(vmi: &VirtualMachineInstance, what: &str) -> String {
    let metadata = &vmi.metadata;
    let [namespace, name, uid] =
        [&metadata.namespace, &metadata.name, &metadata.uid].map(|part| part.as_deref().unwrap_or_default());
    format!("/v1/{namespace}/{name}/{uid}/{what}")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A node that talks without end, with this status.
    fn talkative(status: &'static str) -> tokio::io::DuplexStream {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        tokio::spawn(async move {
            let mut asked = [0; 1024];
            let _ = theirs.read(&mut asked).await;
            let head = format!("HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n\r\n");
            let _ = theirs.write_all(head.as_bytes()).await;
            let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
            while theirs.write_all(chunk.as_bytes()).await.is_ok() {}
        });
        ours
    }

    #[tokio::test]
    async fn a_node_that_talks_without_end_is_not_heard_to_the_end() {
        let vmi = VirtualMachineInstance::default();
        for (status, longest) in [("200 OK", LONGEST_ANSWER), ("500 Internal Server Error", LONGEST_REFUSAL)] {
            let heard = call(talkative(status), &vmi, &NodeCall::Ping {}).await;
            assert!(matches!(heard, Err(RemoteError::Body(most)) if most == longest), "{status}: {heard:?}");
        }
        let refused = open(talkative("404 Not Found"), &vmi, StreamKind::Vnc { preserve: false }).await;
        assert!(matches!(refused.err(), Some(RemoteError::Body(LONGEST_REFUSAL))));
    }
}
