//! The store as its users see it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::compact::Everything;
use crate::files::{DirFiles, Files};
use crate::log::{Log, Tail, create_segment};
use crate::model::{CommitError, Condition, Entry, Gone, Key, List, Meta, Options, Report, Stats, Write};
use crate::recover::{OpenError, Recovered, scan};
use crate::table::{Bounds, Objects, Pin, Tables, Watcher};
use crate::writer::{Commit, Counters, Desk, Request, Writer};

/// See the crate's documentation. Clones share one store.
pub struct Store<M> {
    tables: Arc<Tables<M>>,
    counters: Arc<Counters>,
    desk: Desk<M>,
}

impl<M> Clone for Store<M> {
    fn clone(&self) -> Self {
        Self { tables: self.tables.clone(), counters: self.counters.clone(), desk: self.desk.clone() }
    }
}

impl<M: Meta> Store<M> {
    /// Opens the store in this directory, or begins one there. Reads the whole of it: not for an async task.
    pub fn open(dir: &Path, options: Options) -> Result<(Self, Report), OpenError> {
        match DirFiles::lock(dir) {
            Ok(Some(files)) => Self::open_with(Arc::new(files), options),
            Ok(None) => Err(OpenError::Locked { dir: dir.to_owned() }),
            Err(source) => Err(OpenError::Io { path: dir.to_owned(), source }),
        }
    }

    /// As [`Store::open`], on another file layer. Locking is up to that layer.
    pub fn open_with(files: Arc<dyn Files>, options: Options) -> Result<(Self, Report), OpenError> {
        let begun = Instant::now();
        let mut recovered = scan(&*files)?;
        let io = |source| OpenError::Io { path: files.path(""), source };
        // First the tail, then the leftovers: a failure leaves the directory as it was found.
        let tail = match recovered.tail.take() {
            Some(tail) => tail,
            None => {
                let (_, len) = create_segment(&*files, 1, 0).map_err(io)?;
                Tail { sequence: 1, len, older_bytes: 0 }
            }
        };
        let log = Log::open(files.clone(), &tail, options.preallocate_bytes).map_err(io)?;
        for name in &recovered.stale {
            files.remove(name).map_err(|source| OpenError::Io { path: files.path(name), source })?;
        }

        let (high, torn_bytes) = (recovered.high, recovered.torn_bytes);
        let loaded = load(recovered)?;
        let bounds =
            Bounds { events: options.watch_events, bytes: options.watch_bytes, history: options.history_bytes };
        let tables = Arc::new(Tables::new(high, bounds, loaded.objects));
        let counters = Arc::new(Counters::default());
        counters.log_bytes.store(log.total(), Relaxed);
        counters.live_bytes.store(loaded.live_bytes, Relaxed);
        let desk = Desk::open(Writer {
            files: files.clone(),
            log,
            tables: tables.clone(),
            counters: counters.clone(),
            options,
            revision: high,
            reserved: high,
            live_bytes: loaded.live_bytes,
            compaction: None,
            rotate_from: 0,
            compact_from: 0,
            untrimmed: 0,
        })
        .map_err(io)?;
        let report = Report {
            objects: loaded.count,
            bytes: loaded.bytes,
            torn_bytes,
            took: begun.elapsed(),
            migrated: None,
            revision: high,
        };
        Ok((Self { tables, counters, desk }, report))
    }

    /// Dropping the future does not take back the write.
    pub async fn commit(&self, write: Write<M>) -> Result<Arc<Entry<M>>, CommitError<M>> {
        self.commit_all(vec![write]).await?.pop().ok_or(CommitError::Closed)
    }

    /// All of them or none, each with a revision of its own, in order; expectations see the writes before them.
    pub async fn commit_all(&self, writes: Vec<Write<M>>) -> Result<Vec<Arc<Entry<M>>>, CommitError<M>> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        self.desk.commit(Commit { writes, conditions: Vec::new() }).await
    }

    /// As [`Store::commit`], if other objects are as they have to be. Nothing happens between the look at them and the write.
    pub async fn commit_if(
        &self,
        write: Write<M>,
        conditions: Vec<Condition<M>>,
    ) -> Result<Arc<Entry<M>>, CommitError<M>> {
        self.desk.commit(Commit { writes: vec![write], conditions }).await?.pop().ok_or(CommitError::Closed)
    }

    pub fn get(&self, resource: &str, key: &Key) -> Option<Arc<Entry<M>>> {
        self.tables.get(resource, key)
    }

    pub fn list(&self, resource: &str, namespace: Option<&str>) -> List<M> {
        self.tables.list(resource, namespace)
    }

    /// The objects of a resource as they were at `revision`, from the first one behind `after` on.
    pub fn list_at(
        &self,
        resource: &str,
        namespace: Option<&str>,
        revision: u64,
        after: Option<&Key>,
    ) -> Result<List<M>, Gone> {
        self.tables.list_at(resource, namespace, revision, after)
    }

    /// Keeps the events of a resource after `revision`, as far as there is room for them, so that [`Store::list_at`] finds its
    /// way back there.
    pub fn pin(&self, resource: &str, revision: u64) -> Pin<M> {
        self.tables.pin(resource, revision)
    }

    pub fn count(&self, resource: &str) -> usize {
        self.tables.count(resource)
    }

    /// The resources that have objects, sorted.
    pub fn resources(&self) -> Vec<Arc<str>> {
        self.tables.resources()
    }

    /// The newest revision that every reader sees.
    pub fn revision(&self) -> u64 {
        self.tables.revision()
    }

    /// Events of a resource after revision `from`; `None`: from now on.
    pub fn watch(&self, resource: &str, from: Option<u64>) -> Result<Watcher<M>, Gone> {
        self.tables.watch(resource, from)
    }

    /// A list, and exactly the events after it.
    pub fn watch_list(&self, resource: &str, namespace: Option<&str>) -> (List<M>, Watcher<M>) {
        self.tables.watch_list(resource, namespace)
    }

    /// Writes everything out and stops writing; commits fail from now on, reads go on. The directory can be opened again.
    pub async fn close(&self) {
        let (answer, answered) = oneshot::channel();
        if self.desk.send(Request::Close { answer }).is_ok() {
            // An error means that another call was first and the writer is gone.
            let _ = answered.await;
        }
    }

    pub fn stats(&self) -> Stats {
        Stats {
            log_bytes: self.counters.log_bytes.load(Relaxed),
            live_bytes: self.counters.live_bytes.load(Relaxed),
            commits: self.counters.commits.load(Relaxed),
            fsyncs: self.counters.fsyncs.load(Relaxed),
            compactions: self.counters.compactions.load(Relaxed),
            watchers: self.tables.watchers(),
            history_bytes: self.tables.history_bytes(),
        }
    }

    /// Everything at one moment, and the newest revision then.
    pub(crate) async fn everything(&self) -> Option<(Everything<M>, u64)> {
        let (answer, answered) = oneshot::channel();
        self.desk.send(Request::State { answer }).ok()?;
        answered.await.ok()
    }
}

struct Loaded<M> {
    objects: Vec<(Arc<str>, Objects<M>)>,
    count: usize,
    bytes: u64,
    live_bytes: u64,
}

/// Only what is still alive is parsed, and copied out of the files' memory.
fn load<M: Meta>(recovered: Recovered) -> Result<Loaded<M>, OpenError> {
    let mut loaded = Loaded { objects: Vec::new(), count: 0, bytes: 0, live_bytes: 0 };
    for (resource, raws) in recovered.objects {
        let mut objects = BTreeMap::new();
        for (key, raw) in raws {
            let meta = M::from_bytes(&resource, &raw.bytes).map_err(|error| OpenError::Object {
                resource: resource.to_string(),
                key: key.clone(),
                source: Box::new(error),
            })?;
            loaded.count += 1;
            loaded.bytes += raw.bytes.len() as u64;
            loaded.live_bytes += raw.size;
            let bytes = Bytes::copy_from_slice(&raw.bytes);
            let entry = Entry { key: key.clone(), revision: raw.revision, created: raw.created, bytes, meta };
            objects.insert(key, Arc::new(entry));
        }
        loaded.objects.push((resource, objects));
    }
    Ok(loaded)
}
