//! Image archives: OCI layouts and `docker save` files, both as one tar.
//!
//! An archive is read in place: its members are indexed once, and blobs are streamed from their offset. Every blob is checked against
//! its digest while it is read. A registry client brings blobs as files of their own; nothing below this module knows where a blob
//! came from. All of it runs in a confined child (see [`crate::unpacker`]), within a budget.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ferrovirt_confine::child::ChildError;
use serde::Deserialize;
use serde_json::json;

use crate::budget::{OverBudget, Spent};
use crate::digest::{BadDigest, Digest, Hashing};
use crate::ownership;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const FULL_NAME: &str = "io.containerd.image.name";
/// Manifests and configurations are small; a bigger one is not what it says.
const MAX_DOCUMENT: u64 = 8 << 20;
/// Files of an archive, and images that it lists.
const MAX_MEMBERS: usize = 100_000;
const MAX_IMAGES: usize = 1000;
/// Indexes in indexes.
const MAX_NESTING: usize = 4;
/// The user that hypervisors run as, and the owner that containerDisks customarily have.
const QEMU_UID: u64 = 107;

#[derive(Debug, thiserror::Error)]
pub enum OciError {
    #[error("cannot read the archive")]
    Read(#[source] io::Error),
    #[error("cannot use {path}", path = path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot write the archive {path}", path = path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("the archive is compressed; decompress it first")]
    Compressed,
    #[error("it is neither an OCI layout nor a docker archive")]
    NotAnImage,
    #[error("the archive lacks {0}")]
    Missing(String),
    #[error("{0} is too big for what it is")]
    DocumentTooBig(String),
    #[error("{what} is not valid")]
    Document { what: String, source: serde_json::Error },
    #[error("the archive names a blob wrongly")]
    Digest(#[from] BadDigest),
    #[error("{what} should have digest {wanted} and has {found}")]
    Mismatch { what: String, wanted: Digest, found: Digest },
    #[error("the archive has no image for {0}")]
    NoPlatform(String),
    #[error("cannot unpack {what}")]
    Unpack { what: String, source: io::Error },
    #[error("{0} has a compression that is not supported (gzip, zstd or none)")]
    Compression(String),
    #[error("the archive has more {0} than one may have")]
    TooMany(&'static str),
    #[error("the image costs too much")]
    Budget(#[from] OverBudget),
    /// In the words of the process that looked at it.
    #[error("{0}")]
    Refused(String),
    #[error("the process that unpacks the image failed")]
    Helper(#[from] ChildError),
    #[error("the process that unpacks images cannot be believed: {0}")]
    Lie(String),
}

/// An image of an archive, as its manifest describes it.
#[derive(Debug, Clone)]
pub struct ArchiveImage {
    /// The name the archive gives it, as written there.
    pub name: Option<String>,
    /// Of the manifest for OCI layouts, of the configuration (the image id) for docker archives.
    pub digest: Digest,
    layers: Vec<Layer>,
}

#[derive(Debug, Clone)]
struct Layer {
    member: String,
    check: Check,
}

#[derive(Debug, Clone)]
enum Check {
    /// The digest of the member as it is.
    Blob(Digest),
    /// The digest of the uncompressed tar: docker archives say no other.
    Uncompressed(Digest),
}

/// An opened archive.
#[derive(Debug)]
pub struct Archive {
    file: File,
    members: HashMap<String, (u64, u64)>,
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    annotations: HashMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct DockerConfig {
    rootfs: DockerRootfs,
}

#[derive(Deserialize)]
struct DockerRootfs {
    diff_ids: Vec<String>,
}

impl Archive {
    pub fn open(file: File) -> Result<Self, OciError> {
        let wrap = OciError::Read;
        let mut magic = [0u8; 4];
        if file.read_exact_at(&mut magic, 0).is_ok() && (magic[..2] == [0x1f, 0x8b] || magic == ZSTD_MAGIC) {
            return Err(OciError::Compressed);
        }
        let mut members = HashMap::new();
        let mut links = Vec::new();
        let mut tar = tar::Archive::new(&file);
        for entry in tar.entries_with_seek().map_err(wrap)? {
            let entry = entry.map_err(wrap)?;
            if members.len() + links.len() >= MAX_MEMBERS {
                return Err(OciError::TooMany("files"));
            }
            let name = normal(&entry.path().map_err(wrap)?);
            match entry.link_name().map_err(wrap)? {
                // Old docker archives link equal layers.
                Some(target) => {
                    let relative = Path::new(&name).parent().unwrap_or(Path::new("")).join(&target);
                    links.push((name, normal(&relative)));
                }
                None => {
                    members.insert(name, (entry.raw_file_position(), entry.size()));
                }
            }
        }
        for (name, target) in links {
            if let Some(&place) = members.get(&target) {
                members.insert(name, place);
            }
        }
        Ok(Archive { file, members })
    }

    /// The images in the archive, for this machine's architecture.
    pub fn images(&self) -> Result<Vec<ArchiveImage>, OciError> {
        if self.members.contains_key("index.json") {
            let index: Index = parse("index.json", &self.document("index.json")?)?;
            few(index.manifests.len())?;
            return index.manifests.iter().map(|d| self.oci_image(d, 0)).collect();
        }
        if self.members.contains_key("manifest.json") {
            let manifests: Vec<DockerManifest> = parse("manifest.json", &self.document("manifest.json")?)?;
            few(manifests.len())?;
            return manifests.iter().map(|m| self.docker_image(m)).collect();
        }
        Err(OciError::NotAnImage)
    }

    /// Applies the layers of an image, lowest first, to an empty directory.
    pub(crate) fn unpack(&self, image: &ArchiveImage, root: &Path, spent: &Spent) -> Result<(), OciError> {
        spent.layers(image.layers.len())?;
        let mut owners = ownership::List::default();
        for layer in &image.layers {
            unpack_stream(layer, self.member(&layer.member)?, root, &mut owners, spent)?;
        }
        owners.write(root).map_err(|source| OciError::Unpack { what: "the list of owners".into(), source })
    }

    fn oci_image(&self, descriptor: &Descriptor, nesting: usize) -> Result<ArchiveImage, OciError> {
        if nesting > MAX_NESTING {
            return Err(OciError::TooMany("indexes in each other"));
        }
        let digest: Digest = descriptor.digest.parse()?;
        let document = self.blob(&digest)?;
        let name = descriptor.annotations.get(FULL_NAME).or_else(|| descriptor.annotations.get(REF_NAME)).cloned();
        if descriptor.media_type == INDEX || descriptor.media_type == DOCKER_LIST {
            let index: Index = parse(&descriptor.digest, &document)?;
            let (os, architecture) = this_platform();
            let fitting = index
                .manifests
                .iter()
                .find(|d| d.platform.as_ref().is_none_or(|p| p.os == os && p.architecture == architecture))
                .ok_or_else(|| OciError::NoPlatform(format!("{os}/{architecture}")))?;
            let image = self.oci_image(fitting, nesting + 1)?;
            return Ok(ArchiveImage { name: name.or(image.name.clone()), ..image });
        }
        let manifest: Manifest = parse(&descriptor.digest, &document)?;
        let layers = manifest
            .layers
            .iter()
            .map(|l| {
                let digest: Digest = l.digest.parse()?;
                Ok(Layer { member: blob_name(&digest), check: Check::Blob(digest) })
            })
            .collect::<Result<_, OciError>>()?;
        Ok(ArchiveImage { name, digest, layers })
    }

    fn docker_image(&self, manifest: &DockerManifest) -> Result<ArchiveImage, OciError> {
        let document = self.document(&manifest.config)?;
        let digest = Digest::of(&document);
        // The member is named after its digest: `<hex>.json` or `blobs/sha256/<hex>`.
        let stem = manifest.config.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
        matches(&manifest.config, &format!("sha256:{stem}").parse()?, digest.clone())?;
        let config: DockerConfig = parse(&manifest.config, &document)?;
        if config.rootfs.diff_ids.len() != manifest.layers.len() {
            return Err(OciError::Missing("a layer of its configuration".into()));
        }
        let layers = std::iter::zip(&manifest.layers, &config.rootfs.diff_ids)
            .map(|(member, id)| Ok(Layer { member: member.clone(), check: Check::Uncompressed(id.parse()?) }))
            .collect::<Result<_, OciError>>()?;
        let name = manifest.repo_tags.as_ref().and_then(|t| t.first()).cloned();
        Ok(ArchiveImage { name, digest, layers })
    }

    fn blob(&self, digest: &Digest) -> Result<Vec<u8>, OciError> {
        let name = blob_name(digest);
        let document = self.document(&name)?;
        matches(&name, digest, Digest::of(&document))?;
        Ok(document)
    }

    fn document(&self, name: &str) -> Result<Vec<u8>, OciError> {
        let mut out = Vec::new();
        let mut member = self.member(name)?;
        if member.limit() > MAX_DOCUMENT {
            return Err(OciError::DocumentTooBig(name.to_string()));
        }
        member.read_to_end(&mut out).map_err(OciError::Read)?;
        Ok(out)
    }

    fn member(&self, name: &str) -> Result<io::Take<Section<'_>>, OciError> {
        let &(offset, size) = self.members.get(name).ok_or_else(|| OciError::Missing(name.to_string()))?;
        Ok(Section { file: &self.file, at: offset }.take(size))
    }
}

/// A file from some place on, for readers that do not disturb each other.
struct Section<'a> {
    file: &'a File,
    at: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Unpacks layers that lie in files of their own, lowest first, into an empty directory, and checks their digests.
pub(crate) fn unpack_blobs(root: &Path, blobs: &[(Digest, File)], spent: &Spent) -> Result<(), OciError> {
    spent.layers(blobs.len())?;
    let mut owners = ownership::List::default();
    for (digest, file) in blobs {
        let layer = Layer { member: digest.to_string(), check: Check::Blob(digest.clone()) };
        unpack_stream(&layer, Section { file, at: 0 }, root, &mut owners, spent)?;
    }
    owners.write(root).map_err(|source| OciError::Unpack { what: "the list of owners".into(), source })
}

fn unpack_stream(
    layer: &Layer,
    stream: impl Read,
    root: &Path,
    owners: &mut ownership::List,
    spent: &Spent,
) -> Result<(), OciError> {
    let wrap = |source| OciError::Unpack { what: layer.member.clone(), source };
    let mut blob = Hashing::new(io::BufReader::with_capacity(1 << 18, stream));
    let mut head = [0u8; 4];
    let mut filled = 0;
    while filled < head.len() {
        match blob.read(&mut head[filled..]).map_err(wrap)? {
            0 => break,
            n => filled += n,
        }
    }
    let head = &head[..filled];
    let mut inflate = |blob: &mut dyn Read| -> Result<Digest, OciError> {
        let stream = head.chain(blob);
        let tar: Box<dyn Read + '_> = if head.starts_with(&[0x1f, 0x8b]) {
            Box::new(flate2::read::MultiGzDecoder::new(stream))
        } else if head == ZSTD_MAGIC {
            let decoder = ruzstd::decoding::StreamingDecoder::new(stream)
                .map_err(|e| wrap(io::Error::new(io::ErrorKind::InvalidData, e.to_string())))?;
            Box::new(decoder)
        } else if head.starts_with(b"BZh") || head.starts_with(b"\xfd7zX") {
            return Err(OciError::Compression(layer.member.clone()));
        } else {
            Box::new(stream)
        };
        let mut tar = Hashing::new(spent.counting(tar));
        crate::unpack::layer(root, &mut tar, owners, spent).map_err(wrap)?;
        Ok(tar.drain().map_err(wrap)?.0)
    };
    let uncompressed = inflate(&mut blob)?;
    let (blob, _) = blob.drain().map_err(wrap)?;
    let (wanted, found) = match &layer.check {
        Check::Blob(wanted) => (wanted, blob),
        Check::Uncompressed(wanted) => (wanted, uncompressed),
    };
    matches(&layer.member, wanted, found)
}

/// Writes an OCI archive with one uncompressed layer that holds `files` (path in the image, file on disk).
/// The same files and reference give the same bytes. Returns the digest of the manifest.
pub fn write_archive(out: &Path, reference: &str, files: &[(String, PathBuf)]) -> Result<Digest, OciError> {
    let wrap = |source| OciError::Write { path: out.to_path_buf(), source };
    let mut partial = out.as_os_str().to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = PathBuf::from(partial);
    let result = write_archive_to(&partial, reference, files).and_then(|digest| {
        std::fs::rename(&partial, out)?;
        Ok(digest)
    });
    if result.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    result.map_err(wrap)
}

fn write_archive_to(out: &Path, reference: &str, files: &[(String, PathBuf)]) -> io::Result<Digest> {
    // The layer goes to a file of its own first: its digest is its name in the archive.
    let mut layer_file = tempfile_beside(out)?;
    let mut layer = tar::Builder::new(Hashing::new(io::BufWriter::new(&layer_file)));
    for (path, source) in files {
        add(&mut layer, path.trim_start_matches('/'), File::open(source)?)?;
    }
    let layer = layer.into_inner()?;
    let layer_size = layer.bytes();
    let (layer_digest, mut writer) = layer.finish();
    writer.flush()?;
    drop(writer);

    let (os, architecture) = this_platform();
    let config = json!({
        "architecture": architecture, "os": os, "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer_digest.to_string()]},
    })
    .to_string();
    let config_digest = Digest::of(config.as_bytes());
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": config_digest.to_string(), "size": config.len()},
        "layers": [{"mediaType": LAYER, "digest": layer_digest.to_string(), "size": layer_size}],
    })
    .to_string();
    let digest = Digest::of(manifest.as_bytes());
    let index = json!({
        "schemaVersion": 2, "mediaType": INDEX,
        "manifests": [{
            "mediaType": MANIFEST, "digest": digest.to_string(), "size": manifest.len(),
            "annotations": {FULL_NAME: reference, REF_NAME: reference},
        }],
    })
    .to_string();

    let file = File::create(out)?;
    let mut tar = tar::Builder::new(io::BufWriter::new(&file));
    for (name, text) in [
        ("oci-layout".to_string(), r#"{"imageLayoutVersion":"1.0.0"}"#),
        ("index.json".to_string(), index.as_str()),
        (blob_name(&digest), manifest.as_str()),
        (blob_name(&config_digest), config.as_str()),
    ] {
        tar.append_data(&mut header(text.len() as u64), name, text.as_bytes())?;
    }
    layer_file.seek(SeekFrom::Start(0))?;
    tar.append_data(&mut header(layer_size), blob_name(&layer_digest), &layer_file)?;
    tar.into_inner()?.flush()?;
    file.sync_all()?;
    Ok(digest)
}

fn add(layer: &mut tar::Builder<impl Write>, path: &str, file: File) -> io::Result<()> {
    let mut parent = PathBuf::new();
    for part in Path::new(path).parent().into_iter().flat_map(Path::iter) {
        parent.push(part);
        let mut h = header(0);
        h.set_entry_type(tar::EntryType::Directory);
        h.set_mode(0o755);
        layer.append_data(&mut h, &parent, io::empty())?;
    }
    let mut h = header(file.metadata()?.len());
    h.set_uid(QEMU_UID);
    h.set_gid(QEMU_UID);
    layer.append_data(&mut h, path, file)
}

fn header(size: u64) -> tar::Header {
    let mut h = tar::Header::new_gnu();
    h.set_size(size);
    h.set_mode(0o444);
    h.set_mtime(0);
    h
}

/// An unnamed file on the same file system.
fn tempfile_beside(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".layer");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&name)?;
    std::fs::remove_file(&name)?;
    Ok(file)
}

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

fn this_platform() -> (&'static str, &'static str) {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    ("linux", architecture)
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// A member's path without `.`, `..` and doubled slashes.
fn normal(path: &Path) -> String {
    let mut out: Vec<&str> = Vec::new();
    for part in path.iter().filter_map(|p| p.to_str()) {
        match part {
            "." | "/" => {}
            ".." => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out.join("/")
}

fn few(images: usize) -> Result<(), OciError> {
    if images > MAX_IMAGES { Err(OciError::TooMany("images")) } else { Ok(()) }
}

fn parse<'a, T: Deserialize<'a>>(what: &str, document: &'a [u8]) -> Result<T, OciError> {
    serde_json::from_slice(document).map_err(|source| OciError::Document { what: what.to_string(), source })
}

fn matches(what: &str, wanted: &Digest, found: Digest) -> Result<(), OciError> {
    if *wanted == found {
        Ok(())
    } else {
        Err(OciError::Mismatch { what: what.to_string(), wanted: wanted.clone(), found })
    }
}
