//! The address that a guest is told.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// A DHCP server for one guest, run by the launcher on the tap. Name servers are those of the launcher's own container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DhcpServer {
    /// The tap that the guest is plugged into.
    pub device: String,
    pub address: Ipv4Addr,
    pub prefix: u8,
    pub gateway: Ipv4Addr,
    pub hostname: String,
    pub mtu: u16,
}
