//! A copy of an image's tree, for one that lies on a file system which cannot show other owners: a cluster's container runtime
//! mounts images as overlays.
//!
//! The tree is foreign, but at rest: nobody changes it while it is read, no link in it is followed, and everything is written
//! below a directory that is new. Devices, sockets and pipes are left out: a guest makes its own.

use std::collections::HashMap;
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags, lgetxattr, lsetxattr, utimensat};
use rustix::io::Errno;

/// What a program may do beyond its user's rights; the largest form that Linux knows has 24 bytes.
const CAPABILITIES: &str = "security.capability";

/// Copies `from` to `to`, which must not be there.
pub fn tree(from: &Path, to: &Path) -> io::Result<()> {
    directory(from, to, &mut HashMap::new())
}

/// Files with more than one name, and the first copy of each.
type Links = HashMap<(u64, u64), PathBuf>;

fn directory(from: &Path, to: &Path, links: &mut Links) -> io::Result<()> {
    let found = fs::symlink_metadata(from)?;
    fs::DirBuilder::new().mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let found = entry.metadata()?;
        let kind = found.file_type();
        if kind.is_dir() {
            directory(&from, &to, links)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
            like(&found, &to)?;
        } else if kind.is_file() {
            file(&from, &to, &found, links)?;
        }
    }
    like(&found, to)
}

fn file(from: &Path, to: &Path, found: &Metadata, links: &mut Links) -> io::Result<()> {
    if found.nlink() > 1 {
        match links.get(&(found.dev(), found.ino())) {
            Some(first) => return fs::hard_link(first, to),
            None => drop(links.insert((found.dev(), found.ino()), to.to_owned())),
        }
    }
    fs::copy(from, to)?;
    like(found, to)?;
    let mut value = [0; 64];
    match lgetxattr(from, CAPABILITIES, &mut value) {
        Ok(length) => Ok(lsetxattr(to, CAPABILITIES, value.get(..length).unwrap_or_default(), XattrFlags::empty())?),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Owner, mode and times; the mode after the owner, which takes set-uid bits away.
fn like(found: &Metadata, to: &Path) -> io::Result<()> {
    lchown(to, Some(found.uid()), Some(found.gid()))?;
    if !found.is_symlink() {
        fs::set_permissions(to, Permissions::from_mode(found.mode() & 0o7777))?;
    }
    let times = Timestamps {
        last_access: Timespec { tv_sec: found.atime(), tv_nsec: found.atime_nsec() },
        last_modification: Timespec { tv_sec: found.mtime(), tv_nsec: found.mtime_nsec() },
    };
    Ok(utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changing owners needs root, as the tests with guests do.
    #[test]
    fn a_copy_has_the_same_owners_modes_and_links() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("usr/bin")).unwrap();
        fs::write(from.join("usr/bin/su"), "program").unwrap();
        lchown(from.join("usr/bin/su"), Some(7), Some(8)).unwrap();
        fs::set_permissions(from.join("usr/bin/su"), Permissions::from_mode(0o4755)).unwrap();
        fs::hard_link(from.join("usr/bin/su"), from.join("usr/bin/sudo")).unwrap();
        symlink("/etc/shadow", from.join("link")).unwrap();
        fs::set_permissions(from.join("usr"), Permissions::from_mode(0o1777)).unwrap();
        rustix::fs::mknodat(CWD, from.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        tree(&from, &to).unwrap();
        let su = fs::metadata(to.join("usr/bin/su")).unwrap();
        assert_eq!((su.uid(), su.gid(), su.mode() & 0o7777), (7, 8, 0o4755));
        assert_eq!(su.modified().unwrap(), fs::metadata(from.join("usr/bin/su")).unwrap().modified().unwrap());
        assert_eq!(su.ino(), fs::metadata(to.join("usr/bin/sudo")).unwrap().ino());
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/etc/shadow"));
        assert_eq!(fs::metadata(to.join("usr")).unwrap().mode() & 0o7777, 0o1777);
        assert!(!to.join("pipe").exists(), "only what an image is made of is copied");
        assert!(tree(&from, &to).is_err(), "nothing is written into what is there");
    }
}
