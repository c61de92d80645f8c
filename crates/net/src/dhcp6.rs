//! A DHCPv6 server for exactly one guest: every question gets the same address. Routes are not its business; see
//! [`crate::router`].
//!
//! [`answer`] is pure; [`serve`] is the loop around it.

use std::{
    io,
    net::{Ipv6Addr, SocketAddrV6, UdpSocket},
    os::fd::AsRawFd,
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn6, bind, setsockopt, socket, sockopt};

use crate::{link, receive};

const SERVER_PORT: u16 = 547;
/// All servers and relays of a link.
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const LIFETIME: u32 = 86_400;

const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const REQUEST: u8 = 3;
const CONFIRM: u8 = 4;
const RENEW: u8 = 5;
const REBIND: u8 = 6;
const REPLY: u8 = 7;
const RELEASE: u8 = 8;
const DECLINE: u8 = 9;
const INFORMATION: u8 = 11;

const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const ADDRESSES: u16 = 3;
const ADDRESS: u16 = 5;
const STATUS: u16 = 13;
const RAPID_COMMIT: u16 = 14;
const NAME_SERVERS: u16 = 23;
const SEARCH: u16 = 24;

/// What the guest is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub address: Ipv6Addr,
    /// Who the answers come from.
    pub server: [u8; 6],
    pub dns: Vec<Ipv6Addr>,
    pub search: Vec<String>,
}

/// Answers on `device` until it is gone.
pub fn serve(device: &str, lease: &Lease) -> io::Result<()> {
    let mut buffer = [0u8; 1500];
    let turn = |socket: &UdpSocket| {
        let (length, client) = socket.recv_from(&mut buffer)?;
        if let Some(reply) = buffer.get(..length).and_then(|request| answer(request, lease)) {
            // A lost reply is asked for again.
            let _ = socket.send_to(&reply, client);
        }
        Ok(())
    };
    receive::forever(device, || listen(device), turn)
}

fn listen(device: &str) -> io::Result<UdpSocket> {
    let socket = socket(AddressFamily::Inet6, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::BindToDevice, &std::ffi::OsString::from(device))?;
    setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    let address = SockaddrIn6::from(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, SERVER_PORT, 0, 0));
    bind(socket.as_raw_fd(), &address)?;
    let socket = UdpSocket::from(socket);
    socket.join_multicast_v6(&SERVERS, link::index(device)?)?;
    Ok(socket)
}

/// The reply to a client's message, or none if it deserves none.
pub fn answer(request: &[u8], lease: &Lease) -> Option<Vec<u8>> {
    let header = request.get(..4)?;
    let options = &request[4..];
    let client = option(options, CLIENT_ID);
    // A client that was promised an address by another server is not ours to answer.
    if option(options, SERVER_ID).is_some_and(|server| server != identity(lease)) {
        return None;
    }
    let rapid = option(options, RAPID_COMMIT).is_some();
    let kind = match header[0] {
        SOLICIT if rapid => REPLY,
        SOLICIT => ADVERTISE,
        REQUEST | CONFIRM | RENEW | REBIND | RELEASE | DECLINE | INFORMATION => REPLY,
        _ => return None,
    };
    if header[0] != INFORMATION && client.is_none() {
        return None;
    }
    let mut reply = vec![kind];
    reply.extend_from_slice(&header[1..4]);
    push(&mut reply, CLIENT_ID, client.unwrap_or_default());
    push(&mut reply, SERVER_ID, &identity(lease));
    match header[0] {
        SOLICIT | REQUEST | RENEW | REBIND => {
            if rapid && header[0] == SOLICIT {
                reply.extend_from_slice(&[RAPID_COMMIT.to_be_bytes(), [0, 0]].concat());
            }
            // The association's number is the client's.
            let association = option(options, ADDRESSES)?.get(..4)?;
            push(&mut reply, ADDRESSES, &addresses(association, lease));
        }
        // The address is the guest's whatever it says.
        CONFIRM | RELEASE | DECLINE => push(&mut reply, STATUS, &[0, 0]),
        _ => {}
    }
    let dns: Vec<u8> = lease.dns.iter().flat_map(Ipv6Addr::octets).collect();
    push(&mut reply, NAME_SERVERS, &dns);
    push(&mut reply, SEARCH, &crate::dhcp::search_list(&lease.search));
    Some(reply)
}

fn addresses(association: &[u8], lease: &Lease) -> Vec<u8> {
    let mut out = association.to_vec();
    out.extend_from_slice(&(LIFETIME / 2).to_be_bytes());
    out.extend_from_slice(&(LIFETIME / 5 * 4).to_be_bytes());
    let mut address = lease.address.octets().to_vec();
    address.extend_from_slice(&LIFETIME.to_be_bytes());
    address.extend_from_slice(&LIFETIME.to_be_bytes());
    push(&mut out, ADDRESS, &address);
    out
}

/// By its hardware address, as RFC 8415 has it.
fn identity(lease: &Lease) -> Vec<u8> {
    let mut out = vec![0, 3, 0, 1];
    out.extend_from_slice(&lease.server);
    out
}

fn push(reply: &mut Vec<u8>, code: u16, value: &[u8]) {
    if let Ok(length) = u16::try_from(value.len())
        && length > 0
    {
        reply.extend_from_slice(&code.to_be_bytes());
        reply.extend_from_slice(&length.to_be_bytes());
        reply.extend_from_slice(value);
    }
}

fn option(mut options: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some((head, rest)) = options.split_at_checked(4) {
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let (value, after) = rest.split_at_checked(length)?;
        if u16::from_be_bytes([head[0], head[1]]) == wanted {
            return Some(value);
        }
        options = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> Lease {
        Lease {
            address: "fd10:0:2::2".parse().unwrap(),
            server: [2, 0, 10, 0, 2, 1],
            dns: vec!["fd00::10".parse().unwrap()],
            search: vec!["svc.cluster.local".into()],
        }
    }

    fn request(kind: u8, options: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![kind, 1, 2, 3];
        for (code, value) in options {
            bytes.extend_from_slice(&code.to_be_bytes());
            bytes.extend_from_slice(&(value.len() as u16).to_be_bytes());
            bytes.extend_from_slice(value);
        }
        bytes
    }

    const ASSOCIATION: (u16, &[u8]) = (ADDRESSES, &[9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0]);

    #[test]
    fn every_question_gets_the_same_address() {
        let ours = identity(&lease());
        for (kind, more, expected) in [
            (SOLICIT, None, ADVERTISE),
            (SOLICIT, Some((RAPID_COMMIT, &[][..])), REPLY),
            (REQUEST, Some((SERVER_ID, &ours[..])), REPLY),
            (RENEW, Some((SERVER_ID, &ours[..])), REPLY),
            (REBIND, None, REPLY),
        ] {
            let mut options = vec![(CLIENT_ID, &b"client"[..]), ASSOCIATION];
            options.extend(more);
            let reply = answer(&request(kind, &options), &lease()).unwrap();
            assert_eq!(reply[..4], [expected, 1, 2, 3], "kind {kind}");
            assert_eq!(option(&reply[4..], CLIENT_ID), Some(&b"client"[..]));
            let association = option(&reply[4..], ADDRESSES).unwrap();
            assert_eq!(association[..4], [9, 9, 9, 9]);
            let address = option(&association[12..], ADDRESS).unwrap();
            assert_eq!(address[..16], lease().address.octets());
            assert_eq!(option(&reply[4..], NAME_SERVERS).unwrap().len(), 16);
        }
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
            let mut bytes = request(SOLICIT, &[(CLIENT_ID, &b"client"[..]), ASSOCIATION, (RAPID_COMMIT, &[][..])]);
            bytes.extend((0..next(40)).map(|n| (n * 37) as u8));
            for _ in 0..=next(8) {
                let at = next(bytes.len());
                bytes[at] = next(256) as u8;
            }
            bytes.truncate(1 + next(bytes.len()));
            if let Some(reply) = answer(&bytes, &lease()) {
                assert!(reply.len() <= bytes.len() + 200, "{bytes:?}");
            }
        }
    }

    #[test]
    fn what_is_not_for_us_is_not_answered() {
        let client = (CLIENT_ID, &b"client"[..]);
        for bad in [
            vec![],
            vec![1, 2, 3],
            request(SOLICIT, &[ASSOCIATION]),
            request(SOLICIT, &[client]),
            request(REQUEST, &[client, ASSOCIATION, (SERVER_ID, b"another")]),
            request(ADVERTISE, &[client, ASSOCIATION]),
            [request(SOLICIT, &[client]), vec![0, 3, 0, 200, 1]].concat(),
        ] {
            assert_eq!(answer(&bad, &lease()), None, "{bad:?}");
        }
    }

    #[test]
    fn a_question_about_names_needs_no_identity() {
        let reply = answer(&request(INFORMATION, &[]), &lease()).unwrap();
        assert_eq!((reply[0], option(&reply[4..], ADDRESSES)), (REPLY, None));
        assert!(option(&reply[4..], SEARCH).is_some());
    }
}
