//! Commits, reads and what is there after opening again.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::os::unix::fs::PermissionsExt;

use common::*;
use ferrovirt_store::{Expect, OpenError, Options, fsck, restore};

#[tokio::test]
async fn expectations() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    let first = store.commit(put("ns/a", "v0")).await.unwrap().revision;
    for (write, expected) in [
        (expecting(Expect::Absent, put("ns/a", "v1")), "conflict with ns/a=v0"),
        (expecting(Expect::Present, put("ns/b", "v1")), "conflict with nothing"),
        (expecting(Expect::Revision(first), put("ns/b", "v1")), "conflict with nothing"),
        (expecting(Expect::Revision(first + 1), put("ns/a", "v1")), "conflict with ns/a=v0"),
        (expecting(Expect::Revision(first), put("ns/a", "v1")), "ns/a=v1"),
        (expecting(Expect::Revision(first), put("ns/a", "v2")), "conflict with ns/a=v1"),
        (expecting(Expect::Present, put("ns/a", "v2")), "ns/a=v2"),
        (expecting(Expect::Absent, put("ns/b", "v1")), "ns/b=v1"),
        (relaxed(put("ns/b", "v2")), "ns/b=v2"),
        (delete("ns/c"), "conflict with nothing"),
        (expecting(Expect::Absent, delete("ns/c")), "conflict with nothing"),
        (expecting(Expect::Revision(first), delete("ns/a")), "conflict with ns/a=v2"),
        (delete("ns/a"), "ns/a=last"),
        (delete("ns/a"), "conflict with nothing"),
    ] {
        let what = format!("{} {:?}", write.key, write.expect);
        assert_eq!(outcome(store.commit(write).await), expected, "{what}");
    }
    assert_eq!(texts(&store.list("things", None).items), ["ns/b=v2"]);
    let b = store.get("things", &key("ns/b")).unwrap();
    assert!(b.created < b.revision);
}

#[tokio::test]
async fn a_batch_is_all_or_nothing_and_sees_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    let done = store
        .commit_all(vec![
            expecting(Expect::Absent, put("a", "v1")),
            expecting(Expect::Present, put("a", "v2")),
            of("others", put("x", "v1")),
            delete("a"),
            expecting(Expect::Absent, put("a", "v3")),
        ])
        .await
        .unwrap();
    let revisions: Vec<_> = done.iter().map(|entry| entry.revision).collect();
    assert_eq!(revisions, (revisions[0]..revisions[0] + 5).collect::<Vec<_>>());
    let before = store.revision();
    let failed =
        store.commit_all(vec![put("b", "v1"), put("a", "v4"), expecting(Expect::Absent, put("a", "v5"))]).await;
    assert!(matches!(failed, Err(ferrovirt_store::CommitError::Conflict { current: Some(_) })));
    assert_eq!(texts(&store.list("things", None).items), ["a=v3"]);
    assert_eq!(store.revision(), before);
    assert_eq!(store.resources().iter().map(|name| &**name).collect::<Vec<_>>(), ["others", "things"]);
}

#[tokio::test]
async fn lists_are_sorted_and_by_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    for name in ["b/2", "a/9", "b/1", "c/0", "cluster", "b/10"] {
        store.commit(put(name, "v")).await.unwrap();
    }
    for (namespace, expected) in [
        (None, &["cluster=v", "a/9=v", "b/1=v", "b/10=v", "b/2=v", "c/0=v"][..]),
        (Some("b"), &["b/1=v", "b/10=v", "b/2=v"]),
        (Some(""), &["cluster=v"]),
        (Some("d"), &[]),
    ] {
        let list = store.list("things", namespace);
        assert_eq!(texts(&list.items), expected);
        assert_eq!(list.revision, store.revision());
    }
    assert_eq!(store.count("things"), 6);
    assert_eq!(store.count("nothing"), 0);
}

#[tokio::test]
async fn everything_is_there_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for round in 0..4 {
        // Small files and an eager compaction: every way a log can look is passed through.
        let (store, report) = Db::open(dir.path(), small()).unwrap();
        assert_eq!(texts(&store.list("things", None).items), expected, "round {round}");
        assert_eq!((report.objects, report.torn_bytes), (expected.len(), 0));
        let before = store.revision();
        for number in 0..300 {
            let name = format!("ns/{:03}", number % 40);
            let written = if number % 7 == 3 {
                store.commit(delete(&name)).await.map_err(|_| ())
            } else {
                store.commit(put(&name, &format!("r{round}n{number}"))).await.map_err(|_| ())
            };
            assert!(written.is_err() || written.unwrap().revision > before);
        }
        expected = texts(&store.list("things", None).items);
        let revision = store.revision();
        store.close().await;
        assert_eq!(outcome(store.commit(put("late", "v")).await), "closed");
        assert_eq!(fsck(dir.path()).unwrap().revision, revision, "a clean end leaves no gap");
        assert_eq!(fsck(dir.path()).unwrap().objects, expected.len());
    }
}

#[tokio::test]
async fn compaction_keeps_the_log_near_the_live_data() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options { compact_min_bytes: 64 << 10, ..Options::default() }).unwrap();
    let (large, mut seen) = ("x".repeat(4000), 0);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while store.stats().compactions < 3 {
        assert!(std::time::Instant::now() < deadline, "{:?}", store.stats());
        seen += 1;
        store.commit(relaxed(put(&format!("ns/{}", seen % 5), &format!("{large}{seen}")))).await.unwrap();
    }
    let (expected, stats) = (texts(&store.list("things", None).items), store.stats());
    assert!(stats.live_bytes > 20_000 && stats.live_bytes < 25_000, "{stats:?}");
    store.close().await;
    let (store, report) = Db::open(dir.path(), Options::default()).unwrap();
    assert_eq!(texts(&store.list("things", None).items), expected);
    assert_eq!(report.objects, 5);
    assert_eq!(store.stats().live_bytes, stats.live_bytes);
}

#[tokio::test]
async fn one_process_at_a_time_and_nobody_else_looks() {
    let dir = tempfile::tempdir().unwrap();
    let loose = dir.path().join("loose");
    std::fs::create_dir(&loose).unwrap();
    std::fs::set_permissions(&loose, std::fs::Permissions::from_mode(0o755)).unwrap();
    for path in [dir.path().join("deep/er"), loose] {
        let (store, _) = Db::open(&path, Options::default()).unwrap();
        assert!(matches!(Db::open(&path, Options::default()), Err(OpenError::Locked { .. })));
        store.close().await;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        Db::open(&path, Options::default()).unwrap();
    }
}

#[tokio::test]
async fn backup_and_restore() {
    let dir = tempfile::tempdir().unwrap();
    let [live, backup, restored] = ["live", "backup", "restored"].map(|name| dir.path().join(name));
    let (store, _) = Db::open(&live, Options::default()).unwrap();
    for number in 0..50 {
        store.commit(put(&format!("ns/{number:02}"), "v1")).await.unwrap();
    }
    let expected = texts(&store.list("things", None).items);
    store.backup(&backup).await.unwrap();
    assert!(store.backup(&backup).await.is_err(), "a backup is not overwritten");
    let after = store.commit(put("ns/late", "v1")).await.unwrap().revision;
    assert_eq!(restore(&backup, &restored).unwrap().objects, 50);
    assert!(restore(&backup, &live).is_err(), "a store is not overwritten");
    let (copy, _) = Db::open(&restored, Options::default()).unwrap();
    assert_eq!(texts(&copy.list("things", None).items), expected);
    assert!(copy.revision() > after);
    assert!(copy.watch("things", Some(after)).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_of_many_share_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in 0..20 {
                    store.commit(put(&format!("{task}/{number}"), "v")).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.commits, store.count("things")), (1280, 1280));
    assert!(stats.fsyncs < 1000, "{stats:?}");
}
