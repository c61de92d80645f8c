//! A durable, revisioned, watchable map of bytes: the ground under the embedded Kubernetes API.
//!
//! It knows resources (a name), keys (namespace and name), revisions and bytes. What the bytes mean is the
//! business of the caller, who says with [`Meta`] what to keep parsed beside them.
//!
//! ```text
//!   commit ──(queue, thread)──> writer ──> log (one fdatasync a batch) ──> tables ──> watchers, answers
//!                                                                         ^
//!   get, list, watch ─────────────────────────────────────────────────────┘   never wait for the disk
//! ```
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! # let dir = std::env::temp_dir().join(format!("store-example-{}", std::process::id()));
//! use ferrovirt_store::{Change, Durability, Expect, Key, Options, Store, Value, Write};
//!
//! let (store, _report) = Store::<()>::open(&dir, Options::default())?;
//! let mut watcher = store.watch("example.io/things", None)?;
//! let written = store
//!     .commit(Write {
//!         resource: "example.io/things".into(),
//!         key: Key::new("default", "one"),
//!         expect: Expect::Absent,
//!         durability: Durability::Synced,
//!         change: Change::Put(Value { head: "{\"revision\":".into(), tail: "}".into(), meta: () }),
//!     })
//!     .await?;
//! assert_eq!(written.bytes, format!("{{\"revision\":{}}}", written.revision));
//! assert_eq!(watcher.next().await?.revision, written.revision);
//! store.close().await;
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! Invariants:
//! - A read sees only what the log already holds; with [`Durability::Synced`] that means on the disk.
//! - A revision is used once in the life of a store, crashes and lost relaxed writes included.
//! - A watcher sees every event of its resource once and in order, or is told [`Gone`].
//! - A list at a revision ([`Store::list_at`]) is that revision's, or the answer is [`Gone`]. What is kept for it is bounded,
//!   however many ask.
//! - A batch ([`Store::commit_all`]) is there as a whole after a crash, or not at all.
//!
//! No kind of object, no JSON and no clock enters this crate.

mod backup;
mod compact;
mod files;
mod frame;
pub mod heap;
mod log;
mod model;
mod recover;
mod store;
mod table;
mod writer;

pub use backup::{BackupError, FsckReport, RestoreError, copy, fsck, restore};
pub use files::{DirFiles, Files, LogFile};
pub use model::{
    Change, CommitError, Condition, Durability, Entry, Event, EventKind, Expect, Gone, Key, List, Meta, Options,
    Report, Stats, Value, Write,
};
pub use recover::OpenError;
pub use store::Store;
pub use table::{Pin, Watcher};
