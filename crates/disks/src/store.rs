//! The node's images: unpacked file trees by digest, and the names that point to them.
//!
//! ```text
//! <dir>/sha256-<hex>/rootfs/…     the unpacked image, read only by convention
//! <dir>/sha256-<hex>/image.json   its digest and size
//! <dir>/refs/<escaped reference>  the digest that a name stands for
//! <dir>/.incoming-<pid>-<n>/      an import under way
//! ```
//!
//! An image directory appears by one rename, so whoever sees it sees all of it. Imports of the same image may run at the same time, in
//! one process or in several: the first rename wins. Names and removals are serialised by a file lock.
//!
//! Images come from archives and from registries; both fill an incoming directory and meet at the same rename.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::oci::OciError;
use crate::reference::{BadReference, Reference};
use crate::unpacker::{Listed, Unpacker};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot use {path} of the image store", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot import {path}", path = path.display())]
    Archive { path: PathBuf, source: OciError },
    #[error("{path} holds no image", path = path.display())]
    Empty { path: PathBuf },
    #[error("{path} holds {count} images; name the one to import", path = path.display())]
    Ambiguous { path: PathBuf, count: usize },
    #[error("the image in {path} has no name; give it one", path = path.display())]
    NoName { path: PathBuf },
    #[error("cannot name an image so")]
    Reference(#[from] BadReference),
    #[error("no image {0} in the store")]
    NotFound(String),
}

/// An image on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// In canonical form, or the digest where no name points to it.
    pub reference: String,
    /// `sha256:<hex>`.
    pub digest: String,
    /// Bytes of all files, as read (holes count).
    pub size: u64,
    pub rootfs: PathBuf,
}

/// The images below one directory. Cheap to clone; any number may be open on the same directory.
#[derive(Debug, Clone)]
pub struct ImageStore {
    dir: PathBuf,
    unpacker: Unpacker,
}

#[derive(Serialize, Deserialize)]
struct Record {
    digest: String,
    size: u64,
}

impl ImageStore {
    /// Opens the store, making the directory if need be, and clears away what dead imports left.
    pub fn open(dir: &Path, unpacker: Unpacker) -> Result<Self, StoreError> {
        let store = ImageStore { dir: dir.to_path_buf(), unpacker };
        let refs = store.refs();
        fs::create_dir_all(&refs).map_err(at(&refs))?;
        for entry in fs::read_dir(dir).map_err(at(dir))? {
            let path = entry.map_err(at(dir))?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let owner = [".incoming-", ".removed-", ".ref-"].iter().find_map(|p| name.strip_prefix(p));
            let pid = owner.and_then(|o| o.split('-').next());
            if let Some(pid) = pid
                && !Path::new("/proc").join(pid).exists()
            {
                let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                gone.map_err(at(&path))?;
            }
        }
        Ok(store)
    }

    /// Brings the image of an archive into the store under `name`, or under the name the archive gives it.
    /// Importing what is already there is quick and changes nothing.
    pub fn import(&self, archive: &Path, name: Option<&str>) -> Result<Image, StoreError> {
        let wrap = |source| StoreError::Archive { path: archive.to_path_buf(), source };
        let image = choose(archive, self.unpacker.list(archive).map_err(wrap)?, name)?;
        let name: Reference = match name.or(image.name.as_deref()) {
            Some(name) => name.parse()?,
            None => {
                return Err(StoreError::NoName { path: archive.to_path_buf() });
            }
        };
        self.install(&name, &image.digest, |root| self.unpacker.archive(archive, &image.digest, root).map_err(wrap))
    }

    /// Who unpacks what comes in here.
    pub fn unpacker(&self) -> &Unpacker {
        &self.unpacker
    }

    /// Makes the image with this digest known as `name`. `fill` puts its files into an empty directory, unless they are here.
    pub fn install<E: From<StoreError>>(
        &self,
        name: &Reference,
        digest: &Digest,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Image, E> {
        let target = self.image_dir(digest);
        if !target.exists() {
            let incoming = Scratch(self.scratch("incoming"));
            let rootfs = incoming.0.join("rootfs");
            fs::create_dir_all(&rootfs).map_err(at(&rootfs))?;
            fill(&rootfs)?;
            let record = Record { digest: digest.to_string(), size: tree_size(&rootfs).map_err(at(&rootfs))? };
            let record_path = incoming.0.join("image.json");
            let text = serde_json::to_vec(&record).map_err(|e| at(&record_path)(e.into()))?;
            write_durably(&record_path, &text).map_err(at(&record_path))?;
            sync_dir(&incoming.0).map_err(at(&incoming.0))?;
            match fs::rename(&incoming.0, &target) {
                Ok(()) => sync_dir(&self.dir).map_err(at(&self.dir))?,
                // Another import of the same content was quicker.
                Err(_) if target.exists() => {}
                Err(e) => return Err(at(&target)(e).into()),
            }
        }
        self.point(name, digest)?;
        let reference = name.tagged();
        Ok(self.load(digest, &reference).ok_or(StoreError::NotFound(reference))?)
    }

    /// The image that a reference stands for here: `name`, `name:tag`, `name@sha256:…` or `sha256:…`.
    /// A digest decides alone; the name before it says where a registry would have it.
    pub fn resolve(&self, reference: &str) -> Option<Image> {
        if let Ok(digest) = reference.parse::<Digest>() {
            return self.load(&digest, reference);
        }
        let parsed: Reference = reference.parse().ok()?;
        let digest = match &parsed.digest {
            Some(digest) => digest.clone(),
            None => fs::read_to_string(self.refs().join(escape(&parsed.tagged()))).ok()?.trim().parse().ok()?,
        };
        self.load(&digest, &parsed.to_string())
    }

    /// Every name with its image, then the images without a name.
    pub fn list(&self) -> Result<Vec<Image>, StoreError> {
        let mut images = Vec::new();
        for (name, digest) in self.names()? {
            images.extend(self.load(&digest, &name));
        }
        for entry in fs::read_dir(&self.dir).map_err(at(&self.dir))? {
            let name = entry.map_err(at(&self.dir))?.file_name();
            let digest = name.to_str().and_then(|n| n.strip_prefix("sha256-"));
            let Some(Ok(digest)) = digest.map(|hex| format!("sha256:{hex}").parse::<Digest>()) else {
                continue;
            };
            if !images.iter().any(|i| i.digest == digest.to_string()) {
                images.extend(self.load(&digest, &digest.to_string()));
            }
        }
        images.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(images)
    }

    /// Removes a name, and the files once no name points to them; a digest removes the files and all their names.
    /// Whether a running VM still uses them is for the caller to know.
    pub fn remove(&self, reference: &str) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        let image = self.resolve(reference).ok_or_else(|| StoreError::NotFound(reference.to_string()))?;
        let by_digest = reference.parse::<Digest>().is_ok() || reference.contains('@');
        let mut others = 0;
        for (name, digest) in self.names()? {
            if digest.to_string() != image.digest {
                continue;
            }
            if by_digest || name == image.reference {
                let path = self.refs().join(escape(&name));
                fs::remove_file(&path).map_err(at(&path))?;
            } else {
                others += 1;
            }
        }
        if others == 0 {
            let dir = image.rootfs.parent().unwrap_or(&image.rootfs).to_path_buf();
            let gone = self.scratch("removed");
            fs::rename(&dir, &gone).map_err(at(&dir))?;
            fs::remove_dir_all(&gone).map_err(at(&gone))?;
        }
        Ok(())
    }

    fn load(&self, digest: &Digest, reference: &str) -> Option<Image> {
        let dir = self.image_dir(digest);
        let record: Record = serde_json::from_slice(&fs::read(dir.join("image.json")).ok()?).ok()?;
        Some(Image {
            reference: reference.to_string(),
            digest: record.digest,
            size: record.size,
            rootfs: dir.join("rootfs"),
        })
    }

    fn point(&self, name: &Reference, digest: &Digest) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        let path = self.refs().join(escape(&name.tagged()));
        let new = self.scratch("ref");
        write_durably(&new, digest.to_string().as_bytes()).map_err(at(&new))?;
        fs::rename(&new, &path).map_err(at(&path))?;
        sync_dir(&self.refs()).map_err(at(&path))
    }

    fn names(&self) -> Result<Vec<(String, Digest)>, StoreError> {
        let refs = self.refs();
        let mut out = Vec::new();
        for entry in fs::read_dir(&refs).map_err(at(&refs))? {
            let path = entry.map_err(at(&refs))?.path();
            let digest = fs::read_to_string(&path).ok().and_then(|t| t.trim().parse().ok());
            let name = path.file_name().and_then(|n| n.to_str()).map(unescape);
            out.extend(name.zip(digest));
        }
        Ok(out)
    }

    fn lock(&self) -> Result<File, StoreError> {
        let path = self.dir.join(".lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(at(&path))?;
        file.lock().map_err(at(&path))?;
        Ok(file)
    }

    fn refs(&self) -> PathBuf {
        self.dir.join("refs")
    }

    fn image_dir(&self, digest: &Digest) -> PathBuf {
        self.dir.join(format!("sha256-{}", digest.hex()))
    }

    fn scratch(&self, what: &str) -> PathBuf {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        self.dir.join(format!(".{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

/// A directory that goes away unless it was renamed.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn choose(archive: &Path, mut images: Vec<Listed>, name: Option<&str>) -> Result<Listed, StoreError> {
    let canonical = |n: &str| n.parse::<Reference>().ok();
    let wanted = name.and_then(canonical);
    let named = images.iter().position(|i| wanted.is_some() && i.name.as_deref().and_then(canonical) == wanted);
    match (named, images.len()) {
        (Some(i), _) => Ok(images.swap_remove(i)),
        (None, 0) => Err(StoreError::Empty { path: archive.to_path_buf() }),
        (None, 1) => Ok(images.swap_remove(0)),
        (None, count) => Err(StoreError::Ambiguous { path: archive.to_path_buf(), count }),
    }
}

fn at(path: &Path) -> impl Fn(io::Error) -> StoreError + use<> {
    let path = path.to_path_buf();
    move |source| StoreError::Io { path: path.clone(), source }
}

/// A reference as a file name. Canonical references have no percent sign.
fn escape(reference: &str) -> String {
    reference.replace('/', "%2F")
}

fn unescape(name: &str) -> String {
    name.replace("%2F", "/")
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn tree_size(dir: &Path) -> io::Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        total += if metadata.is_dir() { tree_size(&entry.path())? } else { metadata.len() };
    }
    Ok(total)
}
