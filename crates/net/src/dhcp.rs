//! A DHCP server for exactly one guest: every question gets the same address.
//!
//! [`answer`] is pure; [`serve`] is the loop around it.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::AsRawFd,
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};

use crate::receive;

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACKNOWLEDGE: u8 = 5;
const INFORM: u8 = 8;

/// What the guest is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub address: Ipv4Addr,
    pub prefix: u8,
    pub gateway: Option<Ipv4Addr>,
    /// Who the answers come from.
    pub server: Ipv4Addr,
    /// The one client that is answered, if others can be heard.
    pub client: Option<[u8; 6]>,
    pub dns: Vec<Ipv4Addr>,
    pub search: Vec<String>,
    pub hostname: String,
    pub mtu: u16,
}

/// Answers on `device` until it is gone.
pub fn serve(device: &str, lease: &Lease) -> io::Result<()> {
    let mut buffer = [0u8; 1500];
    let turn = |socket: &UdpSocket| {
        let (length, _) = socket.recv_from(&mut buffer)?;
        if let Some(reply) = buffer.get(..length).and_then(|request| answer(request, lease)) {
            // Broadcast always reaches a client that has no address yet; a lost reply is asked for again.
            let _ = socket.send_to(&reply, SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT));
        }
        Ok(())
    };
    receive::forever(device, || listen(device), turn)
}

/// A socket for one device. Bound to the device first: each interface of a pod has a server of its own on the same port.
fn listen(device: &str) -> io::Result<UdpSocket> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::BindToDevice, &std::ffi::OsString::from(device))?;
    setsockopt(&socket, sockopt::Broadcast, &true)?;
    let address = SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, SERVER_PORT));
    bind(socket.as_raw_fd(), &address)?;
    Ok(socket.into())
}

/// The reply to a client's message, or none if it deserves none.
pub fn answer(request: &[u8], lease: &Lease) -> Option<Vec<u8>> {
    let header = request.get(..240)?;
    if header[0] != 1 || header[236..240] != COOKIE {
        return None;
    }
    let kind = match option(&request[240..], 53)? {
        [DISCOVER] => OFFER,
        [REQUEST | INFORM] => ACKNOWLEDGE,
        _ => return None,
    };
    if lease.client.is_some_and(|client| header[28..34] != client) {
        return None;
    }
    // A client that was promised an address by another server is not ours to answer.
    if let Some(server) = option(&request[240..], 54)
        && server != lease.server.octets()
    {
        return None;
    }
    let mut reply = vec![0u8; 240];
    reply[0] = 2;
    reply[1..4].copy_from_slice(&header[1..4]);
    reply[4..8].copy_from_slice(&header[4..8]);
    reply[10..12].copy_from_slice(&header[10..12]);
    reply[16..20].copy_from_slice(&lease.address.octets());
    reply[20..24].copy_from_slice(&lease.server.octets());
    reply[28..44].copy_from_slice(&header[28..44]);
    reply[236..240].copy_from_slice(&COOKIE);
    let mask = u32::MAX.checked_shl(32 - u32::from(lease.prefix.min(32))).unwrap_or(0);
    push(&mut reply, 53, &[kind]);
    push(&mut reply, 54, &lease.server.octets());
    push(&mut reply, 51, &86_400u32.to_be_bytes());
    push(&mut reply, 1, &mask.to_be_bytes());
    if let Some(gateway) = lease.gateway {
        push(&mut reply, 3, &gateway.octets());
    }
    push(&mut reply, 26, &lease.mtu.to_be_bytes());
    let dns: Vec<u8> = lease.dns.iter().flat_map(|d| d.octets()).collect();
    push(&mut reply, 6, &dns);
    push(&mut reply, 12, lease.hostname.as_bytes());
    push(&mut reply, 119, &search_list(&lease.search));
    reply.push(255);
    // BOOTP relays and old clients expect at least 300 bytes.
    reply.resize(reply.len().max(300), 0);
    Some(reply)
}

fn push(reply: &mut Vec<u8>, code: u8, value: &[u8]) {
    if let Ok(length) = u8::try_from(value.len())
        && length > 0
    {
        reply.push(code);
        reply.push(length);
        reply.extend_from_slice(value);
    }
}

pub(crate) fn search_list(domains: &[String]) -> Vec<u8> {
    let mut out = vec![];
    for domain in domains {
        for label in domain.split('.').filter(|l| !l.is_empty() && l.len() < 64) {
            out.push(label.len() as u8);
            out.extend_from_slice(label.as_bytes());
        }
        out.push(0);
    }
    out
}

fn option(mut options: &[u8], wanted: u8) -> Option<&[u8]> {
    while let Some((&code, rest)) = options.split_first() {
        match code {
            0 => options = rest,
            255 => return None,
            _ => {
                let (&length, rest) = rest.split_first()?;
                let value = rest.get(..usize::from(length))?;
                if code == wanted {
                    return Some(value);
                }
                options = &rest[usize::from(length)..];
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> Lease {
        Lease {
            address: Ipv4Addr::new(10, 0, 2, 2),
            prefix: 24,
            gateway: Some(Ipv4Addr::new(10, 0, 2, 1)),
            server: Ipv4Addr::new(10, 0, 2, 1),
            client: None,
            dns: vec![Ipv4Addr::new(10, 96, 0, 10)],
            search: vec!["default.svc.cluster.local".into()],
            hostname: "demo".into(),
            mtu: 1500,
        }
    }

    fn request(kind: u8, extra: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0u8; 240];
        bytes[..8].copy_from_slice(&[1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef]);
        bytes[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        bytes[236..240].copy_from_slice(&COOKIE);
        bytes.extend_from_slice(&[53, 1, kind]);
        bytes.extend_from_slice(extra);
        bytes.push(255);
        bytes
    }

    #[test]
    fn discover_is_offered_the_address() {
        let reply = answer(&request(DISCOVER, &[]), &lease()).unwrap();
        assert_eq!(option(&reply[240..], 53), Some(&[OFFER][..]));
        assert_eq!(reply[16..20], [10, 0, 2, 2]);
        assert_eq!(reply[4..8], [0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(option(&reply[240..], 1), Some(&[255, 255, 255, 0][..]));
        assert_eq!(option(&reply[240..], 12), Some(&b"demo"[..]));
    }

    #[test]
    fn request_is_acknowledged_unless_it_is_for_another_server() {
        let reply = answer(&request(REQUEST, &[54, 4, 10, 0, 2, 1]), &lease()).unwrap();
        assert_eq!(option(&reply[240..], 53), Some(&[ACKNOWLEDGE][..]));
        assert!(answer(&request(REQUEST, &[54, 4, 10, 0, 2, 9]), &lease()).is_none());
    }

    #[test]
    fn other_clients_are_not_answered() {
        let ours = Lease { client: Some([2, 0, 0, 0, 0, 1]), gateway: None, ..lease() };
        let reply = answer(&request(DISCOVER, &[]), &ours).unwrap();
        assert_eq!(option(&reply[240..], 3), None, "no gateway, no route");
        let theirs = Lease { client: Some([2, 0, 0, 0, 0, 2]), ..lease() };
        assert!(answer(&request(DISCOVER, &[]), &theirs).is_none());
    }

    #[test]
    fn no_bytes_of_a_guest_end_the_server() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below as u64) as usize
        };
        for _ in 0..20_000 {
            let mut bytes = request(DISCOVER, &[61, 7, 1, 2, 0, 0, 0, 0, 1, 55, 3, 1, 3, 6]);
            bytes.extend((0..next(40)).map(|n| (n * 37) as u8));
            for _ in 0..=next(8) {
                let at = next(bytes.len());
                bytes[at] = next(256) as u8;
            }
            bytes.truncate(1 + next(bytes.len()));
            if let Some(reply) = answer(&bytes, &lease()) {
                assert!(reply.len() <= 600 && reply[16..20] == [10, 0, 2, 2], "{bytes:?}");
            }
        }
    }

    #[test]
    fn nonsense_is_not_answered() {
        assert!(answer(&[], &lease()).is_none());
        assert!(answer(&[1; 300], &lease()).is_none());
        let mut cut = request(DISCOVER, &[12, 200]);
        cut.truncate(244);
        let _ = answer(&cut, &lease());
    }
}
