//! Container logs in the CRI format: `<RFC 3339 time> <stdout|stderr> <F|P> <text>`, one file per container, with one
//! rotated predecessor.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::records::PodDir;

/// A line longer than this is written in parts, as container runtimes do.
const MAX_LINE: usize = 16 * 1024;
const MAX_FILE: u64 = 10 * 1024 * 1024;
/// What is read at a time.
const PIECE: u64 = 128 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Stdout,
    Stderr,
}

/// What `kubectl logs` can ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub tail_lines: Option<usize>,
    pub since: Option<Timestamp>,
    pub limit_bytes: Option<usize>,
    pub timestamps: bool,
    /// Goes on with what is written later.
    pub follow: bool,
}

/// Appends to one container's log. Rotates by itself.
#[derive(Debug)]
pub struct LogWriter {
    path: PathBuf,
    file: File,
    written: u64,
}

/// Cuts one stream into lines. Holds at most one partial line.
#[derive(Debug)]
pub struct LineBuffer {
    source: Source,
    pending: Vec<u8>,
}

/// The text of a container's log, oldest first, each line ended by a newline.
pub fn read_log(data_dir: &Path, pod_uid: &str, container: &str, options: &LogOptions) -> io::Result<Vec<u8>> {
    let mut reader = LogReader::open(data_dir, pod_uid, container, options)?;
    let mut all = Vec::new();
    loop {
        let more = reader.more()?;
        if more.is_empty() {
            return Ok(all);
        }
        all.extend_from_slice(&more);
    }
}

/// Reads a log a piece at a time: whoever takes it slowly, or not at all, keeps no more of it in memory than a piece.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    /// The predecessor, until it is read to its end.
    older: Option<File>,
    file: File,
    /// The successor, once there is one.
    newer: Option<File>,
    lines: Lines,
    /// What is left of `limit_bytes`.
    left: Option<usize>,
    /// What is left of the file as it was at the beginning, if it is not followed.
    unread: Option<u64>,
}

/// Turns what is in the file into what is shown.
#[derive(Debug, Default)]
struct Lines {
    since: Option<Timestamp>,
    timestamps: bool,
    /// Lines that are not shown, and those that were met.
    skipped: usize,
    met: usize,
    /// A line that is not written to its end yet.
    rest: Vec<u8>,
    /// The last part shown is not the end of its line.
    partial: bool,
}

impl LogReader {
    /// Begins with what is there already, as far as it is asked for.
    pub fn open(data_dir: &Path, pod_uid: &str, container: &str, options: &LogOptions) -> io::Result<Self> {
        // Both become path components; an API server passes what a client sent.
        if [pod_uid, container].iter().any(|part| part.is_empty() || part.contains('/') || part.starts_with('.')) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a pod uid or container name"));
        }
        let path = PodDir::new(data_dir, pod_uid).log(container);
        let file = File::open(&path)?;
        let metadata = file.metadata()?;
        let older = match File::open(rotated(&path)) {
            // Rotated since it was opened.
            Ok(older) => Some(older).filter(|older| older.metadata().is_ok_and(|older| older.ino() != metadata.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let lines = Lines { since: options.since, timestamps: options.timestamps, ..Lines::default() };
        let unread = (!options.follow).then_some(metadata.len());
        let mut reader = Self { path, older, file, newer: None, lines, left: options.limit_bytes, unread };
        match options.tail_lines {
            None => {}
            Some(0) => {
                (reader.older, reader.unread) = (None, reader.unread.map(|_| 0));
                reader.file.seek(SeekFrom::End(0))?;
            }
            Some(tail) => reader.lines.skipped = reader.count(metadata.len())?.saturating_sub(tail),
        }
        Ok(reader)
    }

    /// Lines that are there.
    fn count(&mut self, length: u64) -> io::Result<usize> {
        let mut lines = Lines { since: self.lines.since, skipped: usize::MAX, ..Lines::default() };
        for (file, mut length) in
            self.older.iter_mut().map(|older| (older, MAX_FILE * 2)).chain([(&mut self.file, length)])
        {
            loop {
                let bytes = piece(file, length)?;
                if bytes.is_empty() {
                    break;
                }
                length = length.saturating_sub(bytes.len() as u64);
                lines.show(&bytes, &mut Vec::new());
            }
            file.rewind()?;
        }
        Ok(lines.met)
    }

    /// The next piece. Nothing if all is read that is there now.
    pub fn more(&mut self) -> io::Result<Vec<u8>> {
        let mut shown = Vec::new();
        while shown.is_empty() && !self.is_exhausted() {
            let bytes = match &mut self.older {
                Some(older) => piece(older, PIECE)?,
                None => piece(&mut self.file, self.unread.unwrap_or(PIECE))?,
            };
            if let (Some(unread), None) = (&mut self.unread, &self.older) {
                *unread = unread.saturating_sub(bytes.len() as u64);
            }
            if bytes.is_empty() && !self.turn()? {
                break;
            }
            self.lines.show(&bytes, &mut shown);
        }
        if let Some(left) = &mut self.left {
            shown.truncate(*left);
            *left -= shown.len();
        }
        Ok(shown)
    }

    /// Goes on to the next file, if there is one.
    fn turn(&mut self) -> io::Result<bool> {
        if self.older.take().is_some() {
            return Ok(true);
        }
        if let Some(newer) = self.newer.take() {
            self.file = newer;
            return Ok(true);
        }
        if self.unread.is_some() {
            return Ok(false);
        }
        let newer = match File::open(&self.path) {
            Ok(newer) => newer,
            // Between the two steps of a rotation, or gone with its pod.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if newer.metadata()?.ino() == self.file.metadata()?.ino() {
            return Ok(false);
        }
        // Nobody writes to the old file any more, but somebody may have since it was read.
        self.newer = Some(newer);
        Ok(true)
    }

    /// Whether as much was shown as was asked for.
    pub fn is_exhausted(&self) -> bool {
        self.left == Some(0)
    }
}

fn piece(file: &mut File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most.min(PIECE)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Lines {
    /// Adds whole lines to `shown`.
    fn show(&mut self, bytes: &[u8], shown: &mut Vec<u8>) {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            let before = std::mem::take(&mut self.rest);
            match before.is_empty() {
                true => self.add(line, shown),
                false => self.add(&[&before, line].concat(), shown),
            }
        }
        self.rest.extend_from_slice(bytes);
    }

    fn add(&mut self, line: &[u8], shown: &mut Vec<u8>) {
        let Some(entry) = Entry::parse(line) else { return };
        if self.since.is_some_and(|since| entry.time < since) {
            return;
        }
        let continues = std::mem::replace(&mut self.partial, !entry.full);
        self.met += usize::from(!continues);
        if self.met <= self.skipped {
            return;
        }
        if self.timestamps && !continues {
            shown.extend_from_slice(entry.stamp.as_bytes());
            shown.push(b' ');
        }
        shown.extend_from_slice(entry.text);
        if entry.full {
            shown.push(b'\n');
        }
    }
}

struct Entry<'a> {
    time: Timestamp,
    stamp: &'a str,
    full: bool,
    text: &'a [u8],
}

impl<'a> Entry<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let stamp = std::str::from_utf8(parts.next()?).ok()?;
        let _source = parts.next()?;
        let tag = parts.next()?;
        let text = parts.next().unwrap_or_default();
        Some(Self { time: stamp.parse().ok()?, stamp, full: tag == b"F", text })
    }
}

impl LogWriter {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_append(path)?;
        let written = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, written })
    }

    fn entry(&mut self, source: Source, full: bool, text: &[u8], now: Timestamp) -> io::Result<()> {
        let source = match source {
            Source::Stdout => "stdout",
            Source::Stderr => "stderr",
        };
        let mut line = Vec::with_capacity(text.len() + 48);
        write!(line, "{now:.9} {source} {} ", if full { 'F' } else { 'P' })?;
        line.extend_from_slice(text);
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.written += line.len() as u64;
        if self.written > MAX_FILE {
            fs::rename(&self.path, rotated(&self.path))?;
            self.file = open_append(&self.path)?;
            self.written = 0;
        }
        Ok(())
    }
}

impl LineBuffer {
    pub fn new(source: Source) -> Self {
        Self { source, pending: Vec::new() }
    }

    pub fn feed(&mut self, mut bytes: &[u8], log: &mut LogWriter, now: Timestamp) -> io::Result<()> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            self.pending.extend_from_slice(line);
            self.cut(log, now)?;
            let text = std::mem::take(&mut self.pending);
            log.entry(self.source, true, &text, now)?;
        }
        self.pending.extend_from_slice(bytes);
        self.cut(log, now)
    }

    /// Writes what is left when the stream ends without a newline.
    pub fn finish(&mut self, log: &mut LogWriter, now: Timestamp) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let text = std::mem::take(&mut self.pending);
        log.entry(self.source, true, &text, now)
    }

    fn cut(&mut self, log: &mut LogWriter, now: Timestamp) -> io::Result<()> {
        while self.pending.len() > MAX_LINE {
            let rest = self.pending.split_off(MAX_LINE);
            let part = std::mem::replace(&mut self.pending, rest);
            log.entry(self.source, false, &part, now)?;
        }
        Ok(())
    }
}

fn open_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn rotated(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn lines_come_back_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let pod = PodDir::new(dir.path(), "u1");
        fs::create_dir_all(pod.logs()).unwrap();
        let mut log = LogWriter::open(&pod.log("compute")).unwrap();
        let mut out = LineBuffer::new(Source::Stdout);
        let mut err = LineBuffer::new(Source::Stderr);
        let long = "x".repeat(MAX_LINE + 10);
        out.feed(b"one\ntw", &mut log, at(0)).unwrap();
        err.feed(b"three\n", &mut log, at(1)).unwrap();
        out.feed(b"o\n", &mut log, at(2)).unwrap();
        out.feed(long.as_bytes(), &mut log, at(3)).unwrap();
        out.feed(b"\nend", &mut log, at(3)).unwrap();
        out.finish(&mut log, at(4)).unwrap();

        let read =
            |options: LogOptions| String::from_utf8(read_log(dir.path(), "u1", "compute", &options).unwrap()).unwrap();
        assert_eq!(read(LogOptions::default()), format!("one\nthree\ntwo\n{long}\nend\n"));
        assert_eq!(read(LogOptions { tail_lines: Some(1), ..Default::default() }), "end\n");
        assert_eq!(
            read(LogOptions { since: Some(at(4)), timestamps: true, ..Default::default() }),
            "2027-01-15T08:00:04.000000000Z end\n"
        );
        assert_eq!(read(LogOptions { limit_bytes: Some(5), ..Default::default() }), "one\nt");
        let raw = fs::read_to_string(pod.log("compute")).unwrap();
        assert!(raw.starts_with("2027-01-15T08:00:00.000000000Z stdout F one\n"), "{raw}");
    }

    #[test]
    fn a_log_is_followed_over_its_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let pod = PodDir::new(dir.path(), "u1");
        fs::create_dir_all(pod.logs()).unwrap();
        let mut log = LogWriter::open(&pod.log("compute")).unwrap();
        let mut out = LineBuffer::new(Source::Stdout);
        out.feed(b"one\ntwo\n", &mut log, at(0)).unwrap();
        let options = LogOptions { tail_lines: Some(1), limit_bytes: Some(25), follow: true, ..Default::default() };
        let mut reader = LogReader::open(dir.path(), "u1", "compute", &options).unwrap();
        assert_eq!(reader.more().unwrap(), b"two\n");
        assert_eq!(reader.more().unwrap(), b"");
        out.feed(b"three\n", &mut log, at(1)).unwrap();
        assert_eq!(reader.more().unwrap(), b"three\n");
        log.written = MAX_FILE;
        out.feed(b"four\n", &mut log, at(2)).unwrap();
        out.feed(b"five\n", &mut log, at(3)).unwrap();
        assert!(fs::exists(rotated(&pod.log("compute"))).unwrap());
        assert_eq!(reader.more().unwrap(), b"four\n");
        assert_eq!(reader.more().unwrap(), b"five\n");
        assert_eq!(reader.more().unwrap(), b"");
        assert!(!reader.is_exhausted());
        out.feed(b"sixteen\n", &mut log, at(4)).unwrap();
        assert_eq!(reader.more().unwrap(), b"sixte");
        assert!(reader.is_exhausted());
        fs::remove_dir_all(pod.logs()).unwrap();
        assert_eq!(reader.more().unwrap(), b"");
    }

    #[test]
    fn a_log_that_nobody_takes_stays_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let pod = PodDir::new(dir.path(), "u1");
        fs::create_dir_all(pod.logs()).unwrap();
        let mut log = LogWriter::open(&pod.log("compute")).unwrap();
        let mut out = LineBuffer::new(Source::Stdout);
        let mut expected = vec![];
        for number in 0..2000 {
            if number == 1000 {
                log.written = MAX_FILE;
            }
            let line = format!("{number} {}\n", "x".repeat(1000));
            out.feed(line.as_bytes(), &mut log, at(number)).unwrap();
            expected.extend_from_slice(line.as_bytes());
        }
        for follow in [false, true] {
            let options = LogOptions { follow, ..Default::default() };
            let mut reader = LogReader::open(dir.path(), "u1", "compute", &options).unwrap();
            let mut read = vec![];
            loop {
                let more = reader.more().unwrap();
                assert!(more.len() as u64 <= PIECE, "{} bytes at once", more.len());
                if more.is_empty() {
                    break;
                }
                read.extend_from_slice(&more);
            }
            assert!(read == expected, "{} of {} bytes", read.len(), expected.len());
        }
        // The end of both files together, and nothing that comes after the question.
        let options = LogOptions { tail_lines: Some(1500), ..Default::default() };
        let mut reader = LogReader::open(dir.path(), "u1", "compute", &options).unwrap();
        out.feed(b"late\n", &mut log, at(3000)).unwrap();
        let mut lines = 0;
        while let Some(more) = Some(reader.more().unwrap()).filter(|more| !more.is_empty()) {
            assert!(lines > 0 || more.starts_with(b"500 "));
            assert!(!more.ends_with(b"late\n"));
            lines += more.iter().filter(|byte| **byte == b'\n').count();
        }
        assert_eq!(lines, 1500);
    }

    #[test]
    fn names_cannot_leave_the_pod_directory() {
        for (uid, container) in [("../x", "c"), ("u", "../../etc/passwd"), ("", "c"), ("u", "..")] {
            let error = read_log(Path::new("/nonexistent"), uid, container, &LogOptions::default()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{uid} {container}");
        }
    }
}
