//! Warnings that are repeated. A loop that fails the same way every few seconds must not fill the store with events; one
//! that fails in another way must be heard at once, so the words count and not only the reason.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// A repetition within this time is dropped.
const QUIET: Duration = Duration::from_secs(300);

/// What was said lately.
#[derive(Debug, Default)]
pub struct Said {
    /// By a hash of object, reason and words: thousands of objects may complain at once.
    at: HashMap<u64, Instant>,
    swept: Option<Instant>,
}

impl Said {
    /// Notes what is said now; false if it was said lately and need not be said again.
    pub fn is_news(&mut self, now: Instant, object: &str, reason: &str, words: &str) -> bool {
        if self.swept.is_none_or(|at| now.duration_since(at) >= QUIET) {
            self.at.retain(|_, at| now.duration_since(*at) < QUIET);
            self.swept = Some(now);
        }
        let mut hasher = DefaultHasher::new();
        (object, reason, words).hash(&mut hasher);
        let key = hasher.finish();
        if self.at.get(&key).is_some_and(|at| now.duration_since(*at) < QUIET) {
            return false;
        }
        self.at.insert(key, now);
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
        assert!(said.is_news(at(900), "c", "Failed", "x"));
        assert_eq!(said.at.len(), 1, "what is old is forgotten");
    }
}
