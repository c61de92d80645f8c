//! Container logs in the CRI format: `<RFC 3339 time> <stdout|stderr> <F|P> <text>`, one file per container, with one
//! rotated predecessor.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::records::PodDir;

/// A line longer than this is written in parts, as container runtimes do.
const MAX_LINE: usize = 16 * 1024;
const MAX_FILE: u64 = 10 * 1024 * 1024;

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
    Ok(LogReader::open(data_dir, pod_uid, container, options)?.0)
}

/// Goes on where the first reading ended.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    file: File,
    lines: Lines,
    /// What is left of `limit_bytes`.
    left: Option<usize>,
}

/// Turns what is in the file into what is shown.
#[derive(Debug)]
struct Lines {
    since: Option<Timestamp>,
    timestamps: bool,
    /// A line that is not written to its end yet.
    rest: Vec<u8>,
    /// The last part shown is not the end of its line.
    partial: bool,
}

impl LogReader {
    /// What is there already, as far as it is asked for.
    pub fn open(data_dir: &Path, pod_uid: &str, container: &str, options: &LogOptions) -> io::Result<(Vec<u8>, Self)> {
        // Both become path components; an API server passes what a client sent.
        if [pod_uid, container].iter().any(|part| part.is_empty() || part.contains('/') || part.starts_with('.')) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a pod uid or container name"));
        }
        let path = PodDir::new(data_dir, pod_uid).log(container);
        let file = File::open(&path)?;
        let lines = Lines { since: options.since, timestamps: options.timestamps, rest: Vec::new(), partial: false };
        let mut reader = Self { path, file, lines, left: options.limit_bytes };
        let mut shown = VecDeque::new();
        match fs::read(rotated(&reader.path)) {
            Ok(bytes) => reader.lines.show(&bytes, &mut shown, options.tail_lines),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let bytes = reader.read()?;
        reader.lines.show(&bytes, &mut shown, options.tail_lines);
        let first = reader.cut(joined(shown));
        Ok((first, reader))
    }

    /// What was written since the last call.
    pub fn more(&mut self) -> io::Result<Vec<u8>> {
        let mut shown = VecDeque::new();
        let bytes = self.read()?;
        self.lines.show(&bytes, &mut shown, None);
        let current = match fs::metadata(&self.path) {
            Ok(current) => Some(current.ino()),
            // Between the two steps of a rotation, or gone with its pod.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if current.is_some_and(|current| self.file.metadata().is_ok_and(|own| own.ino() != current)) {
            // Nobody writes to the old file any more, but somebody may have since it was read.
            let bytes = self.read()?;
            self.lines.show(&bytes, &mut shown, None);
            self.file = File::open(&self.path)?;
            let bytes = self.read()?;
            self.lines.show(&bytes, &mut shown, None);
        }
        Ok(self.cut(joined(shown)))
    }

    /// Whether as much was shown as was asked for.
    pub fn is_exhausted(&self) -> bool {
        self.left == Some(0)
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn cut(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        if let Some(left) = &mut self.left {
            bytes.truncate(*left);
            *left -= bytes.len();
        }
        bytes
    }
}

impl Lines {
    /// Adds whole lines to `shown`, of which no more than `tail` are kept.
    fn show(&mut self, bytes: &[u8], shown: &mut VecDeque<Vec<u8>>, tail: Option<usize>) {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            let before = std::mem::take(&mut self.rest);
            match before.is_empty() {
                true => self.add(line, shown),
                false => self.add(&[&before, line].concat(), shown),
            }
            if tail.is_some_and(|tail| shown.len() > tail) {
                shown.pop_front();
            }
        }
        self.rest.extend_from_slice(bytes);
    }

    fn add(&mut self, line: &[u8], shown: &mut VecDeque<Vec<u8>>) {
        let Some(entry) = Entry::parse(line) else { return };
        if self.since.is_some_and(|since| entry.time < since) {
            return;
        }
        let continues = std::mem::replace(&mut self.partial, !entry.full);
        let mut out = match shown.pop_back() {
            Some(last) if continues => last,
            last => {
                shown.extend(last);
                let mut out = Vec::with_capacity(entry.text.len());
                if self.timestamps && !continues {
                    out.extend_from_slice(entry.stamp.as_bytes());
                    out.push(b' ');
                }
                out
            }
        };
        out.extend_from_slice(entry.text);
        if entry.full {
            out.push(b'\n');
        }
        shown.push_back(out);
    }
}

fn joined(lines: VecDeque<Vec<u8>>) -> Vec<u8> {
    lines.into_iter().collect::<Vec<_>>().concat()
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
        let options = LogOptions { tail_lines: Some(1), limit_bytes: Some(25), ..Default::default() };
        let (first, mut reader) = LogReader::open(dir.path(), "u1", "compute", &options).unwrap();
        assert_eq!(first, b"two\n");
        assert_eq!(reader.more().unwrap(), b"");
        out.feed(b"three\n", &mut log, at(1)).unwrap();
        assert_eq!(reader.more().unwrap(), b"three\n");
        log.written = MAX_FILE;
        out.feed(b"four\n", &mut log, at(2)).unwrap();
        out.feed(b"five\n", &mut log, at(3)).unwrap();
        assert!(fs::exists(rotated(&pod.log("compute"))).unwrap());
        assert_eq!(reader.more().unwrap(), b"four\nfive\n");
        assert!(!reader.is_exhausted());
        out.feed(b"sixteen\n", &mut log, at(4)).unwrap();
        assert_eq!(reader.more().unwrap(), b"sixte");
        assert!(reader.is_exhausted());
        fs::remove_dir_all(pod.logs()).unwrap();
        assert_eq!(reader.more().unwrap(), b"");
    }

    #[test]
    fn names_cannot_leave_the_pod_directory() {
        for (uid, container) in [("../x", "c"), ("u", "../../etc/passwd"), ("", "c"), ("u", "..")] {
            let error = read_log(Path::new("/nonexistent"), uid, container, &LogOptions::default()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{uid} {container}");
        }
    }
}
