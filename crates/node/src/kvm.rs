//! Devices for a launcher that is not root. A container runtime makes them with the node's owner and mode, which are often
//! root's alone; they are handed to the launcher's user, as KubeVirt does.

use std::{fs::File, io, os::fd::AsFd};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fstat, makedev, openat2, stat},
    io::Errno,
};

/// Names below `/dev` and their numbers.
const DEVICES: [(&str, (u32, u32)); 2] = [("kvm", (10, 232)), ("vhost-vsock", (10, 241))];
const RUNTIME_USER: u32 = 107;

/// Leaves out devices that the launcher does not have, and those that are the very ones of this process: they are the node's own.
pub(crate) fn hand_over(launcher_pid: i32) -> io::Result<()> {
    let root = File::open(format!("/proc/{launcher_pid}/root"))?;
    DEVICES.iter().try_for_each(|(name, number)| one(&root, name, *number))
}

fn one(root: &File, name: &str, number: (u32, u32)) -> io::Result<()> {
    // Everything in that tree is the launcher's word, so no link in it may lead us elsewhere.
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let device =
        match openat2(root.as_fd(), format!("dev/{name}"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), inside) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
    let there = fstat(&device)?;
    let is_it = FileType::from_raw_mode(there.st_mode) == FileType::CharacterDevice
        && there.st_rdev == makedev(number.0, number.1);
    let shared = stat(format!("/dev/{name}")).is_ok_and(|own| (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino));
    if !is_it || shared || there.st_uid == RUNTIME_USER {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(RUNTIME_USER), Gid::from_raw(RUNTIME_USER));
    chownat(&device, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
    Ok(())
}
