//! Persistent taps that an unprivileged hypervisor may open.
//!
//! The one file of this crate with `unsafe`: the kernel offers taps by ioctl only.
#![allow(unsafe_code)]

use std::{fs::OpenOptions, io, os::fd::AsRawFd};

use crate::link;

/// `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR`
const FLAGS: u16 = 0x0002 | 0x1000 | 0x4000;
const MULTI_QUEUE: u16 = 0x0100;

/// `struct ifreq` as far as `TUNSETIFF` reads it; the kernel copies 40 bytes.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    padding: [u8; 22],
}

mod ioctl {
    nix::ioctl_write_ptr_bad!(set_interface, nix::request_code_write!(b'T', 202, size_of::<i32>()), super::Request);
    nix::ioctl_write_int_bad!(set_persist, nix::request_code_write!(b'T', 203, size_of::<i32>()));
    nix::ioctl_write_int_bad!(set_owner, nix::request_code_write!(b'T', 204, size_of::<i32>()));
    nix::ioctl_write_int_bad!(set_group, nix::request_code_write!(b'T', 206, size_of::<i32>()));
}

/// Makes a tap in the current network namespace that `uid` and `gid` may open, or takes the one that is there.
pub fn create(name: &str, uid: u32, gid: u32, queues: u32) -> io::Result<()> {
    let mut request = Request { name: [0; 16], flags: FLAGS, padding: [0; 22] };
    if name.is_empty() || name.len() > 15 {
        return Err(io::Error::other(format!("{name:?} is no name for a network device")));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    if queues > 1 {
        request.flags |= MULTI_QUEUE;
    }
    if link::exists(name) {
        // It is persistent, and a hypervisor that has it open must not be disturbed.
        return Ok(());
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    // The kernel takes 32 bits and reads them as what they are.
    let (uid, gid) = (uid.cast_signed(), gid.cast_signed());
    // SAFETY: the descriptor is open, and `request` is a valid, initialised `ifreq` that outlives the call.
    unsafe { ioctl::set_interface(device.as_raw_fd(), &raw const request) }?;
    // SAFETY: the descriptor is open; these calls take their argument by value.
    unsafe {
        ioctl::set_owner(device.as_raw_fd(), uid)?;
        ioctl::set_group(device.as_raw_fd(), gid)?;
        ioctl::set_persist(device.as_raw_fd(), 1)?;
    }
    Ok(())
}
