//! VirtualBox's format: one table of equal blocks.

use super::layout::{Coding, Extent, Extents, Layout, le32, le64, table};
use super::{ImportError, Source};

const UNALLOCATED: u32 = 0xffff_fffe;
/// Entries of the table that are read at a time.
const BATCH: u64 = 64 * 1024;
/// An image that builds on another.
const DIFFERENCING: u32 = 4;

pub(super) struct Vdi {
    size: u64,
    block: u64,
    map: u64,
    data: u64,
    blocks: u64,
    next: u64,
}

impl Vdi {
    pub fn open(head: &[u8]) -> Result<Self, ImportError> {
        if le32(head, 0x4c) == DIFFERENCING {
            return Err(ImportError::BackingFile("the parent of a differencing image".to_owned()));
        }
        let this = Self {
            map: u64::from(le32(head, 0x154)),
            data: u64::from(le32(head, 0x158)),
            size: le64(head, 0x170),
            block: u64::from(le32(head, 0x178)),
            blocks: u64::from(le32(head, 0x180)),
            next: 0,
        };
        if this.block == 0 || !this.block.is_multiple_of(512) || this.blocks < this.size.div_ceil(this.block) {
            return Err(ImportError::Damaged("the sizes in its header".to_owned()));
        }
        Ok(this)
    }
}

impl Layout for Vdi {
    fn virtual_size(&self) -> u64 {
        self.size
    }

    fn unit(&self) -> usize {
        usize::try_from(self.block).unwrap_or(usize::MAX)
    }

    fn next_table(&mut self, source: &dyn Source, extents: &mut Extents) -> Result<bool, ImportError> {
        let count = BATCH.min(self.size.div_ceil(self.block) - self.next);
        if count == 0 {
            return Ok(false);
        }
        let entries = table(source, self.map + self.next * 4, count * 4, BATCH * 4)?;
        for (index, entry) in entries.chunks_exact(4).enumerate() {
            let (entry, guest) = (le32(entry, 0), (self.next + index as u64) * self.block);
            if entry < UNALLOCATED {
                let length = self.block.min(self.size - guest);
                let source = self.data + u64::from(entry) * self.block;
                extents.push(Extent { source, length, guest, coding: Coding::Plain });
            }
        }
        self.next += count;
        Ok(true)
    }
}
