//! HTTP/2 over TLS with a client certificate, one connection per client, as client-go has it.

use std::sync::Arc;

use anyhow::{Context, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;

pub type Tls = tokio_rustls::client::TlsStream<TcpStream>;

/// A server, and somebody who may talk to it.
#[derive(Clone)]
pub struct Access {
    /// `127.0.0.1:port`
    pub address: String,
    tls: Arc<rustls::ClientConfig>,
}

impl Access {
    pub fn new(address: &str, authority: &str, certificate: &str, key: &str) -> Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        for der in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            roots.add(der?)?;
        }
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { address: address.to_owned(), tls: Arc::new(tls) })
    }

    /// A connection on which HTTP/2 may begin.
    pub async fn connect(&self) -> Result<Tls> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost")?;
        Ok(tokio_rustls::TlsConnector::from(self.tls.clone()).connect(name, stream).await?)
    }

    /// From a kubeconfig that has everything in it, as JSON.
    pub fn from_kubeconfig(text: &str) -> Result<Self> {
        let config: serde_json::Value = serde_json::from_str(text)?;
        let (cluster, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
        let text =
            |value: &serde_json::Value| value.as_str().map(str::to_owned).context("the kubeconfig is incomplete");
        let pem = |value| -> Result<String> { Ok(String::from_utf8(STANDARD.decode(text(value)?)?)?) };
        Self::new(
            text(&cluster["server"])?.trim_start_matches("https://"),
            &pem(&cluster["certificate-authority-data"])?,
            &pem(&user["client-certificate-data"])?,
            &pem(&user["client-key-data"])?,
        )
    }
}

/// One connection.
#[derive(Clone)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    authority: String,
}

impl Client {
    pub async fn connect(access: &Access) -> Result<Self> {
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(access.connect().await?)).await?;
        tokio::spawn(async move {
            // The requests on it say what went wrong.
            let _ = connection.await;
        });
        Ok(Self { sender, authority: access.address.clone() })
    }

    pub async fn send(&self, method: &str, path: &str, body: Option<Bytes>) -> Result<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.authority))
            .header("accept", "application/json")
            .header("user-agent", "bench-api");
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request.body(Full::new(body.unwrap_or_default()))?;
        Ok(self.sender.clone().send_request(request).await?)
    }

    pub async fn request(&self, method: &str, path: &str, body: Option<Bytes>) -> Result<(StatusCode, Bytes)> {
        let response = self.send(method, path, body).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    pub async fn create(&self, path: &str, object: Bytes) -> Result<()> {
        let (status, answer) = self.request("POST", path, Some(object)).await?;
        anyhow::ensure!(status == 201, "POST {path} was answered with {status}: {}", String::from_utf8_lossy(&answer));
        Ok(())
    }
}
