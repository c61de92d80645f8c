//! The end of the log: appending, syncing, repairing after a failed write, and going on in a new file.

use std::io;
use std::sync::Arc;

use crate::files::{Files, LogFile};
use crate::frame::{Encoder, FileKind, header};

/// More relaxed writes than this are synced without waiting for their time.
const MAX_UNSYNCED: usize = 4 << 20;
/// Space that was only reserved is noted by the file system as written with the sync that follows the first write to it, which
/// takes longer, and now and then far longer. Small writes therefore take this much of it into use at once, as zeros.
const ZEROS: u64 = 128 << 10;
/// Larger ones are worth their own note.
const SMALL: usize = 16 << 10;

pub(crate) struct Log {
    files: Arc<dyn Files>,
    file: Box<dyn LogFile>,
    sequence: u64,
    /// The end of the last whole frame.
    len: u64,
    /// The part of it that is known to be on disk.
    synced: u64,
    /// Up to where space is reserved.
    allocated: u64,
    /// Up to where it is in use.
    zeroed: u64,
    preallocate: u64,
    /// The bytes between `synced` and `len`. After a failed sync the kernel may have dropped them: they are written again.
    unsynced: Vec<u8>,
    /// A write or a sync failed: what is in the file after `synced` is not known.
    broken: bool,
    /// Bytes in the files before this one.
    pub older_bytes: u64,
    pub fsyncs: u64,
}

/// Where a log goes on.
pub(crate) struct Tail {
    pub sequence: u64,
    pub len: u64,
    pub older_bytes: u64,
}

impl Log {
    /// Cuts off whatever is behind the tail, and makes sure that all before it is on disk.
    pub(crate) fn open(files: Arc<dyn Files>, tail: &Tail, preallocate: u64) -> io::Result<Self> {
        let mut file = files.open(&segment_name(tail.sequence))?;
        file.set_len(tail.len)?;
        file.sync()?;
        // A process that died in between may have left a rename that is not durable yet; what it replaced is removed next.
        files.sync_dir()?;
        Ok(Self {
            files,
            file,
            sequence: tail.sequence,
            len: tail.len,
            synced: tail.len,
            allocated: tail.len,
            zeroed: tail.len,
            preallocate,
            unsynced: Vec::new(),
            broken: false,
            older_bytes: tail.older_bytes,
            fsyncs: 1,
        })
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn synced(&self) -> u64 {
        self.synced
    }

    pub(crate) fn total(&self) -> u64 {
        self.older_bytes + self.len
    }

    pub(crate) fn is_unsynced(&self) -> bool {
        self.broken || !self.unsynced.is_empty()
    }

    /// Appends whole frames. After an error the log is as it was before.
    pub(crate) fn append(&mut self, frames: &[u8], sync: bool) -> io::Result<()> {
        if self.broken {
            self.repair()?;
        }
        let result = self.append_unguarded(frames, sync || self.unsynced.len() + frames.len() > MAX_UNSYNCED);
        if let Err(error) = result {
            self.broken = true;
            if let Err(error) = self.repair() {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot take back a failed write yet");
            }
            return Err(error);
        }
        Ok(())
    }

    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if self.broken {
            return self.repair();
        }
        if self.unsynced.is_empty() {
            return Ok(());
        }
        self.fsyncs += 1;
        self.file.sync().inspect_err(|_| self.broken = true)?;
        self.synced = self.len;
        self.unsynced.clear();
        Ok(())
    }

    /// Gives back reserved space and leaves nothing unsynced.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.sync()?;
        self.file.set_len(self.len)?;
        (self.allocated, self.zeroed) = (self.len, self.len);
        self.fsyncs += 1;
        self.file.sync()
    }

    /// Goes on in a new file. After an error it goes on in the old one.
    pub(crate) fn rotate(&mut self, high: u64) -> io::Result<()> {
        // In this order: only the last file of a log may have a torn end.
        self.finish()?;
        let (file, len) = create_segment(&*self.files, self.sequence + 1, high)?;
        self.older_bytes += self.len;
        self.file = file;
        self.sequence += 1;
        (self.len, self.synced, self.allocated, self.zeroed) = (len, len, len, len);
        self.fsyncs += 1;
        Ok(())
    }

    fn append_unguarded(&mut self, frames: &[u8], sync: bool) -> io::Result<()> {
        let end = self.len + frames.len() as u64;
        if self.preallocate > 0 && end > self.allocated {
            let wanted = end.next_multiple_of(self.preallocate);
            // Only a saving. Where it is not possible, or only less is left, the write itself will tell.
            match self.file.allocate(self.allocated, wanted) {
                Ok(()) => self.allocated = wanted,
                Err(error) if error.kind() == io::ErrorKind::Unsupported => self.preallocate = 0,
                Err(_) => {}
            }
        }
        let zeros = match frames.len() <= SMALL && end > self.zeroed {
            true => ZEROS.min(self.allocated.saturating_sub(end)),
            false => 0,
        };
        match usize::try_from(zeros) {
            Ok(zeros) if zeros > 0 => {
                let mut padded = Vec::with_capacity(frames.len() + zeros);
                padded.extend_from_slice(frames);
                padded.resize(frames.len() + zeros, 0);
                self.file.write_at(self.len, &padded)?;
            }
            _ => self.file.write_at(self.len, frames)?,
        }
        self.zeroed = self.zeroed.max(end + zeros);
        if sync {
            self.fsyncs += 1;
            self.file.sync()?;
            self.unsynced.clear();
            self.synced = end;
        } else {
            self.unsynced.extend_from_slice(frames);
        }
        self.len = end;
        self.allocated = self.allocated.max(end);
        Ok(())
    }

    fn repair(&mut self) -> io::Result<()> {
        self.file.set_len(self.synced)?;
        (self.allocated, self.zeroed) = (self.synced, self.synced);
        if !self.unsynced.is_empty() {
            self.file.write_at(self.synced, &self.unsynced)?;
        }
        self.fsyncs += 1;
        self.file.sync()?;
        (self.synced, self.allocated, self.zeroed) = (self.len, self.len, self.len);
        self.unsynced.clear();
        self.broken = false;
        Ok(())
    }
}

/// A new segment is complete before it gets its name.
pub(crate) fn create_segment(files: &dyn Files, sequence: u64, high: u64) -> io::Result<(Box<dyn LogFile>, u64)> {
    let name = segment_name(sequence);
    let temporary = temporary_name(&name);
    let mut encoder = Encoder { out: header(FileKind::Segment, sequence) };
    encoder.high(0, high);
    let mut file = files.create(&temporary)?;
    file.write_at(0, &encoder.out)?;
    file.sync()?;
    files.rename(&temporary, &name)?;
    if let Err(error) = files.sync_dir() {
        // The log goes on in the file before, which therefore must stay the last one.
        files.remove(&name)?;
        return Err(error);
    }
    Ok((file, encoder.out.len() as u64))
}

pub(crate) fn segment_name(sequence: u64) -> String {
    format!("log-{sequence:016}")
}

pub(crate) fn snapshot_name(sequence: u64) -> String {
    format!("snapshot-{sequence:016}")
}

pub(crate) fn temporary_name(name: &str) -> String {
    format!("{name}.tmp")
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Segment(u64),
    Snapshot(u64),
    Temporary,
    Other,
}

pub(crate) fn parse_name(name: &str) -> Name {
    let number = |digits: &str| (digits.len() == 16).then(|| digits.parse().ok()).flatten();
    if name.ends_with(".tmp") {
        Name::Temporary
    } else if let Some(sequence) = name.strip_prefix("log-").and_then(number) {
        Name::Segment(sequence)
    } else if let Some(sequence) = name.strip_prefix("snapshot-").and_then(number) {
        Name::Snapshot(sequence)
    } else {
        Name::Other
    }
}
