//! Who has which disk open. The invariant of fencing is checked here, at the very moment of opening.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Books>>);

#[derive(Default)]
struct Books {
    /// Disk -> pod uid of the launcher that has it open.
    open: HashMap<String, String>,
    violations: Vec<String>,
    starts: u64,
}

impl Ledger {
    pub(crate) fn open(&self, disk: &str, pod: &str) {
        let mut books = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        books.starts += 1;
        let before = books.open.insert(disk.to_owned(), pod.to_owned());
        if let Some(other) = before.filter(|other| other != pod) {
            books.violations.push(format!("{disk} was opened by {pod} while {other} had it open"));
        }
    }

    pub(crate) fn close(&self, disk: &str, pod: &str) {
        let mut books = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if books.open.get(disk).is_some_and(|by| by == pod) {
            books.open.remove(disk);
        }
    }

    /// Every time two launchers had one disk open.
    pub fn violations(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).violations.clone()
    }

    /// How many machines were ever started.
    pub fn starts(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).starts
    }

    pub fn running(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_on_one_disk_are_seen_and_one_after_the_other_is_fine() {
        let ledger = Ledger::default();
        ledger.open("d", "one");
        ledger.close("d", "one");
        ledger.open("d", "two");
        assert!(ledger.violations().is_empty());
        ledger.open("d", "three");
        assert_eq!(ledger.violations(), ["d was opened by three while two had it open"]);
    }
}
