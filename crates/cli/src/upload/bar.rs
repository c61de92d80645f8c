//! How far a transfer is, on a terminal.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// One line that is written over, on a terminal only.
pub struct Bar {
    total: u64,
    done: u64,
    /// Where this connection began, for the rate.
    from: u64,
    started: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl Bar {
    const WIDTH: u64 = 30;

    pub fn new(total: u64, from: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { total, done: from, from, started: Instant::now(), shown: None, terminal }
    }

    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        let due = self.shown.is_none_or(|at| at.elapsed() > Duration::from_millis(100)) || self.done >= self.total;
        if !self.terminal || !due {
            return;
        }
        self.shown = Some(Instant::now());
        eprint!("\r{}", self.line());
        if self.done >= self.total {
            eprintln!();
        }
        let _ = std::io::stderr().flush();
    }

    fn line(&self) -> String {
        let total = self.total.max(1);
        let filled = usize::try_from(Self::WIDTH * self.done.min(total) / total).unwrap_or_default();
        let rest = usize::try_from(Self::WIDTH).unwrap_or_default() - filled;
        let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        format!(
            "[{}{}] {:3}% {} of {} MiB, {} MiB/s",
            "=".repeat(filled),
            " ".repeat(rest),
            100 * self.done.min(total) / total,
            self.done >> 20,
            self.total.div_ceil(1 << 20),
            ((self.done - self.from).saturating_mul(1000) / millis) >> 20,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_from_nothing_to_all() {
        let mut bar = Bar { terminal: false, ..Bar::new(4 << 20, 0) };
        assert!(bar.line().starts_with(&format!("[{}]   0% 0 of 4 MiB", " ".repeat(30))));
        bar.add(2 << 20);
        assert!(bar.line().starts_with(&format!("[{}{}]  50% 2 of 4 MiB", "=".repeat(15), " ".repeat(15))));
        bar.add(2 << 20);
        assert!(bar.line().contains("100% 4 of 4 MiB"));
    }
}
