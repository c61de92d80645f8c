//! The files of local volumes: a directory for a file system, a sparse file for a block device.
//!
//! Root works here below directories of tenants: by descriptor only.
//!
//! The directory of volumes is root's, and so are the names in it. What is in a volume is its tenant's, who may put a link, a
//! FIFO or a file with a second name in the place of a disk at any time: nothing but a regular file of one name on the same
//! mount is read or resized, through the descriptor that was examined.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use ferrovirt_beneath::{Access, Dir, MAX_DEPTH};
use ferrovirt_disks::clone::{clone_file, shares_blocks};
use rustix::fs::{AtFlags, FileType, Gid, Mode, Uid, chownat, fchmod, fchown, fstat, readlinkat, symlinkat};

/// Owner of volumes until a pod takes them, as KubeVirt's, so that a disk is usable at once.
const OWNER: u32 = 107;
/// How the names of copies end that are not whole.
const PARTIAL: &str = ".partial";
/// The disk of a VM in a file system volume, by KubeVirt's convention.
pub const DISK: &str = "disk.img";
/// How much a tenant can let root copy one by one.
const MAX_ENTRIES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{wanted} bytes were asked for, and the file system of {} has {have} in all", path.display())]
    TooLarge { wanted: u64, have: u64, path: PathBuf },
    #[error("{} is not below the directory of volumes", .0.display())]
    Outside(PathBuf),
    #[error("{} has too many files, or too many directories in each other, to be cloned", .0.display())]
    TooMany(PathBuf),
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

/// The name of a volume's own directory, which is one below the directory of volumes, and of its one file if it has one.
/// A path from an object never leads elsewhere.
#[derive(Debug, PartialEq, Eq)]
struct Place<'a> {
    own: &'a OsStr,
    file: Option<&'a OsStr>,
}

impl<'a> Place<'a> {
    fn of(directory: &Path, path: &'a Path) -> Result<Self, FilesError> {
        let outside = || FilesError::Outside(path.to_owned());
        let mut parts = path.strip_prefix(directory).map_err(|_| outside())?.components();
        match (parts.next(), parts.next(), parts.next()) {
            (Some(Component::Normal(own)), None, _) => Ok(Self { own, file: None }),
            (Some(Component::Normal(own)), Some(Component::Normal(file)), None) => Ok(Self { own, file: Some(file) }),
            _ => Err(outside()),
        }
    }
}

/// Makes the directory `path`, or the file `path` of that size. Safe to repeat. Files are sparse: many small VMs on a
/// large promise are the usual case, and the space that is left is watched.
pub fn make(directory: &Path, path: &Path, block: bool, bytes: u64) -> Result<(), FilesError> {
    check_space(directory, bytes)?;
    let place = Place::of(directory, path)?;
    let root = open(directory)?;
    let (own, _) = root.make_one(place.own, 0o700).map_err(fail("create", path))?;
    if let Some(file) = place.file.filter(|_| block) {
        make_block(&own, file, bytes).map_err(fail("create", path))?;
    }
    hand_over(&own).map_err(fail("hand over", path))
}

fn hand_over(own: &Dir) -> io::Result<()> {
    own.own(OWNER, OWNER)?;
    own.set_mode(0o770)
}

fn make_block(own: &Dir, name: &OsStr, bytes: u64) -> io::Result<()> {
    let file = match own.create_file(name, 0o660) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => own.open_single(name, Access::ReadWrite)?,
        made => made?,
    };
    extend(&file, bytes)?;
    Ok(fchown(&file, Some(Uid::from_raw(OWNER)), Some(Gid::from_raw(OWNER)))?)
}

/// Whether files here can be copied by sharing their blocks.
pub fn shares(directory: &Path) -> bool {
    let try_it = || -> io::Result<bool> {
        let root = Dir::open(directory)?;
        let (mut source, one) = root.create_temporary(0o600)?;
        let (target, other) = root.create_temporary(0o600)?;
        let shared = io::Write::write_all(&mut source, &[7; 4096]).map(|()| shares_blocks(&source, &target));
        root.remove_file(&one)?;
        root.remove_file(&other)?;
        shared
    };
    try_it().unwrap_or(false)
}

/// Makes the volume at `path` with what is in the volume at `like`. Until it is whole it has another name, and is root's, so
/// that one that is there is whole. Safe to repeat.
pub fn copy(directory: &Path, like: &Path, path: &Path, block: bool, bytes: u64) -> Result<(), FilesError> {
    let (from, place) = (Place::of(directory, like)?, Place::of(directory, path)?);
    check_space(directory, bytes)?;
    if is_there(directory, path)? {
        return Ok(());
    }
    let root = open(directory)?;
    let mut name = OsString::from(".");
    name.push(place.own);
    name.push(PARTIAL);
    let partial = directory.join(&name);
    root.remove_tree(&name).map_err(fail("remove", &partial))?;
    let source = root.sub(from.own).map_err(fail("open", like))?;
    let (own, _) = root.make_one(&name, 0o700).map_err(fail("create", &partial))?;
    let copied = (|| {
        let mut walk = Walk { left: MAX_ENTRIES };
        walk.tree(&source, &own, like, 0)?;
        let disk = place.file.filter(|_| block).unwrap_or(OsStr::new(DISK));
        if let Some(file) = disk_of(&own, disk).map_err(fail("open", &partial))? {
            extend(&file, bytes).map_err(fail("resize", &partial))?;
        }
        hand_over(&own).map_err(fail("hand over", &partial))?;
        root.rename(&name, &root, place.own).map_err(fail("finish", path))
    })();
    if copied.is_err() {
        let _ = root.remove_tree(&name);
    }
    copied
}

/// Whether there is a volume at `path`, which is whole.
pub fn is_there(directory: &Path, path: &Path) -> Result<bool, FilesError> {
    match open(directory)?.stat(Place::of(directory, path)?.own) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map(|_| true).map_err(fail("examine", path)),
    }
}

/// Removes what copies that never ended have left.
pub fn sweep(directory: &Path) {
    let Ok(root) = Dir::open(directory) else { return };
    for entry in root.entries().into_iter().flatten().flatten() {
        if entry.name.to_string_lossy().ends_with(PARTIAL) {
            let _ = root.remove_tree(&entry.name);
        }
    }
}

struct Walk {
    left: u64,
}

impl Walk {
    /// Directories, files and links, with their owners. Nothing is followed: what is in a volume belongs to its pods.
    fn tree(&mut self, from: &Dir, to: &Dir, path: &Path, depth: usize) -> Result<(), FilesError> {
        if depth > MAX_DEPTH {
            return Err(FilesError::TooMany(path.to_owned()));
        }
        for entry in from.entries().map_err(fail("read", path))? {
            let name = entry.map_err(fail("read", path))?.name;
            self.left = self.left.checked_sub(1).ok_or_else(|| FilesError::TooMany(path.to_owned()))?;
            let path = path.join(&name);
            let handle = from.handle(&name).map_err(fail("examine", &path))?;
            let about = fstat(&handle).map_err(|error| fail("examine", &path)(error.into()))?;
            match FileType::from_raw_mode(about.st_mode) {
                FileType::Directory => {
                    let inner = from.sub(&name).map_err(fail("open", &path))?;
                    let (target, _) = to.make_one(&name, 0o700).map_err(fail("create", &path))?;
                    self.tree(&inner, &target, &path, depth + 1)?;
                    // Of what was walked, which need not be what stood there a moment before.
                    let about = inner.stat_self().map_err(fail("examine", &path))?;
                    target.own(about.st_uid, about.st_gid).map_err(fail("hand over", &path))?;
                    target.set_mode(about.st_mode & 0o7777).map_err(fail("set the mode of", &path))?;
                }
                FileType::Symlink => {
                    let made = readlinkat(&handle, "", Vec::new()).and_then(|leads_to| {
                        symlinkat(&leads_to, to.as_fd(), &name)?;
                        let (uid, gid) = (Uid::from_raw(about.st_uid), Gid::from_raw(about.st_gid));
                        chownat(to.as_fd(), &name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                    });
                    made.map_err(|error| fail("copy", &path)(error.into()))?;
                }
                FileType::RegularFile => {
                    let file = open_own(from, &name, depth).map_err(fail("open", &path))?;
                    let copy = to.create_file(&name, 0o600).map_err(fail("create", &path))?;
                    clone_file(&file, &copy, |_| {}).map_err(fail("copy", &path))?;
                    let kept = fstat(&file).and_then(|about| {
                        fchown(&copy, Some(Uid::from_raw(about.st_uid)), Some(Gid::from_raw(about.st_gid)))?;
                        fchmod(&copy, Mode::from_raw_mode(about.st_mode & 0o7777))
                    });
                    kept.map_err(|error| fail("hand over", &path)(error.into()))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Opens a file to be copied. A file system that a guest uses may hold files with several names, which are all in it: a name
/// is not made over the edge of a mount. Root's files and disks never have more than one.
fn open_own(from: &Dir, name: &OsStr, depth: usize) -> io::Result<File> {
    let file = from.open_file(name, Access::Read)?;
    let about = fstat(&file)?;
    if about.st_nlink != 1 && (about.st_uid == 0 || (depth == 0 && name == DISK)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file has more names than this one"));
    }
    Ok(file)
}

/// Makes the disk in a volume as large as the claim, if there is one and it is smaller.
pub fn grow(directory: &Path, path: &Path, bytes: u64) -> Result<(), FilesError> {
    let place = Place::of(directory, path)?;
    check_space(directory, bytes)?;
    let own = open(directory)?.sub(place.own).map_err(fail("open", path))?;
    match disk_of(&own, place.file.unwrap_or(OsStr::new(DISK))).map_err(fail("open the disk in", path))? {
        Some(file) => extend(&file, bytes).map_err(fail("resize", path)),
        None => Ok(()),
    }
}

/// The disk in a volume, if there is one. Whoever owns the volume may have put anything in its place.
pub fn disk_of(own: &Dir, name: &OsStr) -> io::Result<Option<File>> {
    match own.open_single(name, Access::ReadWrite) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

pub fn remove(directory: &Path, path: &Path) -> Result<(), FilesError> {
    open(directory)?.remove_tree(Place::of(directory, path)?.own).map_err(fail("remove", path))
}

fn extend(file: &File, bytes: u64) -> io::Result<()> {
    match file.metadata()?.len() < bytes {
        true => file.set_len(bytes),
        false => Ok(()),
    }
}

fn check_space(directory: &Path, bytes: u64) -> Result<(), FilesError> {
    let space = Space::of(directory).map_err(fail("examine", directory))?;
    match bytes > space.total {
        true => Err(FilesError::TooLarge { wanted: bytes, have: space.total, path: directory.to_owned() }),
        false => Ok(()),
    }
}

fn open(directory: &Path) -> Result<Dir, FilesError> {
    Dir::open(directory).map_err(fail("open", directory))
}

fn fail(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FilesError + use<> {
    let path = path.to_owned();
    move |source| FilesError::Io { action, path, source }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
