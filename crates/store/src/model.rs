//! The words of the store: keys, entries, writes, events and errors.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

/// What the user of the store keeps parsed beside the bytes (labels, owner references, …).
/// It is not stored: it is rebuilt from the bytes at start-up.
pub trait Meta: Clone + Send + Sync + 'static {
    type Error: std::error::Error + Send + Sync + 'static;

    fn from_bytes(resource: &str, bytes: &[u8]) -> Result<Self, Self::Error>;
}

/// For users that keep nothing parsed.
impl Meta for () {
    type Error = std::convert::Infallible;

    fn from_bytes(_: &str, _: &[u8]) -> Result<Self, Self::Error> {
        Ok(())
    }
}

/// Ordered by namespace, then name: the order of every list.
#[derive(Clone, PartialEq, Eq, Hash, Ord, PartialOrd)]
pub struct Key {
    /// Empty for objects of the cluster scope.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One object at one revision. Never changes; a newer state is another entry.
#[derive(Clone)]
pub struct Entry<M> {
    pub key: Key,
    pub revision: u64,
    /// Revision of the object's creation.
    pub created: u64,
    pub bytes: Bytes,
    pub meta: M,
}

impl<M> fmt::Debug for Entry<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} ({} bytes)", self.key, self.revision, self.bytes.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledged when it is on the disk.
    Synced,
    /// Acknowledged before the sync (events, leases): a power cut may lose the last of these, a crash of the process does not.
    Relaxed,
}

/// What must be true of the object for the write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Any,
    Absent,
    Present,
    Revision(u64),
}

/// Bytes that contain their own revision: `head`, the revision in decimal, `tail`.
///
/// Kubernetes objects carry their `resourceVersion`, which is only known when the write has its turn.
#[derive(Clone, Debug)]
pub struct Value<M> {
    pub head: Bytes,
    pub tail: Bytes,
    pub meta: M,
}

impl<M> Value<M> {
    pub(crate) fn splice(&self, revision: u64) -> Bytes {
        let digits = revision.to_string();
        let mut bytes = BytesMut::with_capacity(self.head.len() + digits.len() + self.tail.len());
        bytes.extend_from_slice(&self.head);
        bytes.extend_from_slice(digits.as_bytes());
        bytes.extend_from_slice(&self.tail);
        bytes.freeze()
    }
}

#[derive(Clone, Debug)]
pub enum Change<M> {
    Put(Value<M>),
    /// `last` is the final state that watchers get in the [`EventKind::Deleted`] event, with the revision of the deletion.
    /// Deleting what is not there is a conflict, whatever the expectation.
    Delete {
        last: Value<M>,
    },
}

#[derive(Clone, Debug)]
pub struct Write<M> {
    /// For example `kubevirt.io/virtualmachines`.
    pub resource: Arc<str>,
    pub key: Key,
    pub expect: Expect,
    pub durability: Durability,
    pub change: Change<M>,
}

/// What must be true of another object for a commit to happen, at the moment of the commit.
pub struct Condition<M> {
    pub resource: Arc<str>,
    pub key: Key,
    pub holds: fn(Option<&Entry<M>>) -> bool,
}

#[derive(thiserror::Error)]
pub enum CommitError<M> {
    /// The expectation did not hold. `current` is what is there instead.
    #[error("the object is not in the expected state")]
    Conflict { current: Option<Arc<Entry<M>>> },
    /// A [`Condition`] did not hold.
    #[error("another object is not in the state that the write depends on")]
    Unmet,
    /// The disk did not take the write. Nothing changed; a later commit may succeed.
    #[error("the store cannot write to its disk")]
    Full(#[source] io::Error),
    #[error("the store is closed")]
    Closed,
}

// By hand, so that `M` need not be `Debug` for the error to be an error.
impl<M> fmt::Debug for CommitError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { current } => f.debug_struct("Conflict").field("current", current).finish(),
            Self::Unmet => f.write_str("Unmet"),
            Self::Full(error) => f.debug_tuple("Full").field(error).finish(),
            Self::Closed => f.write_str("Closed"),
        }
    }
}

/// What was asked for is not known any more: list again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("events are only known after revision {oldest}")]
pub struct Gone {
    /// The oldest revision that could be asked for now.
    pub oldest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
}

#[derive(Clone, Debug)]
pub struct Event<M> {
    pub kind: EventKind,
    pub revision: u64,
    /// The new state; for a deletion the final one.
    pub entry: Arc<Entry<M>>,
    pub previous: Option<Arc<Entry<M>>>,
}

/// The objects of a resource as they were at `revision`, sorted by namespace and name.
#[derive(Clone, Debug)]
pub struct List<M> {
    pub revision: u64,
    pub items: Vec<Arc<Entry<M>>>,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// A log file is followed by a new one past this size.
    pub segment_bytes: u64,
    /// Disk space is reserved in steps of this size, which makes syncs cheaper. 0: never.
    pub preallocate_bytes: u64,
    /// The log is rewritten when its dead bytes outgrow the live ones and this.
    pub compact_min_bytes: u64,
    /// Events kept per resource for watchers that lag.
    pub watch_events: usize,
    /// Bytes of objects in those events.
    pub watch_bytes: usize,
    /// Bytes of objects in events that are kept beyond those for [`crate::Pin`]s, of all resources together.
    pub history_bytes: usize,
    /// Revisions reserved on disk at a time; a crash skips at most this many.
    pub revision_step: u64,
    /// Relaxed writes reach the disk after this time at the latest.
    pub relaxed_sync: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            preallocate_bytes: 4 << 20,
            compact_min_bytes: 16 << 20,
            watch_events: 4096,
            watch_bytes: 8 << 20,
            history_bytes: 64 << 20,
            revision_step: 1000,
            relaxed_sync: Duration::from_secs(1),
        }
    }
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Live objects.
    pub objects: usize,
    /// Bytes of the live objects.
    pub bytes: u64,
    /// Bytes of an unfinished last write that were cut off.
    pub torn_bytes: u64,
    pub took: Duration,
    /// The older format the store was migrated from.
    pub migrated: Option<u32>,
    /// The revision the store goes on from.
    pub revision: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of all log files, without preallocated space.
    pub log_bytes: u64,
    /// Of these, bytes that a rewritten log would still have.
    pub live_bytes: u64,
    /// Writes committed since opening.
    pub commits: u64,
    pub fsyncs: u64,
    pub compactions: u64,
    pub watchers: u64,
    /// What is kept for pins beyond what watchers need.
    pub history_bytes: u64,
}
