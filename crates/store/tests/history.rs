//! Lists of the past, what is kept for them, and writes that depend on other objects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;

use common::{Db, delete, key, of, outcome, put, relaxed, text, texts};
use ferrovirt_store::{Condition, Entry, Options};

/// A small generator, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[tokio::test]
async fn a_list_at_a_revision_is_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    // The ring is small, so that most of the past is in the attic.
    let (store, _) = Db::open(dir.path(), Options { watch_events: 10, ..Options::default() }).unwrap();
    let _pin = store.pin("things", store.revision());
    let mut dice = Dice(7);
    let mut past: Vec<(u64, Vec<String>)> = vec![(store.revision(), Vec::new())];
    let mut now: BTreeMap<(String, String), String> = BTreeMap::new();
    for round in 0..300 {
        let place = (format!("n{}", dice.below(3)), format!("o{}", dice.below(8)));
        let name = format!("{}/{}", place.0, place.1);
        let revision = if dice.below(3) == 0 && now.contains_key(&place) {
            now.remove(&place);
            store.commit(relaxed(delete(&name))).await.unwrap().revision
        } else {
            let word = format!("v{round}");
            let revision = store.commit(relaxed(put(&name, &word))).await.unwrap().revision;
            now.insert(place, format!("{name}={word}"));
            revision
        };
        // Others' writes make revisions that are not of this resource.
        store.commit(of("others", relaxed(put("x", "y")))).await.unwrap();
        past.push((revision, now.values().cloned().collect()));
    }
    let names = |namespace: &str| format!("{namespace}/");
    for (index, (revision, all)) in past.iter().enumerate() {
        let list = store.list_at("things", None, *revision, None).unwrap();
        assert_eq!((list.revision, texts(&list.items)), (*revision, all.clone()));
        if index > 0 {
            let later = store.list_at("things", None, revision + 1, None).unwrap();
            assert_eq!(texts(&later.items), *all, "the next revision is another resource's");
        }
        let inside = store.list_at("things", Some("n1"), *revision, None).unwrap();
        let expected: Vec<&String> = all.iter().filter(|text| text.starts_with(&names("n1"))).collect();
        assert_eq!(texts(&inside.items).iter().collect::<Vec<_>>(), expected);
        // Page by page, each from where the last one ended, whether that object is still there or not.
        for namespace in [None, Some("n1")] {
            let (mut pages, mut after) = (Vec::new(), None);
            loop {
                let rest = store.list_at("things", namespace, *revision, after.as_ref()).unwrap().items;
                let Some(first) = rest.first() else { break };
                pages.push(text(first));
                after = Some(first.key.clone());
            }
            let whole = store.list_at("things", namespace, *revision, None).unwrap();
            assert_eq!(pages, texts(&whole.items), "{namespace:?} at {revision}");
        }
    }
    assert!(store.list_at("things", None, store.revision() + 1, None).is_err());
}

#[tokio::test]
async fn what_nobody_comes_back_to_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options { watch_events: 10, ..Options::default() }).unwrap();
    let write = async |name: &str| store.commit(relaxed(put(name, "v"))).await.unwrap().revision;
    let first = write("a").await;
    for _ in 0..30 {
        write("a").await;
    }
    assert_eq!(store.stats().history_bytes, 0);
    let gone = store.list_at("things", None, first, None).unwrap_err();
    assert!(gone.oldest > first);
    let middle = write("b").await;
    let pins = [store.pin("things", middle), store.pin("things", middle)];
    for _ in 0..30 {
        write("a").await;
    }
    let [one, two] = pins;
    drop(one);
    assert!(store.list_at("things", None, middle, None).is_ok(), "another holds it");
    assert!(store.stats().history_bytes > 0);
    drop(two);
    assert_eq!(store.stats().history_bytes, 0);
    assert!(store.list_at("things", None, middle, None).is_err());
}

/// However many pin whatever they want, what is kept has its bound, and the newest of it stays.
#[tokio::test]
async fn pins_hold_no_more_than_there_is_room_for() {
    let dir = tempfile::tempdir().unwrap();
    let room = 200_000;
    let (store, _) =
        Db::open(dir.path(), Options { watch_events: 10, history_bytes: room, ..Options::default() }).unwrap();
    let large = "x".repeat(5_000);
    let mut pins = Vec::new();
    let mut revisions = Vec::new();
    for _ in 0..200 {
        for resource in ["things", "others", "more"] {
            let revision = store.commit(of(resource, relaxed(put("a", &large)))).await.unwrap().revision;
            pins.push(store.pin(resource, revision));
            revisions.push((resource, revision));
            assert!(store.stats().history_bytes <= room as u64, "{}", store.stats().history_bytes);
        }
    }
    let known = revisions.iter().filter(|(resource, at)| store.list_at(resource, None, *at, None).is_ok()).count();
    // What the rings hold, and about as many as there is room for.
    assert!((40..80).contains(&known), "{known}");
    // An object that shrinks is not small for who holds its past.
    for resource in ["things", "others", "more"] {
        for _ in 0..100 {
            store.commit(of(resource, relaxed(put("a", "small")))).await.unwrap();
        }
    }
    assert!(store.stats().history_bytes <= room as u64);
    drop(pins);
    assert_eq!(store.stats().history_bytes, 0);
}

fn is_open(entry: Option<&Entry<common::Word>>) -> bool {
    entry.is_some_and(|entry| entry.meta.0 == "open")
}

#[tokio::test]
async fn a_write_depends_on_another_object_at_the_moment_of_its_commit() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    let inside = async |name: &str| {
        let condition = Condition { resource: "doors".into(), key: key("d"), holds: is_open };
        outcome(store.commit_if(put(name, "v"), vec![condition]).await)
    };
    assert_eq!(inside("a").await, "unmet");
    store.commit(of("doors", put("d", "open"))).await.unwrap();
    assert_eq!(inside("a").await, "a=v");
    store.commit(of("doors", put("d", "closed"))).await.unwrap();
    assert_eq!(inside("b").await, "unmet");
    assert_eq!(store.get("things", &key("b")).map(|entry| text(&entry)), None);
}

/// The door closes in the middle of many writes; what came before the closing is there, and nothing after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_hold_within_a_round_too() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Db::open(dir.path(), Options::default()).unwrap();
    for round in 0..20 {
        store.commit(of("doors", put("d", "open"))).await.unwrap();
        let writes = (0..50).map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let condition = Condition { resource: "doors".into(), key: key("d"), holds: is_open };
                store.commit_if(put(&format!("{round}-{n}"), "v"), vec![condition]).await.ok()
            })
        });
        let writes: Vec<_> = writes.collect();
        let closed = store.commit(of("doors", put("d", "closed"))).await.unwrap().revision;
        for write in writes {
            if let Some(entry) = write.await.unwrap() {
                assert!(entry.revision < closed, "{} after {closed}", entry.revision);
            }
        }
    }
}
