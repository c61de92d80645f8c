//! What the owner of a directory may try while root works below it.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;

use super::*;

/// A tenant's directory, and beside it a file that is none of the tenant's business.
struct Scene {
    root: TempDir,
    tenant: Dir,
}

impl Scene {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("tenant")).unwrap();
        fs::create_dir(root.path().join("secret")).unwrap();
        fs::write(root.path().join("secret/file"), "root only").unwrap();
        fs::set_permissions(root.path().join("secret/file"), fs::Permissions::from_mode(0o600)).unwrap();
        let tenant = Dir::open(root.path().join("tenant")).unwrap();
        Self { root, tenant }
    }

    fn tenant(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join("tenant").join(name)
    }

    fn secret(&self) -> std::path::PathBuf {
        self.root.path().join("secret/file")
    }

    /// The owner, group, mode, size and content outside are as they were.
    fn assert_unharmed(&self) {
        let secret = fs::metadata(self.secret()).unwrap();
        let me = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        assert_eq!((secret.uid(), secret.gid(), secret.mode() & 0o7777), (me.0, me.1, 0o600));
        assert_eq!(fs::read(self.secret()).unwrap(), b"root only");
    }
}

fn need_root() {
    assert!(nix::unistd::geteuid().is_root(), "this test hands files over, makes devices and mounts: run it as root");
}

#[test]
fn no_path_leads_out() {
    let scene = Scene::new();
    symlink("../secret", scene.tenant("link")).unwrap();
    symlink("../secret/file", scene.tenant("file")).unwrap();
    symlink("/proc/self/root", scene.tenant("magic")).unwrap();
    let tenant = &scene.tenant;
    for path in
        ["link/file", "file", "magic/etc/passwd", "../secret/file", "/etc/passwd", "", ".", "a/../../secret/file"]
    {
        for access in [Access::Read, Access::Write, Access::ReadWrite] {
            assert!(tenant.open_file(path, access).is_err(), "{path:?}");
        }
        assert!(tenant.create_file(path, 0o600).is_err(), "{path:?}");
        assert!(tenant.read_file(path, 100).is_err(), "{path:?}");
        assert!(tenant.sub(path).is_err() && tenant.sub_mount(path).is_err(), "{path:?}");
        assert!(tenant.socket(path).is_err(), "{path:?}");
    }
    for path in ["link", "link/new", "../new", "/new"] {
        assert!(tenant.make(path, 0o700).is_err(), "{path:?}");
        assert!(tenant.set_mode_at(path, 0o777).is_err(), "{path:?}");
    }
    assert!(tenant.write_file("link/file", b"x", 0o644).is_err());
    assert!(tenant.remove_file("link/file").is_err());
    assert!(tenant.rename("link/file", tenant, "mine").is_err());
    scene.assert_unharmed();
    // A link in a file's place is replaced, not followed.
    tenant.write_file("file", b"new", 0o640).unwrap();
    assert_eq!(fs::symlink_metadata(scene.tenant("file")).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(fs::read(scene.tenant("file")).unwrap(), b"new");
    scene.assert_unharmed();
}

#[test]
fn only_regular_files_are_opened() {
    let scene = Scene::new();
    nix::unistd::mkfifo(&scene.tenant("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(scene.tenant("socket")).unwrap();
    fs::create_dir(scene.tenant("directory")).unwrap();
    for name in ["fifo", "socket", "directory"] {
        for access in [Access::Read, Access::Write, Access::ReadWrite] {
            // Would block for ever on the FIFO if it were opened.
            assert!(scene.tenant.open_file(name, access).is_err(), "{name}");
        }
    }
    assert!(scene.tenant.socket("socket").is_ok());
    assert!(scene.tenant.socket("fifo").is_err());
    fs::write(scene.tenant("file"), "12345").unwrap();
    assert_eq!(scene.tenant.read_file("file", 5).unwrap(), b"12345");
    assert_eq!(scene.tenant.read_file("file", 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    fs::hard_link(scene.secret(), scene.tenant("second")).unwrap();
    assert!(scene.tenant.open_single("second", Access::Write).is_err());
    assert!(scene.tenant.open_single("file", Access::Write).is_ok());
}

#[test]
fn other_mounts_are_not_entered() {
    need_root();
    // In a thread, which takes its mount namespace with it.
    std::thread::spawn(|| {
        use nix::mount::{MsFlags, mount};
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS | nix::sched::CloneFlags::CLONE_FS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let scene = Scene::new();
        fs::create_dir(scene.tenant("mount")).unwrap();
        mount(
            Some(&scene.root.path().join("secret")),
            &scene.tenant("mount"),
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .unwrap();
        assert!(scene.tenant.sub("mount").is_err());
        assert!(scene.tenant.open_file("mount/file", Access::Read).is_err());
        assert!(scene.tenant.sub_mount("mount").unwrap().open_file("file", Access::Read).is_ok());
        scene.tenant.own_tree(&mut |_| Some((Some(107), Some(107)))).unwrap();
        assert!(scene.tenant.remove_tree("mount").is_err());
        assert!(scene.tenant.clear().is_err());
        scene.assert_unharmed();
        nix::mount::umount2(&scene.tenant("mount"), nix::mount::MntFlags::MNT_DETACH).unwrap();
    })
    .join()
    .unwrap();
}

/// Swaps two names as fast as it can until it is told to stop.
fn swap(one: &Path, other: &Path) -> (Arc<AtomicBool>, std::thread::JoinHandle<u64>) {
    let stop = Arc::new(AtomicBool::new(false));
    let (one, other, stopped) = (one.to_owned(), other.to_owned(), stop.clone());
    let thread = std::thread::spawn(move || {
        let mut swaps = 0;
        while !stopped.load(Ordering::Relaxed) {
            swaps += u64::from(renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).is_ok());
        }
        swaps
    });
    (stop, thread)
}

#[test]
fn a_directory_swapped_for_a_link_is_never_followed() {
    need_root();
    let scene = Scene::new();
    fs::create_dir_all(scene.tenant("d")).unwrap();
    fs::write(scene.tenant("d/file"), "tenant's").unwrap();
    symlink("../secret", scene.tenant("l")).unwrap();
    let (stop, swapping) = swap(&scene.tenant("d"), &scene.tenant("l"));
    let mut reads = 0;
    for round in 0..3000u32 {
        scene.tenant.own_tree(&mut |_| Some((Some(107), Some(1000 + round % 2)))).unwrap();
        let _ = scene.tenant.write_file("d/new", b"x", 0o666);
        let _ = scene.tenant.set_mode_at("d/file", 0o666);
        if let Ok(content) = scene.tenant.read_file("d/file", 100) {
            assert_eq!(content, b"tenant's");
            reads += 1;
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(swapping.join().unwrap() > 0 && reads > 0, "nobody raced");
    scene.assert_unharmed();
    assert_eq!(fs::read_dir(scene.root.path().join("secret")).unwrap().count(), 1);
}

#[test]
fn removal_follows_nothing_while_its_tree_is_swapped() {
    let scene = Scene::new();
    for round in 0..300 {
        let _ = fs::create_dir_all(scene.tenant("tree/d/e"));
        let _ = fs::write(scene.tenant("tree/d/e/f"), "x");
        let _ = symlink(scene.root.path().join("secret"), scene.tenant("tree/l"));
        let (stop, swapping) = swap(&scene.tenant("tree/d"), &scene.tenant("tree/l"));
        scene.tenant.remove_tree("tree").unwrap();
        stop.store(true, Ordering::Relaxed);
        swapping.join().unwrap();
        assert!(!scene.tenant("tree").exists(), "round {round}");
        scene.assert_unharmed();
    }
}

#[test]
fn deep_and_wide_trees_are_removed_with_few_descriptors() {
    let scene = Scene::new();
    let mut at = scene.tenant.make("deep", 0o755).unwrap();
    for level in 0..3 * MAX_DEPTH {
        at.create_file("file", 0o644).unwrap();
        at = at.make(if level % 2 == 0 { "a" } else { ".deep-1" }, 0o755).unwrap();
    }
    let wide = scene.tenant.make("deep/wide", 0o755).unwrap();
    for number in 0..3000 {
        wide.create_file(format!("{number}"), 0o644).unwrap();
    }
    drop((at, wide));
    scene.tenant.remove_tree("deep").unwrap();
    scene.tenant.remove_tree("deep").unwrap();
    scene.tenant.remove_tree("never/there").unwrap();
    assert_eq!(scene.tenant.entries().unwrap().count(), 0);
}

#[test]
fn files_with_a_name_elsewhere_are_not_handed_over() {
    need_root();
    let scene = Scene::new();
    fs::hard_link(scene.secret(), scene.tenant("second")).unwrap();
    symlink("../secret/file", scene.tenant("link")).unwrap();
    fs::write(scene.tenant("own"), "").unwrap();
    scene.tenant.own_tree(&mut |_| Some((Some(107), Some(107)))).unwrap();
    scene.assert_unharmed();
    assert_eq!(fs::symlink_metadata(scene.tenant("own")).unwrap().uid(), 107);
    assert_eq!(fs::symlink_metadata(scene.tenant("link")).unwrap().uid(), 107);
    assert_eq!(fs::symlink_metadata(scene.tenant("")).unwrap().uid(), 107);
}

#[test]
fn a_device_is_made_once_and_nothing_else_gets_its_mode() {
    need_root();
    let scene = Scene::new();
    let tun = rustix::fs::makedev(10, 200);
    let made = scene.tenant.make_device("tun", 0o666, tun);
    if made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        // A container without the right to make devices.
        return;
    }
    made.unwrap();
    scene.tenant.make_device("tun", 0o600, tun).unwrap();
    assert_eq!(fs::metadata(scene.tenant("tun")).unwrap().mode() & 0o7777, 0o600);
    symlink("../secret/file", scene.tenant("link")).unwrap();
    fs::write(scene.tenant("file"), "").unwrap();
    for name in ["link", "file"] {
        assert!(scene.tenant.make_device(name, 0o666, tun).is_err(), "{name}");
    }
    scene.assert_unharmed();
}

#[test]
fn temporary_files_do_not_stay_behind() {
    let scene = Scene::new();
    fs::create_dir(scene.tenant("taken")).unwrap();
    assert!(scene.tenant.write_file("taken", b"x", 0o644).is_err());
    scene.tenant.write_file("file", b"x", 0o644).unwrap();
    let mut names: Vec<_> = scene.tenant.entries().unwrap().map(|entry| entry.unwrap().name).collect();
    names.sort();
    assert_eq!(names, ["file", "taken"]);
}
