//! Reading a store directory: which files count, what they hold, where the log ends, and whether it is whole.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::files::Files;
use crate::frame::{self, Body, FORMAT, FileKind, HEADER, HeaderError, Op, OpKind};
use crate::log::{Name, Tail, parse_name, segment_name, snapshot_name};
use crate::model::Key;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} is in use by another process", .dir.display())]
    Locked { dir: PathBuf },
    #[error("{}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} was written by a newer version (format {found}; this version knows formats up to {supported})", .path.display())]
    NewerFormat { path: PathBuf, found: u32, supported: u32 },
    #[error("{} is not a file of a store, or its header is damaged", .path.display())]
    Foreign { path: PathBuf },
    #[error("{} is damaged at byte {offset}: {why}; restore a backup", .path.display())]
    Damaged { path: PathBuf, offset: u64, why: &'static str },
    #[error("{} is missing; restore a backup", .path.display())]
    Missing { path: PathBuf },
    #[error("cannot read {resource} {key}")]
    Object { resource: String, key: Key, source: Box<dyn std::error::Error + Send + Sync> },
}

/// An object as the log has it.
pub(crate) struct Raw {
    pub revision: u64,
    pub created: u64,
    /// A slice of the file's content: to be copied before the file's memory is to be freed.
    pub bytes: Bytes,
    /// What it takes in a log.
    pub size: u64,
}

#[derive(Default)]
pub(crate) struct Recovered {
    pub objects: HashMap<Arc<str>, BTreeMap<Key, Raw>>,
    /// No revision above this one was ever handed out.
    pub high: u64,
    /// The newest revision found.
    pub newest: u64,
    /// `None`: the directory is new.
    pub tail: Option<Tail>,
    pub torn_bytes: u64,
    /// Left over by an interrupted compaction or creation.
    pub stale: Vec<String>,
    pub frames: u64,
}

/// Reads everything, changes nothing.
pub(crate) fn scan(files: &dyn Files) -> Result<Recovered, OpenError> {
    let at = |name: &str| files.path(name);
    let mut recovered = Recovered::default();
    let mut segments = Vec::new();
    let mut snapshots = Vec::new();
    for name in files.names().map_err(|source| OpenError::Io { path: at(""), source })? {
        match parse_name(&name) {
            Name::Segment(sequence) => segments.push(sequence),
            Name::Snapshot(sequence) => snapshots.push(sequence),
            Name::Temporary => recovered.stale.push(name),
            Name::Other => {}
        }
    }
    segments.sort_unstable();
    let snapshot = snapshots.iter().copied().max();
    let first = snapshot.unwrap_or(1);
    recovered
        .stale
        .extend(snapshots.iter().filter(|&&sequence| sequence < first).map(|&sequence| snapshot_name(sequence)));
    recovered
        .stale
        .extend(segments.iter().filter(|&&sequence| sequence < first).map(|&sequence| segment_name(sequence)));
    segments.retain(|&sequence| sequence >= first);
    if segments.is_empty() && snapshot.is_none() {
        return Ok(recovered);
    }
    let gap = segments.iter().zip(first..).find(|&(&found, wanted)| found != wanted).map(|(_, wanted)| wanted);
    if let Some(missing) = gap.or(segments.is_empty().then_some(first)) {
        return Err(OpenError::Missing { path: at(&segment_name(missing)) });
    }

    let mut older_bytes = 0;
    if let Some(sequence) = snapshot {
        let (file, content) = Content::read(files, snapshot_name(sequence), FileKind::Snapshot, sequence)?;
        recovered.read_snapshot(&file, &content)?;
        older_bytes += content.len() as u64;
    }
    let last = segments.last().copied().unwrap_or(first);
    for sequence in segments {
        let (file, content) = Content::read(files, segment_name(sequence), FileKind::Segment, sequence)?;
        let len = recovered.read_segment(&file, &content, sequence == last)?;
        if sequence == last {
            recovered.tail = Some(Tail { sequence, len, older_bytes });
        }
        older_bytes += content.len() as u64;
    }
    Ok(recovered)
}

/// A file by its path, for messages.
struct Content(PathBuf);

impl Content {
    fn read(files: &dyn Files, name: String, kind: FileKind, sequence: u64) -> Result<(Self, Bytes), OpenError> {
        let path = files.path(&name);
        let content = files.read(&name).map_err(|source| OpenError::Io { path: path.clone(), source })?;
        match frame::check_header(&content, kind, sequence) {
            Ok(()) => Ok((Self(path), content.into())),
            Err(HeaderError::Foreign) => Err(OpenError::Foreign { path }),
            Err(HeaderError::Newer(found)) => Err(OpenError::NewerFormat { path, found, supported: FORMAT }),
        }
    }

    fn damaged(&self, offset: usize, why: &'static str) -> OpenError {
        OpenError::Damaged { path: self.0.clone(), offset: offset as u64, why }
    }
}

impl Recovered {
    fn read_snapshot(&mut self, file: &Content, content: &Bytes) -> Result<(), OpenError> {
        let mut at = HEADER;
        let mut count = 0;
        loop {
            let frame = frame::decode(content, at).ok_or_else(|| file.damaged(at, "the record is not whole"))?;
            at = frame.range.end;
            self.frames += 1;
            match frame.body {
                Body::Commit(ops) => {
                    count += ops.len() as u64;
                    ops.iter().for_each(|op| self.apply(op, content));
                }
                Body::High(high) => self.high = self.high.max(high),
                Body::End(end) if end == count && at == content.len() => return Ok(()),
                Body::End(_) => return Err(file.damaged(at, "the snapshot is not complete")),
            }
        }
    }

    /// Returns where the whole frames end.
    fn read_segment(&mut self, file: &Content, content: &Bytes, last: bool) -> Result<u64, OpenError> {
        let mut at = HEADER;
        // Within the log revisions only grow. (A snapshot is sorted by key.)
        while let Some(frame) = frame::decode(content, at) {
            self.frames += 1;
            match frame.body {
                Body::Commit(ops) => {
                    for op in &ops {
                        if op.revision <= self.newest {
                            return Err(file.damaged(at, "the revision is older than the one before"));
                        }
                        self.apply(op, content);
                    }
                }
                // The last one counts: a clean end takes back what was reserved and not used.
                Body::High(high) => self.high = high.max(self.newest),
                Body::End(_) => return Err(file.damaged(at, "a snapshot's record in a log")),
            }
            at = frame.range.end;
        }
        let rest = &content[at..];
        let torn = rest.iter().rposition(|&byte| byte != 0).map_or(0, |position| position + 1);
        if torn > 0 {
            if !last {
                return Err(file.damaged(at, "the record is not whole, and later files exist"));
            }
            // Frames of one unsynced batch may reach the disk in any order: only a frame that was written when this
            // place was known to be on disk proves that something that was whole is damaged now.
            let mut from = at;
            while let Some(later) = frame::find(content, from) {
                if later.synced > at as u64 {
                    return Err(file.damaged(at, "the record is not whole, and later ones are"));
                }
                from = later.range.end;
            }
            self.torn_bytes = torn as u64;
        }
        Ok(at as u64)
    }

    fn apply(&mut self, op: &Op<'_>, content: &Bytes) {
        self.newest = self.newest.max(op.revision);
        self.high = self.high.max(op.revision);
        let key = Key::new(op.namespace, op.name);
        match op.kind {
            OpKind::Put => {
                let raw = Raw {
                    revision: op.revision,
                    created: op.created,
                    bytes: content.slice_ref(op.value),
                    size: op.size(),
                };
                match self.objects.get_mut(op.resource) {
                    Some(objects) => objects.insert(key, raw),
                    None => self.objects.entry(op.resource.into()).or_default().insert(key, raw),
                };
            }
            OpKind::Delete => {
                if let Some(objects) = self.objects.get_mut(op.resource) {
                    objects.remove(&key);
                }
            }
        }
    }
}
