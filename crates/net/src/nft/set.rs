//! Sets and maps: what a rule asks about a packet with one lookup, however many answers there are.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::rule::{self, Field};
use crate::netlink::Message;

const MAP: u32 = 8;
const LEADS_TO_CHAINS: u32 = 0xffff_ff00;
/// How `nft` tells the parts of a key apart.
const BITS_OF_A_TYPE: u32 = 6;

/// The fields of one element, in the order of its set.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(Vec<u8>);

impl Key {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn address(self, address: IpAddr) -> Self {
        self.field(&rule::bytes(address))
    }

    pub fn protocol(self, protocol: u8) -> Self {
        self.field(&[protocol])
    }

    pub fn port(self, port: u16) -> Self {
        self.field(&port.to_be_bytes())
    }

    pub fn interface(self, index: u32) -> Self {
        self.field(&index.to_ne_bytes())
    }

    fn field(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

impl From<IpAddr> for Key {
    fn from(address: IpAddr) -> Self {
        Self::new().address(address)
    }
}

/// A set, or a map that leads to chains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub(super) fields: Vec<Field>,
    /// The chain that an element leads to, in a map.
    pub(super) elements: BTreeMap<Key, Option<String>>,
    map: bool,
}

impl Set {
    pub fn of(fields: &[Field], elements: impl IntoIterator<Item = Key>) -> Self {
        let elements = elements.into_iter().map(|key| (key, None)).collect();
        Self { fields: fields.to_vec(), elements, map: false }
    }

    pub fn map(fields: &[Field], elements: impl IntoIterator<Item = (Key, String)>) -> Self {
        let elements = elements.into_iter().map(|(key, chain)| (key, Some(chain))).collect();
        Self { fields: fields.to_vec(), elements, map: true }
    }

    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    pub fn len(&self) -> usize {
        self.elements.len()
    }

    pub(super) fn same_shape(&self, other: &Self) -> bool {
        self.map == other.map && self.fields == other.fields
    }

    /// What the kernel has to know of it, after the names.
    pub(super) fn describe(&self, message: Message, id: u32) -> Message {
        let length: usize = self.fields.iter().map(|field| field.length().next_multiple_of(4)).sum();
        let shown = self.fields.iter().fold(0, |kind, field| kind << BITS_OF_A_TYPE | field.shown_as());
        let exact = if let [only] = self.fields[..] { only.length() } else { length };
        let number = |m: Message, kind: u16, value: u32| m.attribute(kind, &value.to_be_bytes());
        let m = number(message, 3, if self.map { MAP } else { 0 });
        // Keys are a few dozen bytes.
        let m = number(number(m, 4, shown), 5, exact as u32);
        let m = if self.map { number(m, 6, LEADS_TO_CHAINS) } else { m };
        number(m, 10, id)
    }

    /// One element of a list of them.
    pub(super) fn element(message: Message, key: &Key, chain: Option<&str>) -> Message {
        message.nest(1, |m| {
            let m = m.nest(1, |m| m.attribute(1, &key.0));
            match chain {
                Some(chain) => m.nest(2, |m| rule::jump(m, chain)),
                None => m,
            }
        })
    }
}
