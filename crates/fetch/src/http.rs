//! HTTP/1.1 over TCP or TLS, one connection for each request. Redirects are followed; credentials stay with their host.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;

const MAX_REDIRECTS: usize = 10;
const CONNECT: Duration = Duration::from_secs(20);
/// How long a server may be silent.
pub const SILENCE: Duration = Duration::from_secs(60);
const AGENT: &str = concat!("ferrovirt/", env!("CARGO_PKG_VERSION"));
/// Where distributions keep the certificates that everyone trusts.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("{0:?} is not an http or https address")]
    BadUrl(String),
    #[error("cannot connect to {host}")]
    Connect { host: String, source: std::io::Error },
    #[error("{0} did not answer in time")]
    Timeout(String),
    #[error("{host} broke off")]
    Broken { host: String, source: hyper::Error },
    #[error("{url} answered {status}")]
    Status { url: String, status: StatusCode },
    #[error("{0} redirects in circles")]
    Redirects(String),
    #[error("cannot use the certificates that were given")]
    Trust(#[source] rustls::Error),
    #[error("the certificates that were given are not PEM")]
    Pem(#[source] rustls_pki_types::pem::Error),
    #[error("the answer of {url} is larger than {limit} bytes")]
    TooLarge { url: String, limit: usize },
}

impl HttpError {
    /// Whether asking again could help: a server that is away, not one that says no.
    pub fn is_transient(&self) -> bool {
        match self {
            // What TLS refuses, such as a certificate, is refused the next time, too.
            Self::Connect { source, .. } => source.kind() != std::io::ErrorKind::InvalidData,
            Self::Timeout(_) | Self::Broken { .. } => true,
            Self::Status { status, .. } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
            _ => false,
        }
    }
}

/// Whom to trust.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// Certificates beside the system's.
    pub extra_pem: Vec<Vec<u8>>,
    /// Trust everyone.
    pub insecure: bool,
}

#[derive(Debug, Clone)]
pub struct Client {
    tls: Arc<ClientConfig>,
}

impl Client {
    pub fn new(trust: &Trust) -> Result<Self, HttpError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(HttpError::Trust)?;
        let mut tls = if trust.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone(provider))).with_no_client_auth()
        } else {
            builder.with_root_certificates(roots(trust)?).with_no_client_auth()
        };
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { tls: Arc::new(tls) })
    }

    /// Asks, and follows where it is sent. The answer's status is the caller's to judge.
    pub async fn send(
        &self,
        method: &Method,
        url: &str,
        headers: &HeaderMap,
    ) -> Result<(Uri, Response<Incoming>), HttpError> {
        let mut uri: Uri = url.parse().map_err(|_| HttpError::BadUrl(url.to_owned()))?;
        let mut headers = headers.clone();
        for _ in 0..MAX_REDIRECTS {
            let answer = self.once(method, &uri, &headers).await?;
            let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let Some(location) = location.filter(|_| answer.status().is_redirection()) else {
                return Ok((uri, answer));
            };
            let next = resolve(&uri, location).ok_or_else(|| HttpError::BadUrl(location.to_owned()))?;
            if next.authority() != uri.authority() {
                headers.remove(AUTHORIZATION);
            }
            uri = next;
        }
        Err(HttpError::Redirects(url.to_owned()))
    }

    /// Asks for a small document.
    pub async fn document(&self, url: &str, headers: &HeaderMap, limit: usize) -> Result<Response<Bytes>, HttpError> {
        let (_, answer) = self.send(&Method::GET, url, headers).await?;
        let (parts, mut body) = answer.into_parts();
        let mut bytes = Vec::new();
        while let Some(chunk) = next_chunk(&mut body, url).await? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > limit {
                return Err(HttpError::TooLarge { url: url.to_owned(), limit });
            }
        }
        Ok(Response::from_parts(parts, bytes.into()))
    }

    async fn once(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Response<Incoming>, HttpError> {
        let bad = || HttpError::BadUrl(uri.to_string());
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let work = async {
            let connect = |source| HttpError::Connect { host: format!("{host}:{port}"), source };
            let stream = TcpStream::connect((host.as_str(), port)).await.map_err(connect)?;
            let _ = stream.set_nodelay(true);
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            let mut request =
                Request::builder().method(method).uri(path).body(Full::<Bytes>::default()).map_err(|_| bad())?;
            *request.headers_mut() = headers.clone();
            let authority = uri.authority().map(|authority| authority.as_str().rsplit('@').next().unwrap_or_default());
            let authority = HeaderValue::from_str(authority.unwrap_or_default()).map_err(|_| bad())?;
            request.headers_mut().insert(HOST, authority);
            request.headers_mut().entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
            if !secure {
                return exchange(stream, request, &host).await;
            }
            let name = ServerName::try_from(host.clone()).map_err(|_| bad())?;
            let connector = tokio_rustls::TlsConnector::from(self.tls.clone());
            let stream = connector.connect(name, stream).await.map_err(connect)?;
            exchange(stream, request, &host).await
        };
        match tokio::time::timeout(CONNECT + SILENCE, work).await {
            Ok(answer) => answer,
            Err(_) => Err(HttpError::Timeout(host.clone())),
        }
    }
}

/// A login as the header wants it, from `user:password`.
pub fn basic(pair: &str) -> String {
    use base64::Engine;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

/// The next piece of a body, or `None` at its end.
pub async fn next_chunk(body: &mut Incoming, url: &str) -> Result<Option<Bytes>, HttpError> {
    loop {
        let frame = tokio::time::timeout(SILENCE, body.frame()).await;
        match frame.map_err(|_| HttpError::Timeout(url.to_owned()))? {
            None => return Ok(None),
            Some(Err(source)) => return Err(HttpError::Broken { host: url.to_owned(), source }),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>, host: &str) -> Result<Response<Incoming>, HttpError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let broken = |source| HttpError::Broken { host: host.to_owned(), source };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an HTTP connection ended");
        }
    });
    sender.send_request(request).await.map_err(broken)
}

fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    if let Ok(uri) = location.parse::<Uri>()
        && uri.scheme().is_some()
    {
        return Some(uri);
    }
    let path = match location.strip_prefix('/') {
        Some(_) => location.to_owned(),
        None => format!("{}/{location}", base.path().rsplit_once('/').map_or("", |(directory, _)| directory)),
    };
    format!("{}://{}{path}", base.scheme_str()?, base.authority()?).parse().ok()
}

fn roots(trust: &Trust) -> Result<RootCertStore, HttpError> {
    let mut store = RootCertStore::empty();
    let named = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    let bundles = named.into_iter().chain(BUNDLES.iter().map(std::path::PathBuf::from));
    if let Some(bundle) = bundles.filter_map(|path| std::fs::read(path).ok()).next() {
        let found: Vec<_> = CertificateDer::pem_slice_iter(&bundle).filter_map(Result::ok).collect();
        store.add_parsable_certificates(found);
    }
    for pem in &trust.extra_pem {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            store.add(certificate.map_err(HttpError::Pem)?).map_err(HttpError::Trust)?;
        }
    }
    Ok(store)
}

/// For those who said that they do not care: asks only that the other side holds the key of the certificate it shows.
#[derive(Debug)]
pub struct Anyone(pub Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_resolved_against_where_they_came_from() {
        let base: Uri = "http://h:1/a/b?q".parse().unwrap();
        for (location, expected) in
            [("https://x/y", "https://x/y"), ("/c", "http://h:1/c"), ("c?d", "http://h:1/a/c?d")]
        {
            assert_eq!(resolve(&base, location).unwrap().to_string(), expected);
        }
    }
}
