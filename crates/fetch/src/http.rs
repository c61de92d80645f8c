//! HTTP/1.1 over TCP or TLS, one connection for each request. Redirects are followed; what a request brings along stays with
//! the scheme, host and port that it was meant for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, IF_MATCH, IF_NONE_MATCH, IF_RANGE, LOCATION, RANGE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;

use crate::guard::Reach;

/// What may be told to anybody. Everything else a caller gives may be a secret, whatever its name.
const HARMLESS: [HeaderName; 6] = [ACCEPT, IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE, USER_AGENT];
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
    #[error("{from} redirects to {to}, which is not encrypted, and the request needs that: name an https address")]
    Downgrade { from: String, to: String },
    #[error("{host} is {address}, which belongs to this host or its link; an administrator can allow it by listing it")]
    Unreachable { host: String, address: std::net::IpAddr },
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
    reach: Reach,
    redirects: usize,
    /// An answer of anybody else is none: the caller named whom to trust, or said so.
    particular: bool,
}

impl Client {
    pub fn new(trust: &Trust) -> Result<Self, HttpError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(HttpError::Trust)?;
        let mut tls = if trust.insecure {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(KeyHolder::anyone(provider)))
                .with_no_client_auth()
        } else {
            builder.with_root_certificates(roots(trust)?).with_no_client_auth()
        };
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let particular = !trust.extra_pem.is_empty();
        Ok(Self { tls: Arc::new(tls), reach: Reach::default(), redirects: MAX_REDIRECTS, particular })
    }

    /// A client with TLS of its own.
    pub fn with_tls(tls: Arc<ClientConfig>) -> Self {
        Self { tls, reach: Reach::default(), redirects: MAX_REDIRECTS, particular: true }
    }

    /// Connects to these addresses only, also after redirects.
    #[must_use]
    pub fn within(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    /// Goes where it was told and nowhere else. A redirect is an answer like others.
    #[must_use]
    pub fn without_redirects(self) -> Self {
        Self { redirects: 0, ..self }
    }

    /// Does not follow from https to http: what is asked for is worth nothing if anybody can have changed it.
    #[must_use]
    pub fn without_downgrade(self) -> Self {
        Self { particular: true, ..self }
    }

    /// Asks, and follows where it is sent. The answer's status is the caller's to judge.
    pub async fn send(
        &self,
        method: &Method,
        url: &str,
        headers: &HeaderMap,
    ) -> Result<(Uri, Response<Incoming>), HttpError> {
        let mut uri: Uri = url.parse().map_err(|_| HttpError::BadUrl(shown(url)))?;
        let mut headers = headers.clone();
        for hop in 0..=self.redirects {
            let answer = self.once(method, &uri, &headers).await?;
            let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let followed = answer.status().is_redirection() && self.redirects > 0;
            let Some(location) = location.filter(|_| followed) else { return Ok((uri, answer)) };
            if hop == self.redirects {
                break;
            }
            let next = resolve(&uri, location).ok_or_else(|| HttpError::BadUrl(shown(location)))?;
            let private = self.particular || headers.keys().any(|name| !HARMLESS.contains(name));
            if private && is_secure(&uri) && !is_secure(&next) {
                return Err(HttpError::Downgrade { from: shown(&uri.to_string()), to: shown(&next.to_string()) });
            }
            if origin(&next) != origin(&uri) {
                let secret: Vec<HeaderName> = headers.keys().filter(|name| !HARMLESS.contains(name)).cloned().collect();
                secret.iter().for_each(|name| drop(headers.remove(name)));
            }
            uri = next;
        }
        Err(HttpError::Redirects(shown(url)))
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
        let bad = || HttpError::BadUrl(shown(&uri.to_string()));
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let work = async {
            let connect = |source| HttpError::Connect { host: format!("{host}:{port}"), source };
            let stream = self.dial(&host, port).await?;
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

    /// Names are looked up once: what was judged is what is connected to.
    async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, HttpError> {
        let connect = |source| HttpError::Connect { host: format!("{host}:{port}"), source };
        let (mut last, mut refused) = (None, None);
        for address in tokio::net::lookup_host((host, port)).await.map_err(connect)? {
            if !self.reach.allows(address.ip()) {
                refused = Some(address.ip());
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        match (last, refused) {
            (None, Some(address)) => Err(HttpError::Unreachable { host: host.to_owned(), address }),
            (last, _) => Err(connect(last.unwrap_or_else(|| std::io::ErrorKind::NotFound.into()))),
        }
    }
}

/// An address as it may be told to others: without a login, and without a query, which may be one.
fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/').map_or((rest, None), |(a, path)| (a, Some(path)));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{}", path.map(|path| format!("/{path}")).unwrap_or_default())
        }
        None => url.to_owned(),
    }
}

fn is_secure(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

/// Scheme, host and port: whom a secret was given for.
fn origin(uri: &Uri) -> (bool, Option<String>, u16) {
    let port = uri.port_u16().unwrap_or(if is_secure(uri) { 443 } else { 80 });
    (is_secure(uri), uri.host().map(str::to_ascii_lowercase), port)
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

/// Asks that the other side holds the key of the certificate it shows, and no CA: for those who said that they do not care,
/// and for those who know the one certificate by heart, wherever it is met.
#[derive(Debug)]
pub struct KeyHolder {
    provider: Arc<CryptoProvider>,
    only: Option<CertificateDer<'static>>,
}

impl KeyHolder {
    pub fn anyone(provider: Arc<CryptoProvider>) -> Self {
        Self { provider, only: None }
    }

    pub fn only(certificate: CertificateDer<'static>, provider: Arc<CryptoProvider>) -> Self {
        Self { provider, only: Some(certificate) }
    }
}

impl ServerCertVerifier for KeyHolder {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.only {
            Some(only) if only != shown => Err(rustls::CertificateError::ApplicationVerificationFailure.into()),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_without_what_lets_one_in() {
        for (url, expected) in [
            ("https://user:secret@h:1/a?X-Signature=s#f", "https://h:1/a"),
            ("http://h", "http://h"),
            ("no url?token=x", "no url"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

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
