//! The one writer: takes everything queued, checks it in order, appends it, syncs once, then lets it be seen.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::compact::{Everything, compact, put};
use crate::files::Files;
use crate::frame::{Encoder, MAX_BODY, Op, OpKind};
use crate::log::Log;
use crate::model::{Change, CommitError, Durability, Entry, Event, EventKind, Expect, Key, Options, Write};
use crate::table::{Applied, Tables};

/// A batch takes no more requests past these.
const MAX_BATCH: usize = 4096;
const MAX_BATCH_BYTES: u64 = 8 << 20;
/// How often a running compaction is looked after when nothing else happens.
const COMPACTION_POLL: Duration = Duration::from_millis(50);

/// Who waits for a commit.
pub(crate) type Asker<M> = oneshot::Sender<Answer<M>>;
pub(crate) type Answer<M> = Result<Vec<Arc<Entry<M>>>, CommitError<M>>;

pub(crate) enum Request<M> {
    Commit {
        writes: Vec<Write<M>>,
        answer: Asker<M>,
    },
    /// Everything at one moment, and the revision of it.
    State {
        answer: oneshot::Sender<(Everything<M>, u64)>,
    },
    Close {
        answer: oneshot::Sender<()>,
    },
}

#[derive(Default)]
pub(crate) struct Counters {
    pub log_bytes: AtomicU64,
    pub live_bytes: AtomicU64,
    pub commits: AtomicU64,
    pub fsyncs: AtomicU64,
    pub compactions: AtomicU64,
}

pub(crate) struct Writer<M> {
    pub files: Arc<dyn Files>,
    pub log: Log,
    pub tables: Arc<Tables<M>>,
    pub counters: Arc<Counters>,
    pub options: Options,
    /// The newest revision given to a write. Those of failed writes are not used again.
    pub revision: u64,
    /// Revisions up to here may be given out: the log says so.
    pub reserved: u64,
    pub live_bytes: u64,
    pub compaction: Option<Compaction>,
    /// After a failure: not again before the log is this long.
    pub rotate_from: u64,
    pub compact_from: u64,
}

pub(crate) struct Compaction {
    done: Receiver<io::Result<u64>>,
    cancel: Arc<AtomicBool>,
    /// Of the files before the segment that was begun with the compaction.
    replaced_bytes: u64,
}

/// The requests of one round and what becomes of them.
struct Batch<M> {
    changes: Vec<Applied<M>>,
    /// For each commit that succeeds: where its changes end.
    ends: Vec<usize>,
    /// What the round has changed so far; later requests are checked against it.
    overlay: Overlay<M>,
    answers: Vec<(Asker<M>, Outcome<M>)>,
    bytes: u64,
    sync: bool,
}

/// By resource and key; `None` is removed.
type Overlay<M> = HashMap<(Arc<str>, Key), Option<Arc<Entry<M>>>>;

enum Outcome<M> {
    Done(Vec<Arc<Entry<M>>>),
    /// `pending`: the state it lost against is of this very round.
    Conflict {
        current: Option<Arc<Entry<M>>>,
        pending: bool,
    },
    TooLarge,
}

impl<M: Send + Sync + 'static> Writer<M> {
    pub(crate) fn run(mut self, requests: &Receiver<Request<M>>) {
        let answer = self.serve(requests);
        if let Err(error) = self.finish() {
            tracing::warn!(error = &error as &dyn std::error::Error, "the store did not end cleanly");
        }
        // The files are let go, and with them the lock, before the answer.
        drop(self);
        if let Some(answer) = answer {
            let _ = answer.send(());
        }
    }

    /// Returns whom to tell about the end, if anybody asked for it.
    fn serve(&mut self, requests: &Receiver<Request<M>>) -> Option<oneshot::Sender<()>> {
        let mut relaxed_since: Option<Instant> = None;
        loop {
            let until_sync = relaxed_since.map(|since| self.options.relaxed_sync.saturating_sub(since.elapsed()));
            let until_poll = self.compaction.is_some().then_some(COMPACTION_POLL);
            let request = match until_sync.into_iter().chain(until_poll).min() {
                None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(timeout) => requests.recv_timeout(timeout),
            };
            let mut batch = Batch::new();
            let mut next = match request {
                Ok(request) => Some(request),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return None,
            };
            let mut closing = None;
            let mut wants_state = Vec::new();
            while let Some(request) = next.take() {
                match request {
                    Request::Commit { writes, answer } => batch.add(&self.tables, &mut self.revision, writes, answer),
                    Request::State { answer } => wants_state.push(answer),
                    Request::Close { answer } => {
                        closing = Some(answer);
                        break;
                    }
                }
                if batch.answers.len() < MAX_BATCH && batch.bytes < MAX_BATCH_BYTES {
                    next = requests.try_recv().ok();
                }
            }
            if !batch.answers.is_empty() {
                self.commit(batch);
            }
            for answer in wants_state {
                let _ = answer.send((self.tables.everything(), self.revision));
            }
            if relaxed_since.is_some_and(|since| since.elapsed() >= self.options.relaxed_sync) {
                relaxed_since = None;
                if let Err(error) = self.log.sync() {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot sync the log");
                }
            }
            match self.log.is_unsynced() {
                true => relaxed_since = relaxed_since.or_else(|| Some(Instant::now())),
                false => relaxed_since = None,
            }
            self.keep_house();
            if closing.is_some() {
                return closing;
            }
        }
    }

    fn commit(&mut self, batch: Batch<M>) {
        match self.append(&batch) {
            Ok(()) => {
                for change in &batch.changes {
                    self.account(change);
                }
                self.counters.commits.fetch_add(batch.changes.len() as u64, Relaxed);
                // Before the answers, so that whoever has one finds its write counted.
                self.count();
                let touched = self.tables.apply(batch.changes);
                for (answer, outcome) in batch.answers {
                    // Who does not wait any more does not need the answer.
                    let _ = answer.send(match outcome {
                        Outcome::Done(entries) => Ok(entries),
                        Outcome::Conflict { current, .. } => Err(CommitError::Conflict { current }),
                        Outcome::TooLarge => Err(CommitError::Full(io::ErrorKind::FileTooLarge.into())),
                    });
                }
                touched.iter().for_each(|table| table.wake());
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot write to the log");
                for (answer, outcome) in batch.answers {
                    let _ = answer.send(Err(match outcome {
                        Outcome::Conflict { current, pending: false } => CommitError::Conflict { current },
                        Outcome::TooLarge => CommitError::Full(io::ErrorKind::FileTooLarge.into()),
                        _ => CommitError::Full(same(&error)),
                    }));
                }
            }
        }
    }

    fn append(&mut self, batch: &Batch<M>) -> io::Result<()> {
        if batch.changes.is_empty() {
            return Ok(());
        }
        let mut encoder = Encoder::default();
        let mut reserved = self.reserved;
        if self.revision > reserved {
            reserved = self.revision + self.options.revision_step;
            encoder.high(self.log.synced(), reserved);
        }
        let mut start = 0;
        for &end in &batch.ends {
            encoder.commit(self.log.synced(), batch.changes[start..end].iter().map(op));
            start = end;
        }
        // A reservation that a power cut could take back would be none.
        self.log.append(&encoder.out, batch.sync || reserved > self.reserved)?;
        self.reserved = reserved;
        Ok(())
    }

    fn account(&mut self, Applied { resource, event }: &Applied<M>) {
        if let Some(previous) = &event.previous {
            self.live_bytes -= put(resource, previous).size();
        }
        if event.kind != EventKind::Deleted {
            self.live_bytes += put(resource, &event.entry).size();
        }
    }

    /// Rotation, compaction and numbers, after every round.
    fn keep_house(&mut self) {
        if let Some(compaction) = &self.compaction
            && let Ok(result) = compaction.done.try_recv()
        {
            let replaced = compaction.replaced_bytes;
            self.compaction = None;
            match result {
                Ok(len) => {
                    self.log.older_bytes = self.log.older_bytes - replaced + len;
                    self.counters.compactions.fetch_add(1, Relaxed);
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot rewrite the log");
                    self.compact_from = self.log.total() + self.options.compact_min_bytes;
                }
            }
        }
        if self.log.len() >= self.options.segment_bytes.max(self.rotate_from) && !self.log_rotated() {
            self.rotate_from = self.log.len() + self.options.segment_bytes / 4;
        }
        let dead = self.log.total().saturating_sub(self.live_bytes);
        if self.compaction.is_none()
            && dead > self.live_bytes.max(self.options.compact_min_bytes)
            && self.log.total() >= self.compact_from
        {
            self.start_compaction();
        }
        self.count();
    }

    fn count(&self) {
        self.counters.log_bytes.store(self.log.total(), Relaxed);
        self.counters.live_bytes.store(self.live_bytes, Relaxed);
        self.counters.fsyncs.store(self.log.fsyncs, Relaxed);
    }

    fn log_rotated(&mut self) -> bool {
        match self.log.rotate(self.reserved) {
            Ok(()) => {
                self.rotate_from = 0;
                true
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot begin a new log file");
                false
            }
        }
    }

    /// The snapshot is written beside the writer, which only collects what goes into it.
    fn start_compaction(&mut self) {
        if !self.log_rotated() {
            self.compact_from = self.log.total() + self.options.compact_min_bytes;
            return;
        }
        let (sender, done) = channel();
        let cancel = Arc::new(AtomicBool::new(false));
        let everything = self.tables.everything();
        let (files, sequence, stop) = (self.files.clone(), self.log.sequence(), cancel.clone());
        let thread = std::thread::Builder::new().name("store-compact".into()).spawn(move || {
            let result = compact(&*files, sequence, &everything, &stop);
            // Before the answer: whoever has it may want the lock gone.
            drop(files);
            let _ = sender.send(result);
        });
        match thread {
            Ok(_) => self.compaction = Some(Compaction { done, cancel, replaced_bytes: self.log.older_bytes }),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot start rewriting the log");
                self.compact_from = self.log.total() + self.options.compact_min_bytes;
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        if let Some(compaction) = self.compaction.take() {
            compaction.cancel.store(true, Relaxed);
            // An error means that the thread is gone, which is what is waited for.
            let _ = compaction.done.recv();
        }
        // Nothing can be lost any more, so the next run goes on without a gap.
        let mut encoder = Encoder::default();
        encoder.high(self.log.synced(), self.revision);
        self.log.append(&encoder.out, true)?;
        self.log.finish()
    }
}

impl<M> Batch<M> {
    fn new() -> Self {
        Self {
            changes: Vec::new(),
            ends: Vec::new(),
            overlay: HashMap::new(),
            answers: Vec::new(),
            bytes: 0,
            sync: false,
        }
    }

    /// Checks a commit and, if all of it holds, takes it into the batch and gives it revisions.
    fn add(&mut self, tables: &Tables<M>, revision: &mut u64, writes: Vec<Write<M>>, answer: Asker<M>) {
        let begin = self.changes.len();
        let mut undo = Vec::with_capacity(writes.len());
        let mut next = *revision;
        let mut bytes = 0;
        let mut sync = false;
        let mut failure = None;
        for write in writes {
            let place = (write.resource, write.key);
            let staged = self.overlay.get(&place);
            let pending = staged.is_some();
            let current = staged.cloned().unwrap_or_else(|| tables.get(&place.0, &place.1));
            if !holds(write.expect, current.as_deref(), &write.change) {
                failure = Some(Outcome::Conflict { current, pending });
                break;
            }
            next += 1;
            sync |= write.durability == Durability::Synced;
            let event = event(next, place.1.clone(), write.change, current);
            bytes += put(&place.0, &event.entry).size();
            let now = (event.kind != EventKind::Deleted).then(|| event.entry.clone());
            let before = self.overlay.insert(place.clone(), now);
            self.changes.push(Applied { resource: place.0.clone(), event });
            undo.push((place, before));
        }
        // Half of the limit leaves room for everything that is not the objects themselves.
        if failure.is_none() && bytes > MAX_BODY as u64 / 2 {
            failure = Some(Outcome::TooLarge);
        }
        let outcome = match failure {
            Some(failure) => {
                self.changes.truncate(begin);
                for (place, before) in undo.into_iter().rev() {
                    match before {
                        Some(before) => self.overlay.insert(place, before),
                        None => self.overlay.remove(&place),
                    };
                }
                failure
            }
            None => {
                *revision = next;
                self.bytes += bytes;
                self.sync |= sync;
                self.ends.push(self.changes.len());
                Outcome::Done(self.changes[begin..].iter().map(|change| change.event.entry.clone()).collect())
            }
        };
        self.answers.push((answer, outcome));
    }
}

fn holds<M>(expect: Expect, current: Option<&Entry<M>>, change: &Change<M>) -> bool {
    let expected = match expect {
        Expect::Any => true,
        Expect::Absent => current.is_none(),
        Expect::Present => current.is_some(),
        Expect::Revision(revision) => current.is_some_and(|entry| entry.revision == revision),
    };
    expected && (current.is_some() || matches!(change, Change::Put(_)))
}

fn event<M>(revision: u64, key: Key, change: Change<M>, previous: Option<Arc<Entry<M>>>) -> Event<M> {
    let (kind, value) = match change {
        Change::Put(value) if previous.is_some() => (EventKind::Modified, value),
        Change::Put(value) => (EventKind::Added, value),
        Change::Delete { last } => (EventKind::Deleted, last),
    };
    let created = previous.as_ref().map_or(revision, |previous| previous.created);
    let bytes = value.splice(revision);
    Event { kind, revision, entry: Arc::new(Entry { key, revision, created, bytes, meta: value.meta }), previous }
}

fn op<M>(Applied { resource, event }: &Applied<M>) -> Op<'_> {
    let mut op = put(resource, &event.entry);
    if event.kind == EventKind::Deleted {
        op.kind = OpKind::Delete;
        op.value = &[];
    }
    op
}

/// Errors of the system cannot be cloned, but several writers wait for this one.
fn same(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}

pub(crate) type Requests<M> = mpsc::Sender<Request<M>>;
