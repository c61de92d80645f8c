//! Waiting for conditions.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Long enough for an emulated guest to boot on a machine that is busy with other things.
pub const BOOT: Duration = Duration::from_secs(120);
/// Long enough for everything that waits for no guest.
pub const SOON: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(100);

/// What a look at the world showed.
pub enum Seen<T> {
    /// The condition holds.
    Yes(T),
    /// Not yet; the text says what is there instead.
    Not(String),
}

/// Looks until the condition holds. Fails with what was last seen, or at once if looking fails.
pub fn until<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Result<Seen<T>>) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        match look()? {
            Seen::Yes(value) => return Ok(value),
            Seen::Not(seen) if Instant::now() > end => {
                bail!("waited {} s for {what}, last seen: {seen}", deadline.as_secs())
            }
            Seen::Not(_) => thread::sleep(PAUSE),
        }
    }
}
