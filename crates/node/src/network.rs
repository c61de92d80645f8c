//! The networks of an instance: which interface gets which tap, and how it is bound.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ferrovirt_api::v1::{Interface, Network, VirtualMachineInstance};
use ferrovirt_machine::{
    convert::InterfaceInfo,
    hypervisor::Guest,
    spec::{Dhcp6Server, DhcpServer},
};
use ferrovirt_net::{
    bridge,
    masquerade::{self, Ipv6Side, Plug, Port},
};
use ferrovirt_plan::{
    identity::stable_mac,
    network::{POD_INTERFACE, pod_interface, short_hash},
    pod::virtual_cpus,
};

use crate::{
    process::{Network as Namespace, Process},
    routers::Advertiser,
};

pub(crate) const DEFAULT_CIDR: &str = "10.0.2.0/24";
/// Upstream's, so that guests with fixed addresses find what they find there.
const DEFAULT_IPV6_CIDR: &str = "fd10:0:2::/120";
/// A tap device has no more queues than this.
const MAX_QUEUES: u32 = 256;
/// Where the DHCP server of a bridged interface is; the interface's place among the others comes on top.
const BRIDGE_SERVER: u32 = u32::from_be_bytes([169, 254, 75, 10]);

/// An interface that is ready for the guest.
#[derive(Debug, Clone)]
pub(crate) struct Attached {
    pub name: String,
    pub info: InterfaceInfo,
    /// The interface of the pod that leads outside.
    pub pod_interface: String,
    /// The addresses by which others reach the guest.
    pub addresses: Vec<IpAddr>,
    pub queues: u32,
    /// The server that tells the guest its address, if it has one to tell.
    pub dhcp: Option<DhcpServer>,
    /// The router of its IPv6 network, if it has one; it ends with this.
    pub _router: Option<Arc<Advertiser>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error("spec.networks[{index}].pod.vmNetworkCIDR: {cidr:?} is not an IPv4 network with room for a guest")]
    Cidr { index: usize, cidr: String },
    #[error("spec.networks[{index}].pod.vmIPv6NetworkCIDR: {cidr:?} is not an IPv6 network with room for a guest")]
    Ipv6Cidr { index: usize, cidr: String },
    #[error("cannot give the launcher its tap device")]
    Device(#[source] io::Error),
    #[error("cannot bind the interface {name} to the pod's interface {outside}")]
    Bind { name: String, outside: String, source: io::Error },
}

/// Binds every interface. Doing it again repairs it.
pub(crate) async fn attach(vmi: &VirtualMachineInstance, launcher: &Process) -> Result<Vec<Attached>, NetworkError> {
    let mut attached = vec![];
    let namespace = launcher.network();
    let status = launcher.read("status").map_err(NetworkError::Device)?;
    let user = user(&status).ok_or_else(|| NetworkError::Device(io::Error::other("the launcher has no user")))?;
    for (index, network) in vmi.spec.networks.iter().enumerate() {
        let interface = vmi.spec.domain.devices.interfaces.iter().find(|i| i.name == network.name);
        // SR-IOV functions are host devices, and a binding plugin brings its own devices.
        let Some(interface) = interface.filter(|i| i.sriov.is_none() && i.binding.is_none()) else { continue };
        if plug(vmi) == Plug::Tap {
            crate::tun::provide(launcher).map_err(NetworkError::Device)?;
        }
        attached.push(match interface.bridge {
            Some(_) => bridged(vmi, index, network, interface, namespace, user).await?,
            None => masqueraded(vmi, index, network, interface, namespace, user).await?,
        });
    }
    Ok(attached)
}

async fn masqueraded(
    vmi: &VirtualMachineInstance,
    index: usize,
    network: &Network,
    interface: &Interface,
    namespace: &Namespace,
    user: (u32, u32),
) -> Result<Attached, NetworkError> {
    let cidr = network.pod.as_ref().map(|pod| pod.vm_network_cidr.as_str()).filter(|cidr| !cidr.is_empty());
    let cidr = cidr.unwrap_or(DEFAULT_CIDR);
    let (gateway, guest, prefix) = addresses(cidr).ok_or_else(|| NetworkError::Cidr { index, cidr: cidr.into() })?;
    let cidr = network.pod.as_ref().map(|pod| pod.vm_i_pv6_network_cidr.as_str()).filter(|cidr| !cidr.is_empty());
    let cidr = cidr.unwrap_or(DEFAULT_IPV6_CIDR);
    let ipv6 = ipv6_side(cidr).ok_or_else(|| NetworkError::Ipv6Cidr { index, cidr: cidr.into() })?;
    let binding = masquerade::Binding {
        tap: format!("tap{index}"),
        plug: plug(vmi),
        outside: POD_INTERFACE.into(),
        gateway,
        guest,
        prefix,
        ipv6: Some(ipv6),
        ports: ports(interface),
        uid: user.0,
        gid: user.1,
        queues: queues(vmi, interface),
    };
    let (tap, queues) = (binding.tap.clone(), binding.queues);
    let bound = namespace.blocking(move |namespace| masquerade::bind(namespace, &binding)).await;
    let bound = bound.map_err(|source| NetworkError::Bind {
        name: interface.name.clone(),
        outside: POD_INTERFACE.into(),
        source,
    })?;
    let router = match bound.ipv6 {
        Some(ipv6) => advertiser(namespace, &tap, ipv6, bound.mtu).await,
        None => None,
    };
    Ok(Attached {
        name: interface.name.clone(),
        _router: router,
        dhcp: Some(DhcpServer {
            device: tap.clone(),
            address: guest,
            prefix,
            gateway: Some(gateway),
            server: gateway,
            client: None,
            hostname: hostname(vmi),
            mtu: u16::try_from(bound.mtu).unwrap_or(1500),
            ipv6: bound.ipv6.map(|ipv6| Dhcp6Server { address: ipv6.guest, server: bound.mac }),
        }),
        info: InterfaceInfo { tap: Some(tap), mac: Some(mac(vmi, interface)), mtu: Some(bound.mtu) },
        pod_interface: POD_INTERFACE.into(),
        addresses: bound.addresses,
        queues,
    })
}

/// A guest without a router still runs, so trouble is reported and nothing else.
async fn advertiser(namespace: &Namespace, tap: &str, ipv6: Ipv6Side, mtu: u32) -> Option<Arc<Advertiser>> {
    match Advertiser::start(namespace, tap, ipv6.gateway, ipv6.prefix, mtu).await {
        Ok(advertiser) => Some(Arc::new(advertiser)),
        Err(error) => {
            tracing::warn!(tap, %error, "cannot advertise the guest's IPv6 router");
            None
        }
    }
}

/// The guest takes the place of the pod: its address, and its hardware address unless it asks for another.
async fn bridged(
    vmi: &VirtualMachineInstance,
    index: usize,
    network: &Network,
    interface: &Interface,
    namespace: &Namespace,
    user: (u32, u32),
) -> Result<Attached, NetworkError> {
    let outside = pod_interface(network);
    let (tap, bridge) = match outside.as_str() {
        POD_INTERFACE => (format!("tap{index}"), format!("k6t-{POD_INTERFACE}")),
        _ => (format!("tap{}", short_hash(&network.name)), format!("k6t-{}", short_hash(&network.name))),
    };
    let server = Ipv4Addr::from(BRIDGE_SERVER + u32::try_from(index).unwrap_or(0));
    let queues = queues(vmi, interface);
    let is_machine = plug(vmi) == Plug::Tap;
    let binding = bridge::Binding {
        tap: is_machine.then(|| tap.clone()),
        bridge: bridge.clone(),
        outside: outside.clone(),
        server,
        uid: user.0,
        gid: user.1,
        queues,
    };
    let had = namespace.blocking(move |namespace| bridge::bind(namespace, &binding)).await;
    let had =
        had.map_err(|source| NetworkError::Bind { name: interface.name.clone(), outside: outside.clone(), source })?;
    let mac = match interface.mac_address.as_str() {
        "" => bridge::show_mac(had.mac),
        given => given.replace('-', ":").to_lowercase(),
    };
    let first = had.addresses.iter().find_map(|(address, prefix)| match address {
        IpAddr::V4(v4) => Some((*v4, *prefix)),
        IpAddr::V6(_) => None,
    });
    Ok(Attached {
        name: interface.name.clone(),
        dhcp: first.map(|(address, prefix)| DhcpServer {
            device: bridge.clone(),
            address,
            prefix,
            gateway: had.gateway,
            server,
            client: bridge::parse_mac(&mac),
            hostname: hostname(vmi),
            mtu: u16::try_from(had.mtu).unwrap_or(1500),
            ipv6: None,
        }),
        _router: None,
        info: InterfaceInfo { tap: Some(if is_machine { tap } else { bridge }), mac: Some(mac), mtu: Some(had.mtu) },
        pod_interface: outside,
        // The guest is told of no other.
        addresses: had.addresses.iter().map(|(address, _)| *address).filter(IpAddr::is_ipv4).collect(),
        queues,
    })
}

/// The user and group that a process is to the node, which are others than inside of its user namespace if it has one. Whoever
/// opens a tap must be its owner.
pub(crate) fn user(status: &str) -> Option<(u32, u32)> {
    let id = |key| status.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok());
    Some((id("Uid:")?, id("Gid:")?))
}

/// The address of a guest behind a masquerade: our DHCP server gives it no other.
pub(crate) fn guest_address(network: &Network, ipv6: bool) -> Option<IpAddr> {
    let pod = network.pod.as_ref();
    let or = |cidr: Option<&String>, default: &str| {
        cidr.filter(|cidr| !cidr.is_empty()).map_or(default.to_owned(), Clone::clone)
    };
    match ipv6 {
        true => {
            ipv6_side(&or(pod.map(|pod| &pod.vm_i_pv6_network_cidr), DEFAULT_IPV6_CIDR)).map(|side| side.guest.into())
        }
        false => addresses(&or(pod.map(|pod| &pod.vm_network_cidr), DEFAULT_CIDR)).map(|(_, guest, _)| guest.into()),
    }
}

/// What the hypervisor's guests are plugged into.
fn plug(vmi: &VirtualMachineInstance) -> Plug {
    match crate::hypervisors::guest(vmi) {
        Guest::Machine => Plug::Tap,
        Guest::Container => Plug::Bridge,
    }
}

fn hostname(vmi: &VirtualMachineInstance) -> String {
    match vmi.spec.hostname.as_str() {
        "" => vmi.metadata.name.clone().unwrap_or_default(),
        name => name.to_owned(),
    }
}

/// One queue for each CPU, where the guest asks for that and its driver can.
fn queues(vmi: &VirtualMachineInstance, interface: &Interface) -> u32 {
    let wanted = vmi.spec.domain.devices.network_interface_multiqueue == Some(true);
    let able = interface.model.is_empty() || interface.model == "virtio";
    if wanted && able { virtual_cpus(vmi).min(MAX_QUEUES) } else { 1 }
}

/// The guest's hardware address: the one it asks for, or one that follows from its identity.
fn mac(vmi: &VirtualMachineInstance, interface: &Interface) -> String {
    if !interface.mac_address.is_empty() {
        return interface.mac_address.replace('-', ":").to_lowercase();
    }
    stable_mac(vmi.metadata.uid.as_deref().unwrap_or_default(), &interface.name)
}

fn ports(interface: &Interface) -> Vec<Port> {
    let ports = interface.ports.iter().filter_map(|p| {
        let protocol = if p.protocol.eq_ignore_ascii_case("udp") { 17 } else { 6 };
        Some(Port { protocol, port: u16::try_from(p.port).ok()? })
    });
    ports.collect()
}

/// Gateway and guest are the first two hosts of the network.
fn addresses(cidr: &str) -> Option<(Ipv4Addr, Ipv4Addr, u8)> {
    let (network, prefix) = cidr.split_once('/')?;
    let (network, prefix): (Ipv4Addr, u8) = (decimal(network)?, prefix.parse().ok()?);
    if !(8..=30).contains(&prefix) {
        return None;
    }
    let base = u32::from(network) & (u32::MAX << (32 - prefix));
    Some((Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2), prefix))
}

/// An address whose parts may have leading zeros, as upstream takes them: they mean nothing, least of all octal.
fn decimal(text: &str) -> Option<Ipv4Addr> {
    let digits =
        |part: &str| (!part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())).then(|| part.parse::<u8>());
    let parts = text.split('.').map(|part| digits(part)?.ok()).collect::<Option<Vec<u8>>>()?;
    <[u8; 4]>::try_from(parts).ok().map(Ipv4Addr::from)
}

/// The same for IPv6.
fn ipv6_side(cidr: &str) -> Option<Ipv6Side> {
    let (network, prefix) = cidr.split_once('/')?;
    let (network, prefix): (Ipv6Addr, u8) = (network.parse().ok()?, prefix.parse().ok()?);
    if !(8..=126).contains(&prefix) {
        return None;
    }
    let base = u128::from(network) & (u128::MAX << (128 - prefix));
    Some(Ipv6Side { gateway: Ipv6Addr::from(base + 1), guest: Ipv6Addr::from(base + 2), prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launchers_user_is_what_the_node_calls_it() {
        let status = "Name:\tx\nUid:\t1879048299\t1\t2\t3\nGid:\t107\t107\t107\t107\n";
        assert_eq!(user(status), Some((1_879_048_299, 107)));
        assert_eq!(user("Name:\tx\n"), None);
    }

    #[test]
    fn the_same_holds_for_ipv6() {
        let side = ipv6_side(DEFAULT_IPV6_CIDR).unwrap();
        assert_eq!(side.gateway, "fd10:0:2::1".parse::<Ipv6Addr>().unwrap());
        assert_eq!((side.guest, side.prefix), ("fd10:0:2::2".parse().unwrap(), 120));
        for bad in ["", "fd10::", "fd10::/127", "10.0.2.0/24", "x/64"] {
            assert_eq!(ipv6_side(bad), None, "{bad}");
        }
    }

    #[test]
    fn gateway_and_guest_are_the_first_two_hosts() {
        let ip = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        assert_eq!(addresses("10.0.2.0/24"), Some((ip("10.0.2.1"), ip("10.0.2.2"), 24)));
        assert_eq!(addresses("192.168.7.9/30"), Some((ip("192.168.7.9"), ip("192.168.7.10"), 30)));
        assert_eq!(addresses("10.10.010.0/24"), Some((ip("10.10.10.1"), ip("10.10.10.2"), 24)));
        let bad = [
            "",
            "10.0.2.0",
            "10.0.2.0/31",
            "10.0.2.0/99",
            "fd00::/64",
            "x/24",
            "10.0.0/24",
            "10.+1.0.0/24",
            "10.256.0.0/24",
        ];
        for bad in bad {
            assert_eq!(addresses(bad), None, "{bad}");
        }
    }
}
