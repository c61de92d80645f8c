//! Removing a network interface. The plugins make the bridge but never delete it.

use std::io;
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

const RTM_DELLINK: u16 = 17;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const IFLA_IFNAME: u16 = 3;
const NLMSG_ERROR: u16 = 2;

/// Deletes the interface called `name` in the current network namespace. Missing is fine.
pub fn delete(name: &str) -> io::Result<()> {
    let fd = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    sendto(
        fd.as_raw_fd(),
        &delete_request(name),
        &NetlinkAddr::new(0, 0),
        MsgFlags::empty(),
    )?;
    let mut reply = [0_u8; 4096];
    let length = recv(fd.as_raw_fd(), &mut reply, MsgFlags::empty())?;
    match answer(reply.get(..length).unwrap_or_default()) {
        Some(0) => Ok(()),
        Some(code) if -code == nix::libc::ENODEV => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// nlmsghdr, ifinfomsg (all zero: the name decides), one attribute.
fn delete_request(name: &str) -> Vec<u8> {
    let attribute = 4 + name.len() + 1;
    let total = 32 + attribute.next_multiple_of(4);
    let mut out = Vec::with_capacity(total);
    out.extend_from_slice(&u32::try_from(total).unwrap_or(u32::MAX).to_ne_bytes());
    out.extend_from_slice(&RTM_DELLINK.to_ne_bytes());
    out.extend_from_slice(&(NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&[0; 16]);
    out.extend_from_slice(&u16::try_from(attribute).unwrap_or(u16::MAX).to_ne_bytes());
    out.extend_from_slice(&IFLA_IFNAME.to_ne_bytes());
    out.extend_from_slice(name.as_bytes());
    out.resize(total, 0);
    out
}

/// The error number of an acknowledgement, 0 or negative.
fn answer(reply: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?);
    let code = i32::from_ne_bytes(reply.get(16..20)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleting_what_is_not_there_is_fine() {
        delete("fvnothere0").unwrap();
    }

    #[test]
    fn requests_are_aligned() {
        for name in ["a", "abc", "abcd", "fv0a1b2c"] {
            let request = delete_request(name);
            assert_eq!(request.len() % 4, 0);
            assert_eq!(
                u32::from_ne_bytes(request[..4].try_into().unwrap()) as usize,
                request.len()
            );
        }
    }
}
