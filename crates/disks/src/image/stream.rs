//! Both ends of an import: the disk that is written, and the window through which the image is read.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use super::convert::Hasher;
use super::{ImportError, Observer, Source};

/// A stretch of zeros at least this long stays a hole.
const HOLE: usize = 64 << 10;
static ZEROS: [u8; HOLE] = [0; HOLE];
/// Up to here it is cheaper to read on than to ask anew.
const GAP: u64 = 1 << 20;
const READ: usize = 256 << 10;

/// The disk that an image is written to: a file of the disk's size, or a device that has it.
#[derive(Debug)]
pub struct Target {
    file: File,
    path: PathBuf,
    size: u64,
    regular: bool,
}

impl Target {
    /// Opens a device, or a file that is made if need be and gets `size` bytes.
    pub fn open(path: &Path, size: u64) -> Result<Self, ImportError> {
        let wrap = |source| ImportError::Write { path: path.to_owned(), source };
        let regular = fs::metadata(path).map_or(true, |metadata| metadata.is_file());
        let file = File::options().read(true).write(true).create(regular).truncate(false).open(path).map_err(wrap)?;
        let size = match regular {
            true => size,
            false => io::Seek::seek(&mut &file, io::SeekFrom::End(0)).map_err(wrap)?,
        };
        Ok(Self { file, path: path.to_owned(), size, regular })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn handle(&self) -> &File {
        &self.file
    }

    /// Makes everything zero, without writing where the storage can.
    pub fn clear(&self) -> Result<(), ImportError> {
        let cleared = if self.regular {
            self.file.set_len(0).and_then(|()| self.file.set_len(self.size))
        } else {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.file, flags, 0, self.size)
                .map_err(io::Error::from)
                .or_else(|_| self.overwrite())
        };
        cleared.map_err(|source| self.failed(source))
    }

    /// Gives a file that was filled in another way the size it should have.
    pub fn fit(&self) -> Result<(), ImportError> {
        if self.regular {
            self.file.set_len(self.size).map_err(|source| self.failed(source))?;
        }
        Ok(())
    }

    /// Writes what is not zero; the rest is zero already.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ImportError> {
        let mut at = offset;
        for piece in bytes.chunks(HOLE) {
            if piece != &ZEROS[..piece.len()] {
                self.file.write_all_at(piece, at).map_err(|source| self.failed(source))?;
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    pub fn sync(&self) -> Result<(), ImportError> {
        self.file.sync_all().map_err(|source| self.failed(source))
    }

    /// Leaves nothing of a failed import.
    pub fn discard(self, made_here: bool) -> Result<(), ImportError> {
        if self.regular && made_here {
            fs::remove_file(&self.path).map_err(|source| self.failed(source))
        } else {
            self.clear()
        }
    }

    fn overwrite(&self) -> io::Result<()> {
        let mut at = 0;
        while at < self.size {
            let length = usize::try_from(self.size - at).unwrap_or(HOLE).min(HOLE);
            self.file.write_all_at(&ZEROS[..length], at)?;
            at += length as u64;
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> ImportError {
        ImportError::Write { path: self.path.clone(), source }
    }
}

/// Counts what is read of a source, hashes it, and tells the observer.
pub(super) struct Meter<'a> {
    inner: Box<dyn Read + Send + 'a>,
    pub at: u64,
    total: Option<u64>,
    hasher: Option<Hasher>,
    observer: &'a dyn Observer,
}

impl<'a> Meter<'a> {
    pub fn open(
        source: &'a dyn Source,
        from: u64,
        hasher: Option<Hasher>,
        observer: &'a dyn Observer,
    ) -> Result<Self, ImportError> {
        let inner = source.stream(from).map_err(ImportError::Read)?;
        Ok(Self { inner, at: from, total: source.length(), hasher, observer })
    }

    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// Reads what is left and checks length and checksum.
    pub fn finish(mut self) -> Result<(), ImportError> {
        io::copy(&mut self, &mut io::sink()).map_err(|error| self.failure(error))?;
        if let Some(expected) = self.total.filter(|total| *total != self.at) {
            return Err(ImportError::Truncated { found: self.at, expected });
        }
        self.hasher.map_or(Ok(()), Hasher::check)
    }

    /// An end that came too early is told from a source that failed.
    pub fn failure(&self, error: io::Error) -> ImportError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let expected = self.total.filter(|total| *total > self.at).unwrap_or(self.at + 1);
                ImportError::Truncated { found: self.at, expected }
            }
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => ImportError::Damaged(error.to_string()),
            _ => ImportError::Read(error),
        }
    }
}

impl Read for Meter<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.at += read as u64;
        if let (Some(hasher), Some(bytes)) = (&mut self.hasher, buffer.get(..read)) {
            hasher.update(bytes);
        }
        self.observer.progress(self.at, self.total);
        Ok(read)
    }
}

/// Parts of a source in rising order, through as few streams as their places allow.
pub(super) struct Window<'a> {
    source: &'a dyn Source,
    observer: &'a dyn Observer,
    meter: Option<Meter<'a>>,
    /// A checksum is over all bytes in order, so none may be left out.
    hasher: Option<Hasher>,
    whole: bool,
    buffer: Vec<u8>,
    start: u64,
}

impl<'a> Window<'a> {
    pub fn new(source: &'a dyn Source, hasher: Option<Hasher>, observer: &'a dyn Observer) -> Self {
        let whole = hasher.is_some();
        Self { source, observer, meter: None, hasher, whole, buffer: Vec::new(), start: 0 }
    }

    /// `length` bytes from `at`, or what the source has of them.
    pub fn get(&mut self, at: u64, length: usize) -> Result<&[u8], ImportError> {
        let end = self.start + self.buffer.len() as u64;
        let far = at < self.start || at > end + GAP;
        if self.meter.is_none() || (far && !self.whole) {
            let from = if self.whole { 0 } else { at };
            self.meter = Some(Meter::open(self.source, from, self.hasher.take(), self.observer)?);
            self.buffer.clear();
            self.start = from;
        }
        let Some(meter) = &mut self.meter else { return Ok(&[]) };
        if at < self.start {
            // Only a second batch of a hashed image comes here: read it apart, the stream stays where it is.
            self.buffer.resize(length, 0);
            self.start = at;
            self.source.read_at(at, &mut self.buffer).map_err(|error| meter.failure(error))?;
            return Ok(&self.buffer);
        }
        let mut scrap = [0; 4096];
        while self.start < at {
            let behind = usize::try_from(at - self.start).unwrap_or(usize::MAX);
            let drop = behind.min(self.buffer.len());
            self.buffer.drain(..drop);
            self.start += drop as u64;
            if self.start < at && self.buffer.is_empty() {
                let want = usize::try_from(at - self.start).unwrap_or(usize::MAX).min(scrap.len());
                let read = meter.read(&mut scrap[..want]).map_err(|error| meter.failure(error))?;
                if read == 0 {
                    return Ok(&[]);
                }
                self.start += read as u64;
            }
        }
        while self.buffer.len() < length {
            let have = self.buffer.len();
            self.buffer.resize(have + READ, 0);
            let read = meter.read(&mut self.buffer[have..]).map_err(|error| meter.failure(error))?;
            self.buffer.truncate(have + read);
            if read == 0 {
                break;
            }
        }
        Ok(&self.buffer[..length.min(self.buffer.len())])
    }

    pub fn finish(self) -> Result<(), ImportError> {
        match (self.whole, self.meter) {
            (true, Some(meter)) => meter.finish(),
            (true, None) => Meter::open(self.source, 0, self.hasher, self.observer)?.finish(),
            _ => Ok(()),
        }
    }
}
