//! The files of local volumes: a directory for a file system, a sparse file for a block device.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use ferrovirt_disks::clone::{clone_file, shares_blocks};

/// Owner of volumes until a pod takes them, as KubeVirt's, so that a disk is usable at once.
const OWNER: u32 = 107;
const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
/// How the names of copies end that are not whole.
const PARTIAL: &str = ".partial";
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

/// Whether files here can be copied by sharing their blocks.
pub fn shares(directory: &Path) -> bool {
    let source = directory.join(".source.probe");
    let written = fs::write(&source, [7; 4096]).and_then(|()| File::open(&source));
    let shared = written.is_ok_and(|file| shares_blocks(&file, &directory.join(".target.probe")));
    let _ = fs::remove_file(source);
    shared
}

/// Makes the volume at `path` with what is in the volume at `like`. Until it is whole it has another name, so that one
/// that is there is whole. Safe to repeat.
pub fn copy(directory: &Path, like: &Path, path: &Path, block: bool, bytes: u64) -> Result<(), FilesError> {
    let (from, own) = (volume_directory(directory, like)?, volume_directory(directory, path)?);
    if is_there(directory, path)? {
        return Ok(());
    }
    let name = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let partial = directory.join(format!(".{name}{PARTIAL}"));
    remove(directory, &partial)?;
    let inner = path.strip_prefix(&own).unwrap_or(Path::new(""));
    make(directory, &partial.join(inner), block, bytes)?;
    copy_tree(&from, &partial)?;
    grow(directory, &if block { partial.join(inner) } else { partial.clone() }, bytes)?;
    fs::rename(&partial, &own).map_err(fail("finish", &own))
}

/// Whether there is a volume at `path`, which is whole.
pub fn is_there(directory: &Path, path: &Path) -> Result<bool, FilesError> {
    Ok(volume_directory(directory, path)?.exists())
}

/// Removes what copies that never ended have left.
pub fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(PARTIAL) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Directories, files and links, with their owners. Nothing is followed: what is in a volume belongs to its pods.
fn copy_tree(from: &Path, to: &Path) -> Result<(), FilesError> {
    for entry in fs::read_dir(from).map_err(fail("read", from))? {
        let entry = entry.map_err(fail("read", from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let about = fs::symlink_metadata(&source).map_err(fail("examine", &source))?;
        if about.is_dir() {
            fs::create_dir_all(&target).map_err(fail("create", &target))?;
            copy_tree(&source, &target)?;
        } else if about.is_symlink() {
            let leads_to = fs::read_link(&source).map_err(fail("read", &source))?;
            symlink(leads_to, &target).map_err(fail("create", &target))?;
        } else if about.is_file() {
            let file = File::options().read(true).custom_flags(NO_FOLLOW).open(&source);
            let file = file.map_err(fail("open", &source))?;
            let options = File::options().read(true).write(true).create(true).truncate(true).open(&target);
            let copy = options.map_err(fail("create", &target))?;
            clone_file(&file, &copy, |_| {}).map_err(fail("copy", &source))?;
        } else {
            continue;
        }
        if !about.is_symlink() {
            let mode = Permissions::from_mode(about.permissions().mode());
            fs::set_permissions(&target, mode).map_err(fail("set the mode of", &target))?;
        }
        lchown(&target, Some(about.uid()), Some(about.gid())).map_err(fail("hand over", &target))?;
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
        // As a copy that was killed leaves it.
        fs::create_dir(home.path().join(".pvc-b.partial")).unwrap();
        fs::write(home.path().join(".pvc-b.partial/old"), b"x").unwrap();
        copy(home.path(), &tree, &copied, false, 8192).unwrap();
        let disk = fs::read(copied.join(DISK)).unwrap();
        assert_eq!((&disk[..7], disk.len()), (&b"content"[..], 8192), "the disk grows with the claim");
        assert_eq!(fs::metadata(copied.join(DISK)).unwrap().gid(), 1000);
        assert_eq!(fs::read(copied.join("more/file")).unwrap(), b"x");
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
}
