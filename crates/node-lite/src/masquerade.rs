//! Pods reach the world with the host's address: one nftables table for each instance, made once. The bridge plugin could
//! do it by running `iptables` several times for each pod, which costs more than the rest of the pod's network.

use std::io;

use ferrovirt_net::netlink::{ACK, APPEND, CREATE, Message, Socket};

use crate::Ipv4Net;

const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const FAMILY_IPV4: u8 = 2;
const HOOK_POSTROUTING: u32 = 4;
const PRIORITY_SRCNAT: i32 = 100;
const REGISTER: u32 = 1;
const NETWORK_HEADER: u32 = 1;
const SOURCE_OFFSET: u32 = 12;
const DESTINATION_OFFSET: u32 = 16;

#[derive(Debug, Clone, Copy)]
enum Compare {
    Equal = 0,
    Unequal = 1,
}

pub fn table_name(instance: &str) -> String {
    format!("ferrovirt-{instance}")
}

/// Puts the rule in place, replacing that of an earlier call: from a pod to anything that is not a pod.
pub fn install(table: &str, pods: Ipv4Net) -> io::Result<()> {
    let chain = "postrouting";
    let rule = Message::new(NEW_RULE, ACK | CREATE | APPEND).raw(&family()).string(1, table).string(2, chain).nest(
        4,
        |expressions| {
            let from = within(expressions, SOURCE_OFFSET, pods, Compare::Equal);
            let to = within(from, DESTINATION_OFFSET, pods, Compare::Unequal);
            expression(to, "masq", |empty| empty)
        },
    );
    let mut messages = replace(table);
    messages.push(new_table(table));
    messages.push(
        Message::new(NEW_CHAIN, ACK | CREATE)
            .raw(&family())
            .string(1, table)
            .string(3, chain)
            .nest(4, |hook| {
                let hook = hook.attribute(1, &HOOK_POSTROUTING.to_be_bytes());
                hook.attribute(2, &PRIORITY_SRCNAT.to_be_bytes())
            })
            .string(7, "nat"),
    );
    messages.push(rule);
    send(messages)
}

/// Removes the table. Missing is fine.
pub fn remove(table: &str) -> io::Result<()> {
    send(replace(table))
}

/// Creating the table first makes deleting it succeed whether it was there or not.
fn replace(table: &str) -> Vec<Message> {
    vec![new_table(table), Message::new(DELETE_TABLE, ACK).raw(&family()).string(1, table)]
}

fn new_table(table: &str) -> Message {
    Message::new(NEW_TABLE, ACK | CREATE).raw(&family()).string(1, table)
}

fn send(messages: Vec<Message>) -> io::Result<()> {
    // The resource id of a batch names the subsystem, in network order.
    let edge = |kind| Message::new(kind, 0).raw(&[0, 0, 0, 10]);
    let acknowledged = messages.len();
    let mut batch = vec![edge(BATCH_BEGIN)];
    batch.extend(messages);
    batch.push(edge(BATCH_END));
    Socket::netfilter()?.batch(batch, acknowledged)
}

/// Loads an address of the packet, cuts it to the network's length, compares.
fn within(message: Message, offset: u32, net: Ipv4Net, compare: Compare) -> Message {
    let mask = mask(net.prefix);
    let network = u32::from(net.address) & mask;
    let message = expression(message, "payload", |data| {
        number(number(number(number(data, 1, REGISTER), 2, NETWORK_HEADER), 3, offset), 4, 4)
    });
    let message = expression(message, "bitwise", |data| {
        number(number(number(data, 1, REGISTER), 2, REGISTER), 3, 4)
            .nest(4, |value| value.attribute(1, &mask.to_be_bytes()))
            .nest(5, |value| value.attribute(1, &[0; 4]))
    });
    expression(message, "cmp", |data| {
        number(number(data, 1, REGISTER), 2, compare as u32).nest(3, |value| value.attribute(1, &network.to_be_bytes()))
    })
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

fn family() -> [u8; 4] {
    [FAMILY_IPV4, 0, 0, 0]
}

fn expression(message: Message, name: &str, data: impl FnOnce(Message) -> Message) -> Message {
    message.nest(1, |element| element.string(1, name).nest(2, data))
}

fn number(message: Message, kind: u16, value: u32) -> Message {
    message.attribute(kind, &value.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        for (prefix, expected) in [(0, 0), (8, 0xff00_0000), (24, 0xffff_ff00), (32, 0xffff_ffff)] {
            assert_eq!(mask(prefix), expected, "{prefix}");
        }
    }
}
