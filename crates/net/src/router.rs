//! Router advertisements: the IPv6 guest behind a tap learns its gateway, its network, and that DHCP has its address.
//!
//! The socket needs privileges that a launcher has not, so the node agent is the one that advertises. What it says is
//! good for hours: a guest keeps its route while the agent restarts.

use std::{
    io,
    net::{Ipv6Addr, SocketAddrV6},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use nix::sys::socket::{
    AddressFamily, Ipv6MembershipRequest, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, recv, sendto,
    setsockopt, socket, sockopt,
};

use crate::{link, netns};

const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Seconds; as long as the protocol allows.
const LIFETIME: u16 = 9000;
/// What came from further away is no neighbour.
const HOPS: i32 = 255;

/// What is advertised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advertisement {
    pub network: Ipv6Addr,
    pub prefix: u8,
    pub mtu: u32,
    /// The gateway's hardware address.
    pub mac: [u8; 6],
}

impl Advertisement {
    /// The message without its checksum, which is the kernel's to fill in.
    fn message(&self) -> Vec<u8> {
        const ADDRESS_AND_MORE_BY_DHCP: u8 = 0xc0;
        const ON_LINK: u8 = 0x80;
        let mut out = vec![ADVERTISEMENT, 0, 0, 0, 64, ADDRESS_AND_MORE_BY_DHCP];
        out.extend_from_slice(&LIFETIME.to_be_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&[1, 1]);
        out.extend_from_slice(&self.mac);
        out.extend_from_slice(&[5, 1, 0, 0]);
        out.extend_from_slice(&self.mtu.to_be_bytes());
        out.extend_from_slice(&[3, 4, self.prefix, ON_LINK]);
        out.extend_from_slice(&[0xff; 8]);
        out.extend_from_slice(&[0; 4]);
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix.min(128))).unwrap_or(0);
        out.extend_from_slice(&(u128::from(self.network) & mask).to_be_bytes());
        out
    }
}

/// A router on one device. Its socket keeps the network namespace alive: drop it when the guest ends.
pub struct Router {
    socket: OwnedFd,
    message: Vec<u8>,
    device: u32,
}

impl Router {
    /// Opens it inside a network namespace. It does not block; wait for its descriptor.
    pub fn open(namespace: &Path, device: &str, network: Ipv6Addr, prefix: u8, mtu: u32) -> io::Result<Self> {
        netns::enter(namespace, || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = socket(AddressFamily::Inet6, SockType::Raw, flags, SockProtocol::IcmpV6)?;
            setsockopt(&socket, sockopt::BindToDevice, &std::ffi::OsString::from(device))?;
            setsockopt(&socket, sockopt::Ipv6MulticastHops, &HOPS)?;
            // Its index is not needed: the socket is bound to the device.
            setsockopt(&socket, sockopt::Ipv6AddMembership, &Ipv6MembershipRequest::new(ALL_ROUTERS))?;
            let message = Advertisement { network, prefix, mtu, mac: link::mac(device)? }.message();
            Ok(Self { socket, message, device: link::index(device)? })
        })
    }

    /// Takes what has come. True if a guest asks for a router.
    pub fn asked(&self) -> io::Result<bool> {
        let mut buffer = [0u8; 1500];
        let length = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        Ok(length > 0 && buffer[0] == SOLICITATION)
    }

    /// Tells everybody on the link. There may be nobody yet.
    pub fn advertise(&self) -> io::Result<()> {
        let target = SockaddrIn6::from(SocketAddrV6::new(ALL_NODES, 0, 0, self.device));
        sendto(self.socket.as_raw_fd(), &self.message, &target, MsgFlags::empty())?;
        Ok(())
    }
}

impl AsFd for Router {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Router {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_laid_out_as_the_rfc_says() {
        let advertisement =
            Advertisement { network: "fd10:0:2::9".parse().unwrap(), prefix: 120, mtu: 1450, mac: [2, 0, 0, 0, 0, 1] };
        let message = advertisement.message();
        assert_eq!(message.len(), 16 + 8 + 8 + 32);
        assert_eq!(message[..8], [134, 0, 0, 0, 64, 0xc0, 0x23, 0x28]);
        assert_eq!(message[16..24], [1, 1, 2, 0, 0, 0, 0, 1]);
        assert_eq!(message[24..32], [5, 1, 0, 0, 0, 0, 5, 0xaa]);
        assert_eq!(message[32..36], [3, 4, 120, 0x80]);
        assert_eq!(message[48..], "fd10:0:2::".parse::<Ipv6Addr>().unwrap().octets());
    }
}
