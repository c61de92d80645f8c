//! What the tests share: a small kind of object and short ways to write it.
#![allow(dead_code)]

use std::sync::Arc;

use bytes::Bytes;
use ferrovirt_store::{
    Change, CommitError, Durability, Entry, Event, EventKind, Expect, Key, Meta, Options, Store, Value, Write,
};

pub mod disk;

/// The objects are texts like `v1 rev=17.`; parsed beside them is the first word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word(pub String);

#[derive(Debug, thiserror::Error)]
#[error("not an object of these tests")]
pub struct NotOurs;

impl Meta for Word {
    type Error = NotOurs;

    fn from_bytes(_: &str, bytes: &[u8]) -> Result<Self, NotOurs> {
        let text = std::str::from_utf8(bytes).map_err(|_| NotOurs)?;
        let (word, rest) = text.split_once(' ').ok_or(NotOurs)?;
        if rest.starts_with("rev=") && rest.ends_with('.') { Ok(Self(word.into())) } else { Err(NotOurs) }
    }
}

pub type Db = Store<Word>;

pub fn value(word: &str) -> Value<Word> {
    Value { head: Bytes::from(format!("{word} rev=")), tail: Bytes::from_static(b"."), meta: Word(word.into()) }
}

pub fn key(name: &str) -> Key {
    match name.split_once('/') {
        Some((namespace, name)) => Key::new(namespace, name),
        None => Key::new("", name),
    }
}

pub fn put(name: &str, word: &str) -> Write<Word> {
    Write {
        resource: "things".into(),
        key: key(name),
        expect: Expect::Any,
        durability: Durability::Synced,
        change: Change::Put(value(word)),
    }
}

pub fn delete(name: &str) -> Write<Word> {
    Write { change: Change::Delete { last: value("last") }, ..put(name, "") }
}

pub fn of(resource: &str, write: Write<Word>) -> Write<Word> {
    Write { resource: resource.into(), ..write }
}

pub fn expecting(expect: Expect, write: Write<Word>) -> Write<Word> {
    Write { expect, ..write }
}

pub fn relaxed(write: Write<Word>) -> Write<Word> {
    Write { durability: Durability::Relaxed, ..write }
}

pub fn text(entry: &Entry<Word>) -> String {
    assert_eq!(Word::from_bytes("", &entry.bytes).unwrap(), entry.meta);
    let text = String::from_utf8(entry.bytes.to_vec()).unwrap();
    assert!(text.ends_with(&format!("rev={}.", entry.revision)), "{text} at {}", entry.revision);
    format!("{}={}", entry.key, entry.meta.0)
}

pub fn texts(entries: &[Arc<Entry<Word>>]) -> Vec<String> {
    entries.iter().map(|entry| text(entry)).collect()
}

pub fn event(event: &Event<Word>) -> String {
    assert_eq!(event.revision, event.entry.revision);
    let sign = match event.kind {
        EventKind::Added => '+',
        EventKind::Modified => '~',
        EventKind::Deleted => '-',
    };
    assert_eq!(event.kind == EventKind::Added, event.previous.is_none());
    format!("{sign}{}", text(&event.entry))
}

/// What became of a commit, in a word.
pub fn outcome(result: Result<Arc<Entry<Word>>, CommitError<Word>>) -> String {
    match result {
        Ok(entry) => text(&entry),
        Err(CommitError::Conflict { current: None }) => "conflict with nothing".into(),
        Err(CommitError::Conflict { current: Some(entry) }) => format!("conflict with {}", text(&entry)),
        Err(CommitError::Unmet) => "unmet".into(),
        Err(CommitError::Full(_)) => "full".into(),
        Err(CommitError::Closed) => "closed".into(),
    }
}

pub fn small() -> Options {
    Options {
        segment_bytes: 4096,
        preallocate_bytes: 1024,
        compact_min_bytes: 8192,
        revision_step: 10,
        ..Options::default()
    }
}

/// How often a crash is tried: 5 times, 200 in the long form, or as `FERROVIRT_CRASH_ROUNDS` says.
pub fn rounds() -> u64 {
    let asked = std::env::var("FERROVIRT_CRASH_ROUNDS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if std::env::var_os("FERROVIRT_LONG").is_some() { 200 } else { 5 })
}
