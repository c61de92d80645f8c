//! Who is inside, and who may still come in.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::held::Scissors;
use crate::limits::Limits;

/// The connections of one listener.
pub struct Door {
    limits: Limits,
    inside: Mutex<Inside>,
    me: Weak<Self>,
}

#[derive(Default)]
struct Inside {
    total: usize,
    /// Grows with each connection, and each time that a stranger does something.
    clock: u64,
    peers: HashMap<IpAddr, PeerCount>,
    names: HashMap<String, usize>,
    /// By when they did something last.
    strangers: BTreeMap<u64, (IpAddr, Arc<Scissors>)>,
}

#[derive(Default)]
struct PeerCount {
    total: usize,
    strangers: usize,
}

impl Door {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new_cyclic(|me| Self { limits, inside: Mutex::default(), me: me.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in, for which another may have to leave; None if there is nobody whom it could replace.
    pub fn enter(&self, address: IpAddr) -> Option<Guest> {
        let door = self.me.upgrade()?;
        let peer = group(address);
        let mut inside = self.lock();
        let inside = &mut *inside;
        if inside.peers.get(&peer).is_some_and(|count| count.total >= self.limits.per_peer) {
            inside.evict(|of, _| of == peer).then_some(())?;
        }
        if inside.total >= self.limits.total {
            inside.evict(|_, _| true).then_some(())?;
        }
        while inside.strangers.len() >= self.limits.strangers.max(1) {
            // Whoever has most of them pays first.
            let most = inside.peers.values().map(|count| count.strangers).max().unwrap_or(0);
            inside.evict(|_, strangers| strangers == most).then_some(())?;
        }
        let scissors = Arc::new(Scissors::default());
        inside.total += 1;
        let count = inside.peers.entry(peer).or_default();
        count.total += 1;
        count.strangers += 1;
        inside.clock += 1;
        inside.strangers.insert(inside.clock, (peer, scissors.clone()));
        let place = Mutex::new(Place { stranger: Some(inside.clock), name: None, gone: false });
        Some(Guest(Arc::new(Entered {
            door,
            peer,
            scissors,
            place,
            known: AtomicBool::new(false),
            kept: Mutex::default(),
        })))
    }

    /// Makes room by ending the stranger that was quiet for longest.
    pub fn evict(&self) -> bool {
        self.lock().evict(|_, _| true)
    }

    #[cfg(test)]
    fn counts(&self) -> (usize, usize, usize, usize) {
        let inside = self.lock();
        (inside.total, inside.strangers.len(), inside.peers.len(), inside.names.len())
    }
}

impl Inside {
    /// Ends the stranger that was quiet for longest among those whose address, and whose address' number of strangers, fits.
    fn evict(&mut self, fits: impl Fn(IpAddr, usize) -> bool) -> bool {
        let of = |peer: &IpAddr| self.peers.get(peer).map_or(0, |count| count.strangers);
        let victim = self.strangers.iter().find(|(_, (peer, _))| fits(*peer, of(peer)));
        let Some(key) = victim.map(|(key, _)| *key) else { return false };
        if let Some((peer, scissors)) = self.strangers.remove(&key) {
            // It leaves the count now: its task ends when it is scheduled next, and the next one must not wait for that.
            self.leave(peer, true);
            scissors.cut();
        }
        true
    }

    fn leave(&mut self, peer: IpAddr, stranger: bool) {
        self.total = self.total.saturating_sub(1);
        if let Some(count) = self.peers.get_mut(&peer) {
            count.total = count.total.saturating_sub(1);
            count.strangers = count.strangers.saturating_sub(usize::from(stranger));
            if count.total == 0 {
                self.peers.remove(&peer);
            }
        }
    }
}

/// Who has one IPv6 address has 2^64 of them.
fn group(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from(u128::from(v6) & !u128::from(u64::MAX))),
        },
    }
}

/// One connection that was let in. It leaves when the last clone is dropped.
#[derive(Clone)]
pub struct Guest(Arc<Entered>);

/// A connection, to be ended by somebody who does not hold it.
#[derive(Clone)]
pub struct WeakGuest(Weak<Entered>);

impl WeakGuest {
    pub fn cut(&self) {
        if let Some(entered) = self.0.upgrade() {
            entered.scissors.cut();
        }
    }

    pub fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }
}

struct Entered {
    door: Arc<Door>,
    peer: IpAddr,
    scissors: Arc<Scissors>,
    place: Mutex<Place>,
    known: AtomicBool,
    kept: Mutex<Vec<Box<dyn Send>>>,
}

struct Place {
    /// Its key among the strangers.
    stranger: Option<u64>,
    name: Option<String>,
    /// Was ended to make room, and is not counted any more.
    gone: bool,
}

/// One name has as many connections as it may have.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMany;

impl Guest {
    pub(crate) fn scissors(&self) -> &Scissors {
        &self.0.scissors
    }

    /// Ends the connection, whatever it is doing, also after an upgrade.
    pub fn cut(&self) {
        self.0.scissors.cut();
    }

    pub fn downgrade(&self) -> WeakGuest {
        WeakGuest(Arc::downgrade(&self.0))
    }

    /// Keeps something until the connection is gone, also after an upgrade.
    pub fn keep(&self, what: Box<dyn Send>) {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Where it comes from, as far as addresses tell one from another.
    pub fn address(&self) -> IpAddr {
        self.0.peer
    }

    /// Whether it is no stranger any more.
    pub fn is_known(&self) -> bool {
        self.0.known.load(Relaxed)
    }

    /// Says whose connection this is. The first name stays, so that nobody escapes his count by changing it.
    pub fn known(&self, name: &str) -> Result<(), TooMany> {
        if self.is_known() {
            return Ok(());
        }
        let mut inside = self.0.door.lock();
        let inside = &mut *inside;
        let mut place = self.0.place();
        let Some(key) = place.stranger else { return Ok(()) };
        if inside.names.get(name).is_some_and(|count| *count >= self.0.door.limits.per_name) {
            return Err(TooMany);
        }
        place.stranger = None;
        if inside.strangers.remove(&key).is_none() {
            place.gone = true;
            return Ok(());
        }
        if let Some(count) = inside.peers.get_mut(&self.0.peer) {
            count.strangers = count.strangers.saturating_sub(1);
        }
        *inside.names.entry(name.to_owned()).or_default() += 1;
        place.name = Some(name.to_owned());
        self.0.known.store(true, Relaxed);
        Ok(())
    }

    /// A stranger did something: others were quiet for longer.
    pub(crate) fn touch(&self) {
        if self.is_known() {
            return;
        }
        let mut inside = self.0.door.lock();
        let mut place = self.0.place();
        let Some(key) = place.stranger else { return };
        match inside.strangers.remove(&key) {
            None => {
                place.stranger = None;
                place.gone = true;
            }
            Some(entry) => {
                inside.clock += 1;
                let now = inside.clock;
                inside.strangers.insert(now, entry);
                place.stranger = Some(now);
            }
        }
    }
}

impl Entered {
    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut inside = self.door.lock();
        let inside = &mut *inside;
        let place = self.place.get_mut().unwrap_or_else(PoisonError::into_inner);
        let stranger = match place.stranger {
            Some(key) if inside.strangers.remove(&key).is_none() => return,
            Some(_) => true,
            None if place.gone => return,
            None => false,
        };
        if let Some(name) = &place.name
            && let Some(count) = inside.names.get_mut(name)
        {
            *count -= 1;
            if *count == 0 {
                inside.names.remove(name);
            }
        }
        inside.leave(self.peer, stranger);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(total: usize, per_peer: usize, per_name: usize, strangers: usize) -> Limits {
        Limits { total, per_peer, per_name, strangers, ..Limits::new(64, 0.5) }
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn strangers_make_room_and_those_with_a_name_do_not() {
        let door = Door::new(limits(4, 4, 4, 2));
        let known = door.enter(ip(1)).unwrap();
        known.known("a").unwrap();
        let quiet = door.enter(ip(2)).unwrap();
        let busy = door.enter(ip(3)).unwrap();
        quiet.touch();
        busy.touch();
        quiet.touch();
        let next = door.enter(ip(4)).unwrap();
        assert!(busy.scissors().is_cut() && !quiet.scissors().is_cut() && !known.scissors().is_cut());
        assert_eq!(door.counts(), (3, 2, 3, 1));
        // What was ended is not counted twice, whatever is still said of it.
        busy.touch();
        busy.known("b").unwrap();
        drop(busy);
        assert_eq!(door.counts(), (3, 2, 3, 1));
        for guest in [&quiet, &next] {
            guest.known("a").unwrap();
        }
        let fourth = door.enter(ip(5)).unwrap();
        fourth.known("a").unwrap();
        assert!(door.enter(ip(6)).is_none(), "nobody can be replaced");
        drop((known, quiet, next, fourth));
        assert_eq!(door.counts(), (0, 0, 0, 0));
    }

    #[test]
    fn one_address_and_one_name_have_their_share_only() {
        let door = Door::new(limits(100, 2, 3, 50));
        let one: Vec<_> = (0..2).map(|_| door.enter(ip(1)).unwrap()).collect();
        one[0].known("a").unwrap();
        let third = door.enter(ip(1)).unwrap();
        assert!(one[1].scissors().is_cut(), "its own stranger paid");
        third.known("a").unwrap();
        assert!(door.enter(ip(1)).is_none());
        let other = door.enter(ip(2)).unwrap();
        other.known("a").unwrap();
        let fourth = door.enter(ip(3)).unwrap();
        assert_eq!(fourth.known("a"), Err(TooMany));
        assert_eq!(fourth.known("b"), Ok(()));
    }

    /// Whoever has one IPv6 address has many.
    #[test]
    fn addresses_of_one_network_are_one_peer() {
        let text = |text: &str| group(text.parse().unwrap());
        assert_eq!(text("fd00::1"), text("fd00::ffff:1:2:3"));
        assert_ne!(text("fd00::1"), text("fd00:0:0:1::1"));
        assert_eq!(text("::ffff:10.0.0.1"), text("10.0.0.1"));
    }

    #[test]
    fn whoever_has_most_strangers_pays_first() {
        let door = Door::new(limits(100, 100, 100, 10));
        let honest = door.enter(ip(1)).unwrap();
        let flood: Vec<_> = (0..50).map(|_| door.enter(ip(2)).unwrap()).collect();
        assert!(!honest.scissors().is_cut());
        assert_eq!(flood.iter().filter(|guest| !guest.scissors().is_cut()).count(), 9);
    }
}
