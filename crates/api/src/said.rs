//! Warnings that are repeated. A loop that fails the same way every few seconds must not fill the store with events; one
//! that fails in another way must be heard at once, so the words count and not only the reason.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// A repetition within this time is dropped. After each one that is not, the time is twice as long: who comes later to look
/// still hears it.
const QUIET: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);

/// What was said lately.
#[derive(Debug, Default)]
pub struct Said {
    /// By a hash of object, reason and words: thousands of objects may complain at once.
    at: HashMap<u64, (Instant, Duration)>,
    swept: Option<Instant>,
}

impl Said {
    /// Notes what is said now; false if it was said lately and need not be said again.
    pub fn is_news(&mut self, now: Instant, object: &str, reason: &str, words: &str) -> bool {
        if self.swept.is_none_or(|at| now.duration_since(at) >= LONGEST) {
            self.at.retain(|_, (at, _)| now.duration_since(*at) < 2 * LONGEST);
            self.swept = Some(now);
        }
        let mut hasher = DefaultHasher::new();
        (object, reason, words).hash(&mut hasher);
        let key = hasher.finish();
        let quiet = match self.at.get(&key) {
            Some((at, quiet)) if now.duration_since(*at) < *quiet => return false,
            Some((_, quiet)) => (*quiet * 2).min(LONGEST),
            None => QUIET,
        };
        self.at.insert(key, (now, quiet));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_words_about_the_same_object_are_dropped_and_not_for_ever() {
        let (mut said, start) = (Said::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(said.is_news(at(0), "a", "Failed", "no node has tried it"));
        assert!(!said.is_news(at(5), "a", "Failed", "no node has tried it"));
        assert!(said.is_news(at(5), "a", "Failed", "the node lacks the driver"));
        assert!(said.is_news(at(5), "b", "Failed", "no node has tried it"));
        assert!(said.is_news(at(6), "a", "Other", "no node has tried it"));
        assert!(said.is_news(at(301), "a", "Failed", "no node has tried it"));
        assert!(!said.is_news(at(302), "a", "Failed", "no node has tried it"));
        assert!(said.at.len() <= 4, "{said:?}");
        assert!(said.is_news(at(1000), "c", "Failed", "x"));
        assert_eq!(said.at.len(), 1, "what is old is forgotten");
    }

    #[test]
    fn what_goes_on_is_repeated_ever_more_rarely() {
        let (mut said, start) = (Said::default(), Instant::now());
        let heard: Vec<u64> =
            (0..1200).filter(|s| said.is_news(start + Duration::from_secs(*s), "a", "F", "x")).collect();
        assert_eq!(heard, [0, 10, 30, 70, 150, 310, 610, 910]);
    }
}
