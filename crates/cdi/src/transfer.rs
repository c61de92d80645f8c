//! One import, start to end: where it goes on, what the node has of it already, and what it leaves behind.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrovirt_disks::image::{FileSource, ImportError, Observer, Options, Source, Target, import};
use serde::{Deserialize, Serialize};

use crate::cache;
use crate::job::{Progress, paths};

const JOURNAL: &str = ".import.json";
const SCRATCH: &str = ".scratch";
/// How often the place that was reached is written down.
const WRITE_DOWN: Duration = Duration::from_millis(500);
/// What is fetched although no disk needs it, so that the image is kept whole.
const MAX_GAP: u64 = 32 << 20;

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
    /// What the node has of the image, to read.
    pub cache: Option<PathBuf>,
    /// This importer's own.
    pub scratch: Option<PathBuf>,
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
        let home = self.directory.as_ref().or(self.scratch.as_ref());
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

    /// Nothing is to be resumed any more.
    fn forget(&self) {
        if let Some(journal) = self.journal() {
            let _ = fs::remove_file(journal);
        }
    }

    fn reached(&self, identity: &str) -> u64 {
        let journal = self.journal().and_then(|path| fs::read(path).ok());
        let journal: Option<Journal> = journal.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        journal.filter(|journal| journal.identity == identity && journal.boot == boot_id()).map_or(0, |j| j.offset)
    }
}

/// Brings an image from a source that has an identity, or from the node if it has it.
pub(crate) fn fetch(
    source: &dyn Source,
    identity: Option<&str>,
    place: &Place,
    options: Options,
    board: &Board,
) -> Result<(), ImportError> {
    bring(source, identity, place, options, board)?;
    // A claim holds its disk alone.
    place.forget();
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
    let scribe = Scribe { board, place, identity: identity.unwrap_or_default(), written: Mutex::new(None) };
    let known = place.cache.as_ref().zip(identity).map(|(directory, said)| (directory, cache::identity(said)));
    if let Some((image, digest)) = known.as_ref().and_then(|(directory, identity)| find(directory, identity)) {
        // Asked with this tenant's request, the origin said the same as when the image was kept. What is in the file is
        // checked all the same: against what the user wants, or against what it was when it was kept.
        let mut checked = options.clone();
        if checked.checksum.is_none() {
            checked.checksum = Some(format!("sha256:{digest}").parse()?);
        }
        tracing::info!("the node has this image");
        // The disk is filled from the beginning; what an earlier attempt had of it is gone then.
        place.forget();
        // Nothing is to be gone on with that came from elsewhere than the origin.
        let scribe = Scribe { board, place, identity: "", written: Mutex::new(None) };
        match import(&image, &target, &checked, &scribe) {
            Ok(()) => return Ok(()),
            // Torn by a power failure, most likely, and the origin has it whole. What else is wrong shows again there.
            Err(error) => tracing::warn!(%error, "what the node has of this image is of no use"),
        }
    }
    options.resume_from = identity.map_or(0, |identity| place.reached(identity));
    if options.resume_from > 0 {
        tracing::info!(from = options.resume_from, "going on where an earlier attempt ended");
    }
    let left = place.scratch.as_ref().zip(known).map(|(scratch, (_, identity))| (scratch, identity));
    let tee = left.as_ref().and_then(|(scratch, identity)| {
        let tee = Tee::open(source, &scratch.join(format!("{identity}.partial")));
        tee.inspect_err(|error| tracing::info!(%error, "the image is not kept for others")).ok()
    });
    // What an earlier importer had is gone with its pod, and is not fetched again for others' sake.
    let tee = tee.filter(|tee| options.resume_from <= tee.kept.load(Ordering::Relaxed) + MAX_GAP);
    let (Some((scratch, identity)), Some(tee)) = (left, tee) else {
        return import(source, &target, &options, &scribe);
    };
    import(&tee, &target, &options, &scribe)?;
    if let Err(error) = tee.complete().and_then(|()| leave(scratch, &identity)) {
        tracing::info!(%error, "the image is not kept for others");
    }
    Ok(())
}

/// What the node has of this content, with the digest that it had when it was kept.
fn find(directory: &Path, identity: &str) -> Option<(FileSource, String)> {
    fs::read_dir(directory).ok()?.flatten().find_map(|entry| {
        let digest = cache::digest_of(entry.file_name().to_str()?, identity)?.to_owned();
        Some((FileSource::open(&entry.path()).ok()?, digest))
    })
}

/// Leaves the image where the node takes it from once this pod has ended.
fn leave(scratch: &Path, identity: &str) -> io::Result<()> {
    fs::rename(scratch.join(format!("{identity}.partial")), scratch.join(paths::LEFT_IMAGE))?;
    fs::write(scratch.join(paths::LEFT_IDENTITY), identity)
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

/// Keeps what passes through, as long as it comes without gaps.
struct Tee<'a> {
    source: &'a dyn Source,
    file: File,
    kept: AtomicU64,
}

impl<'a> Tee<'a> {
    fn open(source: &'a dyn Source, path: &Path) -> io::Result<Self> {
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

    /// A claim of its own below `home`, with what the node has.
    fn place(home: &Path, number: u32) -> Place {
        let (directory, scratch) = (home.join(format!("claim{number}")), home.join(format!("scratch{number}")));
        fs::create_dir(&directory).unwrap();
        fs::create_dir(&scratch).unwrap();
        Place {
            disk: directory.join("disk.img"),
            directory: Some(directory),
            size: 4 << 20,
            cache: Some(home.join("entry")),
            scratch: Some(scratch),
        }
    }

    fn source(home: &Path, content: &[u8]) -> Counting {
        fs::write(home.join("image"), content).unwrap();
        Counting(FileSource::open(&home.join("image")).unwrap(), AtomicU64::new(0))
    }

    fn content() -> Vec<u8> {
        (0..3_000_000_u32).flat_map(|n| n.to_le_bytes()).take(3 << 20).collect()
    }

    /// As the trusted side does it.
    fn keep(home: &Path, number: u32) -> PathBuf {
        let left = home.join(format!("scratch{number}"));
        let (image, identity) = (fs::read(left.join("image")).unwrap(), fs::read_to_string(left.join("identity")));
        let digest: String = sha2::Digest::finalize(<sha2::Sha256 as sha2::Digest>::new_with_prefix(&image))
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let kept = home.join(format!("entry/{}.{digest}.image", identity.unwrap()));
        fs::write(&kept, image).unwrap();
        kept
    }

    #[test]
    fn an_image_is_transferred_once_for_a_namespace() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("entry")).unwrap();
        let (content, home) = (content(), dir.path());
        let source = source(home, &content);
        for number in 0..3 {
            let place = place(home, number);
            fetch(&source, Some("it"), &place, place.options(), &Board::default()).unwrap();
            let disk = fs::read(&place.disk).unwrap();
            assert_eq!(disk.len(), 4 << 20);
            assert!(disk[..3 << 20] == content[..], "claim {number} differs");
            assert_eq!(fs::read_dir(place.directory.unwrap()).unwrap().count(), 1, "something is beside the disk");
            if number == 0 {
                keep(home, number);
            }
        }
        assert_eq!(source.1.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_the_origin_does_not_confirm_is_fetched_anew() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("entry")).unwrap();
        let (content, home) = (content(), dir.path());
        let first = source(home, &content);
        fetch(&first, Some("url etag-1"), &place(home, 0), Options::default(), &Board::default()).unwrap();
        keep(home, 0);
        for (number, said) in [Some("url etag-2"), None].into_iter().enumerate() {
            let place = place(home, 1 + number as u32);
            let again = source(home, &[5; 4096]);
            fetch(&again, said, &place, place.options(), &Board::default()).unwrap();
            assert_eq!(again.1.load(Ordering::Relaxed), 1);
            assert_eq!(fs::read(&place.disk).unwrap()[..4096], [5; 4096]);
        }
    }

    #[test]
    fn a_hit_is_checked_against_the_checksum_that_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("entry")).unwrap();
        let (content, home) = (content(), dir.path());
        let source = source(home, &content);
        fetch(&source, Some("it"), &place(home, 0), Options::default(), &Board::default()).unwrap();
        keep(home, 0);
        let place = place(home, 1);
        let wrong = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        let options = Options { checksum: Some(wrong), ..place.options() };
        let refused = fetch(&source, Some("it"), &place, options, &Board::default());
        assert!(matches!(refused, Err(ImportError::Checksum { .. })), "{refused:?}");
    }

    #[test]
    fn a_poisoned_or_torn_image_of_the_node_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("entry")).unwrap();
        let (content, home) = (content(), dir.path());
        let source = source(home, &content);
        fetch(&source, Some("it"), &place(home, 0), Options::default(), &Board::default()).unwrap();
        let kept = keep(home, 0);
        let digest: String = kept.file_name().unwrap().to_str().unwrap().split('.').nth(1).unwrap().into();
        let zeros = vec![0; content.len()];
        let torn: [&[u8]; 5] = [&[6; 8192], b"", &zeros, &content[..content.len() / 2], b"QFI\xfb and no more"];
        for (number, torn) in torn.into_iter().enumerate() {
            for (more, checksum) in [(0, None), (1, Some(format!("sha256:{digest}").parse().unwrap()))] {
                fs::write(&kept, torn).unwrap();
                let place = place(home, 1 + 2 * number as u32 + more);
                // An earlier attempt had reached a part of it; the disk is not what it was then.
                let journal = Journal { identity: "it".into(), boot: boot_id(), offset: 2 << 20 };
                fs::write(place.journal().unwrap(), serde_json::to_vec(&journal).unwrap()).unwrap();
                let options = Options { checksum, ..place.options() };
                fetch(&source, Some("it"), &place, options, &Board::default()).unwrap();
                assert!(fs::read(&place.disk).unwrap()[..3 << 20] == content[..], "torn {number}, {more}");
            }
        }
    }
}
