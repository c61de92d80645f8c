//! The pod network of an instance: which interface gets which tap, and how it is bound.

use std::{io, net::Ipv4Addr, path::PathBuf};

use ferrovirt_api::v1::{Interface, VirtualMachineInstance};
use ferrovirt_machine::{convert::InterfaceInfo, hypervisor::Guest, spec::DhcpServer};
use ferrovirt_net::{
    masquerade::{Binding, Bound, Plug, bind},
    nft::Port,
};
use ferrovirt_plan::identity::stable_mac;

const RUNTIME_USER: u32 = 107;
/// The pod's own interface, as CNI names it.
pub(crate) const POD_INTERFACE: &str = "eth0";
pub(crate) const DEFAULT_CIDR: &str = "10.0.2.0/24";

/// An interface that is ready for the guest.
#[derive(Debug, Clone)]
pub(crate) struct Attached {
    pub name: String,
    pub info: InterfaceInfo,
    pub bound: Bound,
    pub gateway: Ipv4Addr,
    pub guest: Ipv4Addr,
    pub prefix: u8,
}

impl Attached {
    /// The server that tells the guest the address it has behind its pod's.
    pub(crate) fn dhcp(&self, vmi: &VirtualMachineInstance) -> DhcpServer {
        let hostname = match vmi.spec.hostname.as_str() {
            "" => vmi.metadata.name.clone().unwrap_or_default(),
            name => name.to_owned(),
        };
        DhcpServer {
            device: self.info.tap.clone().unwrap_or_default(),
            address: self.guest,
            prefix: self.prefix,
            gateway: self.gateway,
            hostname,
            mtu: u16::try_from(self.bound.mtu).unwrap_or(1500),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error("spec.networks[{index}].pod.vmNetworkCIDR: {cidr:?} is not an IPv4 network with room for a guest")]
    Cidr { index: usize, cidr: String },
    #[error("cannot give the launcher its tap device")]
    Device(#[source] io::Error),
    #[error("cannot bind the interface {name} to the pod network")]
    Bind { name: String, source: io::Error },
}

/// Binds every interface on the pod network. Doing it again repairs it.
pub(crate) async fn attach(vmi: &VirtualMachineInstance, launcher_pid: i32) -> Result<Vec<Attached>, NetworkError> {
    let mut attached = vec![];
    let plug = match crate::hypervisors::guest(vmi) {
        Guest::Machine => Plug::Tap,
        Guest::Container => Plug::Bridge,
    };
    for (index, network) in vmi.spec.networks.iter().enumerate() {
        let Some(pod) = &network.pod else { continue };
        let interface = vmi.spec.domain.devices.interfaces.iter().find(|i| i.name == network.name);
        let Some(interface) = interface else { continue };
        let cidr = if pod.vm_network_cidr.is_empty() { DEFAULT_CIDR } else { &pod.vm_network_cidr };
        let (gateway, guest, prefix) =
            addresses(cidr).ok_or_else(|| NetworkError::Cidr { index, cidr: cidr.into() })?;
        let binding = Binding {
            tap: format!("tap{index}"),
            plug,
            outside: POD_INTERFACE.into(),
            gateway,
            guest,
            prefix,
            ports: ports(interface),
            uid: RUNTIME_USER,
            gid: RUNTIME_USER,
            queues: 1,
        };
        if plug == Plug::Tap {
            crate::tun::provide(launcher_pid).map_err(NetworkError::Device)?;
        }
        let namespace = PathBuf::from(format!("/proc/{launcher_pid}/ns/net"));
        let tap = binding.tap.clone();
        let bound = tokio::task::spawn_blocking(move || bind(&namespace, &binding))
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|source| NetworkError::Bind { name: interface.name.clone(), source })?;
        attached.push(Attached {
            name: interface.name.clone(),
            info: InterfaceInfo { tap: Some(tap), mac: Some(mac(vmi, interface)), mtu: Some(bound.mtu) },
            bound,
            gateway,
            guest,
            prefix,
        });
    }
    Ok(attached)
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
    let (network, prefix): (Ipv4Addr, u8) = (network.parse().ok()?, prefix.parse().ok()?);
    if !(8..=30).contains(&prefix) {
        return None;
    }
    let base = u32::from(network) & (u32::MAX << (32 - prefix));
    Some((Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2), prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_and_guest_are_the_first_two_hosts() {
        let ip = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        assert_eq!(addresses("10.0.2.0/24"), Some((ip("10.0.2.1"), ip("10.0.2.2"), 24)));
        assert_eq!(addresses("192.168.7.9/30"), Some((ip("192.168.7.9"), ip("192.168.7.10"), 30)));
        for bad in ["", "10.0.2.0", "10.0.2.0/31", "10.0.2.0/99", "fd00::/64", "x/24"] {
            assert_eq!(addresses(bad), None, "{bad}");
        }
    }
}
