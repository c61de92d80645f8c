//! Disk images of foreign origin, turned into raw disks in one pass.
//!
//! ```text
//! Source ── detect ──┬── raw, or raw inside gz, xz, zstd ───────── stream ──┐
//!                    ├── qcow2, vmdk, vdi, vhdx ── layout ── extents ── map ┼── Target
//!                    └── a mapped format inside a stream ── scratch file ───┘
//! ```
//!
//! A mapped format says where in the image each part of the disk lies. Its tables are read first, a few kilobytes at a time; then the
//! image is read once from front to back and every part is written where it belongs. Nothing is kept but a window of the stream.
//!
//! What an image says is not believed: sizes are checked before the first byte is written, tables must lie inside the image, a part
//! never lands outside the disk, and a file that an image names is never opened.

mod convert;
mod detect;
pub mod header;
mod layout;
mod qcow2;
mod stream;
mod vdi;
mod vhdx;
mod vmdk;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use convert::{Checksum, Options, import};
pub use detect::{Compression, Format};
pub use stream::Target;

/// Where an image comes from.
pub trait Source: Send + Sync {
    /// Bytes in all, if that is known.
    fn length(&self) -> Option<u64>;
    /// Whether any part can be read at any time.
    fn seekable(&self) -> bool;
    /// Fills the buffer from an offset; fails with `UnexpectedEof` beyond the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Reads on from an offset to the end. A source that is not seekable has one stream, from 0.
    fn stream(&self, from: u64) -> io::Result<Box<dyn Read + Send + '_>>;
}

/// Is told how far an import is.
pub trait Observer: Send + Sync {
    /// Bytes of the source, and how many of them are done.
    fn progress(&self, done: u64, total: Option<u64>);
    /// All that the source holds before this offset is in the target.
    fn checkpoint(&self, _offset: u64) {}
}

/// What makes an import fail for good. A source that breaks off for the moment is an error of its stream.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("the image is a disk of {image} bytes and the target has {disk}; ask for a larger disk")]
    TooLarge { image: u64, disk: u64 },
    #[error("the content goes on after the {disk} bytes that the target has; ask for a larger disk")]
    Overflow { disk: u64 },
    #[error("the image ended after {found} of {expected} bytes")]
    Truncated { found: u64, expected: u64 },
    #[error("the source announced {announced} bytes and does not have the last of them")]
    Short { announced: u64 },
    #[error("the content is {0}")]
    Foreign(&'static str),
    #[error(
        "the image builds on another file ({0:?}), which is not part of it; flatten it first, such as with qemu-img convert"
    )]
    BackingFile(String),
    #[error("the image needs {0}, which is not supported")]
    Unsupported(String),
    #[error("the image is damaged: {0}")]
    Damaged(String),
    #[error("the image has the {kind} checksum {found}, not {expected}")]
    Checksum { kind: &'static str, found: String, expected: String },
    #[error("{0:?} is not a checksum such as sha256:<hex>; sha256 and sha512 are known")]
    BadChecksum(String),
    #[error("a {0} image in a stream needs room to be put down first, and there is none")]
    NoScratch(&'static str),
    #[error("cannot read the image")]
    Read(#[source] io::Error),
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl ImportError {
    /// One word, for conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } | Self::Overflow { .. } => "ImageTooLarge",
            Self::Truncated { .. } | Self::Short { .. } => "ImageTruncated",
            Self::BackingFile(_) => "BackingFile",
            Self::Unsupported(_) | Self::Foreign(_) | Self::NoScratch(_) => "UnsupportedImage",
            Self::Damaged(_) => "ImageDamaged",
            Self::Checksum { .. } | Self::BadChecksum(_) => "ChecksumMismatch",
            Self::Read(_) => "ReadFailed",
            Self::Write { .. } => "WriteFailed",
        }
    }

    /// Whether another attempt could end otherwise.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Read(_))
    }
}

/// An image in a file.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    length: u64,
}

impl FileSource {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        // A block device says 0; its end says how long it is.
        let length = match metadata.is_file() {
            true => metadata.len(),
            false => io::Seek::seek(&mut &file, io::SeekFrom::End(0))?,
        };
        Ok(Self { file, length })
    }
}

impl Source for FileSource {
    fn length(&self) -> Option<u64> {
        Some(self.length)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn stream(&self, from: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        Ok(Box::new(FileStream { file: &self.file, at: from }))
    }
}

struct FileStream<'a> {
    file: &'a File,
    at: u64,
}

impl Read for FileStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
