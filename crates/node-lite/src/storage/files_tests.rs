#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, mkfifoat, renameat_with};

use super::*;

#[test]
fn volumes_are_made_grown_and_removed_below_their_directory_only() {
    let home = tempfile::tempdir().unwrap();
    let (block, tree) = (home.path().join("pvc-a/block.img"), home.path().join("pvc-b"));
    if !rustix::process::geteuid().is_root() {
        return; // Handing over needs root, which the project's tests have.
    }
    make(home.path(), &block, true, 1 << 20).unwrap();
    make(home.path(), &block, true, 1 << 20).unwrap();
    make(home.path(), &tree, false, 1 << 20).unwrap();
    assert_eq!(fs::metadata(&block).unwrap().len(), 1 << 20);
    grow(home.path(), &block, 2 << 20).unwrap();
    grow(home.path(), &tree, 2 << 20).unwrap();
    assert_eq!(fs::metadata(&block).unwrap().len(), 2 << 20);
    assert!(!tree.join(DISK).exists(), "only a disk that is there grows");
    fs::write(tree.join(DISK), b"x").unwrap();
    grow(home.path(), &tree, 4096).unwrap();
    assert_eq!(fs::metadata(tree.join(DISK)).unwrap().len(), 4096);
    remove(home.path(), &block).unwrap();
    remove(home.path(), &block).unwrap();
    assert!(!block.exists() && tree.exists());
    for path in ["/etc/passwd", "/", ".."] {
        assert!(matches!(remove(home.path(), Path::new(path)), Err(FilesError::Outside(_))), "{path}");
    }
    assert!(matches!(remove(home.path(), home.path()), Err(FilesError::Outside(_))));
    assert!(matches!(make(home.path(), &tree, false, u64::MAX), Err(FilesError::TooLarge { .. })));
}

#[test]
fn a_copy_has_everything_and_is_whole_or_not_there() {
    let home = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        return; // As above.
    }
    let (tree, copied) = (home.path().join("pvc-a"), home.path().join("pvc-b"));
    make(home.path(), &tree, false, 4096).unwrap();
    fs::write(tree.join(DISK), b"content").unwrap();
    chown(tree.join(DISK), Some(107), Some(1000)).unwrap();
    fs::create_dir(tree.join("more")).unwrap();
    fs::write(tree.join("more/file"), b"x").unwrap();
    symlink("/etc/passwd", tree.join("more/link")).unwrap();
    // As a guest makes it in a directory that it shares.
    chown(tree.join("more/file"), Some(107), Some(107)).unwrap();
    fs::hard_link(tree.join("more/file"), tree.join("more/again")).unwrap();
    // As a copy that was killed leaves it.
    fs::create_dir(home.path().join(".pvc-b.partial")).unwrap();
    fs::write(home.path().join(".pvc-b.partial/old"), b"x").unwrap();
    copy(home.path(), &tree, &copied, false, 8192).unwrap();
    let disk = fs::read(copied.join(DISK)).unwrap();
    assert_eq!((&disk[..7], disk.len()), (&b"content"[..], 8192), "the disk grows with the claim");
    assert_eq!(fs::metadata(copied.join(DISK)).unwrap().gid(), 1000);
    assert_eq!(fs::read(copied.join("more/file")).unwrap(), b"x");
    assert_eq!(fs::read(copied.join("more/again")).unwrap(), b"x");
    assert_eq!(fs::read_link(copied.join("more/link")).unwrap(), Path::new("/etc/passwd"));
    assert!(!copied.join("old").exists());
    fs::write(tree.join(DISK), b"changed").unwrap();
    copy(home.path(), &tree, &copied, false, 8192).unwrap();
    assert_eq!(&fs::read(copied.join(DISK)).unwrap()[..7], b"content", "once more changes nothing");
    let (block, other) = (home.path().join("pvc-c/block.img"), home.path().join("pvc-d/block.img"));
    make(home.path(), &block, true, 4096).unwrap();
    fs::write(&block, b"block").unwrap();
    copy(home.path(), &block, &other, true, 4096).unwrap();
    assert_eq!(&fs::read(&other).unwrap()[..5], b"block");
    fs::create_dir(home.path().join(".pvc-e.partial")).unwrap();
    sweep(home.path());
    assert!(!home.path().join(".pvc-e.partial").exists() && other.exists());
}

#[test]
fn space_is_told_in_percent() {
    for (total, available, used) in [(100, 100, 0), (100, 10, 90), (100, 0, 100), (0, 0, 0)] {
        assert_eq!(Space { total, available }.used_percent(), used);
    }
}

/// A volume of a tenant who swaps its disk for something else as fast as it can, beside a file that is root's alone.
struct Raced {
    home: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    swapping: Option<std::thread::JoinHandle<u64>>,
}

impl Raced {
    fn new(put: impl FnOnce(&Path, &Path)) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (volumes, secret) = (home.path().join("volumes"), home.path().join("secret"));
        fs::create_dir(&volumes).unwrap();
        fs::write(&secret, "root only").unwrap();
        make(&volumes, &volumes.join("pvc-a"), false, 4096).unwrap();
        fs::write(volumes.join("pvc-a").join(DISK), "tenant's ").unwrap();
        let other = volumes.join("pvc-a/other");
        put(&secret, &other);
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, disk) = (stop.clone(), volumes.join("pvc-a").join(DISK));
        let swapping = std::thread::spawn(move || {
            let mut swaps = 0;
            while !stopped.load(Ordering::Relaxed) {
                swaps += u64::from(renameat_with(CWD, &disk, CWD, &other, RenameFlags::EXCHANGE).is_ok());
            }
            swaps
        });
        Self { home, stop, swapping: Some(swapping) }
    }

    fn volumes(&self) -> PathBuf {
        self.home.path().join("volumes")
    }

    /// Works against the tenant until both kinds of answer were seen, or for a bounded number of rounds.
    fn race(mut self, mut work: impl FnMut(&Path) -> Result<(), FilesError>) {
        let (mut done, mut refused) = (0, 0);
        for _ in 0..1_000 {
            match work(&self.volumes()) {
                Ok(()) => done += 1,
                Err(_) => refused += 1,
            }
            if done > 100 && refused > 100 {
                break;
            }
        }
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.swapping.take().unwrap().join().unwrap() > 0, "nobody raced");
        assert!(done > 0, "the disk was never there");
        let secret = self.home.path().join("secret");
        assert_eq!(fs::read_to_string(secret).unwrap(), "root only", "a file of the host was changed");
    }
}

type Put = fn(&Path, &Path);

const IN_ITS_PLACE: [(&str, Put); 4] = [
    ("a link", |secret, other| symlink(secret, other).unwrap()),
    ("a link upwards", |_, other| symlink("../../secret", other).unwrap()),
    ("a second name", |secret, other| fs::hard_link(secret, other).unwrap()),
    ("a FIFO", |_, other| mkfifoat(CWD, other, Mode::from_raw_mode(0o666)).unwrap()),
];

#[test]
fn a_disk_that_is_a_link_does_not_let_root_extend_a_file_of_the_host() {
    for (what, put) in IN_ITS_PLACE {
        let home = tempfile::tempdir().unwrap();
        let (volumes, secret) = (home.path().join("volumes"), home.path().join("secret"));
        fs::create_dir(&volumes).unwrap();
        fs::write(&secret, "root only").unwrap();
        make(&volumes, &volumes.join("pvc-a"), false, 4096).unwrap();
        put(&secret, &volumes.join("pvc-a").join(DISK));
        assert!(grow(&volumes, &volumes.join("pvc-a"), 1 << 20).is_err(), "{what}");
        assert_eq!(fs::metadata(&secret).unwrap().len(), 9, "{what}");
        // As a block device's file, too.
        make(&volumes, &volumes.join("pvc-b/block.img"), true, 4096).unwrap();
        fs::remove_file(volumes.join("pvc-b/block.img")).unwrap();
        put(&secret, &volumes.join("pvc-b/block.img"));
        assert!(grow(&volumes, &volumes.join("pvc-b/block.img"), 1 << 20).is_err(), "{what}");
        assert!(make(&volumes, &volumes.join("pvc-b/block.img"), true, 1 << 20).is_err(), "{what}");
        assert_eq!(fs::metadata(&secret).unwrap().len(), 9, "{what}");
    }
}

#[test]
fn a_disk_swapped_while_root_extends_it_leads_to_no_file_of_the_host() {
    for (_, put) in IN_ITS_PLACE {
        let mut bytes = 4096;
        Raced::new(put).race(|volumes| {
            bytes += 512;
            grow(volumes, &volumes.join("pvc-a"), bytes)
        });
    }
}

#[test]
fn a_disk_swapped_while_root_clones_it_shows_no_file_of_the_host() {
    for (what, put) in IN_ITS_PLACE {
        Raced::new(put).race(|volumes| {
            let copied = copy(volumes, &volumes.join("pvc-a"), &volumes.join("pvc-b"), false, 9);
            for entry in fs::read_dir(volumes).unwrap().flatten().filter(|entry| entry.file_name() != "pvc-a") {
                assert_eq!(entry.file_name(), "pvc-b", "{what}: something half is left");
                for file in fs::read_dir(entry.path()).unwrap().flatten() {
                    let about = fs::symlink_metadata(file.path()).unwrap();
                    if about.is_file() {
                        assert_eq!(fs::read_to_string(file.path()).unwrap(), "tenant's ", "{what}");
                    }
                }
            }
            remove(volumes, &volumes.join("pvc-b")).unwrap();
            copied
        });
    }
}

#[test]
fn a_volume_swapped_while_root_removes_it_takes_no_file_of_the_host_along() {
    for (_, put) in IN_ITS_PLACE {
        let raced = Raced::new(put);
        let disk = raced.volumes().join("pvc-a").join(DISK);
        raced.race(|volumes| {
            let removed = remove(volumes, &volumes.join("pvc-a"));
            make(volumes, &volumes.join("pvc-a"), false, 4096)?;
            let _ = fs::write(&disk, "tenant's ");
            let _ = symlink("../../secret", disk.with_file_name("other"));
            removed
        });
    }
}

#[test]
fn a_tree_that_never_ends_is_not_copied_for_ever() {
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("pvc-a");
    make(home.path(), &source, false, 4096).unwrap();
    let mut at = Dir::open(&source).unwrap();
    for _ in 0..=MAX_DEPTH + 1 {
        at = at.make("d", 0o755).unwrap();
    }
    let copied = copy(home.path(), &source, &home.path().join("pvc-b"), false, 4096);
    assert!(matches!(copied, Err(FilesError::TooMany(_))), "{copied:?}");
    assert!(!home.path().join("pvc-b").exists() && !home.path().join(".pvc-b.partial").exists());
}
