//! The heap of a process that is a whole control plane.
//!
//! The C library gives every thread that has to wait for another a heap of its own, up to eight per core, and what is freed in
//! one is of no use to the others. Objects come in on one thread and go on another, so a store of small objects takes up
//! to half as much memory again. It also learns from every large piece that is freed to keep more of them. Two heaps are
//! enough for our threads, and an answer that was large once is no reason to keep its room.
#![allow(unsafe_code)]

use nix::libc;

const HEAPS: libc::c_int = 2;
const KEPT: libc::c_int = 128 << 10;

/// Keeps the process small. To be called before there is a second thread.
pub fn share() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers and no pointers; glibc allows it at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}

/// Gives back what lies between the pieces in use. Takes milliseconds in which other threads may wait for memory.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and no pointer; glibc allows it at any time, on any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
