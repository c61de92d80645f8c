//! Watchers see every event once and in order, or are told that they cannot.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Context, Waker};
use std::time::Duration;

use common::*;
use ferrovirt_store::{EventKind, Gone, Options, Watcher};

const DEADLINE: Duration = Duration::from_secs(60);

fn drain(watcher: &mut Watcher<Word>) -> Vec<String> {
    std::iter::from_fn(|| watcher.try_next().unwrap()).map(|seen| event(&seen)).collect()
}

#[tokio::test]
async fn events_after_a_revision() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    let mut early = store.watch("things", None).unwrap();
    let start = store.revision();
    let mut revisions = Vec::new();
    for write in [put("a/x", "v1"), put("b/y", "v1"), put("a/x", "v2"), delete("b/y"), put("b/y", "v3")] {
        revisions.push(store.commit(write).await.unwrap().revision);
    }
    store.commit(of("others", put("a/z", "v1"))).await.unwrap();
    let all = ["+a/x=v1", "+b/y=v1", "~a/x=v2", "-b/y=last", "+b/y=v3"];
    assert_eq!(drain(&mut early), all);
    for (from, expected) in
        [(start, &all[..]), (revisions[0], &all[1..]), (revisions[3], &all[4..]), (revisions[4], &[])]
    {
        let mut watcher = store.watch("things", Some(from)).unwrap();
        let before = watcher.progress();
        assert!(before >= from && (before == from || expected.is_empty()), "from {from}: {before}");
        assert_eq!(drain(&mut watcher), expected, "from {from}");
        assert_eq!(watcher.progress(), store.revision(), "others' events move a bookmark on");
    }
    let mut only_a = store.watch("things", Some(start)).unwrap().in_namespace("a");
    assert_eq!(drain(&mut only_a), ["+a/x=v1", "~a/x=v2"]);
    assert!(store.watch("things", Some(store.revision() + 1)).is_err());
    assert_eq!(store.stats().watchers, 2);
}

#[tokio::test]
async fn who_falls_behind_is_gone_and_the_writer_does_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    let large = "x".repeat(1000);
    for (options, written, kept) in [
        (Options { watch_events: 10, ..Options::default() }, 30, 10),
        (Options { watch_bytes: 20 * 1300, ..Options::default() }, 50, 20),
        (Options { watch_bytes: 1, ..Options::default() }, 30, 8),
    ] {
        let (store, _) = Db::open(dir.path(), options).unwrap();
        let mut slow = store.watch("things", None).unwrap();
        let mut quiet = store.watch("others", None).unwrap();
        let mut last = 0;
        for _ in 0..written {
            last = store.commit(relaxed(put("a", &large))).await.unwrap().revision;
        }
        let oldest = slow.next().await.unwrap_err().oldest;
        assert!(last - oldest >= kept && last - oldest <= kept + 1, "{last} {oldest}");
        assert_eq!(store.watch("things", Some(oldest - 1)).map(|_| ()), Err(Gone { oldest }));
        let mut again = store.watch("things", Some(oldest)).unwrap();
        assert_eq!(again.next().await.unwrap().revision, oldest + 1);
        assert!(quiet.try_next().unwrap().is_none());
        assert_eq!(quiet.progress(), last);
        store.close().await;
    }
}

#[tokio::test]
async fn revisions_from_before_the_start_are_gone_unless_nothing_happened_since() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    let first = store.commit(put("a", "v1")).await.unwrap().revision;
    let last = store.commit(put("a", "v2")).await.unwrap().revision;
    store.close().await;
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    for (from, gone) in [(0, true), (first, true), (last, false), (last + 1, true), (last + 5000, true)] {
        assert_eq!(store.watch("things", Some(from)).is_err(), gone, "{from}");
        assert_eq!(store.watch("never seen", Some(from)).is_err(), gone, "{from}");
    }
}

/// A copy of the state, kept up by list and watch alone.
async fn follow(store: Db, namespace: Option<&'static str>, until: u64) -> BTreeMap<String, String> {
    let (list, mut watcher) = store.watch_list("things", namespace);
    let mut copy: BTreeMap<_, _> = list.items.iter().map(|entry| (entry.key.to_string(), text(entry))).collect();
    let mut last = list.revision;
    assert!(list.items.iter().all(|entry| entry.revision <= last));
    while watcher.progress() < until {
        let Ok(seen) = tokio::time::timeout(Duration::from_millis(20), watcher.next()).await else {
            continue;
        };
        let seen = seen.unwrap();
        assert!(seen.revision > last, "{} after {last}", seen.revision);
        last = seen.revision;
        let before = match seen.kind {
            EventKind::Deleted => copy.remove(&seen.entry.key.to_string()),
            _ => copy.insert(seen.entry.key.to_string(), text(&seen.entry)),
        };
        assert_eq!(before, seen.previous.as_ref().map(|entry| text(entry)), "an event was missed");
    }
    copy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_watchers_keep_true_copies() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options { watch_events: 100_000, ..small() }).unwrap();
    // Each writer makes this many changes that succeed; the last revision is therefore known.
    let (writers, changes) = (8, 100);
    let until = store.revision() + writers * changes;
    let mut followers = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..writers {
        followers.extend((0..25).map(|_| tokio::spawn(follow(store.clone(), None, until))));
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            for change in 0..changes {
                let name = format!("{}/{number}-{}", ["red", "blue"][change as usize % 2], change % 6);
                let removed = change % 5 == 4 && store.commit(delete(&name)).await.is_ok();
                if !removed {
                    store.commit(put(&name, &format!("c{change}"))).await.unwrap();
                }
            }
        }));
        tokio::task::yield_now().await;
    }
    let in_red = tokio::spawn(follow(store.clone(), Some("red"), until));
    for task in tasks {
        tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
    }
    assert_eq!(store.revision(), until);
    let copy = |namespace| -> BTreeMap<_, _> {
        store.list("things", namespace).items.iter().map(|entry| (entry.key.to_string(), text(entry))).collect()
    };
    for follower in followers {
        assert_eq!(tokio::time::timeout(DEADLINE, follower).await.unwrap().unwrap(), copy(None));
    }
    assert_eq!(tokio::time::timeout(DEADLINE, in_red).await.unwrap().unwrap(), copy(Some("red")));
    assert_eq!(store.stats().watchers, 0);
}

#[tokio::test]
async fn thousands_wait_and_all_are_woken() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..5000 {
        let mut watcher = store.watch("things", None).unwrap();
        waiting.spawn(async move { event(&watcher.next().await.unwrap()) });
    }
    tokio::task::yield_now().await;
    store.commit(put("a", "v1")).await.unwrap();
    let woken = tokio::time::timeout(DEADLINE, waiting.join_all()).await.unwrap();
    assert_eq!(woken, vec!["+a=v1".to_owned(); 5000]);
}

/// A batch over many resources becomes visible one resource after the other. In between, too, a list is as new as its
/// newest item, and its revision is good for a watch on anything.
#[test]
fn lists_in_the_middle_of_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let resources: Vec<_> = (0..200).map(|number| format!("others-{number}")).collect();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut lists = 0;
            let mut watchers = std::collections::VecDeque::new();
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                let list = store.list("things", None);
                let newest = list.items.iter().map(|entry| entry.revision).max().unwrap_or(0);
                assert!(list.revision >= newest, "a list of {} with an item of {newest}", list.revision);
                // Looked at again a few lists later, when the rest of the batch has come.
                watchers.push_back((list.revision, store.watch("others-199", Some(list.revision)).unwrap()));
                for (from, watcher) in &mut watchers {
                    while let Some(event) = watcher.try_next().unwrap() {
                        assert!(event.revision > *from, "{} in a watch from {from}", event.revision);
                    }
                }
                if watchers.len() > 20 {
                    watchers.pop_front();
                }
                lists += 1;
            }
            lists
        });
        // Ends the reader also when a commit fails.
        let batches = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                for _ in 0..100 {
                    let others = resources.iter().map(|resource| relaxed(of(resource, put("a", "v"))));
                    // The first resource also has the last revision.
                    let things = || [relaxed(put("a", "v"))];
                    let writes = things().into_iter().chain(others).chain(things());
                    store.commit_all(writes.collect()).await.unwrap();
                }
            });
        }));
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        batches.unwrap();
        assert!(reader.join().unwrap() > 0);
    });
}

#[tokio::test]
async fn a_watcher_wakes_whoever_polled_it_last() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    for round in 0..3 {
        let mut watcher = store.watch("things", None).unwrap();
        assert!(watcher.poll_next(&mut Context::from_waker(Waker::noop())).is_pending());
        let (begun, begins) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            let mut begun = Some(begun);
            poll_fn(|context| {
                let polled = watcher.poll_next(context);
                begun.take().map(|begun| begun.send(()));
                polled
            })
            .await
        });
        begins.await.unwrap();
        store.commit(put(&format!("a/{round}"), "v")).await.unwrap();
        let seen = tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap().unwrap();
        assert_eq!(event(&seen), format!("+a/{round}=v"));
        assert_eq!(store.stats().watchers, 0, "its place is free for the next one");
    }
}
