//! One import, start to end: where it goes on, what the node has of it already, and what it leaves behind.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrovirt_disks::clone::{clone_file, shares_blocks};
use ferrovirt_disks::image::{FileSource, ImportError, Observer, Options, Source, Target, import};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::job::Progress;

const JOURNAL: &str = ".import.json";
const SCRATCH: &str = ".scratch";
/// How often the place that was reached is written down.
const WRITE_DOWN: Duration = Duration::from_millis(500);
/// What is fetched although no disk needs it, so that the image is kept whole.
const MAX_GAP: u64 = 32 << 20;
/// What the cache may take of its file system.
const CACHE_SHARE: u64 = 4;

/// What an importer says about itself, from any thread.
#[derive(Debug, Default)]
pub(crate) struct Board {
    progress: Mutex<Progress>,
    /// Time and amount of the last look at the rate.
    sample: Mutex<Option<(Instant, u64)>>,
}

impl Board {
    pub fn read(&self) -> Progress {
        self.progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    pub fn reach(&self, done: u64, total: Option<u64>) {
        let mut sample = self.sample.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        let (since, amount) = *sample.get_or_insert((now, done));
        let elapsed = now.duration_since(since);
        let rate = (elapsed >= Duration::from_secs(1)).then(|| {
            *sample = Some((now, done));
            u64::try_from(u128::from(done.saturating_sub(amount)) * 1000 / elapsed.as_millis().max(1)).unwrap_or(0)
        });
        self.change(|progress| {
            progress.done = done;
            progress.total = total;
            progress.trouble.clear();
            if let Some(rate) = rate {
                progress.rate = rate;
            }
        });
    }
}

/// The disk that is filled, and what is kept beside it meanwhile.
pub(crate) struct Place {
    pub disk: PathBuf,
    /// A directory of the claim, if it is a file system.
    pub directory: Option<PathBuf>,
    pub size: u64,
    pub cache: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct Journal {
    /// Which content of which source.
    identity: String,
    /// Pages that were not on the disk are lost with the machine, not with the process.
    boot: String,
    offset: u64,
}

impl Place {
    pub fn open(&self) -> Result<Target, ImportError> {
        Target::open(&self.disk, self.size)
    }

    pub fn options(&self) -> Options {
        let home = self.directory.as_ref().or(self.cache.as_ref());
        Options { scratch: home.map(|directory| directory.join(SCRATCH)), ..Options::default() }
    }

    /// After a failure for good: as if nothing had happened.
    pub fn clean(&self) {
        for path in [self.journal(), self.options().scratch].into_iter().flatten() {
            let _ = fs::remove_file(path);
        }
        if let Ok(target) = self.open()
            && let Err(error) = target.discard(self.directory.is_some())
        {
            tracing::warn!(%error, "the target is not clean");
        }
    }

    fn journal(&self) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.join(JOURNAL))
    }

    fn reached(&self, identity: &str) -> u64 {
        let journal = self.journal().and_then(|path| fs::read(path).ok());
        let journal: Option<Journal> = journal.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        journal.filter(|journal| journal.identity == identity && journal.boot == boot_id()).map_or(0, |j| j.offset)
    }
}

/// Brings an image from a source that has an identity, by way of the node's cache if there is one.
pub(crate) fn fetch(
    source: &dyn Source,
    identity: Option<&str>,
    place: &Place,
    options: Options,
    board: &Board,
) -> Result<(), ImportError> {
    bring(source, identity, place, options, board)?;
    // Nothing is to be resumed any more, and a claim holds its disk alone.
    if let Some(journal) = place.journal() {
        let _ = fs::remove_file(journal);
    }
    Ok(())
}

fn bring(
    source: &dyn Source,
    identity: Option<&str>,
    place: &Place,
    mut options: Options,
    board: &Board,
) -> Result<(), ImportError> {
    let target = place.open()?;
    let cached = place.cache.as_ref().zip(identity).map(|(cache, identity)| Cached::lock(cache, identity, board));
    let cached = cached.transpose().map_err(|source| ImportError::Write { path: place.disk.clone(), source })?;
    let scribe = Scribe { board, place, identity: identity.unwrap_or_default(), written: Mutex::new(None) };
    if let Some(cached) = &cached {
        if let Ok(disk) = File::open(cached.path("raw")) {
            tracing::info!("the node has this disk");
            let wrap = |source| ImportError::Write { path: place.disk.clone(), source };
            let length = disk.metadata().map_err(wrap)?.len();
            if length <= target.size() {
                clone_file(&disk, target.handle(), |at| board.reach(at, Some(length))).map_err(wrap)?;
                target.fit()?;
                return target.sync();
            }
        }
        if let Ok(image) = FileSource::open(&cached.path("image")) {
            tracing::info!("the node has this image");
            return import(&image, &target, &options, &scribe);
        }
    }
    options.resume_from = identity.map_or(0, |identity| place.reached(identity));
    if options.resume_from > 0 {
        tracing::info!(from = options.resume_from, "going on where an earlier attempt ended");
    }
    match cached {
        Some(cached) if !shares_blocks(target.handle(), &cached.path("probe")) => {
            let tee = Tee::open(source, cached.path("partial"))
                .map_err(|source| ImportError::Write { path: cached.path("partial"), source })?;
            import(&tee, &target, &options, &scribe)?;
            if tee.complete().is_ok() {
                let _ = fs::rename(cached.path("partial"), cached.path("image"));
                cached.evict();
            }
        }
        cached => {
            import(source, &target, &options, &scribe)?;
            if let Some(cached) = cached {
                keep(&cached, &target);
            }
        }
    }
    Ok(())
}

/// Keeps a disk that shares its blocks with the target.
fn keep(cached: &Cached, target: &Target) {
    let partial = cached.path("partial");
    let kept = File::create(&partial).and_then(|file| clone_file(target.handle(), &file, |_| {}));
    match kept {
        Ok(_) => drop(fs::rename(&partial, cached.path("raw"))),
        Err(error) => tracing::info!(%error, "the disk is not kept for others"),
    }
    cached.evict();
}

/// Writes down what was reached, so that another importer can go on.
struct Scribe<'a> {
    board: &'a Board,
    place: &'a Place,
    identity: &'a str,
    written: Mutex<Option<Instant>>,
}

impl Observer for Scribe<'_> {
    fn progress(&self, done: u64, total: Option<u64>) {
        self.board.reach(done, total);
    }

    fn checkpoint(&self, offset: u64) {
        let Some(path) = self.place.journal().filter(|_| !self.identity.is_empty()) else { return };
        let mut written = self.written.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if written.is_some_and(|at| at.elapsed() < WRITE_DOWN) {
            return;
        }
        *written = Some(Instant::now());
        let journal = Journal { identity: self.identity.to_owned(), boot: boot_id(), offset };
        let new = path.with_extension("new");
        let text = serde_json::to_vec(&journal).unwrap_or_default();
        if let Err(error) = fs::write(&new, text).and_then(|()| fs::rename(&new, &path)) {
            tracing::debug!(%error, "cannot write down how far the import is");
        }
    }
}

/// What the node keeps of one image, locked against other importers.
struct Cached {
    directory: PathBuf,
    key: String,
    _lock: File,
}

impl Cached {
    fn lock(directory: &Path, identity: &str, board: &Board) -> io::Result<Self> {
        let digest = Sha256::digest(identity.as_bytes());
        let key: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let lock = File::create(directory.join(format!("{key}.lock")))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            board.change(|progress| progress.trouble = "another import brings the same image".to_owned());
            rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        }
        Ok(Self { directory: directory.to_owned(), key, _lock: lock })
    }

    fn path(&self, kind: &str) -> PathBuf {
        self.directory.join(format!("{}.{kind}", self.key))
    }

    /// Removes the oldest until the rest fits, and never this one.
    fn evict(&self) {
        let Ok(stat) = rustix::fs::statvfs(&self.directory) else { return };
        let limit = stat.f_blocks * stat.f_frsize / CACHE_SHARE;
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries
            .filter_map(|entry| Some((entry.metadata().ok()?, entry.path())))
            .map(|(metadata, path)| {
                let bytes = std::os::unix::fs::MetadataExt::blocks(&metadata) * 512;
                (metadata.modified().ok(), bytes, path)
            })
            .collect();
        files.sort();
        let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in files {
            let own = path.file_stem().is_some_and(|stem| stem == self.key.as_str());
            if total <= limit {
                break;
            }
            if !own && fs::remove_file(&path).is_ok() {
                total -= bytes;
            }
        }
    }
}

/// Keeps what passes through, as long as it comes without gaps.
struct Tee<'a> {
    source: &'a dyn Source,
    file: File,
    kept: AtomicU64,
}

impl<'a> Tee<'a> {
    fn open(source: &'a dyn Source, path: PathBuf) -> io::Result<Self> {
        let file = File::options().create(true).truncate(false).write(true).read(true).open(path)?;
        let kept = AtomicU64::new(file.metadata()?.len());
        Ok(Self { source, file, kept })
    }

    /// Brings what was not needed for the disk: tables, and what is behind the last part.
    fn complete(&self) -> io::Result<()> {
        let from = self.kept.load(Ordering::Relaxed);
        if self.source.seekable() && self.source.length().is_some_and(|length| from < length) {
            io::copy(&mut self.stream(from)?, &mut io::sink())?;
        }
        let kept = self.kept.load(Ordering::Relaxed);
        match self.source.length() {
            Some(length) if length == kept => Ok(()),
            None if kept > 0 => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Source for Tee<'_> {
    fn length(&self) -> Option<u64> {
        self.source.length()
    }

    fn seekable(&self) -> bool {
        self.source.seekable()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.source.read_at(offset, buffer)
    }

    /// Begins a little earlier where that closes a gap: tables before the first part are small.
    fn stream(&self, from: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        let kept = self.kept.load(Ordering::Relaxed);
        let begin = if kept < from && from - kept <= MAX_GAP { kept } else { from };
        let mut stream = TeeStream { inner: self.source.stream(begin)?, tee: self, at: begin };
        let skipped = io::copy(&mut (&mut stream).take(from - begin), &mut io::sink())?;
        if skipped < from - begin {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Box::new(stream))
    }
}

struct TeeStream<'a> {
    inner: Box<dyn Read + Send + 'a>,
    tee: &'a Tee<'a>,
    at: u64,
}

impl Read for TeeStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let kept = self.tee.kept.load(Ordering::Relaxed);
        let end = self.at + read as u64;
        if self.at <= kept && end > kept {
            self.tee.file.write_all_at(&buffer[..read], self.at)?;
            self.tee.kept.store(end, Ordering::Relaxed);
        }
        self.at = end;
        Ok(read)
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting(FileSource, AtomicU64);

    impl Source for Counting {
        fn length(&self) -> Option<u64> {
            self.0.length()
        }
        fn seekable(&self) -> bool {
            true
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            self.0.read_at(offset, buffer)
        }
        fn stream(&self, from: u64) -> io::Result<Box<dyn Read + Send + '_>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.stream(from)
        }
    }

    #[test]
    fn an_image_is_transferred_once_for_a_node() {
        let dir = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..3_000_000_u32).flat_map(|n| n.to_le_bytes()).take(3 << 20).collect();
        fs::write(dir.path().join("image"), &content).unwrap();
        fs::create_dir(dir.path().join("cache")).unwrap();
        let source = Counting(FileSource::open(&dir.path().join("image")).unwrap(), AtomicU64::new(0));
        for number in 0..3 {
            let home = dir.path().join(format!("claim{number}"));
            fs::create_dir(&home).unwrap();
            let place = Place {
                disk: home.join("disk.img"),
                directory: Some(home.clone()),
                size: 4 << 20,
                cache: Some(dir.path().join("cache")),
            };
            fetch(&source, Some("it"), &place, place.options(), &Board::default()).unwrap();
            let disk = fs::read(home.join("disk.img")).unwrap();
            assert_eq!(disk.len(), 4 << 20);
            assert!(disk[..3 << 20] == content[..], "claim {number} differs");
            assert_eq!(fs::read_dir(&home).unwrap().count(), 1, "something was left beside the disk");
        }
        assert_eq!(source.1.load(Ordering::Relaxed), 1);
    }
}
