//! Container logs in the CRI format: `<RFC 3339 time> <stdout|stderr> <F|P> <text>`, one file per container, with one
//! rotated predecessor.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
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
    // Both become path components; an API server passes what a client sent.
    if [pod_uid, container].iter().any(|part| part.is_empty() || part.contains('/') || part.starts_with('.')) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a pod uid or container name"));
    }
    let current = PodDir::new(data_dir, pod_uid).log(container);
    let mut lines: VecDeque<Vec<u8>> = VecDeque::new();
    let mut partial = false;
    for path in [rotated(&current), current.clone()] {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && path != current => continue,
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).split(b'\n') {
            let line = line?;
            let Some(entry) = Entry::parse(&line) else {
                continue;
            };
            if options.since.is_some_and(|since| entry.time < since) {
                continue;
            }
            let continues = std::mem::replace(&mut partial, !entry.full);
            match lines.back_mut().filter(|_| continues) {
                Some(last) => last.extend_from_slice(entry.text),
                None => {
                    let mut out = Vec::with_capacity(entry.text.len());
                    if options.timestamps {
                        out.extend_from_slice(entry.stamp.as_bytes());
                        out.push(b' ');
                    }
                    out.extend_from_slice(entry.text);
                    lines.push_back(out);
                }
            }
            if options.tail_lines.is_some_and(|tail| lines.len() > tail) {
                lines.pop_front();
            }
        }
    }
    let mut out = Vec::new();
    for line in lines {
        out.extend_from_slice(&line);
        out.push(b'\n');
    }
    if let Some(limit) = options.limit_bytes {
        out.truncate(limit);
    }
    Ok(out)
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
    fn names_cannot_leave_the_pod_directory() {
        for (uid, container) in [("../x", "c"), ("u", "../../etc/passwd"), ("", "c"), ("u", "..")] {
            let error = read_log(Path::new("/nonexistent"), uid, container, &LogOptions::default()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{uid} {container}");
        }
    }
}
