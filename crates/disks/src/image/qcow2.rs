//! qcow2, versions 2 and 3: a table of tables of clusters, some of them compressed.

use super::layout::{Coding, Extent, Extents, Layout, be32, be64, table};
use super::{ImportError, Source};

const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
const MAX_L1_BYTES: u64 = 32 << 20;
/// Bits of `incompatible_features` that change how an image is read.
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA: u64 = 1 << 2;
const EXTENDED_L2: u64 = 1 << 4;
const KNOWN: u64 = 0b1_1111;

pub(super) struct Qcow2 {
    size: u64,
    cluster_bits: u32,
    zstd: bool,
    /// Offsets of second-level tables, in the order of the disk.
    l1: Vec<u64>,
    next: usize,
}

impl Qcow2 {
    pub fn open(source: &dyn Source, head: &[u8]) -> Result<Self, ImportError> {
        let damaged = |what: &str| Err(ImportError::Damaged(what.to_owned()));
        let version = be32(head, 4);
        if !(2..=3).contains(&version) {
            return Err(ImportError::Unsupported(format!("qcow2 version {version}")));
        }
        let (backing, backing_length) = (be64(head, 8), be32(head, 16));
        if backing != 0 {
            let name = table(source, backing, u64::from(backing_length), 4096)?;
            return Err(ImportError::BackingFile(String::from_utf8_lossy(&name).into_owned()));
        }
        if be32(head, 32) != 0 {
            return Err(ImportError::Unsupported("a key (it is encrypted)".to_owned()));
        }
        let features = if version >= 3 { be64(head, 72) } else { 0 };
        if features & CORRUPT != 0 {
            return damaged("it is marked as corrupt");
        }
        if features & EXTERNAL_DATA != 0 {
            return Err(ImportError::BackingFile("external data file".to_owned()));
        }
        if features & EXTENDED_L2 != 0 {
            return Err(ImportError::Unsupported("qcow2 subclusters".to_owned()));
        }
        if features & !KNOWN != 0 {
            return Err(ImportError::Unsupported(format!("qcow2 features {features:#x}")));
        }
        let header_length = if version >= 3 { be32(head, 100) } else { 72 };
        let zstd = header_length > 104 && head.get(104) == Some(&1);
        let cluster_bits = be32(head, 20);
        if !(9..=21).contains(&cluster_bits) {
            return damaged("its cluster size");
        }
        let (size, entries, offset) = (be64(head, 24), u64::from(be32(head, 36)), be64(head, 40));
        let per_table = 1_u64 << (2 * cluster_bits - 3);
        if size.div_ceil(per_table) > entries {
            return damaged("its first table is too short for its size");
        }
        let bytes = table(source, offset, entries * 8, MAX_L1_BYTES)?;
        let needed = usize::try_from(size.div_ceil(per_table)).unwrap_or_default();
        let l1 = bytes.chunks_exact(8).take(needed).map(|entry| be64(entry, 0) & OFFSET).collect();
        Ok(Self { size, cluster_bits, zstd, l1, next: 0 })
    }

    fn extent(&self, entry: u64, guest: u64) -> Option<Extent> {
        let cluster = 1_u64 << self.cluster_bits;
        if entry & COMPRESSED != 0 {
            // The upper part counts further sectors, the lower part is the place.
            let shift = 62 - (self.cluster_bits - 8);
            let source = entry & ((1 << shift) - 1);
            let sectors = ((entry & !(3 << 62)) >> shift) + 1;
            let length = sectors * 512 - source % 512;
            let coding = if self.zstd { Coding::Zstd } else { Coding::Deflate };
            return Some(Extent { source, length, guest, coding });
        }
        let source = entry & OFFSET;
        if source == 0 || entry & ZERO != 0 {
            return None;
        }
        Some(Extent { source, length: cluster.min(self.size - guest), guest, coding: Coding::Plain })
    }
}

impl Layout for Qcow2 {
    fn virtual_size(&self) -> u64 {
        self.size
    }

    fn unit(&self) -> usize {
        1 << self.cluster_bits
    }

    fn next_table(&mut self, source: &dyn Source, extents: &mut Extents) -> Result<bool, ImportError> {
        let Some(offset) = self.l1.get(self.next).copied() else { return Ok(false) };
        let cluster = 1_u64 << self.cluster_bits;
        let first = self.next as u64 * (cluster / 8) * cluster;
        self.next += 1;
        if offset != 0 {
            let entries = table(source, offset, cluster, cluster)?;
            for (index, entry) in entries.chunks_exact(8).enumerate() {
                let guest = first + index as u64 * cluster;
                if guest >= self.size {
                    break;
                }
                if let Some(extent) = self.extent(be64(entry, 0), guest) {
                    extents.push(extent);
                }
            }
        }
        Ok(true)
    }
}
