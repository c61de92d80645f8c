//! Interfaces and the networks they are plugged into.

use serde::{Deserialize, Serialize};

use crate::go::{null, zero};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimRequest {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub claim_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub request_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<InterfaceBridge>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slirp: Option<DeprecatedInterfaceSlirp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<InterfaceMasquerade>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sriov: Option<InterfaceSRIOV>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macvtap: Option<DeprecatedInterfaceMacvtap>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passt: Option<DeprecatedInterfacePasst>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passt_binding: Option<InterfacePasstBinding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<PluginBinding>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub ports: Vec<Port>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub port_ranges: Vec<PortRange>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub mac_address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_order: Option<u64>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub pci_address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dhcp_options: Option<DHCPOptions>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub tag: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub acpi_index: i64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub state: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DHCPOptions {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub boot_file_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub tftp_server_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub ntp_servers: Vec<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub private_options: Vec<DHCPPrivateOptions>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DHCPPrivateOptions {
    #[serde(deserialize_with = "null")]
    pub option: i64,
    #[serde(deserialize_with = "null")]
    pub value: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterfaceBridge {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeprecatedInterfaceSlirp {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterfaceMasquerade {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterfaceSRIOV {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeprecatedInterfaceMacvtap {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeprecatedInterfacePasst {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterfacePasstBinding {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PluginBinding {
    #[serde(deserialize_with = "null")]
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Port {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub protocol: String,
    #[serde(deserialize_with = "null")]
    pub port: i32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PortRange {
    #[serde(deserialize_with = "null")]
    pub protocol: String,
    #[serde(deserialize_with = "null")]
    pub start: i32,
    #[serde(deserialize_with = "null")]
    pub end: i32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Network {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodNetwork>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multus: Option<MultusNetwork>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim: Option<ClaimRequest>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodNetwork {
    #[serde(rename = "vmNetworkCIDR", deserialize_with = "null", skip_serializing_if = "zero")]
    pub vm_network_cidr: String,
    #[serde(rename = "vmIPv6NetworkCIDR", deserialize_with = "null", skip_serializing_if = "zero")]
    pub vm_i_pv6_network_cidr: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MultusNetwork {
    #[serde(deserialize_with = "null")]
    pub network_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub default: bool,
}
