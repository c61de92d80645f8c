//! `/dev/kvm` for a launcher that is not root. A container runtime makes the device with the node's owner and mode, which are
//! often root's alone; it is handed to the launcher's user, as KubeVirt does.

use std::{fs::File, io, os::fd::AsFd};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fstat, makedev, openat2, stat},
    io::Errno,
};

const DEVICE: (u32, u32) = (10, 232);
const RUNTIME_USER: u32 = 107;

/// Does nothing if the launcher has no such device, or if it is the very one that this process has: then it is the node's own.
pub(crate) fn hand_over(launcher_pid: i32) -> io::Result<()> {
    let root = File::open(format!("/proc/{launcher_pid}/root"))?;
    // Everything in that tree is the launcher's word, so no link in it may lead us elsewhere.
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let device = match openat2(root.as_fd(), "dev/kvm", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), inside) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let there = fstat(&device)?;
    let is_kvm = FileType::from_raw_mode(there.st_mode) == FileType::CharacterDevice
        && there.st_rdev == makedev(DEVICE.0, DEVICE.1);
    let shared = stat("/dev/kvm").is_ok_and(|own| (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino));
    if !is_kvm || shared || there.st_uid == RUNTIME_USER {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(RUNTIME_USER), Gid::from_raw(RUNTIME_USER));
    chownat(&device, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
    Ok(())
}
