//! The state in memory: one ordered map per resource with its recent events, and the watchers on them.
//!
//! A watcher is a position in the events of its resource, so it costs the same however far behind it is, and the
//! writer never waits for one. Events fall off the old end; a watcher that stood there gets [`Gone`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::poll_fn;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::{Context, Poll, Waker};

use crate::compact::Everything;
use crate::model::{Entry, Event, EventKind, Gone, Key, List};

/// Counted for an event beside its bytes, so that many small events are bounded, too.
const EVENT_OVERHEAD: usize = 256;

/// Kept whatever their size: else an object larger than all the room would throw off every watcher at each change.
const MIN_EVENTS: usize = 8;

pub(crate) struct Tables<M> {
    tables: RwLock<HashMap<Arc<str>, Arc<Table<M>>>>,
    /// Everything up to here is applied to every table.
    applied: AtomicU64,
    /// The newest revision that a reader may have met. Ahead of `applied` while a batch goes from table to table.
    handed_out: AtomicU64,
    /// Where this run began. Nothing is known of the events before.
    start: u64,
    bounds: Bounds,
    watchers: AtomicU64,
    /// Bytes of events that are kept for pins only, in all tables.
    history: AtomicUsize,
}

/// How much is kept of what was.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Events of a table for watchers, and their bytes.
    pub events: usize,
    pub bytes: usize,
    /// Bytes of older events for pins, of all tables together.
    pub history: usize,
}

pub(crate) struct Table<M> {
    state: RwLock<State<M>>,
    sleepers: Mutex<Sleepers>,
}

/// Whom to wake when there are events. A watcher says once who polls it, and nothing more until somebody else does.
#[derive(Default)]
struct Sleepers {
    beds: Vec<Option<Waker>>,
    free: Vec<usize>,
}

struct State<M> {
    objects: BTreeMap<Key, Arc<Entry<M>>>,
    events: VecDeque<Arc<Event<M>>>,
    /// Number of the first of `events`, counted from the opening of the store.
    first: u64,
    bytes: usize,
    /// Every event after this revision is in `events`.
    floor: u64,
    /// Older events, for lists at a revision that somebody pinned. What follows the last of them is the first of `events`.
    attic: VecDeque<Arc<Event<M>>>,
    attic_bytes: usize,
    /// Every event after this revision is in `attic` or `events`.
    oldest: u64,
    /// Revisions that somebody may come back to, and how many hold each.
    pins: BTreeMap<u64, usize>,
    /// Revision of the newest change.
    newest: u64,
}

/// A change that is in the log and waits to be seen.
pub(crate) struct Applied<M> {
    pub resource: Arc<str>,
    pub event: Event<M>,
}

pub(crate) type Objects<M> = BTreeMap<Key, Arc<Entry<M>>>;

impl<M> Tables<M> {
    pub(crate) fn new(start: u64, bounds: Bounds, objects: Vec<(Arc<str>, Objects<M>)>) -> Self {
        let tables = objects.into_iter().map(|(name, objects)| (name, Arc::new(Table::new(start, objects)))).collect();
        Self {
            tables: RwLock::new(tables),
            applied: AtomicU64::new(start),
            handed_out: AtomicU64::new(start),
            start,
            bounds,
            watchers: AtomicU64::new(0),
            history: AtomicUsize::new(0),
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.applied.load(SeqCst)
    }

    pub(crate) fn watchers(&self) -> u64 {
        self.watchers.load(SeqCst)
    }

    pub(crate) fn get(&self, resource: &str, key: &Key) -> Option<Arc<Entry<M>>> {
        self.table(resource)?.read().objects.get(key).cloned()
    }

    pub(crate) fn count(&self, resource: &str) -> usize {
        self.table(resource).map_or(0, |table| table.read().objects.len())
    }

    pub(crate) fn list(&self, resource: &str, namespace: Option<&str>) -> List<M> {
        match self.table(resource) {
            Some(table) => self.list_state(&table.read(), namespace),
            None => List { revision: self.revision(), items: Vec::new() },
        }
    }

    /// The objects as they were: those of now, without what happened since.
    pub(crate) fn list_at(
        &self,
        resource: &str,
        namespace: Option<&str>,
        revision: u64,
        after: Option<&Key>,
    ) -> Result<List<M>, Gone> {
        let table = self.table_or_new(resource);
        let state = table.read();
        if revision < state.oldest || revision > self.handed_out.load(SeqCst) {
            return Err(Gone { oldest: state.oldest });
        }
        Ok(List { revision, items: state.items_at(namespace, revision, after) })
    }

    pub(crate) fn pin(self: &Arc<Self>, resource: &str, revision: u64) -> Pin<M> {
        let table = self.table_or_new(resource);
        *table.write().pins.entry(revision).or_default() += 1;
        Pin { tables: self.clone(), table, revision }
    }

    pub(crate) fn history_bytes(&self) -> u64 {
        self.history.load(SeqCst) as u64
    }

    /// The resources that have objects, sorted.
    pub(crate) fn resources(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = read(&self.tables)
            .iter()
            .filter(|(_, table)| !table.read().objects.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        names.sort();
        names
    }

    /// Everything, for a snapshot. Only the writer may call this: between its batches, all tables are of one revision.
    pub(crate) fn everything(&self) -> Everything<M> {
        let tables = read(&self.tables);
        tables.iter().map(|(name, table)| (name.clone(), table.read().objects.values().cloned().collect())).collect()
    }

    pub(crate) fn watch(self: &Arc<Self>, resource: &str, from: Option<u64>) -> Result<Watcher<M>, Gone> {
        let table = self.table_or_new(resource);
        let state = table.read();
        let from = from.unwrap_or_else(|| self.revision_of(&state));
        // A revision that was never handed out in this run comes from before a crash that lost it.
        if from < state.floor || from > self.handed_out.load(SeqCst) {
            return Err(Gone { oldest: state.floor });
        }
        let next = state.first + state.events.partition_point(|event| event.revision <= from) as u64;
        drop(state);
        Ok(self.watcher(table, next, from, None))
    }

    pub(crate) fn watch_list(self: &Arc<Self>, resource: &str, namespace: Option<&str>) -> (List<M>, Watcher<M>) {
        let table = self.table_or_new(resource);
        let state = table.read();
        let list = self.list_state(&state, namespace);
        let next = state.end();
        drop(state);
        let watcher = self.watcher(table, next, list.revision, namespace.map(Arc::from));
        (list, watcher)
    }

    /// Makes changes visible, all of a resource at once. The caller wakes the watchers of the returned tables.
    pub(crate) fn apply(&self, changes: Vec<Applied<M>>) -> Vec<Arc<Table<M>>> {
        let Some(last) = changes.last().map(|change| change.event.revision) else {
            return Vec::new();
        };
        self.handed_out.store(last, SeqCst);
        let mut by_resource: Vec<(Arc<str>, Vec<Event<M>>)> = Vec::new();
        let mut places: HashMap<Arc<str>, usize> = HashMap::new();
        for Applied { resource, event } in changes {
            let place = *places.entry(resource.clone()).or_insert_with(|| {
                by_resource.push((resource, Vec::new()));
                by_resource.len() - 1
            });
            by_resource[place].1.push(event);
        }
        let mut touched = Vec::with_capacity(by_resource.len());
        for (resource, events) in by_resource {
            let table = self.table_or_new(&resource);
            let mut state = table.write();
            // Dropped after the lock: freeing a large object is not the readers' time.
            let mut trimmed = Vec::new();
            for event in events {
                state.apply(event);
                state.trim(self.bounds, &self.history, &mut trimmed);
            }
            drop(state);
            touched.push(table);
        }
        self.applied.store(last, SeqCst);
        touched
    }

    fn list_state(&self, state: &State<M>, namespace: Option<&str>) -> List<M> {
        let items = match namespace {
            None => state.objects.values().cloned().collect(),
            Some(namespace) => {
                let from = Key::new(namespace, "");
                let inside = state.objects.range(from..).take_while(|(key, _)| *key.namespace == *namespace);
                inside.map(|(_, entry)| entry.clone()).collect()
            }
        };
        List { revision: self.revision_of(state), items }
    }

    /// The revision of which a table, locked now, is the state. `applied` alone would be too old in the middle of a
    /// batch; it cannot be too new, since it moves only after the batch went through this table's lock.
    fn revision_of(&self, state: &State<M>) -> u64 {
        self.revision().max(state.newest)
    }

    fn watcher(
        self: &Arc<Self>,
        table: Arc<Table<M>>,
        next: u64,
        seen: u64,
        namespace: Option<Arc<str>>,
    ) -> Watcher<M> {
        self.watchers.fetch_add(1, SeqCst);
        let bed = table.sleepers().take();
        Watcher { tables: self.clone(), table, bed, waker: None, next, seen, namespace }
    }

    fn table(&self, resource: &str) -> Option<Arc<Table<M>>> {
        read(&self.tables).get(resource).cloned()
    }

    fn table_or_new(&self, resource: &str) -> Arc<Table<M>> {
        if let Some(table) = self.table(resource) {
            return table;
        }
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        // No event of this resource happened in this run, so watches may begin where the run began.
        tables.entry(Arc::from(resource)).or_insert_with(|| Arc::new(Table::new(self.start, BTreeMap::new()))).clone()
    }
}

impl<M> Table<M> {
    fn new(start: u64, objects: Objects<M>) -> Self {
        let state = State {
            objects,
            events: VecDeque::new(),
            first: 0,
            bytes: 0,
            floor: start,
            attic: VecDeque::new(),
            attic_bytes: 0,
            oldest: start,
            pins: BTreeMap::new(),
            newest: start,
        };
        Self { state: RwLock::new(state), sleepers: Mutex::default() }
    }

    pub(crate) fn wake(&self) {
        self.sleepers().beds.iter().flatten().for_each(Waker::wake_by_ref);
    }

    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, State<M>> {
        read(&self.state)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<M>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sleepers {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.beds.push(None);
            self.beds.len() - 1
        })
    }

    /// To be dropped without the lock: the last to let go of a task drops what that owns, watchers included.
    fn leave(&mut self, bed: usize) -> Option<Waker> {
        self.free.push(bed);
        self.beds[bed].take()
    }
}

impl<M> State<M> {
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    fn apply(&mut self, event: Event<M>) {
        let key = event.entry.key.clone();
        match event.kind {
            EventKind::Deleted => self.objects.remove(&key),
            EventKind::Added | EventKind::Modified => self.objects.insert(key, event.entry.clone()),
        };
        self.newest = event.revision;
        self.bytes += weight(&event);
        self.events.push_back(Arc::new(event));
    }

    /// Lets go of the oldest events: those that watchers have no right to any more, unless a pin needs them and there is room.
    fn trim(&mut self, bounds: Bounds, history: &AtomicUsize, trimmed: &mut Vec<Arc<Event<M>>>) {
        while self.events.len() > bounds.events || (self.bytes > bounds.bytes && self.events.len() > MIN_EVENTS) {
            let Some(event) = self.events.pop_front() else {
                break;
            };
            self.bytes -= weight(&event);
            self.first += 1;
            self.floor = event.revision;
            self.attic_bytes += weight(&event);
            history.fetch_add(weight(&event), SeqCst);
            self.attic.push_back(event);
        }
        self.clear_attic(bounds.history, history, trimmed);
    }

    /// Who pinned longest ago pays for what there is no room for. One table has half of the room at most: whoever writes much
    /// there does not take all that is kept for others.
    fn clear_attic(&mut self, room: usize, history: &AtomicUsize, trimmed: &mut Vec<Arc<Event<M>>>) {
        let wanted = self.pins.keys().next().copied().unwrap_or(u64::MAX);
        while self.attic.front().is_some_and(|event| event.revision <= wanted)
            || ((history.load(SeqCst) > room || self.attic_bytes > room / 2) && !self.attic.is_empty())
        {
            let Some(event) = self.attic.pop_front() else {
                break;
            };
            self.attic_bytes -= weight(&event);
            history.fetch_sub(weight(&event), SeqCst);
            self.oldest = event.revision;
            trimmed.push(event);
        }
    }

    /// From the newest event back to the revision, each is undone. The caller made sure that all of them are known.
    fn items_at(&self, namespace: Option<&str>, revision: u64, after: Option<&Key>) -> Vec<Arc<Entry<M>>> {
        let inside = |key: &Key| {
            namespace.is_none_or(|namespace| *key.namespace == *namespace) && after.is_none_or(|after| key > after)
        };
        let mut before: BTreeMap<&Key, Option<&Arc<Entry<M>>>> = BTreeMap::new();
        let events = self.events.iter().rev().chain(self.attic.iter().rev());
        for event in events.take_while(|event| event.revision > revision) {
            if inside(&event.entry.key) {
                before.insert(&event.entry.key, event.previous.as_ref());
            }
        }
        let first = Bound::Included(Key::new(namespace.unwrap_or_default(), ""));
        let from = match after {
            Some(after) if namespace.is_none_or(|namespace| *after.namespace >= *namespace) => {
                Bound::Excluded(after.clone())
            }
            _ => first,
        };
        let now = self.objects.range((from, Bound::Unbounded));
        let mut now =
            now.take_while(|(key, _)| namespace.is_none_or(|namespace| *key.namespace == *namespace)).peekable();
        let mut items = Vec::new();
        for (key, was) in before {
            while let Some((_, entry)) = now.next_if(|(other, _)| *other < key) {
                items.push(entry.clone());
            }
            now.next_if(|(other, _)| *other == key);
            items.extend(was.cloned());
        }
        items.extend(now.map(|(_, entry)| entry.clone()));
        items
    }
}

/// Somebody may come back to a revision of a resource, until this is dropped. See [`crate::Store::pin`].
pub struct Pin<M> {
    tables: Arc<Tables<M>>,
    table: Arc<Table<M>>,
    revision: u64,
}

impl<M> Drop for Pin<M> {
    fn drop(&mut self) {
        let mut trimmed = Vec::new();
        let mut state = self.table.write();
        if let Some(count) = state.pins.get_mut(&self.revision) {
            *count -= 1;
            if *count == 0 {
                state.pins.remove(&self.revision);
            }
        }
        state.clear_attic(self.tables.bounds.history, &self.tables.history, &mut trimmed);
        // The lock first, then what was let go of.
        drop(state);
    }
}

/// A place in the events of one resource.
///
/// Dropping [`Watcher::next`] half-way loses nothing. When the store closes, watchers wait on: their owner ends them.
pub struct Watcher<M> {
    tables: Arc<Tables<M>>,
    table: Arc<Table<M>>,
    /// Its place among those to be woken, and who is woken there.
    bed: usize,
    waker: Option<Waker>,
    next: u64,
    seen: u64,
    namespace: Option<Arc<str>>,
}

impl<M> Watcher<M> {
    /// Only events of this namespace from here on.
    #[must_use]
    pub fn in_namespace(mut self, namespace: impl Into<Arc<str>>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    pub async fn next(&mut self) -> Result<Arc<Event<M>>, Gone> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Watcher::next`]. Once this was pending, whoever polled it is woken at every event until somebody else polls it.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Arc<Event<M>>, Gone>> {
        if let Some(event) = self.try_next().transpose() {
            return Poll::Ready(event);
        }
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            return Poll::Pending;
        }
        let waker = context.waker().clone();
        self.waker = Some(waker.clone());
        let before = self.table.sleepers().beds[self.bed].replace(waker);
        drop(before);
        // An event in between woke who polled before, if anybody.
        self.try_next().transpose().map_or(Poll::Pending, Poll::Ready)
    }

    pub fn try_next(&mut self) -> Result<Option<Arc<Event<M>>>, Gone> {
        let state = self.table.read();
        if self.next < state.first {
            return Err(Gone { oldest: state.floor });
        }
        while let Some(event) = state.events.get((self.next - state.first) as usize) {
            self.next += 1;
            // A watch from a revision that another table of the same batch got first: what is older is not wanted.
            if event.revision <= self.seen {
                continue;
            }
            self.seen = event.revision;
            if self.namespace.as_ref().is_none_or(|namespace| *namespace == event.entry.key.namespace) {
                return Ok(Some(event.clone()));
            }
        }
        self.seen = self.seen.max(self.tables.revision_of(&state));
        Ok(None)
    }

    /// The revision up to which this watcher has seen everything of its resource; may be newer than its last event.
    pub fn progress(&self) -> u64 {
        let state = self.table.read();
        if self.next == state.end() { self.seen.max(self.tables.revision_of(&state)) } else { self.seen }
    }
}

impl<M> Drop for Watcher<M> {
    fn drop(&mut self) {
        let waker = self.table.sleepers().leave(self.bed);
        drop(waker);
        self.tables.watchers.fetch_sub(1, SeqCst);
    }
}

/// An event holds the state before it, too, which another event may hold as its own.
fn weight<M>(event: &Event<M>) -> usize {
    let before = event.previous.as_ref().map_or(0, |previous| previous.bytes.len());
    event.entry.bytes.len().max(before) + EVENT_OVERHEAD
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}
