//! One rule: what a packet has to look like, then what happens to it.

use std::net::{IpAddr, SocketAddr};

use super::{Family, Net};
use crate::netlink::Message;

const META_IIF: u32 = 4;
const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_NFPROTO: u32 = 15;
const META_IIFGROUP: u32 = 21;
const META_OIFGROUP: u32 = 22;
const META_L4PROTO: u32 = 16;
const VERDICT: u32 = 0;
const REGISTER_1: u32 = 1;
const REGISTER_2: u32 = 2;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const EQUAL: u32 = 0;
const UNEQUAL: u32 = 1;
const AT_MOST: u32 = 3;
const AT_LEAST: u32 = 5;
const JUMP: i32 = -3;
const RETURN: i32 = -5;
const DROP: i32 = 0;
const ACCEPT: i32 = 1;
const CT_STATE: u32 = 0;
const CT_STATUS: u32 = 2;
const CT_DESTINATION: u32 = 20;
const CT_DESTINATION_6: u32 = 22;
/// The first of the registers that hold four bytes; [`REGISTER_1`] is the first four of them.
const SMALL_REGISTER: u32 = 8;
/// `IPS_DST_NAT`
const DESTINATION_CHANGED: u32 = 1 << 5;
/// `RTN_LOCAL`
const LOCAL: u32 = 2;

/// How one of several targets is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// One in so many, at random.
    Random { of: u32 },
    /// By the client's address: the same client always gets the same share.
    BySource { of: u32, share: u32 },
}

/// A part of a packet that a set or map is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Source(Family),
    Destination(Family),
    Protocol,
    DestinationPort,
    /// The number of the interface that the packet came by.
    Interface,
    /// Who an ARP packet says that it is from. Only in tables of [`Family::Arp`].
    ArpSource,
}

/// Matches and an action. Matches come first; a packet that fails one goes on to the next rule.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    expressions: Vec<u8>,
}

impl Rule {
    pub fn new() -> Self {
        Self::default()
    }

    /// Packets of one family, in a table that sees both. Needed before anything of the network header is looked at.
    pub fn family(self, family: Family) -> Self {
        self.meta(META_NFPROTO).compare(EQUAL, vec![family as u8])
    }

    /// Packets that came by an interface of this group.
    pub fn from_group(self, group: u32) -> Self {
        self.meta(META_IIFGROUP).compare(EQUAL, group.to_ne_bytes().to_vec())
    }

    pub fn not_from_group(self, group: u32) -> Self {
        self.meta(META_IIFGROUP).compare(UNEQUAL, group.to_ne_bytes().to_vec())
    }

    /// Packets that leave by an interface of this group.
    pub fn to_group(self, group: u32) -> Self {
        self.meta(META_OIFGROUP).compare(EQUAL, group.to_ne_bytes().to_vec())
    }

    pub fn not_from_interface(self, name: &str) -> Self {
        self.meta(META_IIFNAME).compare(UNEQUAL, padded(name))
    }

    /// Packets whose fields, together, are in a set.
    pub fn within(self, fields: &[Field], set: &str) -> Self {
        self.lookup(fields, set, false)
    }

    pub fn not_within(self, fields: &[Field], set: &str) -> Self {
        self.lookup(fields, set, true)
    }

    /// Goes where a map says, if it says anything.
    pub fn dispatch(self, fields: &[Field], map: &str) -> Self {
        self.load(fields).add("lookup", |m| number(number(m.string(1, map), 2, REGISTER_1), 3, VERDICT))
    }

    /// Packets of a connection that was let through before, and errors about one.
    pub fn established(self) -> Self {
        const ESTABLISHED_OR_RELATED: u32 = 2 | 4;
        self.ct(CT_STATE).mask(ESTABLISHED_OR_RELATED.to_ne_bytes().to_vec()).compare(UNEQUAL, vec![0; 4])
    }

    /// Packets of connections that were first addressed to this network, whatever became of that.
    pub fn first_addressed_to(self, net: Net) -> Self {
        const ORIGINAL: u8 = 0;
        let key = if net.address.is_ipv4() { CT_DESTINATION } else { CT_DESTINATION_6 };
        let loaded = self.add("ct", |m| number(number(m, 1, REGISTER_1), 2, key).attribute(3, &[ORIGINAL]));
        loaded.compare_net(EQUAL, net)
    }

    /// The type of an ICMP message. Only after [`Rule::protocol`].
    pub fn icmp_type(self, kind: u8) -> Self {
        self.payload(TRANSPORT_HEADER, 0, 1).compare(EQUAL, vec![kind])
    }

    /// Ports from the first to the last, both included.
    pub fn destination_ports(self, first: u16, last: u16) -> Self {
        if first == last {
            return self.destination_port(first);
        }
        self.payload(TRANSPORT_HEADER, 2, 2)
            .compare(AT_LEAST, first.to_be_bytes().to_vec())
            .compare(AT_MOST, last.to_be_bytes().to_vec())
    }

    pub fn not_source(self, net: impl Into<Net>) -> Self {
        self.address(false, net.into(), UNEQUAL)
    }

    pub fn accept(self) -> Self {
        self.verdict(ACCEPT, None)
    }

    /// Back to the rule after the one that jumped here.
    pub fn leave(self) -> Self {
        self.verdict(RETURN, None)
    }

    pub fn from_interface(self, name: &str) -> Self {
        self.interface(META_IIFNAME, name)
    }

    pub fn to_interface(self, name: &str) -> Self {
        self.interface(META_OIFNAME, name)
    }

    pub fn source(self, net: impl Into<Net>) -> Self {
        self.address(false, net.into(), EQUAL)
    }

    pub fn destination(self, net: impl Into<Net>) -> Self {
        self.address(true, net.into(), EQUAL)
    }

    pub fn not_destination(self, net: impl Into<Net>) -> Self {
        self.address(true, net.into(), UNEQUAL)
    }

    pub fn protocol(self, protocol: u8) -> Self {
        self.meta(META_L4PROTO).compare(EQUAL, vec![protocol])
    }

    pub fn destination_port(self, port: u16) -> Self {
        self.payload(TRANSPORT_HEADER, 2, 2).compare(EQUAL, port.to_be_bytes().to_vec())
    }

    /// Packets for an address of this machine.
    pub fn destination_is_local(self) -> Self {
        const DESTINATION: u32 = 2;
        const ADDRESS_TYPE: u32 = 3;
        self.add("fib", |m| number(number(number(m, 1, REGISTER_1), 2, ADDRESS_TYPE), 3, DESTINATION))
            .compare(EQUAL, LOCAL.to_ne_bytes().to_vec())
    }

    /// Packets of connections whose destination was changed.
    pub fn redirected(self) -> Self {
        self.ct(CT_STATUS).mask(DESTINATION_CHANGED.to_ne_bytes().to_vec()).compare(UNEQUAL, vec![0; 4])
    }

    pub fn pick(self, pick: Pick, family: Family) -> Self {
        match pick {
            Pick::Random { of } => {
                const RANDOM: u32 = 1;
                self.add("numgen", move |m| number(number(number(m, 1, REGISTER_1), 2, of), 3, RANDOM))
                    .compare(EQUAL, vec![0; 4])
            }
            Pick::BySource { of, share } => {
                let (offset, length) = place(false, family);
                self.payload(NETWORK_HEADER, offset, length)
                    .add("hash", move |m| {
                        number(number(number(number(m, 1, REGISTER_1), 2, REGISTER_1), 3, length), 4, of)
                    })
                    .compare(EQUAL, share.to_ne_bytes().to_vec())
            }
        }
    }

    /// Sends the connection to another address, at the port it asked for.
    pub fn dnat(self, to: IpAddr) -> Self {
        self.immediate(REGISTER_1, bytes(to)).add("nat", move |m| nat_target(m, to))
    }

    /// Sends the connection to another address and port.
    pub fn dnat_to(self, to: SocketAddr) -> Self {
        self.immediate(REGISTER_1, bytes(to.ip()))
            .immediate(REGISTER_2, to.port().to_be_bytes().to_vec())
            .add("nat", move |m| number(nat_target(m, to.ip()), 5, REGISTER_2))
    }

    /// Lets the connection come from the address of the interface it leaves by.
    pub fn masquerade(self) -> Self {
        self.add("masq", |m| m)
    }

    pub fn drop(self) -> Self {
        self.verdict(DROP, None)
    }

    pub fn jump(self, chain: &str) -> Self {
        self.verdict(JUMP, Some(chain))
    }

    /// Refuses: the client learns at once that nobody is there.
    pub fn reject(self) -> Self {
        const PORT_UNREACHABLE: u8 = 3;
        self.add("reject", |m| number(m, 1, 0).attribute(2, &[PORT_UNREACHABLE]))
    }

    /// The same in a table of [`Family::Both`].
    pub fn refuse(self) -> Self {
        const OF_EITHER_FAMILY: u32 = 2;
        const PORT_UNREACHABLE: u8 = 1;
        self.add("reject", |m| number(m, 1, OF_EITHER_FAMILY).attribute(2, &[PORT_UNREACHABLE]))
    }

    /// Refuses a TCP connection the way a closed port does. Only after [`Rule::protocol`].
    pub fn reset(self) -> Self {
        self.add("reject", |m| number(m, 1, 1))
    }

    pub(super) fn write(&self, message: Message) -> Message {
        message.nest(4, |m| m.raw(&self.expressions))
    }

    fn add(mut self, name: &'static str, data: impl FnOnce(Message) -> Message) -> Self {
        let expression = Message::fragment().nest(1, |m| m.string(1, name).nest(2, data));
        self.expressions.extend(expression.into_bytes());
        self
    }

    fn interface(self, key: u32, name: &str) -> Self {
        self.meta(key).compare(EQUAL, padded(name))
    }

    fn lookup(self, fields: &[Field], set: &str, inverted: bool) -> Self {
        self.load(fields).add("lookup", |m| {
            let m = number(m.string(1, set), 2, REGISTER_1);
            if inverted { number(m, 5, 1) } else { m }
        })
    }

    /// Fields one after the other, each at the next four bytes that are free: so are the keys of sets.
    fn load(self, fields: &[Field]) -> Self {
        let mut at = SMALL_REGISTER;
        fields.iter().fold(self, |rule, field| {
            let register = at;
            at += (field.length() as u32).div_ceil(4);
            let payload = |base: u32, offset: u32, length: u32| {
                move |m| number(number(number(number(m, 1, register), 2, base), 3, offset), 4, length)
            };
            let meta = |key: u32| move |m| number(number(m, 1, register), 2, key);
            match *field {
                Field::Source(family) => {
                    let (offset, length) = place(false, family);
                    rule.add("payload", payload(NETWORK_HEADER, offset, length))
                }
                Field::Destination(family) => {
                    let (offset, length) = place(true, family);
                    rule.add("payload", payload(NETWORK_HEADER, offset, length))
                }
                Field::Protocol => rule.add("meta", meta(META_L4PROTO)),
                Field::DestinationPort => rule.add("payload", payload(TRANSPORT_HEADER, 2, 2)),
                Field::Interface => rule.add("meta", meta(META_IIF)),
                Field::ArpSource => rule.add("payload", payload(NETWORK_HEADER, 14, 4)),
            }
        })
    }

    fn ct(self, key: u32) -> Self {
        self.add("ct", |m| number(number(m, 1, REGISTER_1), 2, key))
    }

    fn address(self, destination: bool, net: Net, operator: u32) -> Self {
        let (offset, length) = place(destination, Family::of(net.address));
        self.payload(NETWORK_HEADER, offset, length).compare_net(operator, net)
    }

    fn compare_net(self, operator: u32, net: Net) -> Self {
        let mut value = bytes(net.address);
        if usize::from(net.prefix) >= value.len() * 8 {
            return self.compare(operator, value);
        }
        let mask = mask(net.prefix, value.len());
        value.iter_mut().zip(&mask).for_each(|(byte, mask)| *byte &= mask);
        self.mask(mask).compare(operator, value)
    }

    fn meta(self, key: u32) -> Self {
        self.add("meta", move |m| number(number(m, 1, REGISTER_1), 2, key))
    }

    fn payload(self, base: u32, offset: u32, length: u32) -> Self {
        self.add("payload", move |m| number(number(number(number(m, 1, REGISTER_1), 2, base), 3, offset), 4, length))
    }

    fn mask(self, mask: Vec<u8>) -> Self {
        let length = mask.len();
        self.add("bitwise", move |m| {
            // Masks of this crate are as long as an address.
            number(number(number(m, 1, REGISTER_1), 2, REGISTER_1), 3, length as u32)
                .nest(4, |m| m.attribute(1, &mask))
                .nest(5, |m| m.attribute(1, &vec![0; length]))
        })
    }

    fn compare(self, operator: u32, value: Vec<u8>) -> Self {
        self.add("cmp", move |m| number(number(m, 1, REGISTER_1), 2, operator).nest(3, |m| m.attribute(1, &value)))
    }

    fn immediate(self, register: u32, value: Vec<u8>) -> Self {
        self.add("immediate", move |m| number(m, 1, register).nest(2, |m| m.attribute(1, &value)))
    }

    fn verdict(self, code: i32, chain: Option<&str>) -> Self {
        self.add("immediate", |m| number(m, 1, VERDICT).nest(2, |m| verdict(m, code, chain)))
    }
}

impl Field {
    /// Bytes that it has in a key, before it is padded to four.
    pub(super) fn length(self) -> usize {
        match self {
            Self::Source(family) | Self::Destination(family) => place(false, family).1 as usize,
            Self::Protocol => 1,
            Self::DestinationPort => 2,
            Self::Interface | Self::ArpSource => 4,
        }
    }

    /// What `nft` shows its values as.
    pub(super) fn shown_as(self) -> u32 {
        match self {
            Self::Source(Family::Ipv6) | Self::Destination(Family::Ipv6) => 8,
            Self::Source(_) | Self::Destination(_) | Self::ArpSource => 7,
            Self::Protocol => 12,
            Self::DestinationPort => 13,
            Self::Interface => 20,
        }
    }
}

fn verdict(message: Message, code: i32, chain: Option<&str>) -> Message {
    message.nest(2, |m| {
        let m = m.attribute(1, &code.to_be_bytes());
        match chain {
            Some(chain) => m.string(2, chain),
            None => m,
        }
    })
}

/// The value of a map's element that leads to a chain.
pub(super) fn jump(message: Message, chain: &str) -> Message {
    verdict(message, JUMP, Some(chain))
}

fn padded(name: &str) -> Vec<u8> {
    let mut padded = vec![0u8; 16];
    let length = name.len().min(15);
    padded[..length].copy_from_slice(&name.as_bytes()[..length]);
    padded
}

fn nat_target(message: Message, to: IpAddr) -> Message {
    const DESTINATION: u32 = 1;
    number(number(number(message, 1, DESTINATION), 2, Family::of(to) as u32), 3, REGISTER_1)
}

fn number(message: Message, kind: u16, value: u32) -> Message {
    message.attribute(kind, &value.to_be_bytes())
}

/// Offset and length of an address in the network header.
fn place(destination: bool, family: Family) -> (u32, u32) {
    match (family, destination) {
        (Family::Ipv6, false) => (8, 16),
        (Family::Ipv6, true) => (24, 16),
        (_, false) => (12, 4),
        (_, true) => (16, 4),
    }
}

pub(super) fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn mask(prefix: u8, length: usize) -> Vec<u8> {
    let bits = |index: usize| usize::from(prefix).saturating_sub(index * 8).min(8);
    (0..length).map(|index| 0xffu8.checked_shl(8 - bits(index) as u32).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        let cases: [(u8, usize, &[u8]); 5] = [
            (0, 4, &[0, 0, 0, 0]),
            (8, 4, &[255, 0, 0, 0]),
            (20, 4, &[255, 255, 240, 0]),
            (32, 4, &[255, 255, 255, 255]),
            (9, 4, &[255, 128, 0, 0]),
        ];
        for (prefix, length, expected) in cases {
            assert_eq!(mask(prefix, length), expected, "{prefix}");
        }
    }
}
