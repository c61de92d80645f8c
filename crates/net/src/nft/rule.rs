//! One rule: what a packet has to look like, then what happens to it.

use std::net::{IpAddr, SocketAddr};

use super::{Family, Net};
use crate::netlink::Message;

const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_L4PROTO: u32 = 16;
const VERDICT: u32 = 0;
const REGISTER_1: u32 = 1;
const REGISTER_2: u32 = 2;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const EQUAL: u32 = 0;
const UNEQUAL: u32 = 1;
const JUMP: i32 = -3;
const DROP: i32 = 0;
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

/// Matches and an action. Matches come first; a packet that fails one goes on to the next rule.
#[derive(Default)]
pub struct Rule {
    expressions: Vec<Box<dyn FnOnce(Message) -> Message>>,
}

impl Rule {
    pub fn new() -> Self {
        Self::default()
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
        const STATUS: u32 = 2;
        self.add("ct", |m| number(number(m, 1, REGISTER_1), 2, STATUS))
            .mask(DESTINATION_CHANGED.to_ne_bytes().to_vec())
            .compare(UNEQUAL, vec![0; 4])
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
        self.verdict(JUMP, Some(chain.to_owned()))
    }

    /// Refuses: the client learns at once that nobody is there.
    pub fn reject(self) -> Self {
        const PORT_UNREACHABLE: u8 = 3;
        self.add("reject", |m| number(m, 1, 0).attribute(2, &[PORT_UNREACHABLE]))
    }

    /// Refuses a TCP connection the way a closed port does. Only after [`Rule::protocol`].
    pub fn reset(self) -> Self {
        self.add("reject", |m| number(m, 1, 1))
    }

    pub(super) fn write(self, message: Message) -> Message {
        message.nest(4, |m| self.expressions.into_iter().fold(m, |m, expression| expression(m)))
    }

    fn add(mut self, name: &'static str, data: impl FnOnce(Message) -> Message + 'static) -> Self {
        self.expressions.push(Box::new(move |m| m.nest(1, |m| m.string(1, name).nest(2, data))));
        self
    }

    fn interface(self, key: u32, name: &str) -> Self {
        let mut padded = vec![0u8; 16];
        let length = name.len().min(15);
        padded[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.meta(key).compare(EQUAL, padded)
    }

    fn address(self, destination: bool, net: Net, operator: u32) -> Self {
        let (offset, length) = place(destination, Family::of(net.address));
        let loaded = self.payload(NETWORK_HEADER, offset, length);
        let mut value = bytes(net.address);
        if usize::from(net.prefix) >= value.len() * 8 {
            return loaded.compare(operator, value);
        }
        let mask = mask(net.prefix, value.len());
        value.iter_mut().zip(&mask).for_each(|(byte, mask)| *byte &= mask);
        loaded.mask(mask).compare(operator, value)
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

    fn verdict(self, code: i32, chain: Option<String>) -> Self {
        self.add("immediate", move |m| {
            number(m, 1, VERDICT).nest(2, |m| {
                m.nest(2, |m| {
                    let m = m.attribute(1, &code.to_be_bytes());
                    match chain {
                        Some(chain) => m.string(2, &chain),
                        None => m,
                    }
                })
            })
        })
    }
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
        (Family::Ipv4, false) => (12, 4),
        (Family::Ipv4, true) => (16, 4),
        (Family::Ipv6, false) => (8, 16),
        (Family::Ipv6, true) => (24, 16),
    }
}

fn bytes(address: IpAddr) -> Vec<u8> {
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
