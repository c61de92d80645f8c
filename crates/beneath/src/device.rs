//! Sockets and device nodes.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Dev, FileType, Mode, chmod, fstat, mknodat};
use rustix::io::Errno;

use crate::{Dir, proc_path};

impl Dir {
    /// A socket to connect to, by its [`proc_path`]. Who answers there is another question.
    pub fn socket(&self, inside: impl AsRef<Path>) -> io::Result<OwnedFd> {
        let handle = self.handle(inside)?;
        match FileType::from_raw_mode(fstat(&handle)?.st_mode) {
            FileType::Socket => Ok(handle),
            FileType::Symlink => Err(Errno::LOOP.into()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a socket")),
        }
    }

    /// Makes a character device with this mode, or sets the mode of the very same device that is there. Anything else
    /// that has the name is left alone, and is an error.
    pub fn make_device(&self, inside: impl AsRef<Path>, mode: u32, device: Dev) -> io::Result<()> {
        let (parent, name) = self.parent(inside.as_ref())?;
        match mknodat(&parent.fd, name, FileType::CharacterDevice, Mode::from_raw_mode(mode), device) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let handle = parent.handle(name)?;
        let stat = fstat(&handle)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice || stat.st_rdev != device {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something else has the device's name"));
        }
        Ok(chmod(proc_path(&handle), Mode::from_raw_mode(mode))?)
    }
}
