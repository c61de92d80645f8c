//! What the node keeps of images, so that each is transferred once for a namespace.
//!
//! Root works here below directories of tenants: by descriptor only.
//!
//! Importers belong to tenants, who may enter them and make them say and write what they like. So an importer gets the one
//! entry that is for its own namespace and source, read-only, and leaves what it fetched in its own pod. It is taken from
//! there, once the pod has ended, by this trusted side, which makes it its own (or copies it, where somebody still has it open
//! for writing), computes its digest, and only then gives it the name under which importers look. That name holds what the
//! origin said of the content (asked anew, with the tenant's own request, before a hit counts) and the digest, which every
//! hit is checked against. So nobody waits until it is on the disk: one that a power failure tore is found out, and fetched.
//!
//! ```text
//! <cache>/<entry>/<identity>.<sha256>.image        entry: namespace and source, identity: what the origin said
//! <pods>/<uid>/volumes/kubernetes.io~empty-dir/scratch/{image,identity}      left by an importer
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferrovirt_api::cdi::{DataVolume, DataVolumeSourceHttp};
use ferrovirt_beneath::{Access, Dir};
use futures::channel::mpsc::UnboundedSender;
use kube::runtime::reflector::ObjectRef;
use rustix::fs::{FileType, Timespec, Timestamps, UTIME_NOW, futimens};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::job::paths;

/// What the cache may take of its file system: one part of so many.
const SHARE: u64 = 4;
/// How many sources are remembered.
const MAX_ENTRIES: usize = 4096;
/// How long an entry without an image is left to those that may still bring one.
const EMPTY: Duration = Duration::from_secs(3600);
const IMAGE: &str = ".image";
/// Images that are read at the same time. How long that takes is up to those who left them, and the threads are the whole host's.
const AT_A_TIME: usize = 2;
/// The name of an importer's scratch volume.
pub(crate) const SCRATCH: &str = "scratch";

/// Where the node keeps images, and where pods are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachePaths {
    /// Root's alone.
    pub directory: PathBuf,
    /// The kubelet's layout.
    pub pods: PathBuf,
}

/// Makes the cache's directory, and removes that of earlier versions, which importers could write.
pub fn make(directory: &Path, earlier: &Path) -> io::Result<()> {
    if let (Some(home), Some(name)) = (earlier.parent(), earlier.file_name()) {
        Dir::open(home)?.remove_tree(name)?;
    }
    let (Some(home), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let (own, _) = Dir::open(home)?.make_one(name, 0o700)?;
    own.own(0, 0)?;
    own.set_mode(0o700)
}

/// The entry of a source for a namespace. `None`: not kept, because the source is not everybody's in the namespace (it takes a
/// login, or headers and addresses that may hold one), or because nobody vouches for who answered.
pub(crate) fn entry(namespace: &str, source: &DataVolumeSourceHttp) -> Option<String> {
    let authority = source.url.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default())?;
    let plain = source.secret_ref.is_empty()
        && source.cert_config_map.is_empty()
        && source.extra_headers.is_empty()
        && source.secret_extra_headers.is_empty()
        && source.insecure_skip_verify != Some(true)
        && !authority.contains('@');
    // The checksum belongs to it: who names another one never gets what was fetched under this one.
    let parts = [namespace, &source.url, &source.checksum];
    plain.then(|| {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part.as_bytes());
        }
        hex(&digest.finalize())[..40].to_owned()
    })
}

/// What the origin says of its content, as a name.
pub(crate) fn identity(said: &str) -> String {
    hex(&Sha256::digest(said.as_bytes()))
}

/// The digest in the name of an image of this content.
pub(crate) fn digest_of<'a>(name: &'a str, identity: &str) -> Option<&'a str> {
    let digest = name.strip_suffix(IMAGE)?.strip_prefix(identity)?.strip_prefix('.')?;
    is_digest(digest).then_some(digest)
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The trusted side.
pub(crate) struct Cache {
    paths: CachePaths,
    turns: Mutex<HashMap<String, Turn>>,
    wake: UnboundedSender<ObjectRef<DataVolume>>,
    readers: Semaphore,
}

/// Who brings the image of an entry that has none yet.
struct Turn {
    uid: String,
    pod: String,
    keeping: bool,
    waiting: Vec<ObjectRef<DataVolume>>,
}

/// What an importer left, held open: its pod may go.
pub(crate) struct Left {
    image: File,
    identity: String,
    /// It is root's and in its entry, under this name.
    adopted: Option<String>,
}

impl Cache {
    pub fn new(paths: CachePaths, wake: UnboundedSender<ObjectRef<DataVolume>>) -> Self {
        Self { paths, turns: Mutex::default(), wake, readers: Semaphore::new(AT_A_TIME) }
    }

    fn root(&self) -> io::Result<Dir> {
        Dir::open(&self.paths.directory)
    }

    /// Makes the directory that an importer mounts, and marks it as used now.
    pub fn prepare(&self, entry: &str) -> io::Result<()> {
        let (own, made) = self.root()?.make_one(entry.as_ref(), 0o755)?;
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        futimens(own.as_fd(), &Timestamps { last_access: now, last_modification: now })?;
        if made { self.evict(entry) } else { Ok(()) }
    }

    pub fn has(&self, entry: &str) -> bool {
        let own = self.root().and_then(|root| root.sub(entry));
        own.is_ok_and(|own| own.entries().is_ok_and(|mut all| all.any(|entry| entry.is_ok_and(|e| is_image(&e.name)))))
    }

    /// Takes what the importer in an ended pod left for an entry, if it left anything.
    pub fn left_by(&self, pod_uid: &str, entry: &str) -> io::Result<Option<Left>> {
        let home = Path::new(pod_uid).join("volumes/kubernetes.io~empty-dir").join(SCRATCH);
        let scratch = Dir::open(&self.paths.pods)?.sub(home)?;
        let identity = match scratch.read_file(paths::LEFT_IDENTITY, 64) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => String::from_utf8(read?).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?,
        };
        if !is_digest(&identity) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let image = scratch.open_single(paths::LEFT_IMAGE, Access::Read)?;
        let name = format!(".{pod_uid}.adopted");
        // A file system without leases, or an importer that was cheated into leaving its file open somewhere.
        let adopted = self.root()?.sub(entry)?.adopt(&image, &name).map(|()| name);
        if let Err(error) = &adopted {
            tracing::debug!(%error, "what an importer left is copied");
        }
        Ok(Some(Left { image, identity, adopted: adopted.ok() }))
    }

    /// Keeps what a volume's importer left when its turn comes, and ends the volume's.
    pub async fn keep_in_turn(self: Arc<Self>, entry: String, uid: String, left: Left) {
        // Nobody closes it.
        let _reader = self.readers.acquire().await;
        let cache = self.clone();
        let kept = tokio::task::spawn_blocking(move || {
            if let Err(error) = cache.keep(&entry, left) {
                tracing::warn!(%error, "an image is not kept for others");
            }
            cache.done(&entry, &uid);
        });
        let _ = kept.await;
    }

    /// Keeps it in its entry, in place of what the entry had.
    fn keep(&self, entry: &str, mut left: Left) -> io::Result<()> {
        let own = self.root()?.sub(entry)?;
        let budget = self.budget()?;
        let (name, written) = match left.adopted.take() {
            Some(name) => (name, hash(&mut left.image, &mut io::sink(), budget)),
            None => {
                let (mut file, name) = own.create_temporary(0o644)?;
                (name, hash(&mut left.image, &mut file, budget))
            }
        };
        let kept = written.and_then(|digest| {
            let kept = format!("{}.{digest}{IMAGE}", left.identity);
            own.rename(&name, &own, &kept)?;
            Ok(kept)
        });
        let kept = match kept {
            Ok(kept) => kept,
            Err(error) => {
                let _ = own.remove_file(&name);
                return Err(error);
            }
        };
        for other in own.entries()?.flatten().filter(|other| is_image(&other.name) && other.name != *kept) {
            own.remove_file(&other.name)?;
        }
        self.evict(entry)
    }

    fn budget(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.paths.directory)?;
        Ok(stat.f_blocks * stat.f_frsize / SHARE)
    }

    /// Removes what was not used for longest until the rest fits, and never `spared`.
    fn evict(&self, spared: &str) -> io::Result<()> {
        let (root, budget) = (self.root()?, self.budget()?);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut all = Vec::new();
        for entry in root.entries()?.flatten().filter(|entry| entry.kind == FileType::Directory) {
            let Ok(own) = root.sub(&entry.name) else { continue };
            let files = own.entries()?.flatten().filter_map(|file| own.stat(&file.name).ok());
            let bytes: u64 = files.map(|stat| u64::try_from(stat.st_blocks).unwrap_or(0) * 512).sum();
            let used = u64::try_from(own.stat_self()?.st_mtime).unwrap_or(0);
            all.push((used, bytes, entry.name));
        }
        all.sort();
        let (mut total, mut count) = (all.iter().map(|(_, bytes, _)| bytes).sum::<u64>(), all.len());
        for (used, bytes, name) in all {
            let stale = bytes == 0 && now.as_secs().saturating_sub(used) > EMPTY.as_secs();
            if name != *spared && (stale || total > budget || count > MAX_ENTRIES) {
                root.remove_tree(&name)?;
                total -= bytes;
                count -= 1;
            }
        }
        Ok(())
    }

    /// Whether this volume may fetch the image of an entry that has none. If not, it is woken when it may. `busy` tells
    /// whether an importer is still at work.
    pub async fn turn<F: Future<Output = bool>>(
        &self,
        entry: &str,
        volume: &DataVolume,
        pod: &str,
        busy: impl FnOnce(String) -> F,
    ) -> bool {
        let uid = volume.metadata.uid.clone().unwrap_or_default();
        let holder = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            match turns.get_mut(entry) {
                Some(turn) if turn.uid != uid => {
                    let own = ObjectRef::from_obj(volume);
                    if !turn.waiting.contains(&own) {
                        turn.waiting.push(own);
                    }
                    if turn.keeping {
                        return false;
                    }
                    turn.pod.clone()
                }
                _ => {
                    let turn = Turn { uid, pod: pod.to_owned(), keeping: false, waiting: vec![] };
                    turns.entry(entry.to_owned()).or_insert(turn);
                    return true;
                }
            }
        };
        if busy(holder.clone()).await {
            return false;
        }
        // Its volume was deleted, or it never came to be.
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        match turns.get_mut(entry) {
            Some(turn) if turn.pod == holder && !turn.keeping => {
                (turn.uid, turn.pod) = (uid, pod.to_owned());
                true
            }
            _ => false,
        }
    }

    /// The image is being copied: nobody else needs to fetch it.
    pub fn keeping(&self, entry: &str, uid: &str) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get_mut(entry).filter(|turn| turn.uid == uid) {
            turn.keeping = true;
        }
    }

    /// Ends a volume's turn, if it has it, and wakes who waits.
    pub fn done(&self, entry: &str, uid: &str) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.get(entry).is_some_and(|turn| turn.uid == uid) {
            for waiting in turns.remove(entry).into_iter().flat_map(|turn| turn.waiting) {
                let _ = self.wake.unbounded_send(waiting);
            }
        }
    }
}

fn is_image(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|name| name.ends_with(IMAGE))
}

/// Copies, and says the digest.
fn hash(from: &mut File, to: &mut impl Write, limit: u64) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut left = limit;
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(hex(&digest.finalize()));
        }
        left = left.checked_sub(read as u64).ok_or(io::ErrorKind::QuotaExceeded)?;
        let piece = buffer.get(..read).unwrap_or_default();
        digest.update(piece);
        to.write_all(piece)?;
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
