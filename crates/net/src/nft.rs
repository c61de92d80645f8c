//! nftables rules for one guest, as a netlink batch that is applied whole or not at all.

use std::{io, net::Ipv4Addr};

use crate::netlink::{ACK, APPEND, CREATE, Message, Socket};

const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const FAMILY_IPV4: u8 = 2;

const HOOK_PREROUTING: u32 = 0;
const HOOK_OUTPUT: u32 = 3;
const HOOK_POSTROUTING: u32 = 4;

const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_L4PROTO: u32 = 16;
const REGISTER_1: u32 = 1;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

/// A port that the guest serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// 6 for TCP, 17 for UDP.
    pub protocol: u8,
    pub port: u16,
}

/// Address translation between the pod's interface and the guest's private network.
#[derive(Debug, Clone)]
pub struct Masquerade<'a> {
    pub table: &'a str,
    /// The pod's own interface.
    pub outside: &'a str,
    pub guest: Ipv4Addr,
    /// Ports that reach the guest; none means all.
    pub ports: &'a [Port],
}

/// Puts the rules in place, replacing those of an earlier call.
pub fn masquerade(rules: &Masquerade<'_>) -> io::Result<()> {
    let table = rules.table;
    let mut messages = vec![
        batch(BATCH_BEGIN),
        // Creating the table first makes deleting it succeed, and so the whole batch repeatable.
        new_table(table),
        Message::new(DELETE_TABLE, ACK).raw(&header()).string(1, table),
        new_table(table),
        chain(table, "prerouting", HOOK_PREROUTING, -100),
        chain(table, "output", HOOK_OUTPUT, -100),
        chain(table, "postrouting", HOOK_POSTROUTING, 100),
    ];
    if rules.ports.is_empty() {
        messages.push(rule(table, "prerouting", |e| dnat(interface(e, META_IIFNAME, rules.outside), rules.guest)));
    }
    for port in rules.ports {
        messages.push(rule(table, "prerouting", |e| {
            dnat(destination_port(interface(e, META_IIFNAME, rules.outside), *port), rules.guest)
        }));
    }
    messages.push(rule(table, "postrouting", |e| masq(interface(source(e, rules.guest), META_OIFNAME, rules.outside))));
    messages.push(batch(BATCH_END));
    let acknowledged = messages.len() - 2;
    Socket::netfilter()?.batch(messages, acknowledged)
}

fn header() -> [u8; 4] {
    [FAMILY_IPV4, 0, 0, 0]
}

fn batch(kind: u16) -> Message {
    // The resource id of a batch names the subsystem, in network order.
    Message::new(kind, 0).raw(&[0, 0, 0, 10])
}

fn new_table(table: &str) -> Message {
    Message::new(NEW_TABLE, ACK | CREATE).raw(&header()).string(1, table)
}

fn chain(table: &str, name: &str, hook: u32, priority: i32) -> Message {
    Message::new(NEW_CHAIN, ACK | CREATE)
        .raw(&header())
        .string(1, table)
        .string(3, name)
        .nest(4, |m| m.attribute(1, &hook.to_be_bytes()).attribute(2, &priority.to_be_bytes()))
        .string(7, "nat")
}

fn rule(table: &str, chain: &str, expressions: impl FnOnce(Message) -> Message) -> Message {
    Message::new(NEW_RULE, ACK | CREATE | APPEND).raw(&header()).string(1, table).string(2, chain).nest(4, expressions)
}

fn expression(message: Message, name: &str, data: impl FnOnce(Message) -> Message) -> Message {
    message.nest(1, |m| m.string(1, name).nest(2, data))
}

fn number(message: Message, kind: u16, value: u32) -> Message {
    message.attribute(kind, &value.to_be_bytes())
}

fn compare(message: Message, value: &[u8]) -> Message {
    expression(message, "cmp", |m| number(number(m, 1, REGISTER_1), 2, 0).nest(3, |m| m.attribute(1, value)))
}

fn load_meta(message: Message, key: u32) -> Message {
    expression(message, "meta", |m| number(number(m, 1, REGISTER_1), 2, key))
}

fn load_payload(message: Message, base: u32, offset: u32, length: u32) -> Message {
    expression(message, "payload", |m| number(number(number(number(m, 1, REGISTER_1), 2, base), 3, offset), 4, length))
}

fn interface(message: Message, key: u32, name: &str) -> Message {
    let mut padded = [0u8; 16];
    let length = name.len().min(15);
    padded[..length].copy_from_slice(&name.as_bytes()[..length]);
    compare(load_meta(message, key), &padded)
}

fn source(message: Message, address: Ipv4Addr) -> Message {
    compare(load_payload(message, NETWORK_HEADER, 12, 4), &address.octets())
}

fn destination_port(message: Message, port: Port) -> Message {
    let message = compare(load_meta(message, META_L4PROTO), &[port.protocol]);
    compare(load_payload(message, TRANSPORT_HEADER, 2, 2), &port.port.to_be_bytes())
}

fn dnat(message: Message, to: Ipv4Addr) -> Message {
    let message =
        expression(message, "immediate", |m| number(m, 1, REGISTER_1).nest(2, |m| m.attribute(1, &to.octets())));
    // Type 1 is destination NAT.
    expression(message, "nat", |m| number(number(number(m, 1, 1), 2, u32::from(FAMILY_IPV4)), 3, REGISTER_1))
}

fn masq(message: Message) -> Message {
    expression(message, "masq", |m| m)
}
