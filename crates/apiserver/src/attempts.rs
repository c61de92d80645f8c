//! How often somebody may be wrong about who he is. A signature takes far longer to check than to make up, and whoever has none
//! of ours is nobody's flow yet: what he may cost is bounded by his address, and that of all strangers together.
//!
//! Tokens that were right before are known and cost nothing, so they are taken from an address that is at its bound, too.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Wrong tokens at a time, and how long one counts.
const OF_ONE: Bound = Bound { most: 64, each: Duration::from_millis(100) };
/// Of all addresses together: a fraction of a processor.
const OF_ALL: Bound = Bound { most: 1024, each: Duration::from_millis(2) };
/// Addresses that are remembered. Others share the bound of all.
const ADDRESSES: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Bound {
    most: u32,
    each: Duration,
}

/// Fills with each attempt, and empties with time.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    filled: u32,
    at: Instant,
}

impl Bucket {
    fn new(at: Instant) -> Self {
        Self { filled: 0, at }
    }

    fn drain(&mut self, bound: Bound, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_nanos() / bound.each.as_nanos().max(1);
        let steps = u32::try_from(passed).unwrap_or(u32::MAX);
        self.filled = self.filled.saturating_sub(steps);
        // What is left of a step counts for the next one, unless there is nothing to wait for.
        self.at = if self.filled == 0 { now } else { self.at + bound.each.saturating_mul(steps) };
    }

    fn is_full(&self, bound: Bound) -> bool {
        self.filled >= bound.most
    }
}

#[derive(Debug, Default)]
pub struct Attempts {
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    all: Option<Bucket>,
    by_address: HashMap<IpAddr, Bucket>,
}

impl Attempts {
    /// Whether an address may try once more. It counts as wrong until [`Attempts::was_right`].
    pub fn may_try(&self, address: IpAddr, now: Instant) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Buckets { all, by_address } = &mut *buckets;
        let all = all.get_or_insert_with(|| Bucket::new(now));
        all.drain(OF_ALL, now);
        if by_address.len() >= ADDRESSES && !by_address.contains_key(&address) {
            by_address.retain(|_, bucket| {
                bucket.drain(OF_ONE, now);
                bucket.filled > 0
            });
        }
        let room = by_address.len() < ADDRESSES || by_address.contains_key(&address);
        let mut own = room.then(|| by_address.entry(address).or_insert_with(|| Bucket::new(now)));
        if let Some(own) = &mut own {
            own.drain(OF_ONE, now);
        }
        if all.is_full(OF_ALL) || own.as_ref().is_some_and(|own| own.is_full(OF_ONE)) {
            return false;
        }
        all.filled += 1;
        if let Some(own) = own {
            own.filled += 1;
        }
        true
    }

    /// The last attempt of an address was none.
    pub fn was_right(&self, address: IpAddr) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(all) = &mut buckets.all {
            all.filled = all.filled.saturating_sub(1);
        }
        if let Some(own) = buckets.by_address.get_mut(&address) {
            own.filled = own.filled.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    fn tries(attempts: &Attempts, address: IpAddr, now: Instant, count: usize) -> usize {
        (0..count).filter(|_| attempts.may_try(address, now)).count()
    }

    #[test]
    fn an_address_that_is_wrong_too_often_waits_and_others_do_not() {
        let (attempts, start) = (Attempts::default(), Instant::now());
        assert_eq!(tries(&attempts, ip(1), start, 1000), 64);
        assert_eq!(tries(&attempts, ip(2), start, 10), 10);
        let later = start + Duration::from_millis(350);
        assert_eq!(tries(&attempts, ip(1), later, 1000), 3);
        assert_eq!(tries(&attempts, ip(1), start + Duration::from_secs(60), 1000), 64);
    }

    #[test]
    fn who_is_right_may_be_right_as_often_as_he_wants() {
        let (attempts, start) = (Attempts::default(), Instant::now());
        for _ in 0..5000 {
            assert!(attempts.may_try(ip(1), start));
            attempts.was_right(ip(1));
        }
    }

    /// Whoever has many addresses has not many times the work, nor the memory.
    #[test]
    fn all_strangers_together_have_their_bound() {
        let (attempts, start) = (Attempts::default(), Instant::now());
        let tried: usize = (0..100_000).map(|n| tries(&attempts, ip(n), start, 1)).sum();
        assert_eq!(tried, 1024);
        let mut now = start;
        for n in 0..20_000 {
            now += Duration::from_millis(5);
            attempts.may_try(ip(n), now);
            assert!(attempts.buckets.lock().unwrap().by_address.len() <= ADDRESSES);
        }
        assert!(attempts.may_try(ip(7), now + Duration::from_secs(10)));
    }
}
