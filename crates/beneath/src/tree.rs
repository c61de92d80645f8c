//! Whole trees. Their owner may change them meanwhile, make them deep and wide, and put links and mounts into them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, RenameFlags, Stat, fstat, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::{Dir, own};

/// How many directories below each other are walked, and so how many descriptors a walk holds.
pub const MAX_DEPTH: usize = 200;
/// How many names are held at a time.
const BATCH: usize = 1024;
/// How often a directory may turn out to be filled again by its owner.
const TRIES: usize = 1000;

/// Whether, and to whom, something in a tree is handed over.
pub type Change<'a> = &'a mut dyn FnMut(&Stat) -> Option<(Option<u32>, Option<u32>)>;

impl Dir {
    /// Hands over this directory and everything in it as `change` says, and looks at nothing outside: links are changed
    /// themselves, mounts are passed over, and so are files with several names, of which one may be outside.
    pub fn own_tree(&self, change: Change<'_>) -> io::Result<()> {
        self.own_below(change, 0)?;
        hand_over(self.as_fd(), &fstat(self)?, change)
    }

    fn own_below(&self, change: Change<'_>, depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(io::Error::other(format!("more than {MAX_DEPTH} directories are in each other")));
        }
        for entry in self.entries()? {
            let name = entry?.name;
            let handle = match self.handle(&name) {
                Ok(handle) => handle,
                // Gone meanwhile, or the root of another mount.
                Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::XDEV)) => continue,
                Err(error) => return Err(error),
            };
            let stat = fstat(&handle)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    match self.sub(&name) {
                        Ok(inner) => {
                            inner.own_below(change, depth + 1)?;
                            hand_over(inner.as_fd(), &fstat(&inner)?, change)?;
                        }
                        Err(error) if swapped(&error) => {}
                        Err(error) => return Err(error),
                    };
                }
                _ if stat.st_nlink > 1 => {}
                _ => hand_over(handle.as_fd(), &stat, change)?,
            }
        }
        Ok(())
    }

    /// Removes what stands at a path with everything in it, however deep. A mount in it is an error; nothing behind links is
    /// touched. That it is not there is no error.
    pub fn remove_tree(&self, inside: impl AsRef<Path>) -> io::Result<()> {
        let (parent, name) = match self.parent(inside.as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            result => result?,
        };
        for _ in 0..TRIES {
            match unlinkat(&parent.fd, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
            let top = match parent.sub(name) {
                Ok(top) => top,
                Err(error) if swapped(&error) => continue,
                Err(error) => return Err(error),
            };
            let mut lifted = 0;
            top.empty(&top, &mut lifted, 0)?;
            match unlinkat(&parent.fd, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::NOTEMPTY.into())
    }

    /// Removes everything in this directory, but not the directory.
    pub fn clear(&self) -> io::Result<()> {
        let mut lifted = 0;
        self.empty(self, &mut lifted, 0)
    }

    /// Empties a directory. What is too deep is lifted up to the top, so that no depth needs more descriptors than others.
    fn empty(&self, top: &Dir, lifted: &mut u64, depth: usize) -> io::Result<()> {
        let mut tries = 0;
        while tries < TRIES {
            let names: Vec<OsString> =
                self.entries()?.take(BATCH).map(|entry| Ok(entry?.name)).collect::<io::Result<_>>()?;
            if names.is_empty() {
                return Ok(());
            }
            for name in &names {
                self.remove_entry(name, top, lifted, depth)?;
            }
            // A wide directory is not one that is filled again.
            tries += usize::from(names.len() < BATCH);
        }
        Err(Errno::NOTEMPTY.into())
    }

    fn remove_entry(&self, name: &OsStr, top: &Dir, lifted: &mut u64, depth: usize) -> io::Result<()> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        if depth >= MAX_DEPTH {
            return self.lift(name, top, lifted);
        }
        match self.sub(name) {
            Ok(inner) => inner.empty(top, lifted, depth + 1)?,
            Err(error) if swapped(&error) => {}
            Err(error) => return Err(error),
        }
        match unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            // What is there again is seen when this directory is read again.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn lift(&self, name: &OsStr, top: &Dir, lifted: &mut u64) -> io::Result<()> {
        for _ in 0..TRIES {
            *lifted += 1;
            match renameat_with(&self.fd, name, &top.fd, format!(".deep-{lifted:x}"), RenameFlags::NOREPLACE) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }
}

fn hand_over(fd: std::os::fd::BorrowedFd<'_>, stat: &Stat, change: Change<'_>) -> io::Result<()> {
    match change(stat) {
        Some((uid, gid)) => own(fd, uid, gid),
        None => Ok(()),
    }
}

/// Whether a directory that was there a moment ago is gone or something else by now.
fn swapped(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}
