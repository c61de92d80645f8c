//! Directories inside volumes. What is in a volume is its pod's word, so no link in it may lead out of it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, openat2};
use rustix::io::Errno;

/// Makes the missing directories of `inside`, a path in the volume, and hands them to the pod. A file, or a link that stays in the
/// volume, is left for who mounts it.
pub(crate) fn make(volume: &Path, inside: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let mut at: OwnedFd = File::open(volume)?.into();
    for part in inside.components() {
        let Component::Normal(name) = part else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a sub path has neither '..' nor a root"));
        };
        let made = match mkdirat(&at, name, Mode::from_raw_mode(0o770)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        let next = match openat2(&at, name, flags, Mode::empty(), beneath) {
            Ok(next) => next,
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if made {
            let (owner, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
            chownat(next.as_fd(), "", Some(owner), Some(group), AtFlags::EMPTY_PATH)?;
        }
        at = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn directories_are_made_inside_the_volume_only() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        fs::create_dir(&volume).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, volume.join("link")).unwrap();
        fs::write(volume.join("file"), "kept").unwrap();
        let me = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
        let make = |inside: &str| make(&volume, Path::new(inside), me.0, me.1);
        make("a/b").unwrap();
        make("a/b").unwrap();
        assert!(volume.join("a/b").is_dir());
        make("link/x").unwrap();
        assert!(!outside.join("x").exists());
        make("file").unwrap();
        assert_eq!(fs::read(volume.join("file")).unwrap(), b"kept");
        assert!(make("../x").is_err() && make("/x").is_err());
    }
}
