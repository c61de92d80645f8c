//! Owners and modes that an image store does not keep on the files themselves.
//!
//! A node's store makes every file of an image root's own and readable, without set-uid bits, because machines' disks are read
//! by another user and nothing in an image is to be trusted. What it changed it lists in a file beside them, and here the
//! list is applied to the guest's own copy.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ferrovirt_disks::ownership::{self, Owner};
use ferrovirt_machine::spec::IdRange;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, openat2};

/// Applies the list of the tree, if it has one, and takes the list away.
pub fn apply(root: &Path, ids: IdRange) -> io::Result<()> {
    let list = root.join(ownership::FILE);
    let text = match fs::read(&list) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let handle = File::open(root)?;
    for (path, owner) in ownership::parse(&text) {
        // What a later layer took away is not there any more.
        if let Some(error) = set(&handle, &path, owner, ids).err().filter(|e| e.kind() != io::ErrorKind::NotFound) {
            tracing::warn!(path, %error, "a file of the image keeps root as its owner");
        }
    }
    fs::remove_file(list)
}

/// The tree is foreign: no link in it leads anywhere.
fn set(root: &File, path: &str, owner: Owner, ids: IdRange) -> io::Result<()> {
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = openat2(root, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), inside)?;
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
