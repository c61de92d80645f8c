//! Devices for a launcher that is not root. A container runtime makes them with the node's owner and mode, which are often
//! root's alone; they are handed to the launcher's user, as KubeVirt does.

use std::io;

use rustix::{
    fs::{AtFlags, FileType, Gid, OFlags, Uid, chownat, fstat, makedev, stat},
    io::Errno,
};

use crate::{network, process::Process};

/// Names below `/dev` and their numbers.
const DEVICES: [(&str, (u32, u32)); 2] = [("kvm", (10, 232)), ("vhost-vsock", (10, 241))];

/// Leaves out devices that the launcher does not have, and those that are the very ones of this process: they are the node's own.
pub(crate) fn hand_over(launcher: &Process) -> io::Result<()> {
    let user = network::user(&launcher.read("status")?).ok_or_else(|| io::Error::other("the launcher has no user"))?;
    DEVICES.iter().try_for_each(|(name, number)| one(launcher, name, *number, user))
}

fn one(launcher: &Process, name: &str, number: (u32, u32), user: (u32, u32)) -> io::Result<()> {
    let device = match launcher.open_plain(&format!("dev/{name}"), OFlags::PATH | OFlags::NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let there = fstat(&device)?;
    let is_it = FileType::from_raw_mode(there.st_mode) == FileType::CharacterDevice
        && there.st_rdev == makedev(number.0, number.1);
    let shared = stat(format!("/dev/{name}")).is_ok_and(|own| (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino));
    if !is_it || shared || there.st_uid == user.0 {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(user.0), Gid::from_raw(user.1));
    chownat(&device, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
    Ok(())
}
