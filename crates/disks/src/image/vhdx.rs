//! Hyper-V's format: regions, of which one holds metadata and one the table of blocks.

use super::layout::{Coding, Extent, Extents, Layout, le32, le64, table};
use super::{ImportError, Source};

const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
const REGIONS: u64 = 192 << 10;
const REGION_TABLE: u64 = 64 << 10;
const BATCH: u64 = 64 * 1024;
const FULLY_PRESENT: u64 = 6;
const PARTIALLY_PRESENT: u64 = 7;
const PLACE: u64 = !0xf_ffff;

/// Names as the file has them: the first three parts of a GUID are little endian.
const BAT: [u8; 16] = guid(0x2dc2_7766, 0xf623, 0x4200, [0x9d, 0x64, 0x11, 0x5e, 0x9b, 0xfd, 0x4a, 0x08]);
const METADATA: [u8; 16] = guid(0x8b7c_a206, 0x4790, 0x4b9a, [0xb8, 0xfe, 0x57, 0x5f, 0x05, 0x0f, 0x88, 0x6e]);
const PARAMETERS: [u8; 16] = guid(0xcaa1_6737, 0xfa36, 0x4d43, [0xb3, 0xb6, 0x33, 0xf0, 0xaa, 0x44, 0xe7, 0x6b]);
const DISK_SIZE: [u8; 16] = guid(0x2fa5_4224, 0xcd1b, 0x4876, [0xb2, 0x11, 0x5d, 0xbe, 0xd8, 0x3b, 0xf4, 0xb8]);
const SECTOR_SIZE: [u8; 16] = guid(0x8141_bf1d, 0xa96f, 0x4709, [0xba, 0x47, 0xf2, 0x33, 0xa8, 0xfa, 0xab, 0x5f]);

pub(super) struct Vhdx {
    size: u64,
    block: u64,
    table: u64,
    /// After so many blocks the table has an entry for something else.
    ratio: u64,
    next: u64,
}

impl Vhdx {
    pub fn open(source: &dyn Source) -> Result<Self, ImportError> {
        let damaged = |what: &str| ImportError::Damaged(what.to_owned());
        let mut newest: Option<(u64, bool)> = None;
        for offset in HEADERS {
            let header = table(source, offset, 4096, 4096)?;
            if header.starts_with(b"head") {
                let logged = header.get(48..64).is_some_and(|guid| guid.iter().any(|byte| *byte != 0));
                newest = newest.max(Some((le64(&header, 8), logged)));
            }
        }
        let (_, logged) = newest.ok_or_else(|| damaged("it has no header"))?;
        if logged {
            return Err(ImportError::Unsupported("the replay of its log (it was not closed in order)".to_owned()));
        }
        let regions = table(source, REGIONS, REGION_TABLE, REGION_TABLE)?;
        let region = |name: &[u8]| find(&regions, 16, le32(&regions, 8), name).map(|at| le64(&regions, at + 16));
        let bat = region(&BAT).ok_or_else(|| damaged("it has no block table"))?;
        let metadata_at = region(&METADATA).ok_or_else(|| damaged("it has no metadata"))?;
        let metadata = table(source, metadata_at, REGION_TABLE, REGION_TABLE)?;
        let count = u32::from(u16::try_from(le32(&metadata, 8) >> 16).unwrap_or_default());
        let item = |name: &[u8], length: u64| {
            let at = find(&metadata, 32, count, name).ok_or_else(|| damaged("its metadata is not complete"))?;
            table(source, metadata_at + u64::from(le32(&metadata, at + 16)), length, 16)
        };
        let parameters = item(&PARAMETERS, 8)?;
        if le32(&parameters, 4) & 2 != 0 {
            return Err(ImportError::BackingFile("the parent of a differencing image".to_owned()));
        }
        let block = u64::from(le32(&parameters, 0));
        let sector = u64::from(le32(&item(&SECTOR_SIZE, 4)?, 0));
        if !block.is_power_of_two() || !(1 << 20..=256 << 20).contains(&block) || !matches!(sector, 512 | 4096) {
            return Err(damaged("the sizes in its metadata"));
        }
        let size = le64(&item(&DISK_SIZE, 8)?, 0);
        Ok(Self { size, block, table: bat, ratio: (sector << 23) / block, next: 0 })
    }
}

impl Layout for Vhdx {
    fn virtual_size(&self) -> u64 {
        self.size
    }

    fn unit(&self) -> usize {
        usize::try_from(self.block).unwrap_or(usize::MAX)
    }

    fn next_table(&mut self, source: &dyn Source, extents: &mut Extents) -> Result<bool, ImportError> {
        let blocks = self.size.div_ceil(self.block);
        // A stretch between two foreign entries, or a part of one.
        let until = ((self.next / self.ratio + 1) * self.ratio).min(self.next + BATCH).min(blocks);
        if until <= self.next {
            return Ok(false);
        }
        let first = self.next + self.next / self.ratio;
        let entries = table(source, self.table + first * 8, (until - self.next) * 8, BATCH * 8)?;
        for (index, entry) in entries.chunks_exact(8).enumerate() {
            let (entry, guest) = (le64(entry, 0), (self.next + index as u64) * self.block);
            match entry & 7 {
                FULLY_PRESENT => {
                    let length = self.block.min(self.size - guest);
                    extents.push(Extent { source: entry & PLACE, length, guest, coding: Coding::Plain });
                }
                PARTIALLY_PRESENT => {
                    return Err(ImportError::BackingFile("the parent of a differencing image".to_owned()));
                }
                _ => {}
            }
        }
        self.next = until;
        Ok(true)
    }
}

/// Position of the entry with this name in a table of entries of 32 bytes.
fn find(table: &[u8], first: usize, count: u32, name: &[u8]) -> Option<usize> {
    (0..usize::try_from(count).ok()?.min(2047))
        .map(|index| first + index * 32)
        .find(|at| table.get(*at..at + 16) == Some(name))
}

const fn guid(a: u32, b: u16, c: u16, d: [u8; 8]) -> [u8; 16] {
    let (a, b, c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}
