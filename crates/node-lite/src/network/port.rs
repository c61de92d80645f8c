//! One pod's cable, on this machine's end.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use ferrovirt_net::{bridge, link, netns};
use serde_json::Value;

use super::{Network, NetworkError, State, gateway};
use crate::cni::{Attached, IFNAME};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub link: String,
    pub index: u32,
    /// What the pod may send from: its addresses, and the link-local one that follows from its hardware address.
    pub addresses: Vec<IpAddr>,
}

impl Port {
    /// From what the plugin said. Fails if the interface is not there.
    pub fn of(attached: &Attached) -> Result<Self, NetworkError> {
        let interfaces = attached.result.get("interfaces").and_then(Value::as_array).into_iter().flatten();
        let text =
            |interface: &Value, key: &str| interface.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut here = None;
        let mut addresses = attached.addresses();
        for interface in interfaces {
            let (name, mac) = (text(interface, "name"), text(interface, "mac"));
            match text(interface, "sandbox").is_empty() {
                // A bridge is listed beside its port.
                true if name.starts_with("veth") => here = Some(name),
                true => {}
                false if name == IFNAME => addresses.extend(bridge::parse_mac(&mac).map(link_local)),
                false => {}
            }
        }
        let link = here.ok_or(NetworkError::NoInterface)?;
        let index = link::index(&link).map_err(|source| NetworkError::Port { link: link.clone(), source })?;
        Ok(Self { link, index, addresses })
    }

    /// Makes the cable what it should be, whatever plugged it in. Doing it again repairs it.
    pub fn adopt(&self, network: &Network, state: &State, netns: &Path) -> Result<(), NetworkError> {
        self.wire(network, state, netns).map_err(|source| NetworkError::Port { link: self.link.clone(), source })
    }

    fn wire(&self, network: &Network, state: &State, netns: &Path) -> io::Result<()> {
        link::set_group(&self.link, network.group)?;
        if link::has_master(&self.link)? {
            self.leave_bridge(network, netns)?;
        }
        for net in network.pods.iter().filter(|net| net.address.is_ipv6()) {
            // The plugin's way to give it waits until nobody objects. There is nobody.
            link::remove_address(&self.link, gateway(net), 128)?;
            link::add_address(&self.link, gateway(net), 128)?;
        }
        // A guest in the place of its pod asks for its neighbours' hardware addresses: it gets this machine's, at once.
        self.setting("ipv4/conf", "proxy_arp", "1")?;
        self.setting("ipv4/neigh", "proxy_delay", "0")?;
        self.setting("ipv4/conf", "forwarding", "1")?;
        for (family, name) in [("ipv4", "accept_redirects"), ("ipv6", "accept_redirects"), ("ipv6", "accept_ra")] {
            if family == "ipv4" || network.pods.iter().any(|net| net.address.is_ipv6()) {
                self.setting(&format!("{family}/conf"), name, "0")?;
            }
        }
        self.set_loopback(state.loopback);
        Ok(())
    }

    /// Pods that run since before there were cables keep their addresses and their gateway, down to its hardware address.
    fn leave_bridge(&self, network: &Network, netns: &Path) -> io::Result<()> {
        let mac = link::mac(&network.anchor)?;
        link::clear_master(&self.link)?;
        link::set_mac(&self.link, mac)?;
        for net in &network.pods {
            let whole = if net.address.is_ipv4() { 32 } else { 128 };
            link::add_address(&self.link, gateway(net), whole)?;
        }
        for address in self.addresses.iter().filter(|address| !is_link_local(**address)) {
            link::add_route(&self.link, (*address).into())?;
        }
        let networks: Vec<_> = network.pods.iter().filter(|net| net.address.is_ipv6()).copied().collect();
        netns::enter(netns, move || {
            // There is no neighbour on the link that could answer, and IPv6 has no proxy for all of them.
            for net in networks {
                if link::addresses(IFNAME)?.iter().any(|(address, _)| net.contains(*address)) {
                    link::add_route(IFNAME, gateway(&net).into())?;
                    link::remove_route(IFNAME, net)?;
                }
            }
            Ok(())
        })
    }

    pub fn set_loopback(&self, open: bool) {
        if let Err(error) = self.setting("ipv4/conf", "route_localnet", if open { "1" } else { "0" }) {
            tracing::warn!(%error, link = self.link, "cannot say whether node ports answer on localhost");
        }
    }

    fn setting(&self, place: &str, name: &str, value: &str) -> io::Result<()> {
        fs::write(format!("/proc/sys/net/{place}/{}/{name}", self.link), value)
    }
}

/// This machine is the router of its pods.
pub(super) fn forward(ipv6: bool) -> io::Result<()> {
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    if ipv6 { fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1") } else { Ok(()) }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn link_local([a, b, c, d, e, f]: [u8; 6]) -> IpAddr {
    let pair = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0xfe80, 0, 0, 0, pair(a ^ 2, b), pair(c, 0xff), pair(0xfe, d), pair(e, f)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_local_address_follows_from_the_hardware() {
        assert_eq!(link_local([0xb2, 0x62, 0x03, 0x74, 0x63, 0xc2]).to_string(), "fe80::b062:3ff:fe74:63c2");
    }
}
