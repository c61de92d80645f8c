//! Snapshots: the live objects of a log, rewritten without the dead ones.
//!
//! `snapshot-N` is the state that the segments before `log-N` add up to, and replaces them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::files::Files;
use crate::frame::{Encoder, FileKind, Op, OpKind, header};
use crate::log::{Name, parse_name, snapshot_name, temporary_name};
use crate::model::Entry;

/// Objects are gathered into frames of about this size.
const CHUNK: u64 = 1 << 20;

/// All objects by resource.
pub(crate) type Everything<M> = Vec<(Arc<str>, Vec<Arc<Entry<M>>>)>;

/// Writes the snapshot and removes what it replaces. Returns its length.
pub(crate) fn compact<M>(
    files: &dyn Files,
    sequence: u64,
    everything: &Everything<M>,
    cancel: &AtomicBool,
) -> io::Result<u64> {
    let written = write_snapshot(files, sequence, everything, cancel);
    if written.is_err() {
        // The space is needed more elsewhere; the file may also not exist yet.
        let _ = files.remove(&temporary_name(&snapshot_name(sequence)));
    }
    let len = written?;
    remove_older(files, sequence)?;
    Ok(len)
}

pub(crate) fn write_snapshot<M>(
    files: &dyn Files,
    sequence: u64,
    everything: &Everything<M>,
    cancel: &AtomicBool,
) -> io::Result<u64> {
    let name = snapshot_name(sequence);
    let temporary = temporary_name(&name);
    let mut file = files.create(&temporary)?;
    let mut encoder = Encoder { out: header(FileKind::Snapshot, sequence) };
    let mut offset = 0;
    let mut count = 0;
    let mut chunk = Vec::new();
    let mut chunk_bytes = 0;
    for (resource, entries) in everything {
        for entry in entries {
            let op = put(resource, entry);
            chunk_bytes += op.size();
            chunk.push(op);
            count += 1;
            if chunk_bytes >= CHUNK {
                if cancel.load(Relaxed) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                encoder.commit(0, chunk.drain(..));
                chunk_bytes = 0;
                file.write_at(offset, &encoder.out)?;
                offset += encoder.out.len() as u64;
                encoder.out.clear();
            }
        }
    }
    encoder.commit(0, chunk.drain(..));
    encoder.end(0, count);
    file.write_at(offset, &encoder.out)?;
    file.sync()?;
    files.rename(&temporary, &name)?;
    files.sync_dir()?;
    Ok(offset + encoder.out.len() as u64)
}

pub(crate) fn put<'a, M>(resource: &'a str, entry: &'a Entry<M>) -> Op<'a> {
    Op {
        kind: OpKind::Put,
        revision: entry.revision,
        created: entry.created,
        resource,
        namespace: &entry.key.namespace,
        name: &entry.key.name,
        value: &entry.bytes,
    }
}

/// Removes the files that the snapshot of this sequence replaces.
///
/// Segments go from the oldest on, after the older snapshots: whatever is left by a crash in between is recognized
/// as replaced, since the newest snapshot is already durable.
fn remove_older(files: &dyn Files, sequence: u64) -> io::Result<()> {
    let mut old: Vec<String> = files.names()?;
    old.retain(|name| matches!(parse_name(name), Name::Segment(n) | Name::Snapshot(n) if n < sequence));
    old.sort();
    for name in &old {
        files.remove(name)?;
    }
    files.sync_dir()
}
