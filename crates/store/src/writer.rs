//! The one writer: takes everything queued, checks it in order, appends it, syncs once, then lets it be seen.
//!
//! ```text
//!   nobody else writes:   commit ──────────────> Writer     on the thread of the caller, who would only wait
//!   others write, too:    commit ──queue──> thread ──> Writer     one sync for all that came during the last one
//! ```
//!
//! A thread that is woken costs a lone write more than all its own work, and on a virtual machine now and then milliseconds.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::compact::{Everything, compact, put};
use crate::files::Files;
use crate::frame::{Encoder, MAX_BODY, Op, OpKind};
use crate::heap;
use crate::log::Log;
use crate::model::{Change, CommitError, Condition, Durability, Entry, Event, EventKind, Expect, Key, Options, Write};
use crate::table::{Applied, Tables};

/// A batch takes no more requests past these.
const MAX_BATCH: usize = 4096;
const MAX_BATCH_BYTES: u64 = 8 << 20;
/// How often a running compaction is looked after when nothing else happens.
const COMPACTION_POLL: Duration = Duration::from_millis(50);

/// After so many requests, and then a pause that long, memory is given back.
const TRIM_AFTER: usize = 1000;
const TRIM_PAUSE: Duration = Duration::from_secs(1);

/// Who waits for a commit.
pub(crate) type Asker<M> = oneshot::Sender<Answer<M>>;
pub(crate) type Answer<M> = Result<Vec<Arc<Entry<M>>>, CommitError<M>>;

/// Writes that happen together, and what they depend on.
pub(crate) struct Commit<M> {
    pub writes: Vec<Write<M>>,
    pub conditions: Vec<Condition<M>>,
}

pub(crate) enum Request<M> {
    Commit {
        commit: Commit<M>,
        answer: Asker<M>,
    },
    /// Everything at one moment, and the revision of it.
    State {
        answer: oneshot::Sender<(Everything<M>, u64)>,
    },
    /// Look after the log.
    Tidy,
    Close {
        answer: oneshot::Sender<()>,
    },
}

/// The way to the writer. Clones share it.
pub(crate) struct Desk<M> {
    /// None once the store is closed.
    writer: Arc<Mutex<Option<Writer<M>>>>,
    queue: mpsc::Sender<Request<M>>,
    load: Arc<Load>,
}

impl<M> Clone for Desk<M> {
    fn clone(&self) -> Self {
        Self { writer: self.writer.clone(), queue: self.queue.clone(), load: self.load.clone() }
    }
}

#[derive(Default)]
struct Load {
    /// Commits in the queue, or taken from it and not answered.
    waiting: AtomicUsize,
    /// Commits came together last time, and will again.
    crowded: AtomicBool,
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
    /// Requests since memory was given back.
    pub untrimmed: usize,
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
    Unmet {
        pending: bool,
    },
    TooLarge,
}

impl<M: Send + Sync + 'static> Desk<M> {
    /// Starts the thread.
    pub(crate) fn open(writer: Writer<M>) -> io::Result<Self> {
        let (queue, requests) = channel();
        let writer = Arc::new(Mutex::new(Some(writer)));
        let desk = Self { writer: writer.clone(), queue, load: Arc::default() };
        let load = desk.load.clone();
        std::thread::Builder::new().name("store-writer".into()).spawn(move || run(&writer, &load, &requests))?;
        Ok(desk)
    }

    /// Dropping the future does not take back the writes.
    pub(crate) async fn commit(&self, commit: Commit<M>) -> Answer<M> {
        let (answer, mut answered) = oneshot::channel();
        if let Err((commit, answer)) = self.at_once(commit, answer) {
            self.load.waiting.fetch_add(1, SeqCst);
            // Whoever reads the queue counts back. If nobody does, nothing is written any more.
            self.send(Request::Commit { commit, answer }).map_err(|_| CommitError::Closed)?;
        } else if let Ok(answer) = answered.try_recv() {
            return answer;
        }
        answered.await.unwrap_or(Err(CommitError::Closed))
    }

    pub(crate) fn send(&self, request: Request<M>) -> Result<(), mpsc::SendError<Request<M>>> {
        self.queue.send(request)
    }

    /// Commits on this thread, if nobody else wants to. It waits for the disk then: in an async program one of several threads
    /// does, as the queue's would.
    fn at_once(&self, commit: Commit<M>, answer: Asker<M>) -> Result<(), (Commit<M>, Asker<M>)> {
        // What need not be synced at once is synced later, by the thread.
        let synced = commit.writes.iter().any(|write| write.durability == Durability::Synced);
        if !synced || self.load.crowded.load(SeqCst) || self.load.waiting.load(SeqCst) > 0 {
            return Err((commit, answer));
        }
        let Ok(mut guard) = self.writer.try_lock() else {
            return Err((commit, answer));
        };
        let Some(writer) = guard.as_mut() else {
            return Err((commit, answer));
        };
        let mut batch = Batch::new();
        batch.add(&writer.tables, &mut writer.revision, commit, answer);
        writer.commit(batch);
        let tidy = writer.wants_tidying();
        drop(guard);
        if tidy {
            // Nobody to tidy up means nothing to tidy.
            let _ = self.send(Request::Tidy);
        }
        Ok(())
    }
}

/// The writer's thread.
fn run<M: Send + Sync + 'static>(desk: &Mutex<Option<Writer<M>>>, load: &Load, requests: &Receiver<Request<M>>) {
    let answer = serve(desk, load, requests);
    // A panic on another thread may have left the log half written. Only opening it again tells.
    let writer = desk.lock().ok().and_then(|mut guard| guard.take());
    if let Some(mut writer) = writer
        && let Err(error) = writer.finish()
    {
        // The files are let go at the end of this block, and with them the lock, before the answer.
        tracing::warn!(error = &error as &dyn std::error::Error, "the store did not end cleanly");
    }
    if let Some(answer) = answer {
        let _ = answer.send(());
    }
}

/// Returns whom to tell about the end, if anybody asked for it.
fn serve<M: Send + Sync + 'static>(
    desk: &Mutex<Option<Writer<M>>>,
    load: &Load,
    requests: &Receiver<Request<M>>,
) -> Option<oneshot::Sender<()>> {
    let mut relaxed_since: Option<Instant> = None;
    let mut pauses = Pauses::default();
    loop {
        let request = match pauses.shortest() {
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(timeout) => requests.recv_timeout(timeout),
        };
        let mut next = match request {
            Ok(request) => Some(request),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        let mut guard: MutexGuard<'_, Option<Writer<M>>> = desk.lock().ok()?;
        let writer = guard.as_mut()?;
        if next.is_none() && pauses.is_only_trim() && pauses.untrimmed == writer.untrimmed {
            writer.untrimmed = 0;
            heap::trim();
        }
        let mut batch = Batch::new();
        let mut closing = None;
        let mut wants_state = Vec::new();
        while let Some(request) = next.take() {
            match request {
                Request::Commit { commit, answer } => {
                    batch.add(&writer.tables, &mut writer.revision, commit, answer);
                }
                Request::State { answer } => wants_state.push(answer),
                Request::Tidy => {}
                Request::Close { answer } => {
                    closing = Some(answer);
                    break;
                }
            }
            if batch.answers.len() < MAX_BATCH && batch.bytes < MAX_BATCH_BYTES {
                next = requests.try_recv().ok();
            }
        }
        let commits = batch.answers.len();
        if commits > 0 {
            load.crowded.store(commits > 1, SeqCst);
            writer.commit(batch);
            load.waiting.fetch_sub(commits, SeqCst);
        }
        for answer in wants_state {
            let _ = answer.send((writer.tables.everything(), writer.revision));
        }
        if relaxed_since.is_some_and(|since| since.elapsed() >= writer.options.relaxed_sync) {
            relaxed_since = None;
            if let Err(error) = writer.log.sync() {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot sync the log");
            }
        }
        match writer.log.is_unsynced() {
            true => relaxed_since = relaxed_since.or_else(|| Some(Instant::now())),
            false => relaxed_since = None,
        }
        writer.keep_house();
        if closing.is_some() {
            return closing;
        }
        pauses = Pauses {
            sync: relaxed_since.map(|since| writer.options.relaxed_sync.saturating_sub(since.elapsed())),
            poll: writer.compaction.is_some().then_some(COMPACTION_POLL),
            trim: (writer.untrimmed >= TRIM_AFTER).then_some(TRIM_PAUSE),
            untrimmed: writer.untrimmed,
        };
    }
}

/// What is due when no request comes.
#[derive(Default)]
struct Pauses {
    sync: Option<Duration>,
    poll: Option<Duration>,
    trim: Option<Duration>,
    /// Requests when the pause began: some are served without the thread.
    untrimmed: usize,
}

impl Pauses {
    fn shortest(&self) -> Option<Duration> {
        [self.sync, self.poll, self.trim].into_iter().flatten().min()
    }

    /// Else the pause may have been shorter.
    fn is_only_trim(&self) -> bool {
        self.trim.is_some() && self.sync.is_none() && self.poll.is_none()
    }
}

impl<M: Send + Sync + 'static> Writer<M> {
    fn commit(&mut self, batch: Batch<M>) {
        self.untrimmed += batch.answers.len();
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
                        Outcome::Unmet { .. } => Err(CommitError::Unmet),
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
                        Outcome::Unmet { pending: false } => CommitError::Unmet,
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
        if self.wants_rotation() && !self.log_rotated() {
            self.rotate_from = self.log.len() + self.options.segment_bytes / 4;
        }
        if self.wants_compaction() {
            self.start_compaction();
        }
        self.count();
    }

    fn wants_rotation(&self) -> bool {
        self.log.len() >= self.options.segment_bytes.max(self.rotate_from)
    }

    fn wants_compaction(&self) -> bool {
        let dead = self.log.total().saturating_sub(self.live_bytes);
        self.compaction.is_none()
            && dead > self.live_bytes.max(self.options.compact_min_bytes)
            && self.log.total() >= self.compact_from
    }

    /// Whether the thread has something to do that it does not know of.
    fn wants_tidying(&self) -> bool {
        self.wants_rotation() || self.wants_compaction() || self.log.is_unsynced() || self.untrimmed == TRIM_AFTER
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
    fn add(&mut self, tables: &Tables<M>, revision: &mut u64, commit: Commit<M>, answer: Asker<M>) {
        let Commit { writes, conditions } = commit;
        let begin = self.changes.len();
        let mut undo = Vec::with_capacity(writes.len());
        let mut next = *revision;
        let mut bytes = 0;
        let mut sync = false;
        let mut failure = self.unmet(tables, conditions).map(|pending| Outcome::Unmet { pending });
        for write in writes {
            if failure.is_some() {
                break;
            }
            let place = (write.resource, write.key);
            let (current, pending) = self.current(tables, &place);
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

    /// What is there as the round stands, and whether that is of the round.
    fn current(&self, tables: &Tables<M>, place: &(Arc<str>, Key)) -> (Option<Arc<Entry<M>>>, bool) {
        match self.overlay.get(place) {
            Some(staged) => (staged.clone(), true),
            None => (tables.get(&place.0, &place.1), false),
        }
    }

    /// Whether a condition does not hold, and that because of this very round.
    fn unmet(&self, tables: &Tables<M>, conditions: Vec<Condition<M>>) -> Option<bool> {
        conditions.into_iter().find_map(|Condition { resource, key, holds }| {
            let (current, pending) = self.current(tables, &(resource, key));
            (!holds(current.as_deref())).then_some(pending)
        })
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
