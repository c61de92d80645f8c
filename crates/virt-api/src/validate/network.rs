//! Networks and interfaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use ferrovirt_api::v1::{Interface, Network, PortRange, VirtualMachineInstanceSpec};
use ferrovirt_schema::names;

use super::{Cluster, Findings, NOT_FOUND};

const MODELS: [&str; 7] = ["virtio", "e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139"];
/// The bridge in a pod has this address.
const RESERVED_MAC: &str = "02:00:00:00:00:00";
const MAX_PORT_RANGES: usize = 10;

pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    sources(spec, path, found);
    let interfaces = &spec.domain.devices.interfaces;
    let network = |name: &str| spec.networks.iter().rev().find(|network| network.name == name);
    let at = |index: usize| format!("{path}.domain.devices.interfaces[{index}]");
    for (index, interface) in interfaces.iter().enumerate() {
        state(interface, &spec.networks, &at(index), found);
    }
    for (index, interface) in interfaces.iter().enumerate() {
        binding(interface, network(&interface.name), &at(index), cluster, found);
    }
    claimed(spec, path, cluster, found);
    let mut seen = BTreeSet::new();
    for (index, one) in spec.networks.iter().enumerate() {
        let name = format!("{path}.networks[{index}].name");
        if !seen.insert(one.name.as_str()) {
            let message =
                format!("Network with name {:?} already exists, every network must have a unique name", one.name);
            found.duplicate(name.clone(), message);
        }
        if !interfaces.iter().any(|interface| interface.name == one.name) {
            found.required(name.clone(), format!("{name} '{}' not found.", one.name));
        }
    }
    let mut seen = BTreeSet::new();
    for (index, interface) in interfaces.iter().enumerate() {
        let (field, name) = (at(index), format!("{}.name", at(index)));
        if !seen.insert(interface.name.as_str()) {
            found.duplicate(name.clone(), "Only one interface can be connected to one specific network");
        }
        if network(&interface.name).is_none() {
            found.invalid(name.clone(), format!("{name} '{}' not found.", interface.name));
        }
        let on_pod_network = network(&interface.name).is_some_and(|network| network.pod.is_some());
        details(interface, path, &field, found);
        ports(interface, on_pod_network, &field, cluster, found);
    }
}

/// Bindings that are gone. Nobody gets a new one; those that are stored are left alone.
pub(super) fn discontinued(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    for (index, interface) in spec.domain.devices.interfaces.iter().enumerate() {
        let gone = [
            (interface.slirp.is_some(), "slirp", "Slirp interface support has been discontinued since v1.3"),
            (interface.passt.is_some(), "passt", "Passt network binding has been discontinued since v1.3"),
            (interface.macvtap.is_some(), "macvtap", "Macvtap network binding has been discontinued since v1.3"),
        ];
        for (_, key, message) in gone.iter().filter(|(set, ..)| *set) {
            found.invalid(format!("{path}.domain.devices.interfaces[{index}].{key}"), *message);
        }
    }
}

/// Networks that come by resource claims.
fn claimed(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    if !spec.networks.iter().any(|network| network.resource_claim.is_some()) {
        return;
    }
    let field = format!("{path}.networks");
    if !cluster.gate("NetworkDevicesWithDRA") {
        let message = "vmi.spec.networks contains DRA networks but NetworkDevicesWithDRA feature gate is not enabled";
        return found.invalid(field, message);
    }
    if spec.networks.iter().any(|network| network.multus.is_some()) {
        let message = "mixing Multus and DRA resourceClaim networks in the same VMI is not supported";
        return found.invalid(field, message);
    }
    let mut pairs = BTreeSet::new();
    for (index, network) in spec.networks.iter().enumerate() {
        let Some(claim) = &network.resource_claim else { continue };
        let interface = spec.domain.devices.interfaces.iter().find(|interface| interface.name == network.name);
        if interface.is_some_and(|interface| interface.sriov.is_none() && interface.binding.is_none()) {
            let message = format!("DRA network {:?} requires an SR-IOV or binding plugin interface", network.name);
            found.invalid(format!("{path}.domain.devices.interfaces"), message);
        }
        let at = format!("{field}[{index}].resourceClaim");
        for (value, key) in [(&claim.claim_name, "claimName"), (&claim.request_name, "requestName")] {
            if value.is_empty() {
                found.required(format!("{at}.{key}"), format!("{key} is required for DRA network"));
            }
        }
        if claim.claim_name.is_empty() || claim.request_name.is_empty() {
            continue;
        }
        if !spec.resource_claims.iter().any(|declared| declared.name == claim.claim_name) {
            let message = format!(
                "network references resourceClaim {:?} which is not defined in spec.resourceClaims",
                claim.claim_name
            );
            found.add(NOT_FOUND, format!("{at}.claimName"), message);
        }
        let pair = format!("{}/{}", claim.claim_name, claim.request_name);
        if !pairs.insert(pair.clone()) {
            let message = format!("duplicate claimName/requestName combination {pair:?}");
            found.duplicate(format!("{field}[{index}]"), message);
        }
    }
}

fn sources(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let pods = spec.networks.iter().filter(|network| network.pod.is_some()).count();
    let is_default = |network: &&Network| network.multus.as_ref().is_some_and(|multus| multus.default);
    let defaults = spec.networks.iter().filter(is_default).count();
    if pods > 1 {
        let field = format!("{path}.interfaces");
        let message = format!("more than one interface is connected to a pod network in {field}");
        found.duplicate(field, message);
    }
    let field = format!("{path}.networks");
    if defaults > 1 {
        found.invalid(field.clone(), "Multus CNI should only have one default network");
    }
    if defaults > 0 && pods > 0 {
        found.invalid(field.clone(), "Pod network cannot be defined when Multus default network is defined");
    }
    for (index, network) in spec.networks.iter().enumerate() {
        let kinds = [network.pod.is_some(), network.multus.is_some(), network.resource_claim.is_some()];
        match kinds.iter().filter(|set| **set).count() {
            0 => found.required(format!("{field}[{index}]"), "should have a network type"),
            1 => {}
            _ => found.required(format!("{field}[{index}]"), "should have only one network type"),
        }
    }
    let nameless = |network: &Network| network.multus.as_ref().is_some_and(|multus| multus.network_name.is_empty());
    if let Some(index) = spec.networks.iter().position(nameless) {
        found.required(format!("{field}[{index}]"), "CNI delegating plugin must have a networkName");
    }
}

fn state(interface: &Interface, networks: &[Network], field: &str, found: &mut Findings) {
    let (name, state) = (&interface.name, interface.state.as_str());
    let field = format!("{field}.state");
    if !["", "up", "down", "absent"].contains(&state) {
        found.invalid(field.clone(), format!("logical {name} interface state value is unsupported: {state}"));
    }
    if interface.sriov.is_some() && ["up", "down"].contains(&state) {
        let message = format!("{name:?} interface's state {state:?} is not supported for SR-IOV NICs");
        found.invalid(field.clone(), message);
    }
    if state != "absent" {
        return;
    }
    if interface.bridge.is_none() {
        let message = format!("{name:?} interface's state {state:?} is supported only for bridge binding");
        found.invalid(field.clone(), message);
    }
    let is_default =
        |network: &&Network| network.pod.is_some() || network.multus.as_ref().is_some_and(|multus| multus.default);
    if networks.iter().find(is_default).is_some_and(|network| network.name == *name) {
        let message = format!("{name:?} interface's state {state:?} is not supported on default networks");
        found.invalid(field, message);
    }
}

fn binding(interface: &Interface, network: Option<&Network>, field: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let on_pod_network = network.is_some_and(|network| network.pod.is_some());
    let methods = [
        interface.bridge.is_some(),
        interface.masquerade.is_some(),
        interface.sriov.is_some(),
        interface.passt_binding.is_some(),
        interface.binding.is_some(),
    ];
    let count = methods.iter().filter(|set| **set).count();
    if count != 1 {
        let message =
            format!("logical {} interface must have exactly one binding method or binding plugin", interface.name);
        found.invalid(field.to_owned(), message);
    }
    let name = format!("{field}.name");
    if interface.masquerade.is_some() && !on_pod_network {
        found.invalid(name.clone(), "Masquerade interface only implemented with pod network");
    }
    if interface.masquerade.is_some() && interface.mac_address.to_lowercase().replace('-', ":") == RESERVED_MAC {
        found.invalid(
            format!("{field}.macAddress"),
            "The requested MAC address is reserved for the in-pod bridge. Please choose another one.",
        );
    }
    if interface.bridge.is_some() && on_pod_network && !cluster.bridge_on_pod_network() {
        found.invalid(name.clone(), "Bridge on pod network configuration is not enabled under kubevirt-config");
    }
    if interface.passt_binding.is_some() {
        if !cluster.gate("PasstBinding") {
            found.invalid(name.clone(), "PasstBinding feature gate is not enabled");
        }
        if !on_pod_network {
            found.invalid(name, "PasstBinding interface only implemented with pod network");
        }
    }
}

fn details(interface: &Interface, path: &str, field: &str, found: &mut Findings) {
    let name = format!("{field}.name");
    if interface.name.is_empty() || !interface.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        found.invalid(
            name.clone(),
            "Network interface name can only contain alphabetical characters, numbers, dashes (-) or underscores (_)",
        );
    }
    if !interface.model.is_empty() && !MODELS.contains(&interface.model.as_str()) {
        let message = format!("interface {name} uses model {} that is not supported.", interface.model);
        found.unsupported(format!("{field}.model"), message);
    }
    let mac = &interface.mac_address;
    let problem = match hardware_address(mac) {
        _ if mac.is_empty() => None,
        Some(6) => None,
        Some(_) => Some("too long"),
        None => Some("malformed"),
    };
    if let Some(problem) = problem {
        found.invalid(format!("{field}.macAddress"), format!("interface {name} has {problem} MAC address ({mac})."));
    }
    if !interface.pci_address.is_empty() && !is_pci_address(&interface.pci_address) {
        let message = format!("interface {name} has malformed PCI address ({}).", interface.pci_address);
        found.invalid(format!("{field}.pciAddress"), message);
    }
    let Some(options) = &interface.dhcp_options else { return };
    let own: BTreeSet<_> = options.private_options.iter().map(|option| option.option).collect();
    if own.len() < options.private_options.len() {
        found.invalid(path.to_owned(), "Found Duplicates: you have provided duplicate DHCPPrivateOptions");
    }
    for _ in options.private_options.iter().filter(|option| !(224..=254).contains(&option.option)) {
        let message = "provided DHCPPrivateOptions are out of range, must be in range 224 to 254";
        found.invalid(path.to_owned(), message);
    }
    for (index, server) in options.ntp_servers.iter().enumerate() {
        if server.parse::<Ipv4Addr>().is_err() {
            found.invalid(
                format!("{field}.dhcpOptions.ntpServers[{index}]"),
                "NTP servers must be a list of valid IPv4 addresses.",
            );
        }
    }
}

fn ports(interface: &Interface, on_pod_network: bool, field: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let ranges = &interface.port_ranges;
    if on_pod_network {
        let mut seen = BTreeSet::new();
        for (index, port) in interface.ports.iter().enumerate() {
            let field = format!("{field}.ports[{index}]");
            if !port.name.is_empty() && !seen.insert(port.name.as_str()) {
                found.duplicate(format!("{field}.name"), format!("Duplicate name of the port: {}", port.name));
            }
            if !port.name.is_empty() && !names::is_port_name(&port.name) {
                found.invalid(format!("{field}.name"), format!("Invalid name of the port: {}", port.name));
            }
            match port.port {
                0 => found.required(format!("{field}.port"), "Port field is mandatory."),
                1..=65535 => {}
                _ => found.invalid(format!("{field}.port"), "Port field must be in range 0 < x < 65536."),
            }
            if !["", "TCP", "UDP"].contains(&port.protocol.as_str()) {
                found.invalid(format!("{field}.protocol"), "Unknown protocol, only TCP or UDP allowed");
            }
        }
    }
    let name = format!("{field}.name");
    if ranges.is_empty() {
        return;
    }
    if !cluster.gate("PortRangesSpec") {
        let message = "portRanges is specified on interface but the PortRangesSpec feature gate is not enabled";
        return found.invalid(name, message);
    }
    if !on_pod_network {
        return;
    }
    if !interface.ports.is_empty() {
        found.invalid(name.clone(), "Cannot define both ports and portRanges on interface");
    }
    if interface.masquerade.is_none() {
        found.invalid(name, "portRanges are only supported on masquerade interfaces");
    }
    port_ranges(ranges, &format!("{field}.portRanges"), found);
}

fn port_ranges(ranges: &[PortRange], field: &str, found: &mut Findings) {
    if ranges.len() > MAX_PORT_RANGES {
        return found.invalid(field.to_owned(), "No more than 10 portRanges are allowed");
    }
    let mut sound: BTreeMap<&str, Vec<(i32, i32)>> = BTreeMap::new();
    for (index, range) in ranges.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let is_port = |port: i32| (1..=65535).contains(&port);
        if !["TCP", "UDP"].contains(&range.protocol.as_str()) {
            found.invalid(format!("{field}.protocol"), "Unknown protocol, only TCP or UDP allowed");
        } else if !is_port(range.start) {
            found.invalid(format!("{field}.start"), "Start must be a valid port number, 0 < x < 65536");
        } else if !is_port(range.end) {
            found.invalid(format!("{field}.end"), "End must be a valid port number, 0 < x < 65536");
        } else if range.start > range.end {
            found.invalid(format!("{field}.start"), "Start must be less than or equal to end");
        } else {
            sound.entry(&range.protocol).or_default().push((range.start, range.end));
        }
    }
    for (protocol, mut ranges) in sound {
        ranges.sort_unstable();
        for (before, after) in ranges.iter().zip(ranges.iter().skip(1)) {
            if after.0 <= before.1 {
                let message =
                    format!("{protocol} portRanges [{}-{}] and [{}-{}] overlap", before.0, before.1, after.0, after.1);
                found.invalid(field.to_owned(), message);
            }
        }
    }
}

/// How many bytes a hardware address has, if it is one.
fn hardware_address(text: &str) -> Option<usize> {
    let octets = match text.contains('.') {
        // Three groups of four digits, as some switches write it.
        true => {
            let groups: Vec<&str> = text.split('.').collect();
            let hex = |group: &&str| group.len() == 4 && group.chars().all(|c| c.is_ascii_hexdigit());
            groups.iter().all(hex).then_some(groups.len() * 2)?
        }
        false => {
            let separator = if text.contains(':') { ':' } else { '-' };
            let groups: Vec<&str> = text.split(separator).collect();
            let hex = |group: &&str| group.len() == 2 && group.chars().all(|c| c.is_ascii_hexdigit());
            groups.iter().all(hex).then_some(groups.len())?
        }
    };
    [6, 8, 20].contains(&octets).then_some(octets)
}

/// `0000:81:01.0`
pub(super) fn is_pci_address(text: &str) -> bool {
    let hex = |part: &str, length: usize| part.len() == length && part.chars().all(|c| c.is_ascii_hexdigit());
    let Some((device, function)) = text.split_once('.') else { return false };
    let parts: Vec<&str> = device.split(':').collect();
    matches!(parts.as_slice(), [domain, bus, slot] if hex(domain, 4) && hex(bus, 2) && hex(slot, 2))
        && function.len() == 1
        && "01234567".contains(function)
}
