//! A table as it should be, and the way there from what it is: one batch, applied whole or not at all, with nothing in it
//! but what differs.

use std::collections::BTreeMap;
use std::io;

use super::set::{Key, Set};
use super::{Family, Hook, Rule};
use crate::netlink::{APPEND, CREATE, Message, Socket, attributes};

const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const DELETE_CHAIN: u16 = SUBSYSTEM | 5;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const DELETE_RULE: u16 = SUBSYSTEM | 8;
const NEW_SET: u16 = SUBSYSTEM | 9;
const DELETE_SET: u16 = SUBSYSTEM | 11;
const NEW_ELEMENT: u16 = SUBSYSTEM | 12;
const DELETE_ELEMENT: u16 = SUBSYSTEM | 14;
/// Elements in one message; an attribute holds 64 KiB.
const ELEMENTS: usize = 500;

/// Everything in one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    family: Family,
    name: String,
    sets: BTreeMap<String, Set>,
    chains: BTreeMap<String, Chain>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Chain {
    hook: Option<Hook>,
    rules: Vec<Rule>,
}

/// Removes a table. Missing is fine.
pub fn remove(family: Family, name: &str) -> io::Result<()> {
    let program = Program::new(family, name);
    send(program.clear())
}

impl Program {
    pub fn new(family: Family, name: &str) -> Self {
        Self { family, name: name.into(), sets: BTreeMap::new(), chains: BTreeMap::new() }
    }

    /// A chain that the kernel calls.
    pub fn hook(&mut self, chain: &str, hook: Hook) {
        self.chains.entry(chain.into()).or_default().hook = Some(hook);
    }

    /// A chain that rules and maps lead to.
    pub fn chain(&mut self, chain: &str) {
        self.chains.entry(chain.into()).or_default();
    }

    pub fn rule(&mut self, chain: &str, rule: Rule) {
        self.chains.entry(chain.into()).or_default().rules.push(rule);
    }

    pub fn set(&mut self, name: &str, set: Set) {
        self.sets.insert(name.into(), set);
    }

    /// Makes the table be this, whatever it held before.
    pub fn replace(&self) -> io::Result<()> {
        let mut messages = self.clear();
        messages.push(self.create());
        messages.extend(self.changes(&Self::new(self.family, &self.name)));
        send(messages)
    }

    /// Makes the table be this, where it is `old` now. Fails, and changes nothing, if it is not.
    pub fn update(&self, old: &Self) -> io::Result<()> {
        let messages = self.changes(old);
        if messages.is_empty() { Ok(()) } else { send(messages) }
    }

    /// How many messages it takes to get here from there.
    pub fn difference(&self, old: &Self) -> usize {
        self.changes(old).len()
    }

    /// Whether the table is there with as many sets and chains as this has. Others remove tables whole, if at all.
    pub fn is_there(&self) -> io::Result<bool> {
        const USERS: u16 = 3;
        let question = Message::new(GET_TABLE, 0).raw(&self.header()).string(1, &self.name);
        let answer = match Socket::netfilter()?.get(question) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            answer => answer?,
        };
        let found = attributes(answer.get(4..).unwrap_or_default());
        let users = found.into_iter().find(|(kind, _)| *kind == USERS).and_then(|(_, value)| value.try_into().ok());
        Ok(users.map(u32::from_be_bytes).is_some_and(|users| users as usize == self.sets.len() + self.chains.len()))
    }

    /// What there is to do, in an order in which nothing refers to what is not there.
    fn changes(&self, old: &Self) -> Vec<Message> {
        let nothing = BTreeMap::new();
        let mut out = vec![];
        let mut renewed = vec![];
        for (number, (name, set)) in (1..).zip(&self.sets) {
            match old.sets.get(name) {
                Some(was) if was.same_shape(set) => {}
                Some(_) => renewed.push(name),
                None => {
                    out.push(set.describe(self.message(NEW_SET, CREATE).string(1, &self.name).string(2, name), number))
                }
            }
        }
        debug_assert!(renewed.is_empty(), "a set keeps its shape: {renewed:?}");
        for (name, chain) in self.chains.iter().filter(|(name, _)| !old.chains.contains_key(*name)) {
            out.push(self.new_chain(name, chain.hook));
        }
        for (name, chain) in &self.chains {
            match old.chains.get(name) {
                Some(was) if was.rules == chain.rules => continue,
                Some(was) if !was.rules.is_empty() => out.push(self.in_chain(DELETE_RULE, 0, name)),
                _ => {}
            }
            out.extend(chain.rules.iter().map(|rule| rule.write(self.in_chain(NEW_RULE, CREATE | APPEND, name))));
        }
        for (name, set) in &self.sets {
            let was = old.sets.get(name).map_or(&nothing, |set| &set.elements);
            let gone = was.iter().filter(|(key, chain)| set.elements.get(*key) != Some(chain));
            out.extend(self.elements(DELETE_ELEMENT, 0, name, gone.map(|(key, _)| (key, None))));
            let come = set.elements.iter().filter(|(key, chain)| was.get(*key) != Some(chain));
            out.extend(self.elements(NEW_ELEMENT, CREATE, name, come.map(|(key, chain)| (key, chain.as_deref()))));
        }
        let gone = || old.chains.iter().filter(|(name, _)| !self.chains.contains_key(*name));
        out.extend(
            gone().filter(|(_, chain)| !chain.rules.is_empty()).map(|(name, _)| self.in_chain(DELETE_RULE, 0, name)),
        );
        let unused = old.sets.keys().filter(|name| !self.sets.contains_key(*name));
        // A map is a user of the chains that it leads to.
        out.extend(unused.map(|name| self.message(DELETE_SET, 0).string(1, &self.name).string(2, name)));
        out.extend(gone().map(|(name, _)| self.message(DELETE_CHAIN, 0).string(1, &self.name).string(3, name)));
        out
    }

    fn elements<'a>(
        &self,
        kind: u16,
        flags: u16,
        set: &str,
        elements: impl Iterator<Item = (&'a Key, Option<&'a str>)>,
    ) -> Vec<Message> {
        let elements: Vec<_> = elements.collect();
        let message = |part: &[(&Key, Option<&str>)]| {
            let message = self.message(kind, flags).string(1, &self.name).string(2, set);
            message.nest(3, |m| part.iter().fold(m, |m, (key, chain)| Set::element(m, key, *chain)))
        };
        elements.chunks(ELEMENTS).map(message).collect()
    }

    /// Creating the table first makes deleting it succeed, and so the whole batch repeatable.
    fn clear(&self) -> Vec<Message> {
        vec![self.create(), self.message(DELETE_TABLE, 0).string(1, &self.name)]
    }

    fn create(&self) -> Message {
        self.message(NEW_TABLE, CREATE).string(1, &self.name)
    }

    fn new_chain(&self, name: &str, hook: Option<Hook>) -> Message {
        let message = self.message(NEW_CHAIN, CREATE).string(1, &self.name).string(3, name);
        match hook {
            None => message,
            Some(hook) => {
                let place = |m: Message| m.attribute(1, &hook.number().to_be_bytes());
                message.nest(4, |m| place(m).attribute(2, &hook.priority().to_be_bytes())).string(7, hook.kind())
            }
        }
    }

    fn in_chain(&self, kind: u16, flags: u16, chain: &str) -> Message {
        self.message(kind, flags).string(1, &self.name).string(2, chain)
    }

    fn message(&self, kind: u16, flags: u16) -> Message {
        Message::new(kind, flags).raw(&self.header())
    }

    fn header(&self) -> [u8; 4] {
        [self.family as u8, 0, 0, 0]
    }
}

/// The last message alone is acknowledged; an error of any of them is told anyway.
fn send(mut messages: Vec<Message>) -> io::Result<()> {
    // The resource id of a batch names the subsystem, in network order.
    let edge = |kind| Message::new(kind, 0).raw(&[0, 0, 0, 10]);
    let Some(last) = messages.pop() else { return Ok(()) };
    let mut batch = vec![edge(BATCH_BEGIN)];
    batch.append(&mut messages);
    batch.push(last.acknowledged());
    batch.push(edge(BATCH_END));
    Socket::netfilter()?.batch(batch)
}
