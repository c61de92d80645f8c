//! Networks and interfaces.

use std::collections::BTreeSet;

use ferrovirt_api::v1::{Interface, VirtualMachineInstanceSpec};

use super::Findings;

const MODELS: [&str; 6] = ["virtio", "e1000", "e1000e", "igb", "pcnet", "ne2k_pci"];
/// The bridge in a pod has this address.
const RESERVED_MAC: &str = "02:00:00:00:00:00";

pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, orders: &mut BTreeSet<u64>, found: &mut Findings) {
    let interfaces = &spec.domain.devices.interfaces;
    let mut seen = BTreeSet::new();
    for (index, interface) in interfaces.iter().enumerate() {
        let field = format!("{path}.domain.devices.interfaces[{index}]");
        let name = format!("{field}.name");
        if !seen.insert(interface.name.as_str()) {
            found.duplicate(name.clone(), "Only one interface can be connected to one specific network");
        }
        if !interface.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) || interface.name.is_empty() {
            found.invalid(
                name.clone(),
                "Network interface name can only contain alphabetical characters, numbers, dashes (-) or underscores (_)",
            );
        }
        let network = spec.networks.iter().find(|network| network.name == interface.name);
        if network.is_none() {
            found.invalid(name.clone(), format!("{name} '{}' not found.", interface.name));
        }
        binding(interface, network.is_some_and(|network| network.pod.is_some()), &field, found);
        if !interface.model.is_empty() && !MODELS.contains(&interface.model.as_str()) && interface.model != "rtl8139" {
            let message = format!("interface {name} uses model {} that is not supported.", interface.model);
            found.unsupported(format!("{field}.model"), message);
        }
        let mac = &interface.mac_address;
        if !mac.is_empty() && !is_mac(mac) {
            let message = format!("interface {name} has malformed MAC address ({mac}).");
            found.invalid(format!("{field}.macAddress"), message);
        }
        if !interface.pci_address.is_empty() && !is_pci_address(&interface.pci_address) {
            let message = format!("interface {name} has malformed PCI address ({}).", interface.pci_address);
            found.invalid(format!("{field}.pciAddress"), message);
        }
        if !["", "up", "down", "absent"].contains(&interface.state.as_str()) {
            let message =
                format!("logical {} interface state value is unsupported: {}", interface.name, interface.state);
            found.invalid(format!("{field}.state"), message);
        }
        ports(interface, &field, found);
        match interface.boot_order {
            Some(0) => {
                let message = format!("{field} must have a boot order > 0, if supplied");
                found.invalid(format!("{field}.bootOrder"), message);
            }
            Some(order) if !orders.insert(order) => {
                let message = format!("Boot order for {field}.bootOrder already set for a different device.");
                found.invalid(format!("{field}.bootOrder"), message);
            }
            _ => {}
        }
    }
    networks(spec, path, found);
}

fn binding(interface: &Interface, on_pod_network: bool, field: &str, found: &mut Findings) {
    let methods = [
        interface.bridge.is_some(),
        interface.masquerade.is_some(),
        interface.sriov.is_some(),
        interface.passt_binding.is_some(),
        interface.binding.is_some(),
        interface.slirp.is_some(),
        interface.macvtap.is_some(),
        interface.passt.is_some(),
    ];
    let count = methods.iter().filter(|set| **set).count();
    // No word about it means masquerade or bridge, by the network.
    if count > 1 {
        let message =
            format!("logical {} interface must have exactly one binding method or binding plugin", interface.name);
        found.invalid(field.to_owned(), message);
    }
    let gone = [
        (interface.slirp.is_some(), "slirp", "Slirp interface support has been discontinued since v1.3"),
        (interface.passt.is_some(), "passt", "Passt network binding has been discontinued since v1.3"),
        (interface.macvtap.is_some(), "macvtap", "Macvtap network binding has been discontinued since v1.3"),
    ];
    for (set, key, message) in gone {
        if set {
            found.unsupported(format!("{field}.{key}"), message);
        }
    }
    if interface.masquerade.is_some() {
        if !on_pod_network {
            found.invalid(format!("{field}.name"), "Masquerade interface only implemented with pod network");
        }
        if interface.mac_address.to_lowercase() == RESERVED_MAC {
            found.invalid(
                format!("{field}.macAddress"),
                "The requested MAC address is reserved for the in-pod bridge. Please choose another one.",
            );
        }
    }
}

fn ports(interface: &Interface, field: &str, found: &mut Findings) {
    let mut names = BTreeSet::new();
    for (index, port) in interface.ports.iter().enumerate() {
        let field = format!("{field}.ports[{index}]");
        match port.port {
            0 => found.required(format!("{field}.port"), "Port field is mandatory."),
            1..=65535 => {}
            _ => found.invalid(format!("{field}.port"), "Port field must be in range 0 < x < 65536."),
        }
        if !["", "TCP", "UDP"].contains(&port.protocol.as_str()) {
            found.invalid(format!("{field}.protocol"), "Unknown protocol, only TCP or UDP allowed");
        }
        if port.name.is_empty() {
            continue;
        }
        if !names.insert(port.name.as_str()) {
            found.duplicate(format!("{field}.name"), format!("Duplicate name of the port: {}", port.name));
        }
        let valid = port.name.len() <= 15
            && port.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            && port.name.chars().any(|c| c.is_ascii_lowercase())
            && !port.name.starts_with('-')
            && !port.name.ends_with('-')
            && !port.name.contains("--");
        if !valid {
            found.invalid(format!("{field}.name"), format!("Invalid name of the port: {}", port.name));
        }
    }
}

fn networks(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let mut seen = BTreeSet::new();
    for (index, network) in spec.networks.iter().enumerate() {
        let field = format!("{path}.networks[{index}]");
        let name = format!("{field}.name");
        if !seen.insert(network.name.as_str()) {
            let message =
                format!("Network with name {:?} already exists, every network must have a unique name", network.name);
            found.duplicate(name.clone(), message);
        }
        if !spec.domain.devices.interfaces.iter().any(|interface| interface.name == network.name) {
            found.required(name.clone(), format!("{name} '{}' not found.", network.name));
        }
        let kinds = [network.pod.is_some(), network.multus.is_some(), network.resource_claim.is_some()];
        match kinds.iter().filter(|set| **set).count() {
            0 => found.required(field.clone(), "should have a network type"),
            1 => {}
            _ => found.required(field.clone(), "should have only one network type"),
        }
        if network.multus.as_ref().is_some_and(|multus| multus.network_name.is_empty()) {
            found.required(field, "CNI delegating plugin must have a networkName");
        }
    }
    let field = format!("{path}.networks");
    if spec.networks.iter().filter(|network| network.pod.is_some()).count() > 1 {
        found.duplicate(field.clone(), format!("more than one interface is connected to a pod network in {field}"));
    }
    let defaults = spec.networks.iter().filter(|network| network.multus.as_ref().is_some_and(|m| m.default));
    let defaults = defaults.count();
    if defaults > 1 {
        found.invalid(field.clone(), "Multus CNI should only have one default network");
    }
    if defaults > 0 && spec.networks.iter().any(|network| network.pod.is_some()) {
        found.invalid(field, "Pod network cannot be defined when Multus default network is defined");
    }
}

fn is_mac(text: &str) -> bool {
    let octets: Vec<&str> = text.split([':', '-']).collect();
    octets.len() == 6 && octets.iter().all(|o| o.len() == 2 && u8::from_str_radix(o, 16).is_ok())
}

/// `0000:81:01.0`
pub(super) fn is_pci_address(text: &str) -> bool {
    let hex = |part: &str, length: usize| part.len() == length && part.chars().all(|c| c.is_ascii_hexdigit());
    let parts: Vec<&str> = text.split([':', '.']).collect();
    matches!(parts.as_slice(), [domain, bus, slot, function]
        if hex(domain, 4) && hex(bus, 2) && hex(slot, 2) && hex(function, 1) && "01234567".contains(function))
}
