//! VMware's format in one file: a directory of tables of grains, compressed in the kind that is made for streaming.

use super::layout::{Coding, Extent, Extents, Layout, le32, le64, table};
use super::{ImportError, Source};

const SECTOR: u64 = 512;
const COMPRESSED: u32 = 1 << 16;
const ZERO_GRAINS: u32 = 1 << 2;
/// The directory is at the end, and a second header before it says where.
const AT_END: u64 = u64::MAX;
const FOOTER: u64 = 1024;
const MAX_DIRECTORY: u64 = 32 << 20;

pub(super) struct Vmdk {
    /// All in bytes.
    size: u64,
    grain: u64,
    per_table: u64,
    compressed: bool,
    zero_grains: bool,
    directory: Vec<u64>,
    next: usize,
}

impl Vmdk {
    pub fn open(source: &dyn Source, head: &[u8]) -> Result<Self, ImportError> {
        if head.starts_with(b"#") {
            return Err(ImportError::BackingFile("the files that a VMDK descriptor names".to_owned()));
        }
        let (descriptor, descriptor_length) = (le64(head, 28), le64(head, 36));
        if descriptor != 0 {
            let text =
                table(source, descriptor.saturating_mul(SECTOR), descriptor_length.saturating_mul(SECTOR), 1 << 20)?;
            let text = String::from_utf8_lossy(&text).to_lowercase();
            let parent = text.lines().find_map(|line| line.trim().strip_prefix("parentcid="));
            if parent.is_some_and(|parent| parent.trim() != "ffffffff") {
                return Err(ImportError::BackingFile("the parent of a delta disk".to_owned()));
            }
        }
        let mut at = le64(head, 56);
        if at == AT_END {
            let length = source.length().ok_or(ImportError::NoScratch("vmdk"))?;
            let footer = table(source, length.saturating_sub(FOOTER), SECTOR, SECTOR)?;
            at = le64(&footer, 56);
        }
        let (flags, per_table) = (le32(head, 8), u64::from(le32(head, 44)));
        let size = le64(head, 12).saturating_mul(SECTOR);
        let grain = le64(head, 20).saturating_mul(SECTOR);
        if per_table == 0 || per_table > 1 << 20 || !(SECTOR..=64 << 20).contains(&grain) || at == 0 {
            return Err(ImportError::Damaged("the sizes in its header".to_owned()));
        }
        let entries = size.div_ceil(grain).div_ceil(per_table);
        let bytes = table(source, at.saturating_mul(SECTOR), entries * 4, MAX_DIRECTORY)?;
        let directory = bytes.chunks_exact(4).map(|entry| u64::from(le32(entry, 0)) * SECTOR).collect();
        let (compressed, zero_grains) = (flags & COMPRESSED != 0, flags & ZERO_GRAINS != 0);
        Ok(Self { size, grain, per_table, compressed, zero_grains, directory, next: 0 })
    }
}

impl Layout for Vmdk {
    fn virtual_size(&self) -> u64 {
        self.size
    }

    fn unit(&self) -> usize {
        usize::try_from(self.grain).unwrap_or(usize::MAX)
    }

    fn next_table(&mut self, source: &dyn Source, extents: &mut Extents) -> Result<bool, ImportError> {
        let Some(offset) = self.directory.get(self.next).copied() else { return Ok(false) };
        let first = self.next as u64 * self.per_table * self.grain;
        self.next += 1;
        if offset == 0 {
            return Ok(true);
        }
        let entries = table(source, offset, self.per_table * 4, 4 << 20)?;
        for (index, entry) in entries.chunks_exact(4).enumerate() {
            let (entry, guest) = (u64::from(le32(entry, 0)), first + index as u64 * self.grain);
            if entry == 0 || (entry == 1 && self.zero_grains) || guest >= self.size {
                continue;
            }
            let source = entry * SECTOR;
            extents.push(match self.compressed {
                true => Extent { source, length: 12, guest, coding: Coding::Grain },
                false => Extent { source, length: self.grain.min(self.size - guest), guest, coding: Coding::Plain },
            });
        }
        Ok(true)
    }
}
