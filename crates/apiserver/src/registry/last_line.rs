//! The line that was written last for watches of a version. All who watch the same objects get the same, one after the other.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// A larger one is not worth its place in memory.
const MAX_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, Default)]
pub struct LastLine(Arc<Mutex<Option<Line>>>);

#[derive(Debug)]
struct Line {
    revision: u64,
    name: &'static str,
    bytes: Bytes,
}

impl LastLine {
    /// The line of the event `name` at `revision`.
    pub fn get_or_write(&self, revision: u64, name: &'static str, write: impl FnOnce() -> Bytes) -> Bytes {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = last.as_ref().filter(|line| line.revision == revision && line.name == name) {
            return line.bytes.clone();
        }
        // Those who come meanwhile wait: they want the same.
        let bytes = write();
        *last = (bytes.len() <= MAX_BYTES).then(|| Line { revision, name, bytes: bytes.clone() });
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_once_for_its_event_and_anew_for_others() {
        let last = LastLine::default();
        let ask = |revision, name, text: &'static str| last.get_or_write(revision, name, || Bytes::from(text));
        assert_eq!(ask(7, "ADDED", "one"), "one");
        assert_eq!(ask(7, "ADDED", "two"), "one");
        assert_eq!(ask(7, "MODIFIED", "three"), "three");
        assert_eq!(ask(8, "MODIFIED", "four"), "four");
        assert_eq!(ask(7, "ADDED", "five"), "five");
        let large = Bytes::from(vec![b'x'; MAX_BYTES + 1]);
        assert_eq!(last.get_or_write(9, "ADDED", || large.clone()), large);
        assert_eq!(ask(9, "ADDED", "six"), "six");
    }
}
