//! A log of what the guest writes to its console. The hypervisor appends to a file; the launcher keeps that file small, and another
//! container of the pod copies it to its output, where `kubectl logs` finds it.
//!
//! The file is never renamed or cut, because the hypervisor keeps it open: what is old is taken out of its beginning and leaves a
//! hole. So its length only says how much the guest ever wrote.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, inotify, seek};

/// How much of the file may be there, and how much of its end stays when it is more.
const LARGEST: u64 = 2 << 20;
const KEPT: u64 = 1 << 20;
/// What a hole begins and ends with.
const BLOCK: u64 = 4096;
/// No file system has files much longer, holes or not.
const LONGEST: u64 = 1 << 40;
/// Between two looks at the size. A serial port cannot write more than some megabytes in it.
const LOOK: Duration = Duration::from_secs(1);
/// Until the machine's directory is there, and between two readings of a guest that writes all the time.
const NOT_YET: Duration = Duration::from_millis(500);
const BREATH: Duration = Duration::from_millis(50);

/// Keeps the file small for as long as the launcher lives, which is longer than the guest does.
pub async fn keep_small(path: PathBuf) {
    loop {
        tokio::time::sleep(LOOK).await;
        match shrink(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(path = %path.display(), %error, "cannot shorten the console's log");
            }
            _ => {}
        }
    }
}

fn shrink(path: &Path) -> io::Result<()> {
    let file = open(path, OpenOptions::new().write(true))?;
    let metadata = file.metadata()?;
    if metadata.blocks().saturating_mul(512) <= LARGEST {
        return Ok(());
    }
    let old = metadata.len().saturating_sub(KEPT) / BLOCK * BLOCK;
    let punched = match metadata.len() < LONGEST {
        true => fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, old).is_ok(),
        false => false,
    };
    // Without holes all of it goes: a log with a gap is better than a full disk.
    if punched { Ok(()) } else { file.set_len(0) }
}

/// Copies the file to the output until it is told to end. Does not return while nobody says so.
pub fn follow(path: &Path) -> io::Result<()> {
    // As the first process of its container it hears no signal that it does not ask for.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block()?;
    let ended = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let events = inotify::WatchFlags::CREATE | inotify::WatchFlags::MODIFY;
    while inotify::add_watch(&changes, directory, events).is_err() {
        if wait(&ended, None::<&SignalFd>, Some(NOT_YET))? {
            return Ok(());
        }
    }
    let mut tail = Tail::default();
    let mut output = io::stdout().lock();
    loop {
        tail.copy(path, &mut output)?;
        if wait(&ended, Some(&changes), None)? || wait(&ended, None::<&SignalFd>, Some(BREATH))? {
            return tail.copy(path, &mut output);
        }
        // What happened is seen in the file.
        let mut buffer = [0_u8; 4096];
        while rustix::io::read(&changes, &mut buffer).is_ok_and(|length| length > 0) {}
    }
}

/// True if it was told to end. Otherwise something changed, or the time is over.
fn wait(ended: &impl AsFd, changes: Option<&impl AsFd>, longest: Option<Duration>) -> io::Result<bool> {
    let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
    loop {
        let mut fds = vec![PollFd::new(ended, PollFlags::IN)];
        fds.extend(changes.map(|changes| PollFd::new(changes, PollFlags::IN)));
        match poll(&mut fds, longest.as_ref()) {
            Ok(_) => return Ok(fds.first().is_some_and(|fd| !fd.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// How far the file was copied.
#[derive(Default)]
struct Tail {
    file: Option<File>,
    offset: u64,
}

impl Tail {
    fn copy(&mut self, path: &Path, output: &mut impl Write) -> io::Result<()> {
        if self.file.is_none() {
            self.file = open(path, OpenOptions::new().read(true)).ok();
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        if file.metadata()?.len() < self.offset {
            // It was cut off.
            self.offset = 0;
        }
        let mut buffer = [0_u8; 16 * 1024];
        loop {
            // What was taken out before it was read is lost, and is not to look like zeros that the guest wrote.
            if let Ok(data) = seek(&*file, SeekFrom::Data(self.offset)) {
                self.offset = data;
            }
            seek(&*file, SeekFrom::Start(self.offset))?;
            let length = file.read(&mut buffer)?;
            if length == 0 {
                return output.flush();
            }
            output.write_all(buffer.get(..length).unwrap_or_default())?;
            self.offset += u64::try_from(length).unwrap_or(0);
        }
    }
}

/// The file itself and nothing that it leads to: the guest's hypervisor can put there what it likes.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a plain file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(path: &Path, bytes: &[u8]) {
        OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
    }

    #[test]
    fn a_guest_that_writes_for_ever_fills_no_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("virt-serial0-log");
        let mut tail = Tail::default();
        let mut seen = vec![];
        for round in 0..20_u8 {
            append(&path, &vec![b'a' + round; 512 * 1024]);
            tail.copy(&path, &mut seen).unwrap();
            shrink(&path).unwrap();
            let there = std::fs::metadata(&path).unwrap().blocks() * 512;
            assert!(there <= LARGEST + 512 * 1024, "{there} bytes after round {round}");
        }
        assert_eq!(seen.len(), 20 * 512 * 1024, "who reads along misses nothing");
        assert!(!seen.contains(&0));
        // Who comes later sees the end.
        let mut late = vec![];
        Tail::default().copy(&path, &mut late).unwrap();
        assert!(late.ends_with(&[b'a' + 19; 1024]) && !late.contains(&0), "{}", late.len());
        assert!(late.len() as u64 <= LARGEST + 512 * 1024);
    }

    #[test]
    fn a_link_in_its_place_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, path) = (dir.path().join("secret"), dir.path().join("virt-serial0-log"));
        std::fs::write(&secret, vec![b'x'; 4 << 20]).unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        let mut seen = vec![];
        Tail::default().copy(&path, &mut seen).unwrap();
        assert!(seen.is_empty());
        assert!(shrink(&path).is_err());
        assert_eq!(std::fs::metadata(&secret).unwrap().len(), 4 << 20);
    }

    #[test]
    fn a_file_that_was_cut_off_is_read_from_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("virt-serial0-log");
        let (mut tail, mut seen) = (Tail::default(), vec![]);
        tail.copy(&path, &mut seen).unwrap();
        append(&path, b"before\n");
        tail.copy(&path, &mut seen).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        append(&path, b"new\n");
        tail.copy(&path, &mut seen).unwrap();
        assert_eq!(seen, b"before\nnew\n");
    }
}
