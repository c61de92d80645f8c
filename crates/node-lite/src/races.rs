//! For tests: the tenant who swaps a directory for a link while root works below it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Swaps two names as fast as it can, until it is stopped.
pub(crate) struct Swapper {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Swapper {
    /// Returns once it has begun.
    pub fn start(one: &Path, other: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let swaps = Arc::new(AtomicU64::new(0));
        let (one, other): (PathBuf, PathBuf) = (one.to_owned(), other.to_owned());
        let (stopped, counted) = (stop.clone(), swaps.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).is_ok() {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
            counted.load(Ordering::Relaxed)
        });
        while swaps.load(Ordering::Relaxed) == 0 && !thread.is_finished() {
            std::thread::yield_now();
        }
        Self { stop, thread }
    }

    /// How often it swapped.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
