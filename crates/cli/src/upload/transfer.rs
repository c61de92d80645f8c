//! The way of the bytes: to the upload proxy, by the protocol that virtctl speaks.
//!
//! The file is named to the importer, which then waits for the rest when a connection breaks. So an upload survives a broken network,
//! a restart of `ferrovirt up`, and a client that was stopped and is started again.

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use ferrovirt_api::cdi::{UploadTokenRequest, names};
use ferrovirt_cdi::job::{UPLOAD_FILE, UPLOAD_OFFSET};
use ferrovirt_disks::digest::Digest;
use ferrovirt_fetch::http::KeyHolder;
use futures::TryStreamExt;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use kube::{Api, Client, Config, api::PostParams};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::{io::AsyncSeekExt, net::TcpStream};
use tokio_util::io::ReaderStream;

use super::{
    bar::Bar,
    target::{State, Target},
};
use crate::client::ClientArgs;

/// How long a target may take to be ready for an upload, and afterwards to be filled.
const READY: Duration = Duration::from_secs(300);
/// How long nothing may get through before an upload is given up.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_secs(1);
const CHUNK: usize = 256 << 10;
/// What is looked at of both ends of a file to tell it from another.
const SAMPLE: u64 = 64 << 10;

/// Where uploads go.
#[derive(Default, Clone, Copy)]
pub struct Proxy<'a> {
    /// What the CDIConfig says, if nothing is said here.
    pub url: Option<&'a str>,
    /// Whoever answers there may have the image.
    pub insecure: bool,
}

/// Brings the file into the target and waits until that is usable.
pub async fn send(mut target: Target, host: &ClientArgs, path: &Path, proxy: Proxy<'_>) -> Result<()> {
    let (file, sent) = (name_of(path)?, Arc::default());
    until(&mut target, host, |state| matches!(state, State::Ready | State::Filled)).await?;
    let mut last = (Instant::now(), 0);
    let mut told = None;
    loop {
        let config = host.config().await?;
        let upload = Upload { target: &target, config: &config, path, proxy, file: &file, sent: &sent };
        let error = match upload.attempt().await {
            Ok(()) => break,
            Err(error) => error,
        };
        if is_final(&error) {
            return Err(error);
        }
        let reached = sent.load(Ordering::Relaxed);
        if reached > last.1 {
            last = (Instant::now(), reached);
        }
        if last.0.elapsed() > PATIENCE {
            return Err(error.context("the upload does not go on; the same command goes on with it later"));
        }
        if told != Some(reached) {
            eprintln!("\nthe upload broke off after {} MiB ({error:#}); going on", reached >> 20);
            told = Some(reached);
        }
        tokio::time::sleep(PAUSE).await;
        reconnect(&mut target, host).await;
    }
    until(&mut target, host, |state| *state == State::Filled).await
}

/// A host that came back may be elsewhere; its kubeconfig says where.
async fn reconnect(target: &mut Target, host: &ClientArgs) {
    if let Ok(client) = host.connect().await {
        target.client = client;
    }
}

async fn until(target: &mut Target, host: &ClientArgs, reached: impl Fn(&State) -> bool) -> Result<()> {
    let deadline = Instant::now() + READY;
    loop {
        let state = target.state().await.with_context(|| format!("cannot look at {}", target.title()));
        let message = match state {
            Ok(state) if reached(&state) => return Ok(()),
            Ok(State::Failed(why)) => bail!("{} failed: {why}", target.title()),
            Ok(State::Waiting(what)) => what,
            Ok(State::Ready) => "its upload is being finished".to_owned(),
            Ok(State::Filled) => return Ok(()),
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => {
                reconnect(target, host).await;
                format!("{error:#}")
            }
        };
        if Instant::now() > deadline {
            bail!("{} takes too long: {message}", target.title());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The image itself is not good.
#[derive(Debug, thiserror::Error)]
#[error("the upload was refused: {0}")]
struct Refused(String);

/// Whether another attempt would end the same way.
fn is_final(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<Refused>().is_some() || error.downcast_ref::<std::io::Error>().is_some();
    let answered = error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>());
    refused
        || matches!(answered, Some(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429)
}

struct Upload<'a> {
    target: &'a Target,
    config: &'a Config,
    path: &'a Path,
    proxy: Proxy<'a>,
    file: &'a str,
    /// The place in the file that was reached.
    sent: &'a Arc<AtomicU64>,
}

impl Upload<'_> {
    /// One connection. Ends well if the importer has the whole image.
    async fn attempt(&self) -> Result<()> {
        if self.target.state().await? == State::Filled {
            return Ok(());
        }
        // A host that was restarted knows no old tokens, and listens elsewhere.
        let url = match self.proxy.url {
            Some(url) => url.to_owned(),
            None => proxy_url(&self.target.client).await?,
        };
        let token = self.token().await?;
        let from = self.offset(&url, &token).await?;
        self.sent.store(from, Ordering::Relaxed);
        self.post(&url, &token, from).await
    }

    async fn token(&self) -> Result<String> {
        let tokens = Api::<UploadTokenRequest>::namespaced(self.target.client.clone(), &self.target.namespace);
        let mut ask = UploadTokenRequest::default();
        ask.metadata.generate_name = Some("token-for-ferrovirt-".into());
        self.target.name.clone_into(&mut ask.spec.pvc_name);
        let token = tokens.create(&PostParams::default(), &ask).await.context("cannot get a token for the upload")?;
        Ok(token.status.token)
    }

    /// How much of this file the importer has. One that does not know the question has nothing.
    async fn offset(&self, url: &str, token: &str) -> Result<u64> {
        let request =
            self.request(url, token)?.method("HEAD").body(Empty::new().map_err(|n| match n {}).boxed_unsync())?;
        let answer = self.exchange(url, request).await?;
        if answer.status().is_server_error() {
            bail!("the upload proxy answered {}", answer.status());
        }
        let offset = answer.headers().get(UPLOAD_OFFSET).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(offset.unwrap_or(0))
    }

    async fn post(&self, url: &str, token: &str, from: u64) -> Result<()> {
        let mut file = tokio::fs::File::open(self.path).await.map_err(|error| self.unreadable(error))?;
        let total = file.metadata().await?.len();
        file.seek(SeekFrom::Start(from)).await.map_err(|error| self.unreadable(error))?;
        let (mut bar, sent) = (Bar::new(total, from), self.sent.clone());
        let body = ReaderStream::with_capacity(file, CHUNK).map_ok(move |chunk: Bytes| {
            bar.add(chunk.len() as u64);
            sent.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            Frame::data(chunk)
        });
        let mut request =
            self.request(url, token)?.method("POST").header(header::CONTENT_LENGTH, total - from.min(total));
        if from > 0 {
            let last = total.saturating_sub(1);
            request = request.header(header::CONTENT_RANGE, format!("bytes {from}-{last}/{total}"));
        }
        let answer = self.exchange(url, request.body(StreamBody::new(body).boxed_unsync())?).await?;
        let status = answer.status();
        let text = answer.into_body().collect().await?.to_bytes();
        if status.is_success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        // A token that ended, or another place in the file, is not the image's fault.
        if status.is_client_error() && !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::CONFLICT) {
            return Err(Refused(text).into());
        }
        bail!("the upload proxy answered {status}: {text}")
    }

    /// One request on a connection of its own.
    async fn exchange(&self, url: &str, request: Request<Body>) -> Result<Response<Incoming>> {
        let uri = endpoint(url)?;
        let host =
            uri.host().context("the address of the upload proxy has no host")?.trim_matches(['[', ']']).to_owned();
        let stream = TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(443))).await.map_err(Unreachable)?;
        let tls = tokio_rustls::TlsConnector::from(Arc::new(trust(self.config, self.proxy.insecure)?));
        let stream = tls.connect(ServerName::try_from(host)?, stream).await.map_err(unreachable)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender.send_request(request).await?)
    }

    fn unreadable(&self, error: std::io::Error) -> anyhow::Error {
        Refused(format!("cannot read {}: {error}", self.path.display())).into()
    }

    fn request(&self, url: &str, token: &str) -> Result<http::request::Builder> {
        let uri = endpoint(url)?;
        Ok(Request::builder()
            .uri(uri.path())
            .header(header::HOST, uri.authority().map(|authority| authority.as_str()).unwrap_or_default())
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(UPLOAD_FILE, self.file))
    }
}

/// Tells the content of a file from others, without reading all of it.
fn name_of(path: &Path) -> Result<String> {
    let unreadable = || format!("cannot read {}", path.display());
    let mut file = fs::File::open(path).with_context(unreadable)?;
    let metadata = file.metadata().with_context(unreadable)?;
    let changed = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let mut known = format!("{} {}", metadata.len(), changed.as_nanos()).into_bytes();
    for from in [0, metadata.len().saturating_sub(SAMPLE)] {
        file.seek(SeekFrom::Start(from)).with_context(unreadable)?;
        (&mut file).take(SAMPLE).read_to_end(&mut known).with_context(unreadable)?;
    }
    Ok(Digest::of(&known).hex().to_owned())
}

async fn proxy_url(client: &Client) -> Result<String> {
    let request = Request::get(names::CONFIG_PATH).body(vec![])?;
    let config: serde_json::Value = client.request(request).await.context("cannot read the CDIConfig")?;
    let url = config["spec"]["uploadProxyURLOverride"].as_str().or(config["status"]["uploadProxyURL"].as_str());
    let url = url.context("the CDIConfig does not say where uploads go; give --uploadproxy-url")?;
    Ok(if url.contains("://") { url.to_owned() } else { format!("https://{url}") })
}

fn endpoint(url: &str) -> Result<http::Uri> {
    Ok(format!("{}/v1beta1/upload", url.trim_end_matches('/')).parse()?)
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

#[derive(Debug, thiserror::Error)]
#[error("cannot reach the upload proxy")]
struct Unreachable(#[source] std::io::Error);

/// A certificate that is not trusted will not be trusted at the next try.
fn unreachable(error: std::io::Error) -> anyhow::Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(_)) => Refused(format!(
            "the upload proxy's certificate is not trusted ({error}); --insecure sends the image all the same"
        ))
        .into(),
        _ => Unreachable(error).into(),
    }
}

/// The upload proxy has a certificate of the cluster's CA, or the caller does not care.
fn trust(config: &Config, insecure: bool) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    if insecure {
        let anybody = Arc::new(KeyHolder::anyone(provider));
        return Ok(builder.dangerous().with_custom_certificate_verifier(anybody).with_no_client_auth());
    }
    let mut roots = RootCertStore::empty();
    for certificate in config.root_cert.iter().flatten() {
        roots.add(CertificateDer::from(certificate.clone()))?;
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changed_has_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut names = vec![];
        for content in [vec![1_u8; 300_000], vec![2; 300_000], vec![2; 300_001]] {
            fs::write(&path, content).unwrap();
            names.push(name_of(&path).unwrap());
            assert_eq!(name_of(&path).unwrap(), names[names.len() - 1]);
        }
        names.dedup();
        assert_eq!(names.len(), 3);
    }
}
