//! Client certificates that are not believed any more, though they have not expired.
//!
//! What is revoked is a certificate by its serial number, or all that a user was given up to a moment. A change counts for the next
//! request of every connection, and ends what such a connection has open.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ferrovirt_serve::{Guest, WeakGuest};
use serde::{Deserialize, Serialize};
use x509_parser::prelude::FromDer;

/// What is revoked, as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationList {
    /// Serial numbers, in lower-case hexadecimal digits.
    #[serde(default)]
    pub serials: Vec<String>,
    #[serde(default)]
    pub users: Vec<RevokedUser>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedUser {
    pub name: String,
    /// Seconds since 1970. Certificates whose validity begins at that moment or before are revoked.
    pub until: i64,
}

impl RevocationList {
    /// Adds a serial number, however it is written. False if it is none.
    pub fn add_serial(&mut self, serial: &str) -> bool {
        let digits: String = serial.chars().filter(|c| *c != ':').flat_map(char::to_lowercase).collect();
        let digits = digits.trim_start_matches("0x").trim_start_matches('0').to_owned();
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return false;
        }
        if !self.serials.contains(&digits) {
            self.serials.push(digits);
        }
        true
    }

    /// Revokes what a user was given up to a moment.
    pub fn add_user(&mut self, name: &str, until: i64) {
        match self.users.iter_mut().find(|user| user.name == name) {
            Some(user) => user.until = user.until.max(until),
            None => self.users.push(RevokedUser { name: name.to_owned(), until }),
        }
    }

    fn has(&self, facts: &Facts) -> bool {
        self.serials.contains(&facts.serial)
            || self.users.iter().any(|user| user.name == facts.user && facts.from <= user.until)
    }
}

/// What a list looks at in a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    serial: String,
    user: String,
    from: i64,
}

impl Facts {
    pub fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
        let serial: String = certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect();
        let user = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        Some(Self {
            serial: serial.trim_start_matches('0').to_owned(),
            user: user.unwrap_or_default().to_owned(),
            from: certificate.validity().not_before.timestamp(),
        })
    }
}

/// The list that is in force. Clones share it.
#[derive(Clone, Default)]
pub struct Revocations(Arc<Shared>);

#[derive(Default)]
struct Shared {
    list: RwLock<RevocationList>,
    /// Grows with each change, so that nobody has to look at the list who did so already.
    age: AtomicU64,
    open: Mutex<Vec<(Facts, WeakGuest)>>,
}

impl std::fmt::Debug for Revocations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Revocations").finish_non_exhaustive()
    }
}

impl Revocations {
    pub fn new(list: RevocationList) -> Self {
        let revocations = Self::default();
        revocations.replace(list);
        revocations
    }

    /// Puts another list in force, and ends the connections that it is against.
    pub fn replace(&self, list: RevocationList) {
        let mut open = self.open();
        open.retain(|(facts, guest)| {
            let revoked = list.has(facts);
            if revoked {
                guest.cut();
            }
            !revoked && guest.is_there()
        });
        *self.0.list.write().unwrap_or_else(PoisonError::into_inner) = list;
        self.0.age.fetch_add(1, Ordering::Release);
    }

    fn open(&self) -> MutexGuard<'_, Vec<(Facts, WeakGuest)>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, facts: &Facts) -> bool {
        self.0.list.read().unwrap_or_else(PoisonError::into_inner).has(facts)
    }

    /// Watches over a connection that was opened with a certificate.
    pub(crate) fn watch(&self, der: &[u8], guest: &Guest) -> Option<Checked> {
        let facts = Facts::read(der)?;
        let mut open = self.open();
        if open.len() == open.capacity() {
            open.retain(|(_, guest)| guest.is_there());
        }
        open.push((facts.clone(), guest.downgrade()));
        Some(Checked { facts, revocations: self.clone(), age: AtomicU64::new(u64::MAX) })
    }
}

/// A certificate that was looked up in the list, until the list changes.
pub(crate) struct Checked {
    facts: Facts,
    revocations: Revocations,
    /// Of the list in which it was not.
    age: AtomicU64,
}

impl Checked {
    pub fn is_revoked(&self) -> bool {
        let now = self.revocations.0.age.load(Ordering::Acquire);
        if self.age.load(Ordering::Relaxed) == now {
            return false;
        }
        let revoked = self.revocations.has(&self.facts);
        if !revoked {
            self.age.store(now, Ordering::Relaxed);
        }
        revoked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(serial: &str, user: &str, from: i64) -> Facts {
        Facts { serial: serial.into(), user: user.into(), from }
    }

    #[test]
    fn a_user_can_be_given_another_certificate_after_a_revocation() {
        let mut list = RevocationList::default();
        list.add_user("bob", 100);
        assert!(list.has(&facts("1", "bob", 99)) && list.has(&facts("1", "bob", 100)));
        assert!(!list.has(&facts("1", "bob", 101)) && !list.has(&facts("1", "bobby", 1)));
        list.add_user("bob", 50);
        assert!(list.has(&facts("1", "bob", 100)), "a revocation is never taken back");
    }

    #[test]
    fn serial_numbers_are_known_however_they_are_written() {
        let mut list = RevocationList::default();
        assert!(list.add_serial("0x00AB:cd") && list.add_serial("abcd"));
        assert_eq!(list.serials, ["abcd"]);
        for bad in ["", "bob", "0x", "12 34"] {
            assert!(!list.add_serial(bad), "{bad}");
        }
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap();
        params.serial_number = Some(vec![0x00, 0xab, 0xcd].into());
        let read = Facts::read(params.self_signed(&key).unwrap().der()).unwrap();
        assert_eq!(read.serial, "abcd");
        assert!(list.has(&read));
    }
}
