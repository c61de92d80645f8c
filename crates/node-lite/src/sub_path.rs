//! Directories inside volumes. What is in a volume is its pod's word, so no link in it may lead out of it.
//! Root works here below directories of tenants: by descriptor only.

use std::io;
use std::path::{Component, Path};

use ferrovirt_beneath::Dir;
use rustix::io::Errno;

/// Makes the missing directories of `inside`, a path in the volume, and hands them to the pod. A file or a link is left for who mounts
/// it.
pub(crate) fn make(volume: &Dir, inside: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let mut at = volume.try_clone()?;
    for part in inside.components() {
        let Component::Normal(name) = part else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a sub path has neither '..' nor a root"));
        };
        let (next, made) = match at.make_one(name, 0o770) {
            Ok(found) => found,
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOTDIR | Errno::LOOP)) => return Ok(()),
            Err(error) => return Err(error),
        };
        if made {
            next.own(uid, gid)?;
        }
        at = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::races::Swapper;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn directories_are_made_inside_the_volume_only() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        fs::create_dir(&volume).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, volume.join("link")).unwrap();
        fs::write(volume.join("file"), "kept").unwrap();
        let me = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
        let held = Dir::open(&volume).unwrap();
        let make = |inside: &str| make(&held, Path::new(inside), me.0, me.1);
        make("a/b").unwrap();
        make("a/b").unwrap();
        assert!(volume.join("a/b").is_dir());
        make("link/x").unwrap();
        assert!(!outside.join("x").exists());
        make("file").unwrap();
        assert_eq!(fs::read(volume.join("file")).unwrap(), b"kept");
        assert!(make("../x").is_err() && make("/x").is_err());
    }

    #[test]
    fn a_sub_path_swapped_for_a_link_makes_and_hands_over_nothing_outside() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        fs::create_dir_all(volume.join("d")).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, volume.join("l")).unwrap();
        let before = fs::metadata(&outside).unwrap();
        let held = Dir::open(&volume).unwrap();
        let swapper = Swapper::start(&volume.join("d"), &volume.join("l"));
        for round in 0..3000 {
            let _ = make(&held, Path::new(&format!("d/{}", round % 7)), 107, 107);
            let _ = make(&held, Path::new("d"), 107, 107);
        }
        assert!(swapper.stop() > 0, "nobody raced");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        let after = fs::metadata(&outside).unwrap();
        assert_eq!((after.uid(), after.gid(), after.mode()), (before.uid(), before.gid(), before.mode()));
    }
}
