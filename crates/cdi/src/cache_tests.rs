#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use serde_json::json;

use super::*;

/// Long files cost an importer nothing: they may be holes.
#[test]
fn images_without_measure_keep_no_thread_from_others() {
    // On one thread, so that all of them have begun before others have their second turn.
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(3).build().unwrap();
    let scene = Scene::new();
    let cache = Arc::new(scene.cache);
    let lefts: Vec<Left> = ["a", "b", "c", "d", "e"]
        .map(|name| {
            cache.prepare(name).unwrap();
            let scratch = scene.home.path().join("pods").join(name).join("volumes/kubernetes.io~empty-dir/scratch");
            fs::create_dir_all(&scratch).unwrap();
            File::create(scratch.join("image")).unwrap().set_len(256 << 20).unwrap();
            fs::write(scratch.join("identity"), SAID).unwrap();
            cache.left_by(name, name).unwrap().unwrap()
        })
        .into();
    runtime.block_on(async {
        let mut keeps = tokio::task::JoinSet::new();
        for left in lefts {
            keeps.spawn(cache.clone().keep_in_turn("a".into(), "u".into(), left));
        }
        let others = async {
            for _ in 0..20 {
                tokio::task::spawn_blocking(|| ()).await.unwrap();
            }
        };
        tokio::select! {
            () = others => {}
            _ = keeps.join_next() => panic!("work of others waited for an image"),
        }
    });
    runtime.shutdown_background();
}

struct Scene {
    home: tempfile::TempDir,
    cache: Cache,
    woken: UnboundedReceiver<ObjectRef<DataVolume>>,
}

const SAID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

impl Scene {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("pods")).unwrap();
        fs::create_dir_all(home.path().join("old/planted")).unwrap();
        fs::write(home.path().join("secret"), "root only").unwrap();
        let directory = home.path().join("imports");
        make(&directory, &home.path().join("old")).unwrap();
        let (wake, woken) = unbounded();
        let cache = Cache::new(CachePaths { directory, pods: home.path().join("pods") }, wake);
        Self { home, cache, woken }
    }

    fn scratch(&self, pod: &str) -> PathBuf {
        let scratch = self.home.path().join("pods").join(pod).join("volumes/kubernetes.io~empty-dir/scratch");
        fs::create_dir_all(&scratch).unwrap();
        scratch
    }

    fn kept(&self, entry: &str) -> Vec<String> {
        let entries = fs::read_dir(self.home.path().join("imports").join(entry)).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn volume(uid: &str) -> DataVolume {
    serde_json::from_value(json!({ "metadata": { "name": uid, "namespace": "a", "uid": uid }, "spec": {} })).unwrap()
}

#[test]
fn what_an_importer_leaves_is_kept_under_the_digest_that_it_has() {
    let scene = Scene::new();
    assert!(!scene.home.path().join("old").exists(), "what importers could write is still there");
    assert_eq!(fs::metadata(scene.home.path().join("imports")).unwrap().mode() & 0o7777, 0o700);
    scene.cache.prepare("e").unwrap();
    assert!(!scene.cache.has("e"));
    let scratch = scene.scratch("p");
    assert!(scene.cache.left_by("p", "e").unwrap().is_none(), "nothing is left yet");
    fs::write(scratch.join("image"), "content").unwrap();
    fs::write(scratch.join("identity"), SAID).unwrap();
    let left = scene.cache.left_by("p", "e").unwrap().unwrap();
    // The pod may go before it is copied.
    fs::remove_dir_all(scene.home.path().join("pods/p")).unwrap();
    scene.cache.keep("e", left).unwrap();
    let digest = hex(&Sha256::digest(b"content"));
    let name = format!("{SAID}.{digest}.image");
    assert_eq!(scene.kept("e"), std::slice::from_ref(&name));
    assert!(scene.cache.has("e"));
    assert_eq!(digest_of(&name, SAID), Some(digest.as_str()));
    assert_eq!(digest_of(&name, &"b".repeat(64)), None);
    let about = fs::metadata(scene.home.path().join("imports/e").join(&name)).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o7777), (rustix::process::geteuid().as_raw(), 0o644));
    // One that somebody may still write to is copied.
    let scratch = scene.scratch("r");
    fs::write(scratch.join("image"), "content").unwrap();
    fs::write(scratch.join("identity"), SAID).unwrap();
    let mut writer = fs::OpenOptions::new().append(true).open(scratch.join("image")).unwrap();
    let left = scene.cache.left_by("r", "e").unwrap().unwrap();
    assert!(left.adopted.is_none());
    scene.cache.keep("e", left).unwrap();
    writer.write_all(b" and a lie").unwrap();
    assert_eq!(fs::read_to_string(scene.home.path().join("imports/e").join(&name)).unwrap(), "content");
    assert_eq!(scene.kept("e"), std::slice::from_ref(&name));
    // The next one takes its place.
    let scratch = scene.scratch("q");
    fs::write(scratch.join("image"), "newer").unwrap();
    fs::write(scratch.join("identity"), "b".repeat(64)).unwrap();
    scene.cache.keep("e", scene.cache.left_by("q", "e").unwrap().unwrap()).unwrap();
    assert_eq!(scene.kept("e").len(), 1);
    assert!(scene.kept("e")[0].starts_with("bbbb"));
}

#[test]
fn an_importer_that_leaves_links_shows_no_file_of_the_host() {
    let scene = Scene::new();
    scene.cache.prepare("e").unwrap();
    type Put = fn(&Path, &Path);
    let put: [(&str, Put); 3] = [
        ("link", |secret, image| symlink(secret, image).unwrap()),
        ("second", |secret, image| fs::hard_link(secret, image).unwrap()),
        ("fifo", |_, image| rustix::fs::mkfifoat(rustix::fs::CWD, image, 0o666.into()).unwrap()),
    ];
    for (pod, put) in put {
        let scratch = scene.scratch(pod);
        fs::write(scratch.join("identity"), SAID).unwrap();
        put(&scene.home.path().join("secret"), &scratch.join("image"));
        assert!(scene.cache.left_by(pod, "e").is_err(), "{pod}");
    }
    for (pod, identity) in [("path", "../../../../e".to_owned()), ("long", "a".repeat(65)), ("upper", "A".repeat(64))] {
        let scratch = scene.scratch(pod);
        fs::write(scratch.join("identity"), identity).unwrap();
        fs::write(scratch.join("image"), "x").unwrap();
        assert!(scene.cache.left_by(pod, "e").is_err(), "{pod}");
    }
    for pod in ["..", "/etc", ""] {
        assert!(scene.cache.left_by(pod, "e").is_err(), "{pod}");
    }
    assert!(!scene.cache.has("e"));
}

#[test]
fn sources_without_end_do_not_fill_the_directory() {
    let scene = Scene::new();
    let imports = scene.home.path().join("imports");
    fs::create_dir(imports.join("stale")).unwrap();
    let long_ago = SystemTime::now() - 2 * EMPTY;
    fs::File::open(imports.join("stale")).unwrap().set_modified(long_ago).unwrap();
    scene.cache.prepare("fresh").unwrap();
    scene.cache.prepare("another").unwrap();
    assert!(!imports.join("stale").exists() && imports.join("fresh").exists());
}

#[tokio::test]
async fn one_fetches_and_the_others_are_woken() {
    let mut scene = Scene::new();
    scene.cache.prepare("e").unwrap();
    let busy = |_| std::future::ready(true);
    let gone = |_| std::future::ready(false);
    assert!(scene.cache.turn("e", &volume("1"), "p1", busy).await);
    assert!(scene.cache.turn("e", &volume("1"), "p1", busy).await, "again");
    assert!(!scene.cache.turn("e", &volume("2"), "p2", busy).await);
    assert!(scene.cache.turn("f", &volume("2"), "p2", busy).await, "another image");
    scene.cache.done("e", "2");
    assert!(!scene.cache.turn("e", &volume("2"), "p2", busy).await, "who has no turn ends none");
    scene.cache.keeping("e", "1");
    assert!(!scene.cache.turn("e", &volume("2"), "p2", gone).await, "it is being copied");
    scene.cache.done("e", "1");
    assert_eq!(scene.woken.next().await.unwrap().name, "2");
    assert!(scene.cache.turn("e", &volume("2"), "p2", busy).await);
    assert!(
        scene.cache.turn("e", &volume("3"), "p3", gone).await,
        "an importer that went without a word is not waited for"
    );
}
