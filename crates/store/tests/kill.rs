//! A real process on a real directory, killed with SIGKILL at random moments.
//!
//! The test runs itself as a child that writes and reports every acknowledged write on its standard error.
//! 200 times in the long form.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use common::disk::Random;
use common::*;
use ferrovirt_store::{EventKind, Options, Store, fsck};

const CHILD: &str = "FERROVIRT_STORE_CHILD";
const TASKS: u64 = 6;
const KEYS: u64 = 4;

#[test]
fn no_acknowledged_write_is_lost() {
    match std::env::var(CHILD) {
        Ok(job) => child(&job),
        Err(_) => parent(),
    }
}

fn options() -> Options {
    Options {
        segment_bytes: 16 << 10,
        preallocate_bytes: 4 << 10,
        compact_min_bytes: 24 << 10,
        revision_step: 50,
        ..Options::default()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Every fifth write to a key removes it.
fn removes(write: u64) -> bool {
    write % 5 == 4
}

fn child(job: &str) {
    let (round, dir) = job.split_once(' ').unwrap();
    let say = |line: String| std::io::stderr().write_all(line.as_bytes()).unwrap();
    runtime().block_on(async {
        let (store, _) = Db::open(Path::new(dir), options()).unwrap();
        say(format!("open {}\n", store.revision()));
        let mut tasks = Vec::new();
        for _ in 0..3 {
            tasks.push(tokio::spawn(follow(store.clone())));
        }
        for task in 0..TASKS {
            let (store, round) = (store.clone(), round.to_owned());
            tasks.push(tokio::spawn(async move {
                for write in 0.. {
                    for key in 0..KEYS {
                        let name = format!("r{round}/t{task}k{key}");
                        let change = if removes(write) {
                            delete(&name)
                        } else {
                            put(&name, &format!("{write}-{}", "z".repeat(100)))
                        };
                        // What survives a process need not be synced.
                        let change = if key == 0 { relaxed(change) } else { change };
                        let revision = store.commit(change).await.unwrap().revision;
                        say(format!("ack {revision} {name} {write}\n"));
                    }
                }
            }));
        }
        for task in tasks {
            if let Err(error) = task.await {
                say(format!("bad {error}\n"));
                std::process::exit(1);
            }
        }
    });
}

/// Checks, for as long as the process lives, that events are neither lost nor repeated.
async fn follow(store: Store<Word>) {
    let (list, mut watcher) = store.watch_list("things", None);
    let mut copy: BTreeMap<_, _> = list.items.into_iter().map(|entry| (entry.key.clone(), entry.revision)).collect();
    let mut last = list.revision;
    loop {
        let event = watcher.next().await.unwrap();
        assert!(event.revision > last);
        last = event.revision;
        let before = match event.kind {
            EventKind::Deleted => copy.remove(&event.entry.key),
            _ => copy.insert(event.entry.key.clone(), event.revision),
        };
        assert_eq!(before, event.previous.as_ref().map(|entry| entry.revision));
    }
}

fn parent() {
    let rounds = rounds();
    let dir = tempfile::tempdir().unwrap();
    let seed = u64::from(std::process::id());
    let mut random = Random(seed);
    let mut used = HashSet::new();
    let mut settled: BTreeMap<String, String> = BTreeMap::new();
    for round in 0..rounds {
        let context = format!("seed {seed} round {round}");
        let acknowledged = run_child(dir.path(), round, 1 + random.below(1500), &mut used, &context);
        let before = fsck(dir.path()).unwrap();
        let (store, report) = Db::open(dir.path(), options()).unwrap();
        assert_eq!((report.objects, report.revision), (before.objects, before.revision), "{context}");
        let highest = used.iter().copied().max().unwrap_or(0);
        assert!(store.revision() >= highest, "{context}");
        assert_eq!(store.watch("things", Some(highest)).is_err(), store.revision() > highest, "{context}");
        let found: BTreeMap<_, _> = store
            .list("things", None)
            .items
            .iter()
            .map(|entry| (entry.key.to_string(), entry.meta.0.clone()))
            .collect();
        for (name, expected) in &settled {
            assert_eq!(found.get(name), Some(expected), "{context}: {name} changed");
        }
        for (name, last) in acknowledged {
            // One more write may have reached the log without its acknowledgement.
            let fits = match found.get(&name) {
                Some(word) => [last, last + 1].contains(&word.split_once('-').unwrap().0.parse().unwrap()),
                None => removes(last) || removes(last + 1),
            };
            assert!(fits, "{context}: {name} is {:?}, acknowledged was write {last}", found.get(&name));
        }
        settled = found;
        runtime().block_on(store.close());
    }
    assert!(used.len() as u64 > rounds, "the children wrote nothing");
    println!("{rounds} kills, {} revisions used, none twice; no acknowledged write lost", used.len());
}

/// Lets a child write until it has acknowledged `count` writes, then kills it. Returns the last write to each key.
fn run_child(dir: &Path, round: u64, count: u64, used: &mut HashSet<u64>, context: &str) -> BTreeMap<String, u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["no_acknowledged_write_is_lost", "--exact", "--nocapture"])
        .env(CHILD, format!("{round} {}", dir.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stderr.take().unwrap());
    let mut acknowledged = BTreeMap::new();
    let mut seen = 0;
    let floor = used.iter().copied().max().unwrap_or(0);
    // The lines that were on their way when the child died count, too.
    for line in output.lines().map(Result::unwrap) {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["ack", revision, name, write] => {
                let revision = revision.parse().unwrap();
                assert!(revision > floor && used.insert(revision), "{context}: revision {revision} twice");
                acknowledged.insert(name.to_owned(), write.parse().unwrap());
                seen += 1;
            }
            ["open", revision] => assert!(revision.parse::<u64>().unwrap() >= floor, "{context}"),
            _ => {
                child.kill().unwrap();
                panic!("{context}: the child says {line}");
            }
        }
        if seen == count {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(seen >= count, "{context}: the child ended by itself after {seen}");
    acknowledged
}
