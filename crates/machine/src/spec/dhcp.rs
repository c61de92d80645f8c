//! The address that a guest is told.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// A DHCP server for one guest, run by the launcher on the tap. Name servers are those of the launcher's own container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DhcpServer {
    /// The tap that the guest is plugged into, or the bridge that has the tap.
    pub device: String,
    pub address: Ipv4Addr,
    pub prefix: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Ipv4Addr>,
    /// Who the answers come from.
    pub server: Ipv4Addr,
    /// The guest's hardware address, where others share its network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<[u8; 6]>,
    pub hostname: String,
    pub mtu: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Dhcp6Server>,
}

/// The same for the guest's IPv6 address. Its router is advertised by the node agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dhcp6Server {
    pub address: Ipv6Addr,
    /// Who the answers come from: the gateway's hardware address.
    pub server: [u8; 6],
}
