//! Backup, restore and check of a store. A backup is itself a store directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::oneshot;

use crate::compact::{Everything, write_snapshot};
use crate::files::{DirFiles, Files};
use crate::log::{Name, create_segment, parse_name};
use crate::model::{Entry, Key, Meta};
use crate::recover::{OpenError, Raw, scan};
use crate::store::Store;

/// A restored store goes on this far after the backup: clients have seen revisions from the time in between, and must
/// be told to list again instead of taking new objects for those.
const RESTORE_GAP: u64 = 1_000_000_000;

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("the store is closed")]
    Closed,
    #[error("{} is not empty", .dir.display())]
    NotEmpty { dir: PathBuf },
    #[error("cannot write the backup to {}", .dir.display())]
    Io { dir: PathBuf, source: io::Error },
}

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("the backup cannot be read")]
    Source(#[source] OpenError),
    #[error("{} has no backup in it", .dir.display())]
    Nothing { dir: PathBuf },
    #[error("{} is in use or has a store in it already", .dir.display())]
    NotEmpty { dir: PathBuf },
    #[error("cannot restore to {}", .dir.display())]
    Io { dir: PathBuf, source: io::Error },
}

/// What a store directory holds. Damage is an [`OpenError`] instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsckReport {
    pub objects: usize,
    pub bytes: u64,
    pub records: u64,
    /// Opening goes on from this revision.
    pub revision: u64,
    /// Of an unfinished last write, or of one going on right now; opening cuts them off.
    pub torn_bytes: u64,
    /// Opening removes these.
    pub leftovers: Vec<String>,
}

/// Reads and checks everything, changes nothing. May run beside an open store, where it can meet a moment's files
/// vanishing; the answer for a store at rest is exact.
pub fn fsck(dir: &Path) -> Result<FsckReport, OpenError> {
    let recovered = scan(&DirFiles::unlocked(dir))?;
    let objects = recovered.objects.values().flat_map(|objects| objects.values());
    Ok(FsckReport {
        objects: objects.clone().count(),
        bytes: objects.map(|raw| raw.bytes.len() as u64).sum(),
        records: recovered.frames,
        revision: recovered.high,
        torn_bytes: recovered.torn_bytes,
        leftovers: recovered.stale,
    })
}

impl<M: Meta> Store<M> {
    /// Writes the state of this moment into an empty or new directory. Commits go on meanwhile.
    pub async fn backup(&self, dest: &Path) -> Result<(), BackupError> {
        let (everything, revision) = self.everything().await.ok_or(BackupError::Closed)?;
        let dir = dest.to_owned();
        let (done, wait) = oneshot::channel();
        let thread = std::thread::Builder::new().name("store-backup".into());
        let work = move || {
            let io = |source| BackupError::Io { dir: dir.clone(), source };
            let files = empty_dir(&dir).map_err(io)?.ok_or_else(|| BackupError::NotEmpty { dir: dir.clone() })?;
            write_store(&files, &everything, revision).map_err(io)
        };
        thread
            .spawn(move || {
                let _ = done.send(work());
            })
            .map_err(|source| BackupError::Io { dir: dest.to_owned(), source })?;
        wait.await.unwrap_or(Err(BackupError::Closed))
    }
}

/// Brings a backup (or any store directory at rest) into an empty or new directory, which can then be opened.
pub fn restore(src: &Path, dir: &Path) -> Result<FsckReport, RestoreError> {
    rewrite(src, dir, RESTORE_GAP)
}

/// Writes a store at rest anew, into an empty or new directory: its backup without anybody running it.
pub fn copy(src: &Path, dir: &Path) -> Result<FsckReport, RestoreError> {
    rewrite(src, dir, 0)
}

fn rewrite(src: &Path, dir: &Path, gap: u64) -> Result<FsckReport, RestoreError> {
    let recovered = scan(&DirFiles::unlocked(src)).map_err(RestoreError::Source)?;
    if recovered.tail.is_none() {
        return Err(RestoreError::Nothing { dir: src.to_owned() });
    }
    let io = |source| RestoreError::Io { dir: dir.to_owned(), source };
    let files = empty_dir(dir).map_err(io)?.ok_or_else(|| RestoreError::NotEmpty { dir: dir.to_owned() })?;
    let entry = |(key, raw): (Key, Raw)| {
        Arc::new(Entry { key, revision: raw.revision, created: raw.created, bytes: raw.bytes, meta: () })
    };
    let everything: Everything<()> = recovered
        .objects
        .into_iter()
        .map(|(resource, objects)| (resource, objects.into_iter().map(entry).collect()))
        .collect();
    write_store(&files, &everything, recovered.high + gap).map_err(io)?;
    drop(files);
    fsck(dir).map_err(RestoreError::Source)
}

/// The snapshot goes first: half of this is refused when it is opened, and not taken for an empty store.
fn write_store<M>(files: &DirFiles, everything: &Everything<M>, revision: u64) -> io::Result<()> {
    write_snapshot(files, 1, everything, &AtomicBool::new(false))?;
    create_segment(files, 1, revision)?;
    Ok(())
}

/// `None`: the directory has files of a store, or is in use.
fn empty_dir(dir: &Path) -> io::Result<Option<DirFiles>> {
    let Some(files) = DirFiles::lock(dir)? else {
        return Ok(None);
    };
    let used = files.names()?.iter().any(|name| parse_name(name) != Name::Other);
    Ok((!used).then_some(files))
}
