//! A guest behind its pod's address: a private network on a tap, with address translation to the pod's interface.
//!
//! ```text
//!   guest 10.0.2.2 -- tap0 10.0.2.1 | pod's network namespace | eth0 (pod address) -- the rest of the world
//! ```
//!
//! Where the pod has an IPv6 address, the same once more with `fd10:0:2::2` and `fd10:0:2::1`.
//!
//! There is no bridge in between: the tap itself has the gateway's address. A container has no tap; its driver plugs a cable
//! into a bridge that stands in the tap's place.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use crate::{
    link, netns,
    nft::{Family, Hook, Program, Rule},
    tap,
};

const TABLE: &str = "ferrovirt";

/// A port that the guest serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// [`crate::nft::TCP`] or [`crate::nft::UDP`].
    pub protocol: u8,
    pub port: u16,
}

/// What a guest's interface needs.
#[derive(Debug, Clone)]
pub struct Binding {
    /// Name of the device that the guest is plugged into.
    pub tap: String,
    pub plug: Plug,
    /// The pod's own interface.
    pub outside: String,
    pub gateway: Ipv4Addr,
    pub guest: Ipv4Addr,
    pub prefix: u8,
    /// Used where the pod has an IPv6 address.
    pub ipv6: Option<Ipv6Side>,
    /// Ports that reach the guest; none means all.
    pub ports: Vec<Port>,
    pub uid: u32,
    pub gid: u32,
    pub queues: u32,
}

/// The guest's IPv6 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Side {
    pub gateway: Ipv6Addr,
    pub guest: Ipv6Addr,
    pub prefix: u8,
}

/// What the guest is plugged into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plug {
    Tap,
    Bridge,
}

/// What was found while binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    pub mtu: u32,
    /// The pod's addresses on the outside interface.
    pub addresses: Vec<IpAddr>,
    /// The guest's IPv6 network, if it has one.
    pub ipv6: Option<Ipv6Side>,
    /// The hardware address of the gateway.
    pub mac: [u8; 6],
}

/// Sets the binding up inside a network namespace. Doing it again repairs what is missing.
pub fn bind(namespace: &Path, binding: &Binding) -> io::Result<Bound> {
    netns::enter(namespace, || {
        let mtu = link::mtu(&binding.outside)?;
        match binding.plug {
            Plug::Tap => tap::create(&binding.tap, binding.uid, binding.gid, binding.queues)?,
            Plug::Bridge => bridge(&binding.tap, binding.gateway)?,
        }
        link::set_up(&binding.tap, Some(mtu))?;
        link::add_address(&binding.tap, binding.gateway.into(), binding.prefix)?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        // The launcher answers DHCP without any capability.
        fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")?;
        translate(binding, binding.guest.into())?;
        let addresses = link::addresses(&binding.outside)?.into_iter().map(|(address, _)| address);
        let addresses = addresses.filter(|a| !matches!(a, IpAddr::V6(v6) if v6.is_unicast_link_local()));
        let addresses: Vec<IpAddr> = addresses.collect();
        let ipv6 = binding.ipv6.filter(|_| addresses.iter().any(IpAddr::is_ipv6));
        if let Some(ipv6) = ipv6 {
            // The guest is the only one on the link; waiting for another one to object would delay its router.
            fs::write(format!("/proc/sys/net/ipv6/conf/{}/accept_dad", binding.tap), "0")?;
            link::add_address(&binding.tap, ipv6.gateway.into(), ipv6.prefix)?;
            fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
            translate(binding, ipv6.guest.into())?;
        }
        Ok(Bound { mtu, addresses, ipv6, mac: link::mac(&binding.tap)? })
    })
}

/// A bridge with a hardware address of its own; otherwise it would take that of whatever is plugged in, and change it.
fn bridge(name: &str, gateway: Ipv4Addr) -> io::Result<()> {
    let [a, b, c, d] = gateway.octets();
    link::add_bridge(name)?;
    link::set_mac(name, [0x02, 0x00, a, b, c, d])
}

/// What comes to the pod goes to the guest; what the guest sends comes from the pod.
fn translate(binding: &Binding, guest: IpAddr) -> io::Result<()> {
    let mut table = Program::new(Family::of(guest), TABLE);
    table.hook("prerouting", Hook::NatPrerouting);
    table.hook("postrouting", Hook::NatPostrouting);
    let incoming = || Rule::new().from_interface(&binding.outside);
    if binding.ports.is_empty() {
        table.rule("prerouting", incoming().dnat(guest));
    }
    for port in &binding.ports {
        let rule = incoming().protocol(port.protocol).destination_port(port.port);
        table.rule("prerouting", rule.dnat(guest));
    }
    table.rule("postrouting", Rule::new().source(guest).to_interface(&binding.outside).masquerade());
    table.replace()
}
