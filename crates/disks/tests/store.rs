//! Archives of both formats, good and hostile, through the image store.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use ferrovirt_disks::budget::Budget;
use ferrovirt_disks::containerdisk::find_disk;
use ferrovirt_disks::digest::Digest;
use ferrovirt_disks::oci::write_archive;
use ferrovirt_disks::store::ImageStore;
use ferrovirt_disks::unpacker::Unpacker;
use serde_json::json;
use tar::EntryType;

type Layer = Vec<u8>;

/// (path, kind, content or link target, mode)
type Member<'a> = (&'a str, EntryType, &'a str, u32);

fn tar_of(members: &[Member<'_>]) -> Layer {
    let mut tar = tar::Builder::new(Vec::new());
    for &(path, kind, content, mode) in members {
        let mut h = tar::Header::new_gnu();
        h.set_entry_type(kind);
        h.set_mode(mode);
        // Written by hand: the library refuses to make hostile archives.
        h.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
        if is_link {
            h.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        let data = if kind == EntryType::Regular { content.as_bytes() } else { b"" };
        h.set_size(data.len() as u64);
        h.set_cksum();
        tar.append(&h, data).unwrap();
    }
    tar.into_inner().unwrap()
}

fn file<'a>(path: &'a str, content: &'a str) -> Member<'a> {
    (path, EntryType::Regular, content, 0o600)
}

fn link<'a>(path: &'a str, target: &'a str) -> Member<'a> {
    (path, EntryType::Symlink, target, 0o777)
}

#[derive(Clone, Copy, Debug)]
enum Packing {
    Plain,
    Gzip,
    Zstd,
}

fn pack(layer: &[u8], packing: Packing) -> Layer {
    match packing {
        Packing::Plain => layer.to_vec(),
        Packing::Gzip => {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            out.write_all(layer).unwrap();
            out.finish().unwrap()
        }
        Packing::Zstd => ruzstd::encoding::compress_to_vec(layer, ruzstd::encoding::CompressionLevel::Fastest),
    }
}

fn blob(members: &mut Vec<(String, Vec<u8>)>, bytes: Vec<u8>) -> String {
    let digest = Digest::of(&bytes);
    members.push((format!("blobs/sha256/{}", digest.hex()), bytes));
    digest.to_string()
}

fn write_members(path: &Path, members: &[(String, Vec<u8>)]) {
    let mut tar = tar::Builder::new(fs::File::create(path).unwrap());
    for (name, bytes) in members {
        let mut h = tar::Header::new_gnu();
        h.set_size(bytes.len() as u64);
        h.set_mode(0o644);
        tar.append_data(&mut h, name, bytes.as_slice()).unwrap();
    }
    tar.finish().unwrap();
}

/// An OCI layout behind an index of two platforms.
fn oci(path: &Path, name: &str, layers: &[Layer], packing: Packing) {
    let mut members = Vec::new();
    let config = blob(&mut members, b"{}".to_vec());
    let layers: Vec<_> = layers
        .iter()
        .map(|l| json!({"mediaType": "x", "digest": blob(&mut members, pack(l, packing)), "size": 1}))
        .collect();
    let manifest = json!({"schemaVersion": 2, "config": {"digest": config, "size": 2}, "layers": layers});
    let manifest = blob(&mut members, manifest.to_string().into_bytes());
    let inner = json!({"manifests": [
        {"digest": format!("sha256:{}", "0".repeat(64)), "platform": {"os": "linux", "architecture": "mips"}},
        {"digest": manifest, "platform": {"os": "linux", "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }}},
    ]});
    let inner = blob(&mut members, inner.to_string().into_bytes());
    let index = json!({"manifests": [{
        "mediaType": "application/vnd.oci.image.index.v1+json", "digest": inner,
        "annotations": {"io.containerd.image.name": name},
    }]});
    members.push(("index.json".into(), index.to_string().into_bytes()));
    write_members(path, &members);
}

fn docker(path: &Path, name: &str, layers: &[Layer]) {
    let mut members = Vec::new();
    let mut names = Vec::new();
    for (i, layer) in layers.iter().enumerate() {
        names.push(format!("{i}/layer.tar"));
        members.push((format!("{i}/layer.tar"), layer.clone()));
    }
    let ids: Vec<String> = layers.iter().map(|l| Digest::of(l).to_string()).collect();
    let config = json!({"rootfs": {"type": "layers", "diff_ids": ids}}).to_string().into_bytes();
    let config_name = format!("{}.json", Digest::of(&config).hex());
    members.push((config_name.clone(), config));
    let manifest = json!([{"Config": config_name, "RepoTags": [name], "Layers": names}]);
    members.push(("manifest.json".into(), manifest.to_string().into_bytes()));
    write_members(path, &members);
}

/// Everything under a directory: content of files, targets of links. The store's own list of owners is left out.
fn tree(root: &Path) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_string();
            if name == ferrovirt_disks::ownership::FILE {
                continue;
            }
            let kind = path.symlink_metadata().unwrap();
            if kind.is_symlink() {
                out.insert(name, format!("-> {}", fs::read_link(&path).unwrap().display()));
            } else if kind.is_dir() {
                todo.push(path);
            } else {
                out.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    out
}

fn check_layers(layers: &[Layer], wanted: &[(&str, &str)]) {
    let dir = tempfile::tempdir().unwrap();
    let wanted: BTreeMap<String, String> = wanted.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
    let store = ImageStore::open(&dir.path().join("images"), Unpacker::here(Budget::default())).unwrap();
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        let archive = dir.path().join("oci.tar");
        oci(&archive, "demo", layers, packing);
        assert_eq!(tree(&store.import(&archive, None).unwrap().rootfs), wanted, "{packing:?}");
    }
    let archive = dir.path().join("docker.tar");
    docker(&archive, "demo:2", layers);
    assert_eq!(tree(&store.import(&archive, None).unwrap().rootfs), wanted, "docker");
}

#[test]
fn layers_apply_in_order_with_whiteouts() {
    check_layers(
        &[
            tar_of(&[
                file("disk/a.img", "a"),
                file("etc/x", "1"),
                file("etc/y", "2"),
                file("opq/old", "old"),
                file("f", "f"),
            ]),
            tar_of(&[
                file("etc/.wh.x", ""),
                file("opq/new", "new"),
                file("opq/.wh..wh..opq", ""),
                file("./etc/y", "3"),
                file("f/now-a-directory", "d"),
            ]),
        ],
        &[("disk/a.img", "a"), ("etc/y", "3"), ("opq/new", "new"), ("f/now-a-directory", "d")],
    );
}

#[test]
fn links_stay_inside() {
    check_layers(
        &[tar_of(&[
            ("usr/bin", EntryType::Directory, "", 0o755),
            link("bin", "usr/bin"),
            file("bin/sh", "sh"),
            link("abs", "/etc/passwd"),
            link("disk/up", "../../../../etc/shadow"),
            link("here", "."),
            link("disk/sly", "../here/../etc/shadow"),
            link("out", "/"),
            file("out/inside", "in"),
            ("disk/hard", EntryType::Link, "bin/sh", 0o644),
            ("disk/deep/copied-link", EntryType::Link, "disk/up", 0o644),
            ("dev/null", EntryType::Char, "", 0o666),
            ("dev/fifo", EntryType::Fifo, "", 0o666),
        ])],
        &[
            ("abs", "-> etc/passwd"),
            ("bin", "-> usr/bin"),
            ("disk/deep/copied-link", "-> ../../etc/shadow"),
            ("disk/hard", "sh"),
            ("disk/sly", "-> ../etc/shadow"),
            ("disk/up", "-> ../etc/shadow"),
            ("here", "-> ."),
            ("inside", "in"),
            ("out", "-> ."),
            ("usr/bin/sh", "sh"),
        ],
    );
}

#[test]
fn hostile_archives_are_refused_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    let store = ImageStore::open(&images, Unpacker::here(Budget::default())).unwrap();
    let archive = dir.path().join("bad.tar");
    let refuse = |what: &str| {
        let mut error: &dyn std::error::Error = &store.import(&archive, Some("bad")).unwrap_err();
        let mut text = error.to_string();
        while let Some(source) = error.source() {
            text = format!("{text}: {source}");
            error = source;
        }
        assert!(text.contains(what), "{text} lacks {what}");
        assert_eq!(store.list().unwrap(), []);
        assert!(!dir.path().join("escaped").exists());
        let left: Vec<_> = fs::read_dir(&images).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|n| n == "refs" || n == ".lock"), "{left:?}");
    };
    for path in ["../../../escaped", "a/../../../../escaped", "/../escaped"] {
        oci(&archive, "bad", &[tar_of(&[file(path, "x")])], Packing::Plain);
        refuse("leaves the image");
    }
    oci(&archive, "bad", &[tar_of(&[("x", EntryType::Link, "../../../../etc/passwd", 0o644)])], Packing::Plain);
    refuse("leaves the image");
    oci(&archive, "bad", &[tar_of(&[link("a", "b"), link("b", "a"), file("a/x", "")])], Packing::Plain);
    refuse("too many symbolic links");

    // One changed byte in a layer.
    for packing in [Packing::Plain, Packing::Gzip] {
        oci(&archive, "bad", &[tar_of(&[file("disk/x", "needle")])], packing);
        let mut bytes = fs::read(&archive).unwrap();
        let at = match packing {
            Packing::Plain => bytes.windows(6).position(|w| w == b"needle").unwrap(),
            // The time stamp of the gzip header: only the blob's own digest covers it.
            _ => bytes.windows(2).position(|w| w == [0x1f, 0x8b]).unwrap() + 4,
        };
        bytes[at] ^= 1;
        fs::write(&archive, bytes).unwrap();
        refuse("should have digest");
    }
    docker(&archive, "bad", &[tar_of(&[file("disk/x", "needle")])]);
    let text = fs::read(&archive).unwrap();
    let at = text.windows(6).position(|w| w == b"needle").unwrap();
    let mut changed = text.clone();
    changed[at] ^= 1;
    fs::write(&archive, changed).unwrap();
    refuse("should have digest");
    fs::write(&archive, pack(&text, Packing::Gzip)).unwrap();
    refuse("decompress it first");
    fs::write(&archive, tar_of(&[file("hello", "x")])).unwrap();
    refuse("neither an OCI layout nor a docker archive");
    fs::write(&archive, b"not a tar at all, whatever its name says").unwrap();
    refuse("");
}

#[test]
fn names_lead_to_images() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(&dir.path().join("images"), Unpacker::here(Budget::default())).unwrap();
    let source = dir.path().join("demo.qcow2");
    let mut content = vec![0u8; 3 << 20];
    content[1 << 20] = 7;
    fs::write(&source, &content).unwrap();
    let archive = dir.path().join("demo.tar");
    let files = [("/disk/demo.qcow2".to_string(), source)];
    let digest = write_archive(&archive, "ferrovirt/demo-guest:latest", &files).unwrap();
    let first = fs::read(&archive).unwrap();
    assert_eq!(write_archive(&archive, "ferrovirt/demo-guest:latest", &files).unwrap(), digest);
    assert!(first == fs::read(&archive).unwrap(), "the archive is reproducible");

    let image = store.import(&archive, None).unwrap();
    assert_eq!(image.reference, "docker.io/ferrovirt/demo-guest:latest");
    assert_eq!(image.digest, digest.to_string());
    let owners = fs::read_to_string(image.rootfs.join(ferrovirt_disks::ownership::FILE)).unwrap();
    assert_eq!(owners.matches("disk/demo.qcow2\0").count(), 1, "{owners:?}");
    assert_eq!(image.size, (content.len() + owners.len()) as u64);
    let disk = find_disk(&image.rootfs, None).unwrap();
    assert!(fs::read(&disk).unwrap() == content);
    let metadata = disk.metadata().unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o444);
    assert!(metadata.blocks() * 512 < 1 << 20, "holes stay holes");
    assert_eq!(image.rootfs.join("disk").metadata().unwrap().permissions().mode() & 0o555, 0o555);

    assert_eq!(store.import(&archive, Some("other:1")).unwrap().rootfs, image.rootfs);
    let by_digest = format!("whatever@{digest}");
    for name in [
        "ferrovirt/demo-guest",
        "ferrovirt/demo-guest:latest",
        "docker.io/ferrovirt/demo-guest",
        "other:1",
        &digest.to_string(),
        &by_digest,
    ] {
        assert_eq!(store.resolve(name).map(|i| i.rootfs), Some(image.rootfs.clone()), "{name}");
    }
    for name in ["demo-guest", "ferrovirt/demo-guest:v1", "../refs", "", "sha256:00"] {
        assert_eq!(store.resolve(name), None, "{name}");
    }
    let names = || store.list().unwrap().into_iter().map(|i| i.reference).collect::<Vec<_>>();
    assert_eq!(names(), ["docker.io/ferrovirt/demo-guest:latest", "docker.io/library/other:1"]);
    store.remove("other:1").unwrap();
    assert!(disk.exists());
    store.remove("ferrovirt/demo-guest").unwrap();
    assert!(!disk.exists());
    assert_eq!(names(), Vec::<String>::new());
    assert!(store.remove("other:1").is_err());
}

#[test]
fn parallel_imports_agree() {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    let archive = dir.path().join("oci.tar");
    oci(&archive, "demo", &[tar_of(&[file("disk/x", "content")])], Packing::Gzip);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let store = ImageStore::open(&images, Unpacker::here(Budget::default())).unwrap();
                let image = store.import(&archive, None).unwrap();
                assert_eq!(fs::read_to_string(image.rootfs.join("disk/x")).unwrap(), "content");
                assert!(store.resolve("demo").is_some());
            });
        }
    });
    let left = fs::read_dir(&images).unwrap().filter(|e| e.as_ref().unwrap().file_name() != "refs").count();
    assert_eq!(left, 2, "one image and the lock");
}

#[test]
fn dead_imports_are_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let stale = dir.path().join(format!(".incoming-{}-0", u32::MAX));
    let live = dir.path().join(format!(".incoming-{}-99", std::process::id()));
    fs::create_dir_all(stale.join("rootfs")).unwrap();
    fs::create_dir_all(&live).unwrap();
    ImageStore::open(dir.path(), Unpacker::here(Budget::default())).unwrap();
    assert!(!stale.exists() && live.exists());
}

#[test]
fn the_disk_of_an_image_is_found() {
    let check = |files: &[&str], path: Option<&str>, wanted: Result<&str, &str>| {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let at = dir.path().join(file);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, "").unwrap();
        }
        std::os::unix::fs::symlink("/etc", dir.path().join("etc")).unwrap();
        match (find_disk(dir.path(), path), wanted) {
            (Ok(found), Ok(wanted)) => assert_eq!(found, dir.path().join(wanted)),
            (Err(error), Err(wanted)) => {
                assert!(error.to_string().contains(wanted), "{error} lacks {wanted}")
            }
            (found, wanted) => panic!("{found:?}, wanted {wanted:?}"),
        }
    };
    check(&["disk/a.img"], None, Ok("disk/a.img"));
    check(&["disk/a.img", "disk/b.img"], None, Err("a.img, b.img"));
    check(&["disk/a.img", "disk/b.img"], Some("/disk/b.img"), Ok("disk/b.img"));
    check(&["other/a.img"], None, Err("no directory /disk"));
    check(&["disk/deep/a.img"], None, Err("no file in /disk"));
    check(&["disk/a.img"], Some("/disk/../../etc/passwd"), Err("not an absolute path"));
    check(&["disk/a.img"], Some("/etc/passwd"), Err("not a regular file"));
    check(&["disk/a.img"], Some("/disk"), Err("not a regular file"));
    check(&["disk/a.img"], Some("/disk/none"), Err("no file /disk/none"));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// A layer that was tampered with anywhere is unpacked or refused, and nothing appears beside its root.
    #[test]
    fn no_bytes_leave_the_directory_of_an_image(
        at in 0_usize..3000,
        noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 1..600),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("a/b/rootfs");
        fs::create_dir_all(&root).unwrap();
        let mut bytes = tar_of(&[
            link("out", "../../.."),
            file("out/x", "1"),
            ("hard", EntryType::Link, "out/x", 0o644),
            (".wh.hard", EntryType::Regular, "", 0o644),
            file("d/e/f", "2"),
        ]);
        let end = (at + noise.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&noise[..end - at]);
        let path = dir.path().join("layer");
        fs::write(&path, &bytes).unwrap();
        let budget = Budget { bytes: 1 << 20, entries: 100, reserve: 0, ..Budget::default() };
        let layers = [(Digest::of(&bytes), fs::File::open(&path).unwrap())];
        let _ = Unpacker::here(budget).layers(&layers, &root);
        for (place, only) in [("", vec!["a", "layer"]), ("a", vec!["b"]), ("a/b", vec!["rootfs"])] {
            let entries = fs::read_dir(dir.path().join(place)).unwrap();
            let mut found: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            found.sort();
            proptest::prop_assert_eq!(found, only);
        }
    }
}
