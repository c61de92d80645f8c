//! nftables, as netlink batches that are applied whole or not at all.

mod rule;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

pub use rule::{Pick, Rule};

use crate::netlink::{ACK, APPEND, CREATE, Message, Socket};

const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const NEW_RULE: u16 = SUBSYSTEM | 6;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const SCTP: u8 = 132;

/// Which packets a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Ipv4 = 2,
    Ipv6 = 10,
}

impl Family {
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }
}

/// Where a chain hooks into the path of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Before the kernel tracks the connection.
    RawPrerouting,
    /// Changes where packets go, as they come in.
    NatPrerouting,
    /// The same for packets of this machine.
    NatOutput,
    /// Changes where packets seem to come from.
    NatPostrouting,
    FilterForward,
    FilterOutput,
}

impl Hook {
    fn number(self) -> u32 {
        match self {
            Self::RawPrerouting | Self::NatPrerouting => 0,
            Self::FilterForward => 2,
            Self::NatOutput | Self::FilterOutput => 3,
            Self::NatPostrouting => 4,
        }
    }

    fn priority(self) -> i32 {
        match self {
            Self::RawPrerouting => -300,
            Self::NatPrerouting | Self::NatOutput => -100,
            Self::FilterForward | Self::FilterOutput => 0,
            Self::NatPostrouting => 100,
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::RawPrerouting | Self::FilterForward | Self::FilterOutput => "filter",
            Self::NatPrerouting | Self::NatOutput | Self::NatPostrouting => "nat",
        }
    }
}

/// A network, such as `10.42.7.0/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Net {
    pub address: IpAddr,
    pub prefix: u8,
}

impl std::fmt::Display for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl From<IpAddr> for Net {
    fn from(address: IpAddr) -> Self {
        Self { address, prefix: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl From<Ipv4Addr> for Net {
    fn from(address: Ipv4Addr) -> Self {
        IpAddr::V4(address).into()
    }
}

impl From<(Ipv6Addr, u8)> for Net {
    fn from((address, prefix): (Ipv6Addr, u8)) -> Self {
        Self { address: address.into(), prefix }
    }
}

impl From<Ipv6Addr> for Net {
    fn from(address: Ipv6Addr) -> Self {
        IpAddr::V6(address).into()
    }
}

/// Changes to one table, to be made together.
pub struct Table {
    family: Family,
    name: String,
    messages: Vec<Message>,
}

impl Table {
    /// The table with nothing but what follows, whatever it held before.
    pub fn replace(family: Family, name: &str) -> Self {
        let mut table = Self { family, name: name.into(), messages: vec![] };
        table.clear();
        table.messages.push(table.create());
        table
    }

    /// Removes the table. Missing is fine.
    pub fn remove(family: Family, name: &str) -> io::Result<()> {
        let mut table = Self { family, name: name.into(), messages: vec![] };
        table.clear();
        table.apply()
    }

    /// A chain that the kernel calls.
    pub fn hook(&mut self, chain: &str, hook: Hook) {
        let message = self
            .new_chain(chain)
            .nest(4, |m| m.attribute(1, &hook.number().to_be_bytes()).attribute(2, &hook.priority().to_be_bytes()));
        self.messages.push(message.string(7, hook.kind()));
    }

    /// A chain that rules of other chains jump to. It has to exist before they do.
    pub fn chain(&mut self, chain: &str) {
        let message = self.new_chain(chain);
        self.messages.push(message);
    }

    pub fn rule(&mut self, chain: &str, rule: Rule) {
        let message = Message::new(NEW_RULE, ACK | CREATE | APPEND).raw(&self.header());
        self.messages.push(rule.write(message.string(1, &self.name).string(2, chain)));
    }

    pub fn apply(self) -> io::Result<()> {
        // The resource id of a batch names the subsystem, in network order.
        let edge = |kind| Message::new(kind, 0).raw(&[0, 0, 0, 10]);
        let acknowledged = self.messages.len();
        let mut batch = vec![edge(BATCH_BEGIN)];
        batch.extend(self.messages);
        batch.push(edge(BATCH_END));
        Socket::netfilter()?.batch(batch, acknowledged)
    }

    /// Creating the table first makes deleting it succeed, and so the whole batch repeatable.
    fn clear(&mut self) {
        self.messages.push(self.create());
        self.messages.push(Message::new(DELETE_TABLE, ACK).raw(&self.header()).string(1, &self.name));
    }

    fn create(&self) -> Message {
        Message::new(NEW_TABLE, ACK | CREATE).raw(&self.header()).string(1, &self.name)
    }

    fn new_chain(&self, chain: &str) -> Message {
        Message::new(NEW_CHAIN, ACK | CREATE).raw(&self.header()).string(1, &self.name).string(3, chain)
    }

    fn header(&self) -> [u8; 4] {
        [self.family as u8, 0, 0, 0]
    }
}
