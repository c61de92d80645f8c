//! The power fails at every kind of moment.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;

use common::disk::{Disk, Random};
use common::*;
use ferrovirt_store::{CommitError, Options};

/// What may be found after a cut: per key the last acknowledged state, and what was under way.
#[derive(Default)]
struct Known {
    acknowledged: BTreeMap<String, Option<String>>,
    /// Of each key, what may have replaced it: failed writes, and for relaxed ones all since the last sync.
    possible: BTreeMap<String, Vec<Option<String>>>,
    highest: u64,
}

fn options() -> Options {
    Options {
        segment_bytes: 2048,
        preallocate_bytes: 512,
        compact_min_bytes: 1500,
        revision_step: 7,
        ..Options::default()
    }
}

#[tokio::test]
async fn no_acknowledged_write_is_lost_and_no_revision_comes_twice() {
    let seeds = rounds() * 40;
    for seed in 0..seeds {
        run(seed).await;
    }
}

async fn run(seed: u64) {
    let mut random = Random(seed);
    let disk = Disk::default();
    let mut known = Known::default();
    let mut used = std::collections::HashSet::new();
    for round in 0..6 {
        let (store, _) = match Db::open_with(disk.mount(), options()) {
            Ok(opened) => opened,
            Err(error) => panic!("seed {seed} round {round}: {error:?} {:?}", disk.names()),
        };
        let context = || format!("seed {seed} round {round}");
        assert!(store.revision() >= known.highest, "{}", context());
        if known.highest > 0 && store.revision() > known.highest {
            assert!(store.watch("things", Some(known.highest)).is_err(), "{}: the lost window is gone", context());
        }
        let found: BTreeMap<_, _> =
            store.list("things", None).items.iter().map(|entry| (entry.key.to_string(), text(entry))).collect();
        for (name, expected) in &known.acknowledged {
            let now = found.get(name).cloned();
            let fits = now == *expected || known.possible.get(name).is_some_and(|possible| possible.contains(&now));
            assert!(fits, "{}: {name} is {now:?}, acknowledged was {expected:?}", context());
        }
        // Twins are only written together, in one batch.
        assert_eq!(found.get("twin-1").map(|t| &t[6..]), found.get("twin-2").map(|t| &t[6..]), "{}", context());
        known.acknowledged = found.into_iter().map(|(name, text)| (name, Some(text))).collect();
        known.possible.clear();
        // Short ones for what happens at opening, long ones for rotation and compaction.
        let longest = [8, 120][random.below(2) as usize];
        disk.light_fuse(random.below(longest));
        for step in 0..200 {
            let word = format!("r{round}s{step}");
            let name = format!("k{}", random.below(6));
            let (writes, is_relaxed) = match random.below(10) {
                0..5 => (vec![put(&name, &word)], false),
                5 => (vec![delete(&name)], false),
                6 => (vec![relaxed(put(&name, &word))], true),
                7 => (vec![put(&name, &format!("{word}{}", "y".repeat(700)))], false),
                _ => (vec![put("twin-1", &word), put(&name, &word), put("twin-2", &word)], false),
            };
            let after: Vec<_> = writes
                .iter()
                .map(|write| match &write.change {
                    ferrovirt_store::Change::Put(value) => {
                        (write.key.to_string(), Some(format!("{}={}", write.key, value.meta.0)))
                    }
                    _ => (write.key.to_string(), None),
                })
                .collect();
            match store.commit_all(writes).await {
                Ok(entries) => {
                    for entry in entries {
                        assert!(used.insert(entry.revision), "{}: revision {} twice", context(), entry.revision);
                        known.highest = known.highest.max(entry.revision);
                    }
                    for (name, state) in after {
                        let before = known.acknowledged.insert(name.clone(), state).unwrap_or_default();
                        if is_relaxed {
                            known.possible.entry(name).or_default().push(before);
                        } else {
                            // A sync covers all before it.
                            known.possible.clear();
                        }
                    }
                }
                Err(CommitError::Conflict { .. }) => {}
                Err(_) => {
                    for (name, state) in after {
                        known.acknowledged.entry(name.clone()).or_default();
                        known.possible.entry(name).or_default().push(state);
                    }
                    break;
                }
            }
        }
        // What a reader has seen after the crash of a process must not go away with the power.
        if random.below(3) == 0 {
            disk.process_crash();
        } else {
            disk.power_cut(&mut random);
        }
    }
}
