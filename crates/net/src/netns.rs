//! Doing something inside another network namespace.

use std::{fs::File, io, path::Path, thread};

use nix::sched::{CloneFlags, setns};

/// Runs `work` on a thread of its own that has entered the network namespace `path` names (such as `/proc/PID/ns/net`).
///
/// A thread, because entering a namespace cannot be undone safely: it ends with the work.
pub fn enter<T: Send>(path: &Path, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let namespace = File::open(path)?;
    thread::scope(|scope| {
        scope
            .spawn(|| {
                setns(&namespace, CloneFlags::CLONE_NEWNET)?;
                work()
            })
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread inside the network namespace panicked")))
    })
}
