//! Log files that nobody wrote: mutated ones, also with checksums that are right. Opening says what is wrong or gives a
//! store that works; it never panics. `FERROVIRT_LONG=1` tries many more.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::disk::{Disk, Random};
use common::*;

const LOG: &str = "log-0000000000000001";
const HEADER: usize = 28;
const PREFIX: usize = 12;

async fn whole() -> Disk {
    let disk = Disk::default();
    let (store, _) = Db::open_with(disk.mount(), small()).unwrap();
    for name in ["a", "ns/b", "c"] {
        store.commit(put(name, "value")).await.unwrap();
    }
    store.commit(delete("a")).await.unwrap();
    store.close().await;
    disk
}

fn change(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(4) {
            0 if at < bytes.len() => bytes[at] = random.below(256) as u8,
            1 if at < bytes.len() => bytes[at] = [0, 0x7f, 0x80, 0xff][random.below(4) as usize],
            2 => {
                let end = (at + random.below(9) as usize).min(bytes.len());
                bytes[at..end].fill(0xff);
            }
            3 => bytes.truncate(at),
            _ => bytes.insert(at, random.below(256) as u8),
        }
    }
}

/// Changes the body of one record and makes its length and checksum fit.
fn forge(random: &mut Random, content: &mut Vec<u8>) {
    let mut records = Vec::new();
    let mut at = HEADER;
    while at + PREFIX <= content.len() {
        let length = u32::from_le_bytes(content[at + 4..at + 8].try_into().unwrap()) as usize;
        if at + PREFIX + length > content.len() {
            break;
        }
        records.push(at..at + PREFIX + length);
        at += PREFIX + length;
    }
    if records.is_empty() {
        return;
    }
    let record = records[random.below(records.len() as u64) as usize].clone();
    let mut body = content[record.start + PREFIX..record.end].to_vec();
    change(random, &mut body);
    let length = (body.len() as u32).to_le_bytes();
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(&body);
    let forged = [&content[record.start..record.start + 4], &length, &hasher.finalize().to_le_bytes(), &body].concat();
    content.splice(record, forged);
}

#[tokio::test]
async fn no_log_makes_the_store_stumble() {
    let disk = whole().await;
    let rounds = if std::env::var_os("FERROVIRT_LONG").is_some() { 200_000 } else { 1500 };
    let mut opened = 0;
    for round in 0..rounds {
        let mut random = Random(round);
        let copy = disk.copy();
        copy.tamper(LOG, |content| {
            for _ in 0..=random.below(2) {
                match random.below(3) {
                    0 => change(&mut random, content),
                    _ => forge(&mut random, content),
                }
                if content.len() < HEADER + PREFIX {
                    return;
                }
            }
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| Db::open_with(copy.mount(), small())));
        let Ok(Ok((store, _))) = outcome else {
            assert!(outcome.is_ok(), "round {round}: opening panicked");
            continue;
        };
        opened += 1;
        store.list("things", None);
        let written = store.commit(put("new", "value")).await;
        store.close().await;
        let reopened = Db::open_with(copy.mount(), small());
        assert!(reopened.is_ok(), "round {round}: {:?}", reopened.err());
        if let Ok(entry) = written {
            let (store, _) = reopened.unwrap();
            assert_eq!(store.get("things", &key("new")).unwrap().revision, entry.revision, "round {round}");
        }
    }
    assert!(opened > rounds / 20, "only {opened} of {rounds} could be opened: the test tries too little");
}
