//! Objects that have to be looked at: each once at a time, and again, later and later, for as long as something does not work.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What came of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Somebody changed it meanwhile.
    Changed,
    Failed,
}

pub struct Queue<T> {
    ready: VecDeque<T>,
    queued: HashSet<T>,
    working: HashSet<T>,
    /// Asked for while somebody worked on it.
    again: HashSet<T>,
    later: BTreeMap<(Instant, u64), T>,
    due: HashMap<T, (Instant, u64)>,
    failures: HashMap<T, u32>,
    count: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            queued: HashSet::new(),
            working: HashSet::new(),
            again: HashSet::new(),
            later: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            count: 0,
        }
    }
}

impl<T: Clone + Eq + Hash> Queue<T> {
    pub fn add(&mut self, item: T) {
        if self.working.contains(&item) {
            self.again.insert(item);
            return;
        }
        if let Some(place) = self.due.remove(&item) {
            self.later.remove(&place);
        }
        if self.queued.insert(item.clone()) {
            self.ready.push_back(item);
        }
    }

    /// The next one to look at. It is worked on until [`Queue::done`].
    pub fn next(&mut self, now: Instant) -> Option<T> {
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let item = first.remove();
            self.due.remove(&item);
            self.add(item);
        }
        let item = self.ready.pop_front()?;
        self.queued.remove(&item);
        self.working.insert(item.clone());
        Some(item)
    }

    pub fn done(&mut self, item: T, outcome: Outcome, now: Instant) {
        self.working.remove(&item);
        let again = self.again.remove(&item);
        match outcome {
            Outcome::Done => {
                self.failures.remove(&item);
                if again {
                    self.add(item);
                }
            }
            // It is known already what it is now.
            Outcome::Changed if again => self.add(item),
            Outcome::Changed | Outcome::Failed => {
                let failures = self.failures.entry(item.clone()).or_default();
                *failures = failures.saturating_add(1);
                let pause = FIRST_PAUSE.saturating_mul(1 << (*failures - 1).min(20)).min(LONGEST_PAUSE);
                self.delay(item, now + pause);
            }
        }
    }

    fn delay(&mut self, item: T, until: Instant) {
        self.count += 1;
        let place = (until, self.count);
        self.due.insert(item.clone(), place);
        self.later.insert(place, item);
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn in_work(&self) -> usize {
        self.working.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_forgotten_and_nothing_is_done_twice_at_a_time() {
        let start = Instant::now();
        let mut queue = Queue::default();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!((queue.next(start), queue.next(start), queue.next(start)), (Some("a"), Some("b"), None));
        // Asked for while it is worked on: once more afterwards.
        queue.add("a");
        assert_eq!(queue.next(start), None);
        queue.done("a", Outcome::Done, start);
        queue.done("b", Outcome::Done, start);
        assert_eq!((queue.next(start), queue.next(start)), (Some("a"), None));
        queue.done("a", Outcome::Done, start);
        assert_eq!((queue.next(start), queue.next_due(), queue.in_work()), (None, None, 0));
    }

    #[test]
    fn what_fails_is_tried_for_ever_with_growing_pauses() {
        let mut now = Instant::now();
        let mut queue = Queue::default();
        queue.add("a");
        let mut pauses = Vec::new();
        for _ in 0..40 {
            assert_eq!(queue.next(now), Some("a"));
            queue.done("a", Outcome::Failed, now);
            let due = queue.next_due().unwrap();
            assert_eq!(queue.next(due - Duration::from_millis(1)), None);
            pauses.push(due - now);
            now = due;
        }
        assert_eq!(pauses[..3], [20, 40, 80].map(Duration::from_millis));
        assert!(pauses.is_sorted() && pauses[39] == LONGEST_PAUSE, "{pauses:?}");
        // A change of it is reason to try at once, and success ends the count.
        assert_eq!(queue.next(now), Some("a"));
        queue.done("a", Outcome::Failed, now);
        queue.add("a");
        assert_eq!((queue.next(now), queue.next_due()), (Some("a"), None));
        queue.done("a", Outcome::Done, now);
        queue.add("a");
        queue.next(now);
        queue.done("a", Outcome::Failed, now);
        assert_eq!(queue.next_due().unwrap() - now, FIRST_PAUSE);
    }
}
