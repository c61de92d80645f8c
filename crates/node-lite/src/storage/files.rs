//! The files of local volumes: a directory for a file system, a sparse file for a block device.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// Owner of volumes until a pod takes them, as KubeVirt's, so that a disk is usable at once.
const OWNER: u32 = 107;
/// The disk of a VM in a file system volume, by KubeVirt's convention.
pub const DISK: &str = "disk.img";

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{wanted} bytes were asked for, and the file system of {} has {have} in all", path.display())]
    TooLarge { wanted: u64, have: u64, path: PathBuf },
    #[error("{} is not below the directory of volumes", .0.display())]
    Outside(PathBuf),
}

/// How full the file system of the volumes is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub available: u64,
}

impl Space {
    pub fn of(directory: &Path) -> io::Result<Self> {
        let stat = rustix::fs::statvfs(directory)?;
        Ok(Self { total: stat.f_blocks * stat.f_frsize, available: stat.f_bavail * stat.f_frsize })
    }

    /// Percent in use, as the user that is not root sees it.
    pub fn used_percent(self) -> u64 {
        if self.total == 0 {
            return 0;
        }
        100 - self.available.saturating_mul(100) / self.total
    }
}

/// Makes the directory `path`, or the file `path` of that size. Safe to repeat. Files are sparse: many small VMs on a
/// large promise are the usual case, and the space that is left is watched.
pub fn make(directory: &Path, path: &Path, block: bool, bytes: u64) -> Result<(), FilesError> {
    let space = Space::of(directory).map_err(fail("examine", directory))?;
    if bytes > space.total {
        return Err(FilesError::TooLarge { wanted: bytes, have: space.total, path: directory.to_owned() });
    }
    let own = volume_directory(directory, path)?;
    fs::create_dir_all(&own).map_err(fail("create", &own))?;
    fs::set_permissions(&own, Permissions::from_mode(0o770)).map_err(fail("set the mode of", &own))?;
    chown(&own, Some(OWNER), Some(OWNER)).map_err(fail("hand over", &own))?;
    if block {
        resize(path, bytes, true)?;
        fs::set_permissions(path, Permissions::from_mode(0o660)).map_err(fail("set the mode of", path))?;
        chown(path, Some(OWNER), Some(OWNER)).map_err(fail("hand over", path))?;
    }
    Ok(())
}

/// Makes the disk in a volume as large as the claim, if there is one and it is smaller.
pub fn grow(directory: &Path, path: &Path, bytes: u64) -> Result<(), FilesError> {
    volume_directory(directory, path)?;
    let disk = if path.is_dir() { path.join(DISK) } else { path.to_owned() };
    if disk.exists() { resize(&disk, bytes, false) } else { Ok(()) }
}

pub fn remove(directory: &Path, path: &Path) -> Result<(), FilesError> {
    let own = volume_directory(directory, path)?;
    match fs::remove_dir_all(&own) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fail("remove", &own)(error)),
        _ => Ok(()),
    }
}

fn resize(path: &Path, bytes: u64, create: bool) -> Result<(), FilesError> {
    let file = File::options().create(create).truncate(false).write(true).open(path).map_err(fail("open", path))?;
    let length = file.metadata().map_err(fail("examine", path))?.len();
    if length < bytes {
        file.set_len(bytes).map_err(fail("resize", path))?;
    }
    Ok(())
}

/// The volume's own directory, which is one below `directory`. A path from an object never leads elsewhere.
fn volume_directory(directory: &Path, path: &Path) -> Result<PathBuf, FilesError> {
    let outside = || FilesError::Outside(path.to_owned());
    let inner = path.strip_prefix(directory).map_err(|_| outside())?;
    match inner.components().next() {
        Some(std::path::Component::Normal(name)) => Ok(directory.join(name)),
        _ => Err(outside()),
    }
}

fn fail(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FilesError + use<> {
    let path = path.to_owned();
    move |source| FilesError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
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
    fn space_is_told_in_percent() {
        for (total, available, used) in [(100, 100, 0), (100, 10, 90), (100, 0, 100), (0, 0, 0)] {
            assert_eq!(Space { total, available }.used_percent(), used);
        }
    }
}
