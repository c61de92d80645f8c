//! What people mean by an image: a name of the catalogue, an image in a registry, an address, or a file. And where its bytes come from.

use std::{
    fs,
    io::Write,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use ferrovirt_disks::image::Checksum;
use ferrovirt_fetch::{
    guard,
    http::{Client, Trust, next_chunk},
};
use http::{HeaderMap, Method, Uri};
use ring::digest;

use crate::catalog::{self, Catalog, Entry};

/// Files of checksums are lists of a release's files.
const LARGEST: usize = 1 << 20;
/// What disk images are called.
const ENDINGS: [&str; 11] = ["qcow2", "img", "raw", "iso", "vmdk", "vdi", "vhdx", "xz", "gz", "zst", "qcow"];

/// What the argument means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    Named(Entry),
    Registry(String),
    Url(String),
    File(PathBuf),
}

/// Where the bytes come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Registry(String),
    /// The cluster fetches it.
    Http {
        url: String,
        checksum: Option<String>,
    },
    /// It is sent from here.
    File(PathBuf),
    /// Nothing but this machine reaches it: it is fetched and sent from here.
    Here {
        url: String,
        checksum: Option<String>,
    },
}

impl Image {
    /// A name is a name: that there is a file called so in this directory changes nothing.
    pub fn parse(text: &str, catalog: &Catalog) -> Result<Self> {
        Self::parse_with(text, catalog, |path| path.is_file())
    }

    fn parse_with(text: &str, catalog: &Catalog, exists: impl Fn(&Path) -> bool) -> Result<Self> {
        if text.starts_with("http://") || text.starts_with("https://") {
            return Ok(Self::Url(text.to_owned()));
        }
        if let Some(reference) = text.strip_prefix("docker://").or_else(|| text.strip_prefix("oci://")) {
            return Ok(Self::Registry(reference.to_owned()));
        }
        let path = PathBuf::from(text.strip_prefix("file://").unwrap_or(text));
        if text.starts_with(['.', '/']) || text.starts_with("file://") {
            ensure!(exists(&path), "there is no file {}", path.display());
            return Ok(Self::File(path));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            bail!(
                "{scheme}:// is not known; an image is a name (`ferrovirt images`), http://, https://, docker:// or a file"
            );
        }
        if let Some(entry) = catalog.find(text) {
            if exists(&path) {
                eprintln!("note: {text} is the catalogue's image; the file of that name is ./{text}");
            }
            return Ok(Self::Named(entry.clone()));
        }
        let ending = path.extension().and_then(|end| end.to_str()).unwrap_or_default().to_lowercase();
        match (exists(&path), text.contains('/')) {
            (true, _) => Ok(Self::File(path)),
            (false, _) if ENDINGS.contains(&ending.as_str()) => bail!("there is no file {}", path.display()),
            (false, true) => Ok(Self::Registry(text.to_owned())),
            (false, false) => bail!(
                "{}. An image in a registry is docker://{text}, a file is ./{text}",
                catalog::unknown(catalog, text)
            ),
        }
    }

    /// The last part of the name, as far as it can name an object.
    pub fn short_name(&self) -> String {
        let text = match self {
            Self::Named(entry) => entry.name.clone(),
            Self::Registry(text) => text.split('@').next().unwrap_or_default().to_owned(),
            Self::Url(url) => url.split('?').next().unwrap_or_default().to_owned(),
            Self::File(path) => path.display().to_string(),
        };
        let last = text.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_lowercase();
        let last = last.split([':', '.']).next().unwrap_or_default();
        let name: String = last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
        match name.trim_matches('-') {
            "" => "vm".to_owned(),
            name => name.to_owned(),
        }
    }

    pub fn entry(&self) -> Option<&Entry> {
        match self {
            Self::Named(entry) => Some(entry),
            _ => None,
        }
    }

    /// `checksum` is what the user gave; `check` is whether the catalogue's counts. `server` is the cluster's.
    pub async fn source(
        &self,
        catalog: &Catalog,
        architecture: &str,
        checksum: Option<&str>,
        check: bool,
        server: &Uri,
    ) -> Result<Source> {
        if let Some(checksum) = checksum {
            checksum.parse::<Checksum>().context("--checksum")?;
            let address = matches!(self, Self::Url(_) | Self::Named(_));
            ensure!(address, "--checksum is for images with an address; name an image in a registry by its digest");
        }
        let (url, checksum) = match self {
            Self::Registry(reference) => return Ok(Source::Registry(reference.clone())),
            Self::File(path) => return Ok(Source::File(path.clone())),
            Self::Url(url) => (url.clone(), checksum.map(str::to_owned)),
            Self::Named(entry) => {
                let place = entry.place(architecture)?;
                let Some(url) = &place.url else {
                    return Ok(Source::Registry(place.registry.clone().unwrap_or_default()));
                };
                let sum = match (checksum, &place.checksum, &place.checksums) {
                    (Some(given), _, _) => Some(given.to_owned()),
                    _ if !check => None,
                    (None, Some(pinned), _) => Some(pinned.clone()),
                    (None, None, Some(list)) => Some(published(url, list, &catalog.mirrored(list)).await?),
                    (None, None, None) => None,
                };
                (catalog.mirrored(url), sum)
            }
        };
        Ok(match is_here(&url, server).await {
            true => Source::Here { url, checksum },
            false => Source::Http { url, checksum },
        })
    }
}

/// The checksum of an image in the file that is published beside it.
async fn published(image: &str, list: &str, at: &str) -> Result<String> {
    let next = || "; --no-checksum takes the image unchecked";
    let client = Client::new(&Trust::default())?.without_downgrade();
    let answer = client.document(at, &HeaderMap::new(), LARGEST).await;
    let answer = answer.with_context(|| format!("cannot read the checksums of the image{}", next()))?;
    ensure!(
        answer.status().is_success(),
        "cannot read the checksums of the image: {at} answered {}{}",
        answer.status(),
        next()
    );
    let file = image.rsplit('/').next().unwrap_or_default();
    // Beside an image called x, x.sha256 is about x only.
    let found = catalog::find_checksum(&String::from_utf8_lossy(answer.body()), file, list.starts_with(image));
    found.with_context(|| format!("{at} has no SHA-256 or SHA-512 checksum of {file}{}", next()))
}

/// Whether an address is this machine's, which a pod cannot reach: its loopback is another one, and a host's own addresses are closed to it.
async fn is_here(url: &str, server: &Uri) -> bool {
    let Some(host) = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(bare)) else { return false };
    if is_local_name(&host) {
        return true;
    }
    let addresses = addresses(&host).await;
    if addresses.iter().any(|address| is_loopback(*address)) {
        return true;
    }
    // Only if the cluster is here, too: others reach this machine as they reach any.
    let own = |address: &IpAddr| is_loopback(*address) || guard::is_own(*address);
    if !addresses.iter().any(own) {
        return false;
    }
    let server = server.host().map(bare).unwrap_or_default();
    is_local_name(&server) || self::addresses(&server).await.iter().any(own)
}

fn bare(host: &str) -> String {
    host.trim_matches(['[', ']']).to_lowercase()
}

async fn addresses(host: &str) -> Vec<IpAddr> {
    if let Ok(address) = host.parse() {
        return vec![address];
    }
    let found = tokio::net::lookup_host((host, 0)).await;
    found.map(|found| found.map(|address| address.ip()).collect()).unwrap_or_default()
}

fn is_local_name(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    host == "localhost" || host.ends_with(".localhost")
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback() || address.is_unspecified()
}

/// A file that goes when this does.
pub struct Download {
    pub path: PathBuf,
}

impl Drop for Download {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Fetches an image to this machine, and checks it.
pub async fn download(url: &str, checksum: Option<&str>) -> Result<Download> {
    // Images are large, and /tmp is often memory.
    let directory = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let mut nonce = [0_u8; 8];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
    let path = directory.join(format!("ferrovirt-download-{:016x}", u64::from_ne_bytes(nonce)));
    let made = fs::File::options().write(true).create_new(true).mode(0o600).open(&path);
    let mut file =
        made.with_context(|| format!("cannot write {}; choose another place with TMPDIR", path.display()))?;
    let download = Download { path };
    let kind = match checksum {
        Some(sum) if sum.to_ascii_lowercase().starts_with("sha512:") => &digest::SHA512,
        _ => &digest::SHA256,
    };
    let mut hash = digest::Context::new(kind);
    let client = Client::new(&Trust::default())?;
    let (_, answer) = client.send(&Method::GET, url, &HeaderMap::new()).await?;
    ensure!(answer.status().is_success(), "{url} answered {}", answer.status());
    let mut body = answer.into_body();
    while let Some(chunk) = next_chunk(&mut body, url).await? {
        hash.update(&chunk);
        file.write_all(&chunk).with_context(|| format!("cannot write {}", download.path.display()))?;
    }
    if let Some(expected) = checksum {
        let found: String = hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let hex = expected.split(':').nth(1).unwrap_or_default().trim();
        ensure!(
            hex.eq_ignore_ascii_case(&found),
            "{url} has the checksum {found}, not {hex}: it was changed on the way, or just now"
        );
    }
    Ok(download)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_told_apart_and_named() {
        let catalog = Catalog::built_in().unwrap();
        let files = ["./my.img", "debian", "dir/disk.qcow2", "disk.qcow2", "/x"];
        let exists = |path: &Path| files.iter().any(|file| Path::new(file) == path);
        for (text, image, name) in [
            ("quay.io/containerdisks/debian:12", Image::Registry("quay.io/containerdisks/debian:12".into()), "debian"),
            ("docker://r:5000/x/y@sha256:1", Image::Registry("r:5000/x/y@sha256:1".into()), "y"),
            ("docker://debian:12", Image::Registry("debian:12".into()), "debian"),
            ("http://h/a/Disk_1.qcow2.xz?x=1", Image::Url("http://h/a/Disk_1.qcow2.xz?x=1".into()), "disk-1"),
            ("./my.img", Image::File("./my.img".into()), "my"),
            ("file:///x", Image::File("/x".into()), "x"),
            ("dir/disk.qcow2", Image::File("dir/disk.qcow2".into()), "disk"),
            ("disk.qcow2", Image::File("disk.qcow2".into()), "disk"),
            // Also where a file is called so.
            ("debian", Image::Named(catalog.find("debian").unwrap().clone()), "debian"),
            ("Ubuntu:24.04", Image::Named(catalog.find("ubuntu:24.04").unwrap().clone()), "ubuntu"),
            ("ferrovirt/demo-guest:latest", Image::Registry("ferrovirt/demo-guest:latest".into()), "demo-guest"),
        ] {
            let parsed = Image::parse_with(text, &catalog, exists).unwrap();
            assert_eq!(parsed.short_name(), name, "{text}");
            assert_eq!(parsed, image);
        }
        for (text, expected) in [
            ("./none.img", "there is no file ./none.img"),
            ("none.qcow2", "there is no file none.qcow2"),
            ("dir/none.img", "there is no file dir/none.img"),
            ("debain:12", "did you mean debian:12?"),
            ("whatever", "docker://whatever"),
            ("ftp://h/x", "ftp:// is not known"),
        ] {
            let error = Image::parse_with(text, &catalog, exists).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn what_only_this_machine_reaches_is_fetched_here() {
        let here: Uri = "https://127.0.0.1:6443".parse().unwrap();
        let elsewhere: Uri = "https://192.0.2.9:6443".parse().unwrap();
        for (url, server, expected) in [
            ("http://127.0.0.1:8000/x", &elsewhere, true),
            ("http://127.9.9.9/x", &elsewhere, true),
            ("http://localhost/x", &elsewhere, true),
            ("http://web.localhost:1/x", &elsewhere, true),
            ("http://[::1]:80/x", &elsewhere, true),
            ("http://[::ffff:127.0.0.1]/x", &elsewhere, true),
            ("http://0.0.0.0/x", &elsewhere, true),
            ("http://192.0.2.1/x", &here, false),
            ("not an address", &here, false),
        ] {
            assert_eq!(is_here(url, server).await, expected, "{url}");
        }
    }

    /// Serves each path once, on a port of this machine.
    async fn mirror(files: &'static [(&'static str, &'static str)]) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut buffer = vec![0; 4096];
                let length = stream.read(&mut buffer).await.unwrap();
                let request = String::from_utf8_lossy(&buffer[..length]).into_owned();
                let path = request.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
                let answer = match files.iter().find(|(name, _)| *name == path) {
                    Some((_, body)) => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()),
                    None => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
                };
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        base
    }

    const SUM: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[tokio::test]
    async fn a_mirror_has_the_image_and_its_checksum() {
        let base = mirror(&[
            ("os/disk.img", "abc"),
            ("os/SHA256SUMS", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad *disk.img\n"),
        ])
        .await;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("own.yaml");
        let place = |name: &str, list: &str| {
            format!(
                "- name: {name}\n  user: me\n  architectures:\n    amd64: {{ url: 'https://os.example/os/disk.img', checksums: 'https://os.example/os/{list}' }}\n"
            )
        };
        let text = format!(
            "images:\n{}{}mirrors: [{{ from: 'https://os.example/', to: '{base}' }}]\n",
            place("good", "SHA256SUMS"),
            place("lost", "NOTHING")
        );
        fs::write(&file, text).unwrap();
        let mut catalog = Catalog::default();
        catalog.read(&file).unwrap();
        let server: Uri = "https://192.0.2.9".parse().unwrap();
        let image = |name: &str| Image::parse(name, &catalog).unwrap();
        let url = format!("{base}os/disk.img");
        let checksum = Some(format!("sha256:{SUM}"));
        // The mirror of this test is this machine's, so the image is fetched from here.
        let source = image("good").source(&catalog, "amd64", None, true, &server).await.unwrap();
        assert_eq!(source, Source::Here { url: url.clone(), checksum: checksum.clone() });
        let fetched = download(&url, checksum.as_deref()).await.unwrap();
        assert_eq!(fs::read_to_string(&fetched.path).unwrap(), "abc");
        let path = fetched.path.clone();
        drop(fetched);
        assert!(!path.exists());
        let wrong = download(&url, Some(&format!("sha256:{}", "0".repeat(64)))).await.err().unwrap().to_string();
        assert!(wrong.contains(SUM), "{wrong}");
        // Nothing is taken unchecked unless the user says so.
        let error = image("lost").source(&catalog, "amd64", None, true, &server).await.unwrap_err().to_string();
        assert!(error.contains("404") && error.contains("--no-checksum"), "{error}");
        let source = image("lost").source(&catalog, "amd64", None, false, &server).await.unwrap();
        assert_eq!(source, Source::Here { url, checksum: None });
        let error = image("good").source(&catalog, "s390x", None, true, &server).await.unwrap_err().to_string();
        assert!(error.contains("only for amd64"), "{error}");
        let error = Image::Registry("x/y".into()).source(&catalog, "amd64", checksum.as_deref(), true, &server).await;
        assert!(error.unwrap_err().to_string().contains("digest"));
    }
}
