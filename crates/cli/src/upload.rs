//! `ferrovirt image-upload`: a disk image from this machine into a volume, by the protocol that virtctl speaks.

use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use ferrovirt_api::cdi::{DataVolume, UploadTokenRequest, names::phase};
use futures::TryStreamExt;
use http::{Request, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use kube::{Api, Client, Config, ResourceExt, api::PostParams};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_util::io::ReaderStream;

use crate::client::ClientArgs;

const READY: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(300);
const ATTEMPTS: u32 = 3;
const CHUNK: usize = 256 << 10;

#[derive(Args)]
pub struct ImageUploadArgs {
    /// `dv` and the name of the DataVolume, or the name alone
    #[arg(required = true, num_args = 1..=2)]
    target: Vec<String>,
    /// The image: raw, qcow2, vmdk, vdi or vhdx, also compressed with gzip, xz or zstd
    #[arg(long)]
    image_path: PathBuf,
    /// Size of the disk, such as 10Gi
    #[arg(long)]
    size: Option<String>,
    #[arg(long)]
    storage_class: Option<String>,
    /// `filesystem` or `block`
    #[arg(long)]
    volume_mode: Option<String>,
    #[arg(long)]
    access_mode: Option<String>,
    /// Fill a DataVolume that exists
    #[arg(long)]
    no_create: bool,
    /// Where uploads go [default: what the CDIConfig says]
    #[arg(long)]
    uploadproxy_url: Option<String>,
    /// For the sake of virtctl's users: volumes are bound at once
    #[arg(long, hide = true)]
    force_bind: bool,
    /// For the sake of virtctl's users: the host's certificate is known from the kubeconfig
    #[arg(long, hide = true)]
    insecure: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// The volume to make for an upload.
pub struct NewVolume<'a> {
    pub name: &'a str,
    pub size: &'a str,
    pub storage_class: Option<&'a str>,
    pub volume_mode: Option<&'a str>,
    pub access_mode: Option<&'a str>,
}

pub async fn run(arguments: ImageUploadArgs) -> Result<()> {
    let name = match arguments.target.as_slice() {
        [name] => name,
        [kind, name] if kind == "dv" => name,
        [kind, _] => bail!("cannot upload to {kind:?}; name a DataVolume: ferrovirt image-upload dv NAME"),
        _ => bail!("name the DataVolume"),
    };
    let config = arguments.client.config().await?;
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    if !arguments.no_create {
        let size = arguments.size.as_deref().context("give the size of the disk with --size, such as --size 10Gi")?;
        let volume = NewVolume {
            name,
            size,
            storage_class: arguments.storage_class.as_deref(),
            volume_mode: arguments.volume_mode.as_deref(),
            access_mode: arguments.access_mode.as_deref(),
        };
        create(&client, &namespace, &volume).await?;
        println!("datavolume/{name} created");
    }
    let proxy = arguments.uploadproxy_url.as_deref();
    send(&client, &config, &namespace, name, &arguments.image_path, proxy).await?;
    println!("datavolume/{name} is filled");
    Ok(())
}

/// Makes a DataVolume that waits for an upload.
pub async fn create(client: &Client, namespace: &str, new: &NewVolume<'_>) -> Result<()> {
    let mode = match new.volume_mode.map(str::to_lowercase).as_deref() {
        None => None,
        Some("filesystem") => Some("Filesystem"),
        Some("block") => Some("Block"),
        Some(other) => bail!("--volume-mode is filesystem or block, not {other:?}"),
    };
    let volume: DataVolume = serde_json::from_value(json!({
        "metadata": { "name": new.name, "namespace": namespace },
        "spec": {
            "source": { "upload": {} },
            "storage": {
                "resources": { "requests": { "storage": new.size } },
                "storageClassName": new.storage_class, "volumeMode": mode,
                "accessModes": new.access_mode.map(|mode| vec![mode]),
            },
        },
    }))?;
    let volumes = Api::<DataVolume>::namespaced(client.clone(), namespace);
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .with_context(|| format!("datavolume/{} was refused", new.name))?;
    Ok(())
}

/// Brings the file into the DataVolume and waits until it is usable.
pub async fn send(
    client: &Client,
    config: &Config,
    namespace: &str,
    name: &str,
    path: &Path,
    proxy: Option<&str>,
) -> Result<()> {
    let volumes = Api::<DataVolume>::namespaced(client.clone(), namespace);
    until(&volumes, name, |phase| phase == phase::UPLOAD_READY).await?;
    let url = match proxy {
        Some(url) => url.to_owned(),
        None => proxy_url(client).await?,
    };
    for attempt in 1.. {
        let tokens = Api::<UploadTokenRequest>::namespaced(client.clone(), namespace);
        let mut ask = UploadTokenRequest::default();
        ask.metadata.generate_name = Some("token-for-ferrovirt-".into());
        name.clone_into(&mut ask.spec.pvc_name);
        let token = tokens.create(&PostParams::default(), &ask).await.context("cannot get a token for the upload")?;
        match post(config, &url, &token.status.token, path).await {
            Ok(()) => break,
            Err(error) if attempt < ATTEMPTS && error.downcast_ref::<Refused>().is_none() => {
                eprintln!("the upload broke off ({error:#}); trying again");
            }
            Err(error) => return Err(error),
        }
    }
    until(&volumes, name, |phase| phase == phase::SUCCEEDED).await
}

/// The image itself is not good.
#[derive(Debug, thiserror::Error)]
#[error("the upload was refused: {0}")]
struct Refused(String);

async fn until(volumes: &Api<DataVolume>, name: &str, reached: impl Fn(&str) -> bool) -> Result<()> {
    let deadline = Instant::now() + READY;
    loop {
        let volume = volumes.get(name).await?;
        let status = &volume.status;
        if reached(&status.phase) {
            return Ok(());
        }
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        let message = ready.map(|condition| condition.message.as_str()).unwrap_or_default();
        if status.phase == phase::FAILED {
            bail!("datavolume/{} failed: {message}", volume.name_any());
        }
        if Instant::now() > deadline {
            bail!("datavolume/{} is still in the phase {:?}: {message}", volume.name_any(), status.phase);
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn proxy_url(client: &Client) -> Result<String> {
    let request = Request::get("/apis/cdi.kubevirt.io/v1beta1/cdiconfigs/config").body(vec![])?;
    let config: serde_json::Value = client.request(request).await.context("cannot read the CDIConfig")?;
    let url = config["spec"]["uploadProxyURLOverride"].as_str().or(config["status"]["uploadProxyURL"].as_str());
    let url = url.context("the CDIConfig does not say where uploads go; give --uploadproxy-url")?;
    Ok(if url.contains("://") { url.to_owned() } else { format!("https://{url}") })
}

async fn post(config: &Config, url: &str, token: &str, path: &Path) -> Result<()> {
    let uri: http::Uri = format!("{}/v1beta1/upload", url.trim_end_matches('/')).parse()?;
    let host = uri.host().context("the address of the upload proxy has no host")?.trim_matches(['[', ']']).to_owned();
    let stream = TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(443)))
        .await
        .with_context(|| format!("cannot reach the upload proxy at {url}"))?;
    let tls = tokio_rustls::TlsConnector::from(Arc::new(trust(config)?));
    let stream = tls.connect(ServerName::try_from(host.clone())?, stream).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);

    let file = tokio::fs::File::open(path).await.with_context(|| format!("cannot open {}", path.display()))?;
    let length = file.metadata().await?.len();
    let mut bar = Bar::new(length);
    let body = ReaderStream::with_capacity(file, CHUNK).map_ok(move |chunk: Bytes| {
        bar.add(chunk.len() as u64);
        Frame::data(chunk)
    });
    let request = Request::post(uri.path())
        .header(header::HOST, uri.authority().map(|authority| authority.as_str()).unwrap_or_default())
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .header(header::CONTENT_LENGTH, length)
        .body(StreamBody::new(body))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let text = response.into_body().collect().await?.to_bytes();
    if status.is_success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    if status.is_client_error() {
        return Err(Refused(text).into());
    }
    bail!("the upload proxy answered {status}: {text}")
}

/// The upload proxy has a certificate of the cluster's CA.
fn trust(config: &Config) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in config.root_cert.iter().flatten() {
        roots.add(CertificateDer::from(certificate.clone()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// One line that is written over, on a terminal only.
struct Bar {
    total: u64,
    done: u64,
    started: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl Bar {
    const WIDTH: u64 = 30;

    fn new(total: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { total, done: 0, started: Instant::now(), shown: None, terminal }
    }

    fn add(&mut self, bytes: u64) {
        self.done += bytes;
        let due = self.shown.is_none_or(|at| at.elapsed() > Duration::from_millis(100)) || self.done >= self.total;
        if !self.terminal || !due {
            return;
        }
        self.shown = Some(Instant::now());
        eprint!("\r{}", self.line());
        if self.done >= self.total {
            eprintln!();
        }
        let _ = std::io::stderr().flush();
    }

    fn line(&self) -> String {
        let total = self.total.max(1);
        let filled = usize::try_from(Self::WIDTH * self.done.min(total) / total).unwrap_or_default();
        let rest = usize::try_from(Self::WIDTH).unwrap_or_default() - filled;
        let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        format!(
            "[{}{}] {:3}% {} of {} MiB, {} MiB/s",
            "=".repeat(filled),
            " ".repeat(rest),
            100 * self.done.min(total) / total,
            self.done >> 20,
            self.total.div_ceil(1 << 20),
            (self.done.saturating_mul(1000) / millis) >> 20,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_from_nothing_to_all() {
        let mut bar = Bar { terminal: false, ..Bar::new(4 << 20) };
        assert!(bar.line().starts_with(&format!("[{}]   0% 0 of 4 MiB", " ".repeat(30))));
        bar.add(2 << 20);
        assert!(bar.line().starts_with(&format!("[{}{}]  50% 2 of 4 MiB", "=".repeat(15), " ".repeat(15))));
        bar.add(2 << 20);
        assert!(bar.line().contains("100% 4 of 4 MiB"));
    }
}
