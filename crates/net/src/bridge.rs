//! A guest in the place of its pod: the pod's interface and the guest's tap are ports of one bridge, and the guest has the
//! address that the pod was given.
//!
//! ```text
//!   guest (the pod's address and MAC) -- tap -- bridge | pod's network namespace | -- eth0 -- the rest of the world
//! ```
//!
//! What the interface had before is written on the bridge as its alias: it is needed again when the node agent restarts,
//! and it goes when the pod goes.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use crate::{link, netns, tap};

/// What a guest's interface needs.
#[derive(Debug, Clone)]
pub struct Binding {
    /// None for a container, whose driver plugs a cable into the bridge.
    pub tap: Option<String>,
    pub bridge: String,
    /// The pod's interface.
    pub outside: String,
    /// Where our DHCP server is, as seen by the guest.
    pub server: Ipv4Addr,
    pub uid: u32,
    pub gid: u32,
    pub queues: u32,
}

/// What the pod's interface had, and the guest has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridged {
    pub mtu: u32,
    pub mac: [u8; 6],
    pub addresses: Vec<(IpAddr, u8)>,
    pub gateway: Option<Ipv4Addr>,
}

/// Sets the binding up inside a network namespace. Doing it again repairs what is missing.
pub fn bind(namespace: &Path, binding: &Binding) -> io::Result<Bridged> {
    netns::enter(namespace, || {
        let had = match link::exists(&binding.bridge) {
            true => link::alias(&binding.bridge)?.and_then(|note| Bridged::parse(&note)),
            false => None,
        };
        let had = match had {
            Some(had) => had,
            None => {
                let had = Bridged::read(&binding.outside)?;
                link::add_bridge(&binding.bridge)?;
                link::set_alias(&binding.bridge, &had.note())?;
                had
            }
        };
        if let Some(tap) = &binding.tap {
            tap::create(tap, binding.uid, binding.gid, binding.queues)?;
        }
        // The guest takes over the address of the interface, which needs another one to tell the two apart.
        if link::mac(&binding.outside)? == had.mac {
            link::set_mac(&binding.outside, other_mac(had.mac))?;
        }
        for (address, prefix) in link::addresses(&binding.outside)? {
            link::remove_address(&binding.outside, address, prefix)?;
        }
        for port in std::iter::once(&binding.outside).chain(&binding.tap) {
            link::set_master(port, &binding.bridge)?;
            link::set_up(port, Some(had.mtu))?;
        }
        // A network may send a broadcast back to where it came from. The guest would then seem to be outside, and what is
        // meant for it would go nowhere.
        link::stop_learning(&binding.outside)?;
        link::set_up(&binding.bridge, None)?;
        link::add_address(&binding.bridge, binding.server.into(), 32)?;
        // The launcher answers DHCP without any capability.
        fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")?;
        Ok(had)
    })
}

impl Bridged {
    fn read(outside: &str) -> io::Result<Self> {
        let addresses = link::addresses(outside)?.into_iter();
        let addresses = addresses.filter(|(a, _)| !matches!(a, IpAddr::V6(v6) if v6.is_unicast_link_local()));
        Ok(Self {
            mtu: link::mtu(outside)?,
            mac: link::mac(outside)?,
            addresses: addresses.collect(),
            gateway: link::gateway(outside)?,
        })
    }

    /// `1500 02:00:00:00:00:01 10.42.0.1 10.42.0.7/24 fd00::7/64`
    fn note(&self) -> String {
        let gateway = self.gateway.map_or("-".into(), |gateway| gateway.to_string());
        let mut note = format!("{} {} {gateway}", self.mtu, show_mac(self.mac));
        for (address, prefix) in &self.addresses {
            note.push_str(&format!(" {address}/{prefix}"));
        }
        note
    }

    fn parse(note: &str) -> Option<Self> {
        let mut words = note.split(' ');
        let mtu = words.next()?.parse().ok()?;
        let mac = parse_mac(words.next()?)?;
        let gateway = match words.next()? {
            "-" => None,
            text => Some(text.parse().ok()?),
        };
        let mut addresses = vec![];
        for word in words {
            let (address, prefix) = word.split_once('/')?;
            addresses.push((address.parse().ok()?, prefix.parse().ok()?));
        }
        Some(Self { mtu, mac, addresses, gateway })
    }
}

pub fn show_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text.split([':', '-']).map(|part| u8::from_str_radix(part, 16).ok()).collect();
    bytes?.try_into().ok()
}

/// A locally administered address that follows from the given one and differs from it.
fn other_mac(mac: [u8; 6]) -> [u8; 6] {
    let [first, second, rest @ ..] = mac;
    let [a, b, c, d] = rest;
    [(first | 0x02) & 0xfe, second ^ 0x5a, a ^ 0xa5, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_back() {
        let had = Bridged {
            mtu: 1450,
            mac: [2, 0, 0, 0, 0, 0xab],
            addresses: vec![("10.42.0.7".parse().unwrap(), 24), ("fd00::7".parse().unwrap(), 64)],
            gateway: Some(Ipv4Addr::new(10, 42, 0, 1)),
        };
        assert_eq!(Bridged::parse(&had.note()), Some(had.clone()));
        let bare = Bridged { addresses: vec![], gateway: None, ..had };
        assert_eq!(Bridged::parse(&bare.note()), Some(bare));
        for broken in ["", "1500", "1500 x -", "1500 02:00:00:00:00:01 - 10.0.0.1"] {
            assert_eq!(Bridged::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn the_other_address_differs() {
        let mac = [2, 0x5a, 0xa5, 1, 2, 3];
        assert_ne!(other_mac(mac), mac);
        assert_eq!(other_mac(mac)[0] & 3, 2, "local and not a group");
    }
}
