//! What the mapped formats have in common: a disk in parts, each of which lies somewhere in the image.

use super::{ImportError, Source};

/// A part of the disk and where it is in the image. `length` counts bytes of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub source: u64,
    pub length: u64,
    pub guest: u64,
    pub coding: Coding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Plain,
    /// Bare deflate.
    Deflate,
    Zstd,
    /// A grain marker of 12 bytes, which says the length, and then zlib.
    Grain,
}

/// An image's tables. Whoever implements it keeps only the table at hand.
pub(super) trait Layout {
    fn virtual_size(&self) -> u64;
    /// How many bytes of the disk one coded extent fills.
    fn unit(&self) -> usize;
    /// Appends the extents of the next table; false when there is none left.
    fn next_table(&mut self, source: &dyn Source, extents: &mut Extents) -> Result<bool, ImportError>;
}

/// Extents in the order of their tables. Neighbours on both sides become one.
#[derive(Debug, Default)]
pub(super) struct Extents {
    pub list: Vec<Extent>,
}

impl Extents {
    pub fn push(&mut self, extent: Extent) {
        if extent.coding == Coding::Plain
            && let Some(last) = self.list.last_mut()
            && last.coding == Coding::Plain
            && last.source + last.length == extent.source
            && last.guest + last.length == extent.guest
        {
            last.length += extent.length;
            return;
        }
        self.list.push(extent);
    }
}

/// Reads a table of at most `limit` bytes.
pub(super) fn table(source: &dyn Source, offset: u64, length: u64, limit: u64) -> Result<Vec<u8>, ImportError> {
    if length > limit {
        return Err(ImportError::Damaged(format!("a table of {length} bytes at {offset}")));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    match source.read_at(offset, &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            let found = source.length().unwrap_or(offset);
            Err(ImportError::Truncated { found, expected: offset.saturating_add(length) })
        }
        Err(error) => Err(ImportError::Read(error)),
    }
}

/// Numbers out of a table; what lies beyond its end reads as 0, which no format takes for a place.
pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    field(bytes, at).map_or(0, u32::from_le_bytes)
}

pub(super) fn le64(bytes: &[u8], at: usize) -> u64 {
    field(bytes, at).map_or(0, u64::from_le_bytes)
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    field(bytes, at).map_or(0, u32::from_be_bytes)
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    field(bytes, at).map_or(0, u64::from_be_bytes)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}
