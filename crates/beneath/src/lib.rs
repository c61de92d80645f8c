//! How root works below a directory that somebody else can write: by descriptor, and never over a link.
//!
//! A path is looked up anew at every call, so whoever owns a directory on the way can answer each call with something
//! else: a check and the use after it see two different files. A [`Dir`] holds a directory itself. Everything below it is
//! found by `openat2`, which refuses symbolic links, magic links, `..` and other mounts, and what was found is held by a
//! descriptor while it is examined, changed or read.
//!
//! Modules that begin with the line `//! Root works here below directories of tenants: by descriptor only.` may use no
//! path calls beside these; `cargo xtask tidy` holds them to it.

mod adopt;
mod device;
mod file;
mod tree;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, chmod, chownat, fchmod, fstat, fsync, mkdirat,
    openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

pub use file::Access;
pub use tree::{Change, MAX_DEPTH};

/// A directory, held by descriptor. It stays the same one whatever becomes of its name.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
}

/// Something in a directory. What it is was true when it was read; it is examined again when it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: OsString,
    pub kind: FileType,
}

const LOOKUP: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl Dir {
    /// A directory that only root can have put there: its path is followed as it is.
    pub fn open(trusted: impl AsRef<Path>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { fd: rustix::fs::open(trusted.as_ref(), flags, Mode::empty())? })
    }

    /// A directory that was opened elsewhere.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
            FileType::Directory => Ok(Self { fd }),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()? })
    }

    /// A directory below this one, on the same mount.
    pub fn sub(&self, inside: impl AsRef<Path>) -> io::Result<Self> {
        let fd = openat2(&self.fd, plain(inside.as_ref())?, DIRECTORY, Mode::empty(), LOOKUP | ResolveFlags::NO_XDEV)?;
        Ok(Self { fd })
    }

    /// A directory below this one, be it on another mount: only where it is us who mount.
    pub fn sub_mount(&self, inside: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self { fd: openat2(&self.fd, plain(inside.as_ref())?, DIRECTORY, Mode::empty(), LOOKUP)? })
    }

    /// Makes the missing directories of a path and opens the last one. Those that are there keep their owner and mode.
    pub fn make(&self, inside: impl AsRef<Path>, mode: u32) -> io::Result<Self> {
        let mut at = self.try_clone()?;
        for part in plain(inside.as_ref())?.components() {
            (at, _) = at.make_one(part.as_os_str(), mode)?;
        }
        Ok(at)
    }

    /// Makes one directory, unless it is there. True if it was made.
    pub fn make_one(&self, name: &OsStr, mode: u32) -> io::Result<(Self, bool)> {
        let made = match mkdirat(&self.fd, single(name)?, Mode::from_raw_mode(mode)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let next = self.sub(name)?;
        if made {
            // Whatever the umask took.
            fchmod(&next.fd, Mode::from_raw_mode(mode))?;
        }
        Ok((next, made))
    }

    /// What stands at a path, be it a link, without opening it.
    pub fn handle(&self, inside: impl AsRef<Path>) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat2(&self.fd, plain(inside.as_ref())?, flags, Mode::empty(), LOOKUP | ResolveFlags::NO_XDEV)?)
    }

    /// What a path is, be it a link.
    pub fn stat(&self, inside: impl AsRef<Path>) -> io::Result<Stat> {
        Ok(fstat(self.handle(inside)?)?)
    }

    /// What this directory is.
    pub fn stat_self(&self) -> io::Result<Stat> {
        Ok(fstat(&self.fd)?)
    }

    /// Everything in this directory but `.` and `..`, in the order of the file system. The caller decides how many it takes:
    /// there may be millions.
    pub fn entries(&self) -> io::Result<impl Iterator<Item = io::Result<Entry>>> {
        let list = rustix::fs::Dir::read_from(&self.fd)?;
        let own = self.try_clone()?;
        Ok(list.filter_map(move |entry| {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error.into())),
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                return None;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match statat(&own.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(Errno::NOENT) => return None,
                    Err(error) => return Some(Err(error.into())),
                },
                kind => kind,
            };
            Some(Ok(Entry { name: name.to_owned(), kind }))
        }))
    }

    /// Removes anything that is no directory.
    pub fn remove_file(&self, inside: impl AsRef<Path>) -> io::Result<()> {
        let (parent, name) = self.parent(inside.as_ref())?;
        Ok(unlinkat(&parent.fd, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, inside: impl AsRef<Path>) -> io::Result<()> {
        let (parent, name) = self.parent(inside.as_ref())?;
        Ok(unlinkat(&parent.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Moves what stands at `from` to `to` below another directory of the same mount, in place of what is there.
    pub fn rename(&self, from: impl AsRef<Path>, other: &Dir, to: impl AsRef<Path>) -> io::Result<()> {
        let (from_dir, from) = self.parent(from.as_ref())?;
        let (to_dir, to) = other.parent(to.as_ref())?;
        Ok(renameat(&from_dir.fd, from, &to_dir.fd, to)?)
    }

    /// Gives this directory to a user and a group.
    pub fn own(&self, uid: u32, gid: u32) -> io::Result<()> {
        own(self.fd.as_fd(), Some(uid), Some(gid))
    }

    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(fchmod(&self.fd, Mode::from_raw_mode(mode))?)
    }

    /// Gives what stands at a path to a user and a group; a link is given itself, not what it names.
    pub fn own_at(&self, inside: impl AsRef<Path>, uid: u32, gid: u32) -> io::Result<()> {
        own(self.handle(inside)?.as_fd(), Some(uid), Some(gid))
    }

    /// Sets the mode of what stands at a path. A link has none.
    pub fn set_mode_at(&self, inside: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let handle = self.handle(inside)?;
        if FileType::from_raw_mode(fstat(&handle)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP.into());
        }
        Ok(chmod(proc_path(&handle), Mode::from_raw_mode(mode))?)
    }

    /// Makes names in this directory durable.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.fd)?)
    }

    /// The directory of a path's last name, and that name.
    fn parent<'a>(&self, inside: &'a Path) -> io::Result<(Dir, &'a OsStr)> {
        let inside = plain(inside)?;
        let name = inside.file_name().ok_or_else(not_plain)?;
        match inside.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => Ok((self.sub(parent)?, name)),
            None => Ok((self.try_clone()?, name)),
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Dir> for OwnedFd {
    fn from(dir: Dir) -> Self {
        dir.fd
    }
}

/// A path that leads to what a descriptor holds, for calls that take nothing but paths. Good while the descriptor is open.
pub fn proc_path(fd: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

fn own(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    Ok(chownat(fd, "", uid.map(Uid::from_raw), gid.map(Gid::from_raw), AtFlags::EMPTY_PATH)?)
}

/// Names only: neither a root, nor `..`, nor nothing at all. The kernel refuses these too, with errors that say less.
fn plain(inside: &Path) -> io::Result<&Path> {
    let mut parts = inside.components().peekable();
    let named = parts.peek().is_some();
    match named && parts.all(|part| matches!(part, Component::Normal(_))) {
        true => Ok(inside),
        false => Err(not_plain()),
    }
}

fn single(name: &OsStr) -> io::Result<&OsStr> {
    match plain(Path::new(name))?.file_name() == Some(name) {
        true => Ok(name),
        false => Err(not_plain()),
    }
}

fn not_plain() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "a path below a directory has neither a root nor '..', and is not empty",
    )
}

#[cfg(test)]
mod tests;
