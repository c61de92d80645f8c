//! Links and addresses of the current network namespace.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
};

use crate::netlink::{ACK, CREATE, DUMP, EXCL, Message, Socket, attributes};
use crate::nft::Net;

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const GET_ROUTE: u16 = 26;
const FLAG_UP: u32 = 1;
const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
const LINK_MTU: u16 = 4;
const LINK_MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
const INFO_PORT_KIND: u16 = 4;
const INFO_PORT: u16 = 5;
const PORT_LEARNING: u16 = 8;
const LINK_ALIAS: u16 = 20;
const LINK_GROUP: u16 = 27;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// `IFA_F_NODAD`
const NO_DUPLICATE_DETECTION: u8 = 2;

/// The index of a link by name.
pub fn index(name: &str) -> io::Result<u32> {
    Ok(nix::net::if_::if_nametoindex(name)?)
}

pub fn exists(name: &str) -> bool {
    index(name).is_ok()
}

/// Brings a link up, optionally with an MTU.
pub fn set_up(name: &str, mtu: Option<u32>) -> io::Result<()> {
    let message = Message::new(NEW_LINK, ACK).raw(&link_header(index(name)?, FLAG_UP, FLAG_UP));
    let message = match mtu {
        Some(mtu) => message.attribute(LINK_MTU, &mtu.to_ne_bytes()),
        None => message,
    };
    Socket::route()?.request(message)
}

/// Puts a link into a bridge.
pub fn set_master(name: &str, bridge: &str) -> io::Result<()> {
    let message = Message::new(NEW_LINK, ACK).raw(&link_header(index(name)?, 0, 0));
    Socket::route()?.request(message.attribute(LINK_MASTER, &index(bridge)?.to_ne_bytes()))
}

/// Takes a link out of its bridge.
pub fn clear_master(name: &str) -> io::Result<()> {
    let message = Message::new(NEW_LINK, ACK).raw(&link_header(index(name)?, 0, 0));
    Socket::route()?.request(message.attribute(LINK_MASTER, &0u32.to_ne_bytes()))
}

/// Whether a link is a port of something.
pub fn has_master(name: &str) -> io::Result<bool> {
    Ok(attribute(name, LINK_MASTER)?.is_some())
}

/// Puts a link into a group of links, by which rules know it.
pub fn set_group(name: &str, group: u32) -> io::Result<()> {
    let message = Message::new(NEW_LINK, ACK).raw(&link_header(index(name)?, 0, 0));
    Socket::route()?.request(message.attribute(LINK_GROUP, &group.to_ne_bytes()))
}

/// Leads a network to a link. A route that is there already is success.
pub fn add_route(name: &str, to: Net) -> io::Result<()> {
    match Socket::route()?.request(route(Message::new(NEW_ROUTE, ACK | CREATE | EXCL), name, to)?) {
        Err(error) if error.raw_os_error() == Some(17) => Ok(()),
        other => other,
    }
}

/// Removes a route. One that is not there is success.
pub fn remove_route(name: &str, to: Net) -> io::Result<()> {
    const NO_SUCH_PROCESS: i32 = 3;
    match Socket::route()?.request(route(Message::new(DELETE_ROUTE, ACK), name, to)?) {
        Err(error) if error.raw_os_error() == Some(NO_SUCH_PROCESS) => Ok(()),
        other => other,
    }
}

fn route(message: Message, name: &str, to: Net) -> io::Result<Message> {
    const MAIN_TABLE: u8 = 254;
    const BY_ADMINISTRATOR: u8 = 4;
    const ON_LINK: u8 = 253;
    const UNICAST: u8 = 1;
    const DESTINATION: u16 = 1;
    const OUT: u16 = 4;
    let (family, bytes) = match to.address {
        IpAddr::V4(v4) => (libc_family::INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc_family::INET6, v6.octets().to_vec()),
    };
    // Whoever made the route that is to go, it goes.
    let protocol = if message.kind() == DELETE_ROUTE { 0 } else { BY_ADMINISTRATOR };
    let scope = if to.address.is_ipv4() { ON_LINK } else { 0 };
    let header = [family, to.prefix, 0, 0, MAIN_TABLE, protocol, scope, UNICAST, 0, 0, 0, 0];
    Ok(message.raw(&header).attribute(DESTINATION, &bytes).attribute(OUT, &index(name)?.to_ne_bytes()))
}

/// Tells a bridge not to take addresses for reachable through this port because they were seen there.
pub fn stop_learning(port: &str) -> io::Result<()> {
    let message = Message::new(NEW_LINK, ACK).raw(&link_header(index(port)?, 0, 0));
    Socket::route()?.request(message.nest(LINK_INFO, |info| {
        info.string(INFO_PORT_KIND, "bridge").nest(INFO_PORT, |port| port.attribute(PORT_LEARNING, &[0]))
    }))
}

/// Writes a note on a link. It lives and dies with it.
pub fn set_alias(name: &str, alias: &str) -> io::Result<()> {
    let message = Message::new(NEW_LINK, ACK).raw(&link_header(index(name)?, 0, 0));
    Socket::route()?.request(message.attribute(LINK_ALIAS, alias.as_bytes()))
}

/// The note on a link, if it has one.
pub fn alias(name: &str) -> io::Result<Option<String>> {
    let value = attribute(name, LINK_ALIAS)?;
    Ok(value.map(|bytes| String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()))
}

pub fn mac(name: &str) -> io::Result<[u8; 6]> {
    let value = attribute(name, LINK_ADDRESS)?;
    let value = value.and_then(|bytes| bytes.try_into().ok());
    value.ok_or_else(|| io::Error::other(format!("link {name} has no hardware address")))
}

/// Gives a link its hardware address.
pub fn set_mac(name: &str, mac: [u8; 6]) -> io::Result<()> {
    let message = Message::new(NEW_LINK, ACK).raw(&link_header(index(name)?, 0, 0)).attribute(LINK_ADDRESS, &mac);
    Socket::route()?.request(message)
}

/// Makes a bridge. One that is there already is success.
pub fn add_bridge(name: &str) -> io::Result<()> {
    let message = Message::new(NEW_LINK, ACK | CREATE | EXCL)
        .raw(&link_header(0, 0, 0))
        .string(LINK_NAME, name)
        .nest(LINK_INFO, |m| m.string(INFO_KIND, "bridge"));
    match Socket::route()?.request(message) {
        Err(error) if error.raw_os_error() == Some(17) => Ok(()),
        other => other,
    }
}

pub fn delete(name: &str) -> io::Result<()> {
    Socket::route()?.request(Message::new(DELETE_LINK, ACK).raw(&link_header(index(name)?, 0, 0)))
}

/// Adds an address. One that is there already is success.
pub fn add_address(name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
    let (family, bytes) = match address {
        IpAddr::V4(v4) => (libc_family::INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc_family::INET6, v6.octets().to_vec()),
    };
    // The addresses that are given here are ours to give: nobody has to be asked whether they are taken, and they work at once.
    let flags = if address.is_ipv6() { NO_DUPLICATE_DETECTION } else { 0 };
    let mut header = vec![family, prefix, flags, 0];
    header.extend_from_slice(&index(name)?.to_ne_bytes());
    let message =
        Message::new(NEW_ADDRESS, ACK | CREATE | EXCL).raw(&header).attribute(LOCAL, &bytes).attribute(ADDRESS, &bytes);
    match Socket::route()?.request(message) {
        Err(error) if error.raw_os_error() == Some(17) => Ok(()),
        other => other,
    }
}

/// Removes an address. One that is not there is success.
pub fn remove_address(name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
    const NOT_AVAILABLE: i32 = 99;
    let (family, bytes) = match address {
        IpAddr::V4(v4) => (libc_family::INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc_family::INET6, v6.octets().to_vec()),
    };
    let mut header = vec![family, prefix, 0, 0];
    header.extend_from_slice(&index(name)?.to_ne_bytes());
    let message = Message::new(DELETE_ADDRESS, ACK).raw(&header).attribute(LOCAL, &bytes).attribute(ADDRESS, &bytes);
    match Socket::route()?.request(message) {
        Err(error) if error.raw_os_error() == Some(NOT_AVAILABLE) => Ok(()),
        other => other,
    }
}

/// The IPv4 gateway of the default route that leaves by a link.
pub fn gateway(name: &str) -> io::Result<Option<Ipv4Addr>> {
    const GATEWAY: u16 = 5;
    const OUT: u16 = 4;
    let wanted = index(name)?;
    let mut header = [0u8; 12];
    header[0] = libc_family::INET;
    for body in Socket::route()?.dump(Message::new(GET_ROUTE, DUMP).raw(&header))? {
        let Some(fixed) = body.get(..12) else { continue };
        if fixed[0] != libc_family::INET || fixed[1] != 0 {
            continue;
        }
        let found = attributes(&body[12..]);
        let value = |kind: u16| found.iter().find(|(k, _)| *k == kind).and_then(|(_, v)| <[u8; 4]>::try_from(*v).ok());
        if value(OUT).map(u32::from_ne_bytes) == Some(wanted)
            && let Some(gateway) = value(GATEWAY)
        {
            return Ok(Some(gateway.into()));
        }
    }
    Ok(None)
}

/// The addresses of a link with their prefix lengths.
pub fn addresses(name: &str) -> io::Result<Vec<(IpAddr, u8)>> {
    let wanted = index(name)?;
    Ok(all_addresses()?
        .into_iter()
        .filter(|(link, ..)| *link == wanted)
        .map(|(_, address, prefix)| (address, prefix))
        .collect())
}

/// The addresses of all links: the number of the link, the address and its prefix length.
pub fn all_addresses() -> io::Result<Vec<(u32, IpAddr, u8)>> {
    let bodies = Socket::route()?.dump(Message::new(GET_ADDRESS, DUMP).raw(&[0; 8]))?;
    let mut found = vec![];
    for body in bodies {
        let Some(header) = body.get(..8) else { continue };
        let (family, prefix) = (header[0], header[1]);
        let link = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
        for (kind, value) in attributes(&body[8..]) {
            if kind != ADDRESS {
                continue;
            }
            if let (libc_family::INET, Ok(octets)) = (family, <[u8; 4]>::try_from(value)) {
                found.push((link, IpAddr::from(octets), prefix));
            } else if let (libc_family::INET6, Ok(octets)) = (family, <[u8; 16]>::try_from(value)) {
                found.push((link, IpAddr::from(octets), prefix));
            }
        }
    }
    Ok(found)
}

/// The MTU of a link of the caller's namespace.
pub fn mtu(name: &str) -> io::Result<u32> {
    let value = attribute(name, LINK_MTU)?.and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    value.map(u32::from_ne_bytes).ok_or_else(|| io::Error::other(format!("link {name} has no MTU")))
}

fn attribute(name: &str, wanted: u16) -> io::Result<Option<Vec<u8>>> {
    let link = index(name)?;
    for body in Socket::route()?.dump(Message::new(GET_LINK, DUMP).raw(&link_header(0, 0, 0)))? {
        let Some(header) = body.get(..16) else { continue };
        if u32::from_ne_bytes([header[4], header[5], header[6], header[7]]) != link {
            continue;
        }
        let found = attributes(&body[16..]).into_iter().find(|(kind, _)| *kind == wanted);
        return Ok(found.map(|(_, value)| value.to_vec()));
    }
    Ok(None)
}

fn link_header(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut header = vec![0u8; 4];
    header.extend_from_slice(&index.to_ne_bytes());
    header.extend_from_slice(&flags.to_ne_bytes());
    header.extend_from_slice(&change.to_ne_bytes());
    header
}

mod libc_family {
    pub const INET: u8 = 2;
    pub const INET6: u8 = 10;
}
