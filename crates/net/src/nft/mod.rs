//! nftables, as netlink batches that are applied whole or not at all.

mod program;
mod rule;
mod set;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use program::{Program, remove};
pub use rule::{Field, Pick, Rule};
pub use set::{Key, Set};

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const SCTP: u8 = 132;
pub const ICMP_6: u8 = 58;

/// Which packets a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Both = 1,
    Ipv4 = 2,
    Arp = 3,
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
    FilterInput,
    FilterForward,
    FilterOutput,
    /// Packets of a table of [`Family::Arp`].
    ArpInput,
}

impl Hook {
    fn number(self) -> u32 {
        match self {
            Self::RawPrerouting | Self::NatPrerouting | Self::ArpInput => 0,
            Self::FilterInput => 1,
            Self::FilterForward => 2,
            Self::NatOutput | Self::FilterOutput => 3,
            Self::NatPostrouting => 4,
        }
    }

    fn priority(self) -> i32 {
        match self {
            Self::RawPrerouting => -300,
            Self::NatPrerouting | Self::NatOutput => -100,
            Self::FilterInput | Self::FilterForward | Self::FilterOutput | Self::ArpInput => 0,
            Self::NatPostrouting => 100,
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::RawPrerouting | Self::FilterInput | Self::FilterForward | Self::FilterOutput | Self::ArpInput => {
                "filter"
            }
            Self::NatPrerouting | Self::NatOutput | Self::NatPostrouting => "nat",
        }
    }
}

/// A network, such as `10.42.7.0/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Net {
    pub address: IpAddr,
    pub prefix: u8,
}

impl Net {
    pub fn contains(&self, address: IpAddr) -> bool {
        let (wanted, given) = match (self.address, address) {
            (IpAddr::V4(wanted), IpAddr::V4(given)) => {
                (u128::from(u32::from(wanted)) << 96, u128::from(u32::from(given)) << 96)
            }
            (IpAddr::V6(wanted), IpAddr::V6(given)) => (u128::from(wanted), u128::from(given)),
            _ => return false,
        };
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix.min(128))).unwrap_or(0);
        wanted & mask == given & mask
    }
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

impl From<(IpAddr, u8)> for Net {
    fn from((address, prefix): (IpAddr, u8)) -> Self {
        Self { address, prefix }
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
