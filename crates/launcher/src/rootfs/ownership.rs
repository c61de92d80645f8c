//! Owners and modes that an image store does not keep on the files themselves.
//!
//! A node's store makes every file of an image root's own and readable, without set-uid bits, because machines' disks are read
//! by another user and nothing in an image is to be trusted. What it changed it lists in a file beside them, and here the
//! list is applied to the guest's own copy.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ferrovirt_disks::ownership::{self, Owner};
use ferrovirt_machine::spec::IdRange;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, openat2};
use rustix::io::Errno;

/// The tree is foreign: no link in it leads anywhere.
const INSIDE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
/// A list of a million files is not as long.
const LONGEST: u64 = 64 << 20;

/// Applies the list of the tree, if it has one, and takes the list away.
///
/// A runtime other than our own store leaves whatever the image itself carries under this name. Such a list can do no more than
/// the guest's root can: every id is in the guest's range, and no path leads out of the tree.
pub fn apply(root: &Path, ids: IdRange) -> io::Result<()> {
    let handle = File::open(root)?;
    let Some(text) = read(&handle)? else {
        return Ok(());
    };
    for (path, owner) in ownership::parse(&text) {
        // What a later layer took away is not there any more.
        if let Some(error) = set(&handle, &path, owner, ids).err().filter(|e| e.kind() != io::ErrorKind::NotFound) {
            tracing::warn!(path, %error, "a file of the image keeps root as its owner");
        }
    }
    fs::remove_file(root.join(ownership::FILE))
}

/// The text of the list; nothing if there is none, or if what has its name is no plain file of a list's size.
fn read(root: &File) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat2(root, ownership::FILE, flags, Mode::empty(), INSIDE) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return ignored(&error.to_string()),
    };
    let found = file.metadata()?;
    if !found.is_file() || found.len() > LONGEST {
        return ignored("it is no plain file of a list's size");
    }
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text)?;
    Ok(Some(text))
}

fn ignored(reason: &str) -> io::Result<Option<Vec<u8>>> {
    tracing::warn!(reason, file = ownership::FILE, "the image's own file is no list of owners");
    Ok(None)
}

fn set(root: &File, path: &str, owner: Owner, ids: IdRange) -> io::Result<()> {
    let file = openat2(root, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), INSIDE)?;
    let (uid, gid) = (Uid::from_raw(shifted(owner.uid, ids)), Gid::from_raw(shifted(owner.gid, ids)));
    chownat(&file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    // After the owner: changing that takes set-uid bits away.
    fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), fs::Permissions::from_mode(owner.mode))
}

/// An id beyond the guest's range is nobody's.
fn shifted(id: u32, ids: IdRange) -> u32 {
    const NOBODY: u32 = 65534;
    ids.first.saturating_add(if id < ids.count { id } else { NOBODY.min(ids.count.saturating_sub(1)) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn ids() -> IdRange {
        IdRange { first: 500_000, count: 65_536 }
    }

    /// Changing owners needs root, as the tests with guests do.
    #[test]
    fn a_forged_list_stays_in_the_guests_range_and_tree() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir(&root).unwrap();
        fs::write(&outside, "host").unwrap();
        fs::write(root.join("file"), "guest").unwrap();
        symlink(&outside, root.join("link")).unwrap();
        let before = fs::metadata(&outside).unwrap();
        let list = ["7 7 4777 ../outside", "7 7 4777 link", "4294967295 0 4755 file"].join("\0");
        fs::write(root.join(ownership::FILE), list).unwrap();
        apply(&root, ids()).unwrap();
        let after = fs::metadata(&outside).unwrap();
        assert_eq!((after.uid(), after.mode()), (before.uid(), before.mode()), "a file outside was changed");
        let file = fs::metadata(root.join("file")).unwrap();
        assert_eq!((file.uid(), file.gid()), (565_534, 500_000));
        assert!(!root.join(ownership::FILE).exists());
    }

    #[test]
    fn what_is_no_list_is_left_alone() {
        for make in [
            (|file: &Path| symlink("/dev/zero", file)) as fn(&Path) -> io::Result<()>,
            |file| fs::create_dir(file),
            |file| File::create(file)?.set_len(LONGEST + 1),
        ] {
            let dir = tempfile::tempdir().unwrap();
            make(&dir.path().join(ownership::FILE)).unwrap();
            apply(dir.path(), ids()).unwrap();
            assert!(dir.path().join(ownership::FILE).symlink_metadata().is_ok());
        }
    }
}
