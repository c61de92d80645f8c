//! Room for the CEL engine, which recurses as deep as expressions nest.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::RuntimeFlavor;

/// Address space, not memory: only what is used is ever there.
const ENGINE_STACK: usize = 256 << 20;
/// Expressions up to this complexity are evaluated on the worker's own stack. Both numbers have room in a debug build too.
pub const SHALLOW: usize = 50;
/// Expressions beyond this complexity are refused. Rules people write have a few dozen operators.
pub const MAX_COMPLEXITY: usize = 1000;
/// A bracket costs the parser as much as this many operators.
const BRACKET_WEIGHT: usize = 10;

/// Runs the engine where its deep recursion has room. None if it panicked or there is no thread to be had.
pub fn roomily<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(ENGINE_STACK).spawn_scoped(scope, work).ok()?;
        thread.join().ok()
    })
}

/// Evaluations that cost more than this leave the thread that serves to others.
pub const CHEAP: u64 = 20_000;
/// Expensive evaluations at a time, and how long one waits for its turn.
const EXPENSIVE: usize = 2;
const PATIENCE: Duration = Duration::from_secs(10);

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

/// Runs what takes long where it keeps no request from being served, and a few of it at a time. None if it never was its turn.
pub fn aside<T>(work: impl FnOnce() -> T) -> Option<T> {
    let run = || {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = ENDED.wait_timeout_while(running, PATIENCE, |running| *running >= EXPENSIVE);
        let (mut running, waited) = turn.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        *running += 1;
        drop(running);
        let _running = Running;
        Some(work())
    };
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => tokio::task::block_in_place(run),
        _ => run(),
    }
}

/// Runs the engine on this stack. None if it panicked, which it does for some of what people can write.
pub fn safely<T>(work: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
}

/// An upper bound of how deep an expression nests: deepest bracket, longest chain of one level, prefix operators.
pub fn complexity(expression: &str) -> usize {
    let (mut depth, mut deepest, mut operators) = (0usize, 0usize, 0usize);
    for byte in expression.bytes() {
        match byte {
            b'(' | b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'+' | b'-' | b'*' | b'/' | b'%' | b'!' | b'?' | b'|' | b'&' | b'<' | b'>' | b'=' | b'.' => operators += 1,
            _ => {}
        }
    }
    deepest * BRACKET_WEIGHT + operators
}

/// Refuses what could exhaust any stack.
pub fn check_complexity(expression: &str) -> Result<(), String> {
    if complexity(expression) > MAX_COMPLEXITY {
        return Err("the expression is too complex for this server".to_owned());
    }
    Ok(())
}
