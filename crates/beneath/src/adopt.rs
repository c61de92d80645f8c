//! Takes over a file that a tenant wrote, without copying it.
//!
//! The one file of this crate with `unsafe`: leases are offered by fcntl only, and no wrapper has them.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::libc;
use rustix::fs::{AtFlags, Gid, Mode, Uid, fchmod, fchown, fstat, linkat};
use rustix::io::Errno;

use crate::Dir;

impl Dir {
    /// Gives a file that was opened with [`Dir::open_single`] a name here and makes it root's, if nobody has it open for
    /// writing: from then on it stays as it is. Its other name may go. An error leaves it where it was; copy it then.
    pub fn adopt(&self, file: &File, name: &str) -> io::Result<()> {
        if fstat(file)?.st_nlink != 1 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file has more names than one, or none"));
        }
        // First nobody new can write to it, then nobody old must be able to.
        fchown(file, Some(Uid::ROOT), Some(Gid::ROOT))?;
        fchmod(file, Mode::from_raw_mode(0o644))?;
        if is_open_for_writing(file)? {
            return Err(Errno::TXTBSY.into());
        }
        Ok(linkat(file, "", self.as_fd(), name, AtFlags::EMPTY_PATH)?)
    }
}

/// The kernel grants a lease for reading when nobody, in whatever namespace, has the file open or mapped for writing.
fn is_open_for_writing(file: &File) -> io::Result<bool> {
    // SAFETY: both calls take integers only, and the descriptor is open as long as the borrow.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
    if asked == 0 {
        // SAFETY: as above.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
        return Ok(false);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::{self, OpenOptions};
    use std::io::Write as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::Access;

    #[test]
    fn a_file_that_its_writer_still_holds_is_not_taken_over() {
        let home = tempfile::tempdir().unwrap();
        let (theirs, ours) = (home.path().join("theirs"), home.path().join("ours"));
        fs::create_dir(&theirs).unwrap();
        fs::create_dir(&ours).unwrap();
        fs::write(theirs.join("image"), "content").unwrap();
        let own = Dir::open(&ours).unwrap();
        let open = || Dir::open(&theirs).unwrap().open_single("image", Access::Read).unwrap();

        let mut writer = OpenOptions::new().append(true).open(theirs.join("image")).unwrap();
        own.adopt(&open(), "image").unwrap_err();
        assert!(!ours.join("image").exists());
        writer.write_all(b" and more").unwrap();
        drop(writer);

        own.adopt(&open(), "image").unwrap();
        fs::remove_dir_all(&theirs).unwrap();
        assert_eq!(fs::read_to_string(ours.join("image")).unwrap(), "content and more");
        let about = fs::metadata(ours.join("image")).unwrap();
        assert_eq!((about.uid(), about.mode() & 0o7777, about.nlink()), (0, 0o644, 1));
    }

    #[test]
    fn a_file_with_two_names_or_none_is_not_taken_over() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("image"), "content").unwrap();
        let own = Dir::open(home.path()).unwrap();
        let image = own.open_single("image", Access::Read).unwrap();
        fs::hard_link(home.path().join("image"), home.path().join("second")).unwrap();
        own.adopt(&image, "third").unwrap_err();
        fs::remove_file(home.path().join("image")).unwrap();
        fs::remove_file(home.path().join("second")).unwrap();
        own.adopt(&image, "third").unwrap_err();
        assert!(!home.path().join("third").exists());
    }
}
