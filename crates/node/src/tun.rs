//! The device through which a launcher opens the tap that was made for it.
//!
//! A container runtime gives containers no `/dev/net/tun`, although it lets them use one (runc's default device rules do).
//! Whoever opens it can do no more than attach to taps that belong to its user.

use std::{fs::File, io, os::fd::AsFd};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, chmodat, makedev, mkdirat, mknodat, openat2, statat, unlinkat,
    },
    io::Errno,
};

const NAME: &str = "tun";
const DEVICE: (u32, u32) = (10, 200);

/// Makes the device in a launcher's file tree if it is not there.
pub(crate) fn provide(launcher_pid: i32) -> io::Result<()> {
    let root = File::open(format!("/proc/{launcher_pid}/root"))?;
    // Everything in that tree is the launcher's word, so no link in it may lead us elsewhere.
    let open = |path: &str| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        openat2(root.as_fd(), path, flags, Mode::empty(), inside)
    };
    let directory = match open("dev/net") {
        Err(Errno::NOENT) => {
            mkdirat(open("dev")?, "net", Mode::from_raw_mode(0o755))?;
            open("dev/net")?
        }
        other => other?,
    };
    let device = makedev(DEVICE.0, DEVICE.1);
    match statat(&directory, NAME, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) if FileType::from_raw_mode(there.st_mode) == FileType::CharacterDevice && there.st_rdev == device => {
            return Ok(());
        }
        Ok(_) => unlinkat(&directory, NAME, AtFlags::empty())?,
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let mode = Mode::from_raw_mode(0o666);
    mknodat(&directory, NAME, FileType::CharacterDevice, mode, device)?;
    // The mode above is subject to our umask.
    chmodat(&directory, NAME, mode, AtFlags::empty())?;
    Ok(())
}
