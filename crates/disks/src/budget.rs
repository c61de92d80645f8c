//! What an image may cost. A few kilobytes can unpack to anything, so somebody has to say where it ends.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Room that is left to others is measured anew after this many bytes.
const MEASURE_EVERY: u64 = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Bytes of all layers as they come from a registry.
    pub packed: u64,
    /// Bytes of all layers unpacked. Holes count: somebody has to read them.
    pub bytes: u64,
    /// Files, directories and links, and what takes them away again.
    pub entries: u64,
    pub layers: usize,
    /// Characters of a path.
    pub path: usize,
    /// Directories in each other.
    pub depth: usize,
    /// Seconds for all of it.
    pub seconds: u64,
    /// Bytes of the file system that stay free.
    pub reserve: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            packed: 64 << 30,
            bytes: 256 << 30,
            entries: 1_000_000,
            layers: 128,
            path: 4095,
            depth: 100,
            seconds: 3600,
            reserve: 1 << 30,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverBudget {
    #[error("the image is larger than the {0} bytes that one may have")]
    Bytes(u64),
    #[error("the image has more than the {0} files that one may have")]
    Entries(u64),
    #[error("the image has more than the {0} layers that one may have")]
    Layers(usize),
    #[error("the image has a path of more than {0} characters")]
    Path(usize),
    #[error("the image has more than {0} directories in each other")]
    Depth(usize),
    #[error("less than {0} bytes are free where images are kept; remove some with: ferrovirt image remove")]
    Space(u64),
}

impl From<OverBudget> for io::Error {
    fn from(over: OverBudget) -> Self {
        io::Error::new(io::ErrorKind::QuotaExceeded, over)
    }
}

/// What one image has cost so far.
#[derive(Debug)]
pub(crate) struct Spent {
    budget: Budget,
    read: Cell<u64>,
    written: Cell<u64>,
    measured: Cell<u64>,
    entries: Cell<u64>,
}

impl Spent {
    pub(crate) fn new(budget: Budget) -> Self {
        Self { budget, read: Cell::new(0), written: Cell::new(0), measured: Cell::new(0), entries: Cell::new(0) }
    }

    pub(crate) fn layers(&self, count: usize) -> Result<(), OverBudget> {
        if count > self.budget.layers { Err(OverBudget::Layers(self.budget.layers)) } else { Ok(()) }
    }

    pub(crate) fn entry(&self, path: &Path) -> Result<(), OverBudget> {
        self.entries.set(self.entries.get() + 1);
        if self.entries.get() > self.budget.entries {
            return Err(OverBudget::Entries(self.budget.entries));
        }
        if path.as_os_str().len() > self.budget.path {
            return Err(OverBudget::Path(self.budget.path));
        }
        self.depth(path)
    }

    /// Links may lead an entry deeper than its own path is.
    pub(crate) fn depth(&self, path: &Path) -> Result<(), OverBudget> {
        if path.components().count() > self.budget.depth { Err(OverBudget::Depth(self.budget.depth)) } else { Ok(()) }
    }

    /// Before this many bytes are written to a file of the image.
    pub(crate) fn write(&self, bytes: u64, to: &File) -> io::Result<()> {
        let written = self.written.get().saturating_add(bytes);
        self.written.set(written);
        if written > self.budget.bytes {
            return Err(OverBudget::Bytes(self.budget.bytes).into());
        }
        if written - self.measured.get() >= MEASURE_EVERY {
            self.measured.set(written);
            leave_room(to, self.budget.reserve)?;
        }
        Ok(())
    }

    /// Counts what is read of the unpacked stream, be it files or not.
    pub(crate) fn counting<R: Read>(&self, stream: R) -> Counting<'_, R> {
        Counting { spent: self, stream }
    }
}

/// Fails if the file system of a file has less than `reserve` free.
pub fn leave_room(on: &File, reserve: u64) -> io::Result<()> {
    let stat = rustix::fs::fstatvfs(on)?;
    match stat.f_bavail.saturating_mul(stat.f_frsize) < reserve {
        true => Err(OverBudget::Space(reserve).into()),
        false => Ok(()),
    }
}

pub(crate) struct Counting<'a, R> {
    spent: &'a Spent,
    stream: R,
}

impl<R: Read> Read for Counting<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        let read = self.spent.read.get().saturating_add(count as u64);
        self.spent.read.set(read);
        // The end of an archive, and headers: a part more than its files.
        if read > self.spent.budget.bytes.saturating_add(self.spent.budget.entries.saturating_mul(2048)) {
            return Err(OverBudget::Bytes(self.spent.budget.bytes).into());
        }
        Ok(count)
    }
}
