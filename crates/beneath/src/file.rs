//! Files: regular ones only. A device or a FIFO in a file's place is not even opened.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, openat2};
use rustix::io::Errno;

use crate::{Dir, LOOKUP, plain, proc_path};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

impl Access {
    fn flags(self) -> OFlags {
        match self {
            Self::Read => OFlags::RDONLY,
            Self::Write => OFlags::WRONLY,
            Self::ReadWrite => OFlags::RDWR,
        }
    }
}

impl Dir {
    /// Opens a regular file that is there.
    pub fn open_file(&self, inside: impl AsRef<Path>, access: Access) -> io::Result<File> {
        self.open_regular(inside.as_ref(), access, false)
    }

    /// Opens a regular file that has this one name. A second name may be anywhere on the file system, and what is written
    /// here would be written there.
    pub fn open_single(&self, inside: impl AsRef<Path>, access: Access) -> io::Result<File> {
        self.open_regular(inside.as_ref(), access, true)
    }

    fn open_regular(&self, inside: &Path, access: Access, single: bool) -> io::Result<File> {
        // Looked at before it is opened, since opening a device or a FIFO does something already.
        let handle = self.handle(inside)?;
        let stat = fstat(&handle)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Symlink => return Err(Errno::LOOP.into()),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        }
        if single && stat.st_nlink != 1 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file has more names than this one"));
        }
        // The descriptor's own path: what was examined is what is opened.
        let flags = access.flags() | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        Ok(File::from(rustix::fs::open(proc_path(&handle), flags, Mode::empty())?))
    }

    /// Makes a new file. One that is there, be it a link to nowhere, is an error.
    pub fn create_file(&self, inside: impl AsRef<Path>, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let fd: OwnedFd = openat2(&self.fd, plain(inside.as_ref())?, flags, mode, LOOKUP | ResolveFlags::NO_XDEV)?;
        // Whatever the umask took.
        fchmod(&fd, mode)?;
        Ok(File::from(fd))
    }

    /// Puts a file with this content in the place of whatever has the name, at once: a reader sees the old or the new one.
    pub fn write_file(&self, inside: impl AsRef<Path>, content: &[u8], mode: u32) -> io::Result<()> {
        let (parent, name) = self.parent(inside.as_ref())?;
        let (mut file, temporary) = parent.create_temporary(mode)?;
        let written = file.write_all(content).and_then(|()| parent.rename(&temporary, &parent, name));
        if written.is_err() {
            let _ = parent.remove_file(&temporary);
        }
        written
    }

    /// A new file with a name nobody can know before.
    pub fn create_temporary(&self, mode: u32) -> io::Result<(File, String)> {
        loop {
            let mut random = [0u8; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            let name = format!(".new-{:016x}", u64::from_ne_bytes(random));
            match self.create_file(&name, mode) {
                Ok(file) => return Ok((file, name)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The content of a regular file of at most `limit` bytes.
    pub fn read_file(&self, inside: impl AsRef<Path>, limit: u64) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        self.open_file(inside, Access::Read)?.take(limit.saturating_add(1)).read_to_end(&mut content)?;
        if u64::try_from(content.len()).is_ok_and(|length| length > limit) {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("the file has more than {limit} bytes")));
        }
        Ok(content)
    }
}
