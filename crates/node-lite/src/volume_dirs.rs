//! The directories of volumes: made, mounted on and handed over by descriptor, since what is in them, and in claims, is their pods' word.
//! Root works here below directories of tenants: by descriptor only.

use std::io;
use std::path::{Path, PathBuf};

use ferrovirt_beneath::{Dir, proc_path};
use nix::mount::{MsFlags, mount};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, fstatfs};
use rustix::io::Errno;

use crate::hugepages;
use crate::records::PodDir;

const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Where a volume of a pod is.
pub(crate) struct Place {
    pub dir: Dir,
    pub path: PathBuf,
    parent: Dir,
    name: String,
}

impl Place {
    /// Makes the directory, unless it is there. `plugin` and `name` are names, as [`crate::podspec::container`] has seen to.
    pub fn make(pod: &PodDir, plugin: &str, name: &str) -> io::Result<Self> {
        let parent = Dir::open(pod.root())?.make(Path::new("volumes").join(plugin), 0o755)?;
        let dir = match parent.make_one(name.as_ref(), 0o755) {
            Ok((dir, _)) => dir,
            // We mounted something there the last time that this was tried.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::XDEV) => parent.sub_mount(name)?,
            Err(error) => return Err(error),
        };
        Ok(Self { dir, path: pod.volume(plugin, name), parent, name: name.to_owned() })
    }

    /// With memory mounted on it, once.
    pub fn with_memory(self, bytes: Option<i64>) -> io::Result<Self> {
        if self.is_mounted(TMPFS_MAGIC)? {
            return Ok(self);
        }
        let options = bytes.map(|bytes| format!("size={bytes}"));
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("tmpfs"), &proc_path(&self.dir), Some("tmpfs"), flags, options.as_deref())?;
        self.reopened()
    }

    /// With huge pages mounted on it, once.
    pub fn with_huge_pages(self, page_size: u64) -> io::Result<Self> {
        if self.is_mounted(HUGETLBFS_MAGIC)? {
            return Ok(self);
        }
        hugepages::mount_at(&proc_path(&self.dir), page_size)?;
        self.reopened()
    }

    fn is_mounted(&self, magic: i64) -> io::Result<bool> {
        let other = self.dir.stat_self()?.st_dev != self.parent.stat_self()?.st_dev;
        #[allow(clippy::unnecessary_cast)] // Its width differs between machines.
        Ok(other && fstatfs(&self.dir)?.f_type as i64 == magic)
    }

    /// What was mounted covers what is held.
    fn reopened(mut self) -> io::Result<Self> {
        self.dir = self.parent.sub_mount(&self.name)?;
        Ok(self)
    }
}

/// Hands a volume to the pod's user and group, if its top is not theirs yet: a big volume is walked once, as a kubelet does with local
/// volumes. `path` is root's; what is below it is not, and its owner may be changing it now.
pub(crate) fn hand_over(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let top = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&top)?;
    if stat.st_gid == gid {
        return Ok(());
    }
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Dir::open(proc_path(&top))?.own_tree(&mut |_| Some((Some(uid), Some(gid)))),
        FileType::RegularFile | FileType::BlockDevice => {
            Ok(chownat(&top, "", Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?)
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a directory nor a file or device")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::races::Swapper;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    /// The attack that was walked: the owner of a claim swaps a directory of it for a link while root walks it for the fsGroup.
    #[test]
    fn the_fs_group_walk_changes_no_file_outside_the_claim_while_it_is_raced() {
        assert!(nix::unistd::geteuid().is_root(), "this test hands files over: run it as root");
        let dir = tempfile::tempdir().unwrap();
        let (claim, outside) = (dir.path().join("claim"), dir.path().join("outside"));
        let secret = outside.join("file");
        fs::create_dir_all(claim.join("d/e")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(&secret, "root only").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(outside.join("e")).unwrap();
        fs::write(claim.join("d/file"), "").unwrap();
        symlink(&outside, claim.join("l")).unwrap();
        fs::hard_link(&secret, claim.join("second")).unwrap();
        let swapper = Swapper::start(&claim.join("d"), &claim.join("l"));
        for round in 0..2000_u32 {
            // Each round's group is another one, so that the volume is walked.
            hand_over(&claim, 107, 1_000_000_000 + round).unwrap();
        }
        assert!(swapper.stop() > 0, "nobody raced");
        for path in [&secret, &outside, &outside.join("e")] {
            let found = fs::metadata(path).unwrap();
            assert_eq!((found.uid(), found.gid()), (0, 0), "{}", path.display());
        }
        assert_eq!(fs::metadata(&secret).unwrap().mode() & 0o7777, 0o600);
        hand_over(&claim, 107, 107).unwrap();
        let own = if claim.join("d/file").exists() && !claim.join("d").is_symlink() { "d/file" } else { "l/file" };
        assert_eq!(fs::metadata(claim.join(own)).unwrap().gid(), 107);
    }

    #[test]
    fn a_link_in_the_place_of_a_volume_is_not_handed_over() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("secret"), "").unwrap();
        symlink(dir.path().join("secret"), dir.path().join("block.img")).unwrap();
        assert!(hand_over(&dir.path().join("block.img"), 107, 107).is_err());
        assert_eq!(fs::metadata(dir.path().join("secret")).unwrap().uid(), nix::unistd::geteuid().as_raw());
    }

    #[test]
    fn memory_is_mounted_once_and_found_again() {
        assert!(nix::unistd::geteuid().is_root(), "this test mounts: run it as root");
        // In a thread, which takes its mount namespace with it.
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS | nix::sched::CloneFlags::CLONE_FS).unwrap();
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let pod = PodDir::at(dir.path());
            let make =
                || Place::make(&pod, "kubernetes.io~secret", "user").unwrap().with_memory(Some(1 << 20)).unwrap();
            make().dir.create_file("kept", 0o600).unwrap();
            assert_eq!(make().dir.stat("kept").unwrap().st_size, 0, "mounted over");
            assert!(pod.volume("kubernetes.io~secret", "user").join("kept").exists());
            nix::mount::umount2(&pod.volume("kubernetes.io~secret", "user"), nix::mount::MntFlags::MNT_DETACH).unwrap();
        })
        .join()
        .unwrap();
    }
}
