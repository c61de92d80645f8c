//! Calls to others: webhooks and extension API servers, in this process, behind a Service, or at a URL.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;

use super::anyone::Anyone;
use super::body::{self, Body};
use crate::object::{at, text};
use crate::server::Server;
use crate::storage::parse;

/// How long it may take until the other side has taken a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How much of an answer that is an error is told.
const MAX_REASON: usize = 1024;

/// Where a `clientConfig` leads.
#[derive(Debug, Clone)]
pub struct Destination {
    place: Place,
    /// PEM text of the authorities that the other side's certificate has to come from.
    authorities: Vec<u8>,
    /// Any certificate will do.
    insecure: bool,
}

/// A certificate that this server shows to others, with its key, as PEM texts.
#[derive(Debug, Clone)]
pub struct ClientIdentity {
    pub certificate_pem: String,
    pub key_pem: String,
}

/// Why no address is known behind a Service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("service/{name} in \"{namespace}\" is not present")]
    Service { namespace: String, name: String },
    #[error("service/{name} in \"{namespace}\" is not listening on port {port}")]
    Port { namespace: String, name: String, port: u16 },
    #[error("endpoints for service/{name} in \"{namespace}\" have no addresses")]
    Address { namespace: String, name: String },
}

impl EndpointError {
    /// The reason in a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Service { .. } => "ServiceNotFound",
            Self::Port { .. } => "ServicePortError",
            Self::Address { .. } => "MissingEndpoints",
        }
    }
}

#[derive(Debug, Clone)]
enum Place {
    Service { namespace: String, name: String, port: u16, path: String },
    Url { host: String, port: u16, path: String },
    Broken(String),
}

impl Destination {
    /// Reads `clientConfig` of a webhook or a conversion.
    pub fn read(config: &Value) -> Self {
        let authorities = base64::engine::general_purpose::STANDARD.decode(text(config, &["caBundle"]));
        let place = match at(config, &["service"]).filter(|s| s.is_object()) {
            Some(service) => Place::Service {
                namespace: text(service, &["namespace"]).to_owned(),
                name: text(service, &["name"]).to_owned(),
                port: service["port"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(443),
                path: text(service, &["path"]).to_owned(),
            },
            None => match text(config, &["url"]).parse::<http::Uri>() {
                Ok(uri) if uri.scheme_str() == Some("https") && uri.host().is_some() => Place::Url {
                    host: uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
                    port: uri.port_u16().unwrap_or(443),
                    path: uri.path().to_owned(),
                },
                _ => Place::Broken("it names neither a service nor an https URL".to_owned()),
            },
        };
        Self { place, authorities: authorities.unwrap_or_default(), insecure: false }
    }

    /// Reads `spec` of an APIService.
    pub fn of_api_service(spec: &Value) -> Self {
        Self { insecure: spec["insecureSkipTLSVerify"] == true, ..Self::read(spec) }
    }

    /// The address that a request would go to.
    pub fn address(&self, server: &Server) -> Result<(IpAddr, u16), EndpointError> {
        match &self.place {
            Place::Service { namespace, name, port, .. } => endpoint(server, namespace, name, *port),
            Place::Url { .. } | Place::Broken(_) => {
                Err(EndpointError::Service { namespace: String::new(), name: String::new() })
            }
        }
    }

    /// Sends a request as it is, but for its Host, and says who this server is. The answer may be an upgrade.
    pub async fn pass_on(
        &self,
        server: &Server,
        identity: Option<&ClientIdentity>,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, String> {
        let Place::Service { namespace, name, .. } = &self.place else {
            return Err("it names no service".to_owned());
        };
        let host = format!("{name}.{namespace}.svc");
        let (address, port) = self.address(server).map_err(|e| e.to_string())?;
        let value = http::HeaderValue::from_str(&host).map_err(|e| e.to_string())?;
        request.headers_mut().insert(header::HOST, value);
        self.send(&host, &address.to_string(), port, identity, request).await
    }

    /// Posts a JSON document and returns the one that comes back.
    pub async fn ask(&self, server: &Server, question: &Value, limit: Duration) -> Result<Value, String> {
        let seconds = limit.as_secs();
        let answer = async {
            let response = self.post(server, question, seconds).await?;
            let status = response.status();
            let bytes = body::read(response.into_body()).await.map_err(|e| e.message().to_owned())?;
            if !status.is_success() {
                // Enough for a reason, and no way to read what else is there.
                let said = bytes.get(..MAX_REASON).unwrap_or(&bytes);
                return Err(format!("it answered {status}: {}", String::from_utf8_lossy(said)));
            }
            serde_json::from_slice(&bytes).map_err(|e| format!("its answer is not JSON: {e}"))
        };
        tokio::time::timeout(limit, answer)
            .await
            .map_err(|_| format!("no answer within {seconds}s: context deadline exceeded"))?
    }

    async fn post(&self, server: &Server, question: &Value, seconds: u64) -> Result<Response<Body>, String> {
        let request = |authority: &str, path: &str| {
            let path = if path.is_empty() { "/" } else { path };
            Request::builder()
                .method(Method::POST)
                .uri(format!("{path}?timeout={seconds}s"))
                .header(header::HOST, authority)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json")
                .body(body::full(question.to_string()))
                .map_err(|e| e.to_string())
        };
        match &self.place {
            Place::Broken(why) => Err(why.clone()),
            Place::Url { host, port, path } => {
                let request = request(&format!("{host}:{port}"), path)?;
                self.send(host, host, *port, None, request).await
            }
            Place::Service { namespace, name, port, path } => {
                let host = format!("{name}.{namespace}.svc");
                let request = request(&host, path)?;
                if let Some(handler) = server.in_process(namespace, name) {
                    return Ok(handler(request).await);
                }
                let (address, port) = endpoint(server, namespace, name, *port).map_err(|e| e.to_string())?;
                self.send(&host, &address.to_string(), port, None, request).await
            }
        }
    }

    /// One request on a connection of its own.
    async fn send(
        &self,
        name: &str,
        host: &str,
        port: u16,
        identity: Option<&ClientIdentity>,
        request: Request<Body>,
    ) -> Result<Response<Body>, String> {
        let connector = tokio_rustls::TlsConnector::from(Arc::new(self.tls(identity)?));
        let name = ServerName::try_from(name.to_owned()).map_err(|e| e.to_string())?;
        let connect = async {
            let stream = TcpStream::connect((host, port)).await.map_err(|e| format!("dial tcp {host}:{port}: {e}"))?;
            let _ = stream.set_nodelay(true);
            connector.connect(name, stream).await.map_err(|e| format!("tls: {e}"))
        };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect)
            .await
            .map_err(|_| format!("dial tcp {host}:{port}: i/o timeout"))??;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to a webhook or an extension server broke");
            }
        });
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    /// Trusts the bundle and nobody else: there is no list of public authorities in this program.
    fn tls(&self, identity: Option<&ClientIdentity>) -> Result<rustls::ClientConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?;
        let config = if self.insecure {
            config.dangerous().with_custom_certificate_verifier(Arc::new(Anyone::new(provider)))
        } else {
            config.with_root_certificates(self.roots()?)
        };
        let Some(identity) = identity else {
            return Ok(config.with_no_client_auth());
        };
        let chain = CertificateDer::pem_slice_iter(identity.certificate_pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| format!("front proxy certificate: {e}"))?;
        let key =
            PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).map_err(|e| format!("front proxy key: {e}"))?;
        config.with_client_auth_cert(chain, key).map_err(|e| format!("front proxy certificate: {e}"))
    }

    fn roots(&self) -> Result<rustls::RootCertStore, String> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&self.authorities) {
            let certificate = certificate.map_err(|e| format!("caBundle: {e}"))?;
            roots.add(certificate).map_err(|e| format!("caBundle: {e}"))?;
        }
        if roots.is_empty() {
            return Err("caBundle is empty, so no certificate can be trusted".to_owned());
        }
        Ok(roots)
    }
}

/// A ready endpoint of a service: from its slices, or else the address that the service's proxy listens on.
fn endpoint(server: &Server, namespace: &str, name: &str, port: u16) -> Result<(IpAddr, u16), EndpointError> {
    let subject = || (namespace.to_owned(), name.to_owned());
    let key = ferrovirt_store::Key::new(namespace, name);
    let service = server.store.get("services", &key).and_then(|e| parse(&e).ok());
    let service = service.ok_or_else(|| {
        let (namespace, name) = subject();
        EndpointError::Service { namespace, name }
    })?;
    let ports = at(&service, &["spec", "ports"]).and_then(Value::as_array);
    let wanted = ports
        .and_then(|ports| ports.iter().find(|p| p["port"].as_u64() == Some(u64::from(port))))
        .ok_or_else(|| {
            let (namespace, name) = subject();
            EndpointError::Port { namespace, name, port }
        })?;
    let port_name = text(wanted, &["name"]);
    for entry in server.store.list("discovery.k8s.io/endpointslices", Some(namespace)).items {
        if entry.meta.labels().get("kubernetes.io/service-name").is_none_or(|n| n != name) {
            continue;
        }
        let Ok(slice) = parse(&entry) else { continue };
        let ports = slice["ports"].as_array().into_iter().flatten();
        let target = ports.filter(|p| text(p, &["name"]) == port_name).find_map(|p| p["port"].as_u64());
        let ready = slice["endpoints"].as_array().into_iter().flatten().find(|e| e["conditions"]["ready"] != false);
        let address = ready.and_then(|e| e["addresses"][0].as_str()).and_then(|a| a.parse().ok());
        if let (Some(address), Some(Ok(target))) = (address, target.map(u16::try_from)) {
            return Ok((address, target));
        }
    }
    match text(&service, &["spec", "clusterIP"]).parse() {
        Ok(address) => Ok((address, port)),
        Err(_) => {
            let (namespace, name) = subject();
            Err(EndpointError::Address { namespace, name })
        }
    }
}
