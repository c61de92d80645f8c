//! Whether a connection does something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Requests of one connection that are not answered to the end, and when their number changed last.
#[derive(Debug)]
pub struct Activity {
    born: Instant,
    open: AtomicUsize,
    asked: AtomicBool,
    /// Milliseconds since `born`.
    changed: AtomicU64,
}

impl Activity {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            born: Instant::now(),
            open: AtomicUsize::new(0),
            asked: AtomicBool::new(false),
            changed: AtomicU64::new(0),
        })
    }

    fn touch(&self) {
        self.changed.store(u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Whether a request is open, and since when it has been as it is.
    pub fn state(&self) -> (bool, Duration) {
        let since = self.born.elapsed().saturating_sub(Duration::from_millis(self.changed.load(Relaxed)));
        (self.open.load(Relaxed) > 0, since)
    }

    /// Whether there ever was a request.
    pub fn has_asked(&self) -> bool {
        self.asked.load(Relaxed)
    }

    pub fn begin(self: &Arc<Self>) -> Busy {
        self.open.fetch_add(1, Relaxed);
        self.asked.store(true, Relaxed);
        self.touch();
        Busy(self.clone())
    }
}

/// A request that is open, until it is dropped.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
        self.0.touch();
    }
}
