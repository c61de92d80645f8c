//! Hostile images, unpacked by a child that shuts itself in. This program is that child, too: it starts itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferrovirt_confine::child::{ChildError, Helper};
use ferrovirt_confine::{Jail, Limits, files_only};
use ferrovirt_disks::budget::Budget;
use ferrovirt_disks::digest::Digest;
use ferrovirt_disks::oci::OciError;
use ferrovirt_disks::ownership;
use ferrovirt_disks::store::ImageStore;
use ferrovirt_disks::unpacker::{self, Unpacker};
use tar::EntryType;

const PROBE: &str = "probe";
const SIGSYS: i32 = 31;
const PATIENCE: Duration = Duration::from_secs(120);

type Test = (&'static str, fn());

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some(unpacker::SUBCOMMAND) => std::process::exit(unpacker::main()),
        Some(PROBE) => probe(),
        _ => {}
    }
    let tests: [Test; 9] = [
        ("an_image_is_unpacked_by_a_child_and_belongs_to_root", unpacked_by_a_child),
        ("what_reads_an_image_reaches_nothing_of_the_host", reaches_nothing),
        ("what_reads_an_image_ends_with_its_budget", ends_with_its_budget),
        ("a_bomb_ends_at_its_budget", bomb),
        ("a_bomb_of_holes_ends_at_its_budget", bomb_of_holes),
        ("a_bomb_of_files_ends_at_its_budget", bomb_of_files),
        ("a_bomb_of_names_ends_at_its_budget", bomb_of_names),
        ("a_full_disk_stays_with_its_reserve", full_disk),
        ("a_layer_that_is_not_what_it_says_leaves_nothing", wrong_digest),
    ];
    let filter: Vec<&String> = arguments.iter().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (name, test) in tests {
        if filter.is_empty() || filter.iter().any(|part| name.contains(part.as_str())) {
            test();
            println!("test {name} ... ok");
        }
    }
}

fn helper(argument: &str) -> Helper {
    Helper { program: std::env::current_exe().unwrap(), arguments: vec![argument.into()], join: vec![] }
}

fn unpacker(budget: Budget) -> Unpacker {
    Unpacker::confined(helper(unpacker::SUBCOMMAND), budget)
}

fn small() -> Budget {
    Budget { bytes: 8 << 20, entries: 100, layers: 3, depth: 10, path: 200, reserve: 0, ..Budget::default() }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// Layers as a registry would have left them.
fn layers(dir: &Path, blobs: &[Vec<u8>]) -> Vec<(Digest, File)> {
    let write = |(index, blob): (usize, &Vec<u8>)| {
        let path = dir.join(format!("layer-{index}"));
        fs::write(&path, blob).unwrap();
        let file = File::open(&path).unwrap();
        // Its name may go while it is unpacked: somebody else was done with the same layer.
        fs::remove_file(&path).unwrap();
        (Digest::of(blob), file)
    };
    blobs.iter().enumerate().map(write).collect()
}

fn unpack(blobs: &[Vec<u8>], budget: Budget) -> (tempfile::TempDir, Result<(), OciError>) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("rootfs");
    fs::create_dir(&root).unwrap();
    let result = unpacker(budget).layers(&layers(dir.path(), blobs), &root);
    (dir, result)
}

fn refused(blobs: &[Vec<u8>], budget: Budget) -> String {
    match unpack(blobs, budget).1.unwrap_err() {
        OciError::Refused(message) => message,
        other => panic!("{other:?}"),
    }
}

fn entry(tar: &mut tar::Builder<Vec<u8>>, path: &str, kind: EntryType, link: &str, content: &[u8], mode: u32) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(1000);
    header.set_gid(5);
    // Written by hand: the library refuses to make hostile archives.
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_size(content.len() as u64);
    header.set_cksum();
    tar.append(&header, content).unwrap();
}

fn layer(make: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    make(&mut tar);
    tar.into_inner().unwrap()
}

fn unpacked_by_a_child() {
    let good = layer(|tar| {
        entry(tar, "bin/", EntryType::Directory, "", b"", 0o755);
        entry(tar, "bin/su", EntryType::Regular, "", b"program", 0o4755);
        entry(tar, "bin/also", EntryType::Link, "bin/su", b"", 0o755);
        entry(tar, "bin/abs", EntryType::Symlink, "/bin/su", b"", 0o777);
        entry(tar, "out", EntryType::Symlink, "../../../../etc", b"", 0o777);
        entry(tar, "out/evil", EntryType::Regular, "", b"inside", 0o644);
        entry(tar, "dev", EntryType::Char, "", b"", 0o666);
    });
    for blob in [
        good.clone(),
        gzip(&good),
        ruzstd::encoding::compress_to_vec(good.as_slice(), ruzstd::encoding::CompressionLevel::Fastest),
    ] {
        let (dir, result) = unpack(&[blob], small());
        result.unwrap();
        let root = dir.path().join("rootfs");
        assert_eq!(fs::read(root.join("bin/abs")).unwrap(), b"program");
        assert_eq!(fs::read(root.join("etc/evil")).unwrap(), b"inside", "the root is the image's own");
        let (su, also) = (root.join("bin/su").metadata().unwrap(), root.join("bin/also").metadata().unwrap());
        assert_eq!(su.ino(), also.ino());
        assert_eq!(su.mode() & 0o7777, 0o755, "no set-uid bits");
        let me = rustix::process::geteuid().as_raw();
        for path in ["", "bin", "bin/su", "bin/abs", "etc/evil"] {
            assert_eq!(root.join(path).symlink_metadata().unwrap().uid(), me, "{path}");
        }
        let owners = ownership::parse(&fs::read(root.join(ownership::FILE)).unwrap());
        let owner = owners.iter().find(|(path, _)| path == "bin/su").unwrap().1;
        assert_eq!((owner.uid, owner.gid, owner.mode), (1000, 5, 0o4755));
    }
    let climbing = layer(|tar| entry(tar, "../../x", EntryType::Regular, "", b"x", 0o644));
    assert!(refused(&[climbing], small()).contains("leaves the image"));

    // An archive takes the same way, and is looked at only by a child.
    let dir = tempfile::tempdir().unwrap();
    let (archive, content) = (dir.path().join("a.tar"), dir.path().join("content"));
    fs::write(&content, "disk").unwrap();
    ferrovirt_disks::oci::write_archive(&archive, "demo:1", &[("disk/a.img".into(), content)]).unwrap();
    let store =
        ImageStore::open(&dir.path().join("images"), unpacker(Budget { reserve: 0, ..Budget::default() })).unwrap();
    let image = store.import(&archive, None).unwrap();
    assert_eq!(fs::read(image.rootfs.join("disk/a.img")).unwrap(), b"disk");
    fs::write(&archive, "no archive").unwrap();
    assert!(store.import(&archive, None).is_err());
}

fn reaches_nothing() {
    assert!(rustix::process::geteuid().is_root(), "this test tries namespaces and users: run it as root");
    let dir = tempfile::tempdir().unwrap();
    let ask = |attack: &str| {
        let question = format!("{attack}\n{}", dir.path().display());
        helper(PROBE).ask(question.as_bytes(), PATIENCE).map(|answer| String::from_utf8(answer).unwrap())
    };
    assert_eq!(ask("look").unwrap(), "[]", "its root is its work, and nothing else");
    for path in ["/etc/passwd", "/proc/self/status", "/dev/null", "/../etc/passwd"] {
        assert_eq!(ask(&format!("read {path}")).unwrap(), "NotFound", "{path}");
    }
    assert_eq!(ask("write").unwrap(), "done");
    let made = dir.path().join("made").metadata().unwrap();
    assert!(made.uid() >= 0x7f00_0000 && made.uid() == made.gid(), "its user is nobody else's: {}", made.uid());
    for attack in ["socket", "program", "process", "mount", "root", "user", "trace", "code", "kill"] {
        let error = ask(attack).unwrap_err();
        assert!(matches!(error, ChildError::Killed(SIGSYS)), "{attack}: {error}");
    }
}

fn ends_with_its_budget() {
    let dir = tempfile::tempdir().unwrap();
    let ask = |attack: &str, patience| {
        helper(PROBE).ask(format!("{attack}\n{}", dir.path().display()).as_bytes(), patience).unwrap_err()
    };
    assert!(matches!(ask("memory", PATIENCE), ChildError::Killed(_)));
    assert!(matches!(ask("loud", PATIENCE), ChildError::Loud));
    assert!(matches!(ask("silent", PATIENCE), ChildError::Ended(0)));
    assert!(matches!(ask("forever", Duration::from_secs(1)), ChildError::Time(_)));
    assert!(matches!(ask("large file", PATIENCE), ChildError::Killed(_)));
}

fn bomb() {
    let content = vec![0; 64 << 20];
    let bomb = layer(|tar| entry(tar, "disk.img", EntryType::Regular, "", &content, 0o644));
    for blob in [gzip(&bomb), gzip(&gzip(&bomb)), bomb] {
        let message = refused(&[blob], small());
        // Packed twice, it is no archive at all.
        assert!(message.contains("larger than the 8388608 bytes") || message.contains("cannot unpack"), "{message}");
    }
    // What is in no file counts as well: the end of an archive may be padded for ever.
    let padded = [layer(|tar| entry(tar, "a", EntryType::Regular, "", b"x", 0o644)), vec![0; 64 << 20]].concat();
    assert!(refused(&[gzip(&padded)], small()).contains("larger than the 8388608 bytes"));
    // Many layers are one image.
    let part = layer(|tar| entry(tar, "disk.img", EntryType::Regular, "", &vec![1; 5 << 20], 0o644));
    assert!(refused(&[part.clone(), part.clone()], small()).contains("larger than"));
    let tiny = layer(|tar| entry(tar, "a", EntryType::Regular, "", b"x", 0o644));
    assert!(refused(&vec![tiny; 4], small()).contains("3 layers"));
}

fn bomb_of_holes() {
    // One block of data, and a file that says it is 4 EiB long.
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_path("disk.img").unwrap();
    header.set_mode(0o644);
    header.set_size(512);
    {
        let gnu = header.as_gnu_mut().unwrap();
        let octal = |field: &mut [u8; 12], value: u64| {
            // Base 256: octal digits end at 8 GiB.
            *field = [0; 12];
            field[0] = 0x80;
            field[4..].copy_from_slice(&value.to_be_bytes());
        };
        octal(&mut gnu.realsize, 1 << 62);
        octal(&mut gnu.sparse[0].offset, (1 << 62) - 512);
        octal(&mut gnu.sparse[0].numbytes, 512);
    }
    header.set_cksum();
    let mut tar = tar::Builder::new(Vec::new());
    tar.append(&header, [1; 512].as_slice()).unwrap();
    let message = refused(&[tar.into_inner().unwrap()], small());
    assert!(message.contains("larger than the 8388608 bytes"), "{message}");
}

fn bomb_of_files() {
    let many = layer(|tar| (0..101).for_each(|i| entry(tar, &format!("f{i}"), EntryType::Regular, "", b"", 0o644)));
    assert!(refused(&[many], small()).contains("100 files"));
    let whiteouts =
        layer(|tar| (0..101).for_each(|i| entry(tar, &format!(".wh.f{i}"), EntryType::Regular, "", b"", 0o644)));
    assert!(refused(&[whiteouts], small()).contains("100 files"));
    let deep = layer(|tar| entry(tar, &"d/".repeat(11), EntryType::Directory, "", b"", 0o755));
    assert!(refused(&[deep], small()).contains("10 directories"));
    // Depth by links: each step is short, and all of them together are not.
    let steps = layer(|tar| {
        entry(tar, &format!("{}x", "d/".repeat(8)), EntryType::Regular, "", b"", 0o644);
        entry(tar, "s", EntryType::Symlink, &"d/".repeat(8), b"", 0o777);
        entry(tar, &format!("s/{}x", "e/".repeat(8)), EntryType::Regular, "", b"", 0o644);
    });
    assert!(refused(&[steps], small()).contains("10 directories"));
}

fn bomb_of_names() {
    // A name as long as the address space: it has to be held in memory to be read.
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_path("././@LongLink").unwrap();
    header.set_size(3 << 30);
    header.set_cksum();
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(header.as_bytes()).unwrap();
    let chunk = vec![b'a'; 1 << 20];
    (0..64).for_each(|_| out.write_all(&chunk).unwrap());
    let (_dir, result) = unpack(&[out.finish().unwrap()], Budget { bytes: 256 << 20, ..small() });
    assert!(matches!(result, Err(OciError::Refused(_) | OciError::Helper(_))), "{result:?}");
    let long = layer(|tar| {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o644);
        tar.append_data(&mut header, "a".repeat(201), [].as_slice()).unwrap();
    });
    assert!(refused(&[long], small()).contains("200 characters"));
}

fn full_disk() {
    let content = vec![1; 20 << 20];
    let large = layer(|tar| entry(tar, "disk.img", EntryType::Regular, "", &content, 0o644));
    let budget = Budget { reserve: u64::MAX, bytes: 64 << 20, ..small() };
    assert!(refused(&[large], budget).contains("are free where images are kept"));
}

fn wrong_digest() {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    let store = ImageStore::open(&images, unpacker(small())).unwrap();
    let mut forged = layers(dir.path(), &[layer(|tar| entry(tar, "a", EntryType::Regular, "", b"x", 0o644))]);
    forged[0].0 = Digest::of(b"something else");
    let name = "demo".parse().unwrap();
    let digest = Digest::of(b"manifest");
    let result = store.install(&name, &digest, |root| {
        store
            .unpacker()
            .layers(&forged, root)
            .map_err(|source| ferrovirt_disks::store::StoreError::Archive { path: PathBuf::new(), source })
    });
    assert!(result.is_err());
    assert!(store.resolve("demo").is_none());
    let left: Vec<_> = fs::read_dir(&images).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["refs"], "nothing is left of it");
}

/// What a broken unpacker might try, from inside.
fn probe() -> ! {
    let mut question = String::new();
    std::io::stdin().read_to_string(&mut question).unwrap();
    let (attack, root) = question.split_once('\n').unwrap();
    let limits = Limits { memory: 512 << 20, cpu: 60, file: 1 << 20, descriptors: 64 };
    Jail { root: Some(root.into()), limits, syscalls: files_only().unwrap() }.enter().unwrap();
    let answer = match attack.split_once(' ').unwrap_or((attack, "")) {
        ("look", _) => {
            let names: Vec<_> = fs::read_dir("/").unwrap().map(|entry| entry.unwrap().file_name()).collect();
            format!("{names:?}")
        }
        ("read", path) => format!("{:?}", fs::read(path).unwrap_err().kind()),
        ("write", _) => {
            fs::write("/made", "x").unwrap();
            "done".into()
        }
        ("socket", _) => format!("{:?}", std::net::UdpSocket::bind("127.0.0.1:0").is_ok()),
        ("program", _) => format!("{:?}", std::process::Command::new("/made").spawn().is_ok()),
        ("process", _) => format!("{:?}", std::thread::Builder::new().spawn(|| ()).is_ok()),
        ("mount", _) => format!("{:?}", rustix::mount::unmount("/", rustix::mount::UnmountFlags::DETACH)),
        ("root", _) => format!("{:?}", rustix::process::chroot("/")),
        ("user", _) => format!("{:?}", rustix::process::geteuid()),
        ("trace", _) => format!(
            "{:?}",
            rustix::process::pidfd_open(rustix::process::Pid::INIT, rustix::process::PidfdFlags::empty())
        ),
        ("kill", _) => {
            format!("{:?}", rustix::process::kill_process(rustix::process::Pid::INIT, rustix::process::Signal::TERM))
        }
        ("code", _) => {
            format!("{:?}", rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable))
        }
        ("memory", _) => format!("{}", vec![1_u8; 1 << 30].len()),
        ("loud", _) => "x".repeat(1 << 20),
        ("silent", _) => std::process::exit(0),
        ("forever", _) => loop {
            std::hint::spin_loop();
        },
        ("large", _) => format!("{:?}", fs::write("/large", vec![1; 2 << 20]).is_ok()),
        other => format!("what is {other:?}?"),
    };
    std::io::stdout().write_all(answer.as_bytes()).unwrap();
    std::process::exit(0);
}
