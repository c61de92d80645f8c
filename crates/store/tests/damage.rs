//! Damaged files, full disks and failing syncs.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::disk::{Disk, Random};
use common::*;
use ferrovirt_store::{OpenError, Options};

const LOG: &str = "log-0000000000000001";

/// A closed store of one segment with five objects, and where each of its records begins and ends.
async fn five() -> (Disk, Vec<std::ops::Range<usize>>) {
    let disk = Disk::default();
    let (store, _) = Db::open_with(disk.mount(), small()).unwrap();
    for name in ["a", "b", "c", "d", "e"] {
        store.commit(put(name, "value")).await.unwrap();
    }
    store.close().await;
    let mut records = Vec::new();
    disk.tamper(LOG, |content| {
        let mut at = 28;
        while at < content.len() {
            let end = at + 12 + u32::from_le_bytes(content[at + 4..at + 8].try_into().unwrap()) as usize;
            records.push(at..end);
            at = end;
        }
    });
    // The reservation at the beginning, another with the first commit, five commits, the clean end.
    assert_eq!(records.len(), 8);
    (disk, records)
}

#[tokio::test]
async fn a_torn_end_is_cut_off_wherever_it_tears() {
    let (whole, records) = five().await;
    let last = records[6].clone();
    for cut in last.clone() {
        for garbage in [0, 1, 700] {
            let disk = whole.copy();
            disk.tamper(LOG, |content| {
                content.truncate(cut);
                content.extend(std::iter::repeat_n(0xA5, garbage));
                content.resize(content.len() + 1000, 0);
            });
            let (store, report) = Db::open_with(disk.mount(), small()).unwrap();
            assert_eq!(report.objects, 4);
            assert_eq!(report.torn_bytes > 0, cut > last.start || garbage > 0, "cut at {cut}, garbage {garbage}");
            assert_eq!(outcome(store.commit(put("f", "new")).await), "f=new");
            store.close().await;
            let (store, report) = Db::open_with(disk.mount(), small()).unwrap();
            assert_eq!((report.objects, report.torn_bytes), (5, 0));
            assert_eq!(texts(&store.list("things", None).items)[4], "f=new");
        }
    }
}

#[tokio::test]
async fn damage_before_the_end_refuses_with_the_place() {
    let (whole, records) = five().await;
    for record in &records[..6] {
        for at in [record.start, record.start + 5, record.start + 9, record.end - 1] {
            let disk = whole.copy();
            disk.tamper(LOG, |content| content[at] ^= 0x10);
            match Db::open_with(disk.mount(), Options::default()) {
                Err(OpenError::Damaged { path, offset, .. }) => {
                    assert_eq!((path.file_name().unwrap().to_str().unwrap(), offset), (LOG, record.start as u64));
                }
                other => panic!("byte {at}: {:?}", other.map(|(_, report)| report)),
            }
        }
    }
}

#[tokio::test]
async fn other_files_are_refused_by_name() {
    for (name, change, expected) in [
        (LOG, 8, "log-0000000000000001 was written by a newer version (format 3; this version knows formats up to 1)"),
        (LOG, 0, "log-0000000000000001 is not a file of a store, or its header is damaged"),
        (LOG, 20, "log-0000000000000001 is not a file of a store, or its header is damaged"),
    ] {
        let (disk, _) = five().await;
        disk.tamper(name, |content| content[change] ^= 2);
        let error = Db::open_with(disk.mount(), Options::default()).err().unwrap();
        assert_eq!(error.to_string(), format!("/disk/{expected}"));
    }
}

#[tokio::test]
async fn damage_and_gaps_in_a_log_of_several_files() {
    async fn several() -> (Disk, Vec<String>) {
        let disk = Disk::default();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let eager = Options { compact_min_bytes: 2000, segment_bytes: 1000, ..Options::default() };
        let (store, _) = Db::open_with(disk.mount(), eager.clone()).unwrap();
        while store.stats().compactions < 1 {
            assert!(std::time::Instant::now() < deadline, "{:?}", disk.names());
            store.commit(put("same", "value")).await.unwrap();
        }
        store.close().await;
        let never = Options { compact_min_bytes: u64::MAX, ..eager };
        let (store, _) = Db::open_with(disk.mount(), never).unwrap();
        while disk.names().len() < 5 {
            store.commit(put("same", "value")).await.unwrap();
        }
        store.close().await;
        let names = disk.names();
        assert!(names.len() == 5 && names[4].starts_with("snapshot-"), "{names:?}");
        (disk, names)
    }
    let (disk, names) = several().await;
    Db::open_with(disk.mount(), Options::default()).unwrap();
    for number in [0, 1, names.len() - 1] {
        let (disk, names) = several().await;
        let name = &names[number];
        disk.tamper(name, |content| {
            let last = content.len() - 1;
            content[last] ^= 1;
        });
        let error = Db::open_with(disk.mount(), Options::default()).err().unwrap();
        assert!(matches!(&error, OpenError::Damaged { path, .. } if path.ends_with(name)), "{name}: {error}");
    }
    for number in [0, 1] {
        let (disk, names) = several().await;
        disk.mount().remove(&names[number]).unwrap();
        let error = Db::open_with(disk.mount(), Options::default()).err().unwrap();
        assert!(matches!(&error, OpenError::Missing { path } if path.ends_with(&names[number])), "{error}");
    }
}

#[tokio::test]
async fn a_full_disk_fails_writes_and_nothing_else() {
    for preallocate_bytes in [0, 512] {
        let disk = Disk::default();
        let options = Options { preallocate_bytes, ..Options::default() };
        let (store, _) = Db::open_with(disk.mount(), options.clone()).unwrap();
        store.commit(put("a", "v1")).await.unwrap();
        store.commit(relaxed(put("lease", "v1"))).await.unwrap();
        let mut watcher = store.watch("things", None).unwrap();
        disk.set_room(Some(disk.used() + 100));
        let large = "x".repeat(2000);
        let failed = store.revision();
        for write in [put("b", &large), relaxed(put("b", &large)), put("a", &large)] {
            assert_eq!(outcome(store.commit(write).await), "full");
        }
        assert_eq!(texts(&store.list("things", None).items), ["a=v1", "lease=v1"]);
        assert_eq!(store.revision(), failed);
        assert!(watcher.try_next().unwrap().is_none());
        disk.set_room(None);
        assert_eq!(outcome(store.commit(put("b", "v1")).await), "b=v1");
        assert_eq!(event(&watcher.next().await.unwrap()), "+b=v1");
        store.close().await;
        let (store, report) = Db::open_with(disk.mount(), options).unwrap();
        assert_eq!(texts(&store.list("things", None).items), ["a=v1", "b=v1", "lease=v1"]);
        assert_eq!(report.torn_bytes, 0);
    }
}

#[tokio::test]
async fn a_failed_sync_is_a_failed_write_and_loses_nothing_acknowledged() {
    let disk = Disk::default();
    let (store, _) = Db::open_with(disk.mount(), Options::default()).unwrap();
    store.commit(put("a", "v1")).await.unwrap();
    store.commit(relaxed(put("lease", "v7"))).await.unwrap();
    disk.fail_sync(true);
    assert_eq!(outcome(store.commit(put("a", "v2")).await), "full");
    assert_eq!(outcome(store.commit(put("a", "v3")).await), "full");
    assert_eq!(texts(&store.list("things", None).items), ["a=v1", "lease=v7"]);
    disk.fail_sync(false);
    assert_eq!(outcome(store.commit(put("c", "v1")).await), "c=v1");
    disk.power_cut(&mut Random(1));
    let (store, _) = Db::open_with(disk.mount(), Options::default()).unwrap();
    assert_eq!(texts(&store.list("things", None).items), ["a=v1", "c=v1", "lease=v7"]);
}
