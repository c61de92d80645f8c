//! Addresses that services and endpoints may not claim: with them, one namespace would take traffic that is not its own.
//!
//! New `externalIPs` are refused, as upstream's DenyServiceExternalIPs does, but for networks that an administrator gave for
//! them. None of those is ever the node itself, loopback, or a network of the cluster.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::str::FromStr;

use ferrovirt_schema::Cause;
use serde_json::{Value, json};

use crate::authn::MASTERS;
use crate::object::{at, name, strings};
use crate::registry::Special;
use crate::rest::Call;
use crate::status::ApiError;

/// The service by which programs find this server.
const API_SERVICE: (&str, &str) = ("default", "kubernetes");

/// An address and how many of its bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network; write one as 192.0.2.0/24")]
pub struct NetworkError(String);

impl FromStr for Network {
    type Err = NetworkError;

    /// An address alone is a network of one.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address = plain(address.parse().map_err(|_| wrong())?);
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(longest), |p| p.parse().map_err(|_| wrong()))?;
        if prefix > longest { Err(wrong()) } else { Ok(Self { address, prefix }) }
    }
}

impl Network {
    /// Its first address, and how many bits of it count.
    pub fn parts(&self) -> (IpAddr, u8) {
        (self.address, self.prefix)
    }

    fn contains(&self, address: IpAddr) -> bool {
        let cut = |bits: u128, width: u32| bits.checked_shr(width - u32::from(self.prefix)).unwrap_or(0);
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => cut(u32::from(a).into(), 32) == cut(u32::from(b).into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => cut(a.into(), 128) == cut(b.into(), 128),
            _ => false,
        }
    }
}

/// The address that is meant: some are written as the other family's.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Which addresses services may answer on besides those that they are given.
#[derive(Debug, Clone, Default)]
pub struct ExternalAddresses {
    /// For `externalIPs`. Without any, none are taken.
    pub allowed: Vec<Network>,
    /// Networks of the cluster itself.
    pub reserved: Vec<Network>,
}

pub fn check(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if !call.subresource().is_empty() {
        return Ok(());
    }
    match (call.resource.group.as_str(), call.resource.kind.as_str()) {
        ("", "Service") => {
            keep_own(call, object, old)?;
            external(call, object, old)
        }
        ("", "Endpoints") | ("discovery.k8s.io", "EndpointSlice") => endpoints(call, object),
        _ => Ok(()),
    }
}

/// Where programs inside look for this server is not for the editors of the namespace that it happens to be in.
fn keep_own(call: &Call, service: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let own = (call.namespace().unwrap_or_default(), name(service)) == API_SERVICE;
    if !own || call.user.in_group(MASTERS) || old.is_some_and(|old| old["spec"] == service["spec"]) {
        return Ok(());
    }
    let why = "it is how programs find the API server, which takes care of it itself";
    Err(ApiError::forbidden(call.resource.subject(name(service)), why))
}

/// True for a service that nobody deletes, since programs find this server by it.
pub fn is_kept(call: &Call) -> bool {
    call.resource.special == Special::Service
        && (call.namespace().unwrap_or_default(), call.name()) == API_SERVICE
        && !call.user.in_group(MASTERS)
}

fn external(call: &Call, service: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let listed = |service: &Value| strings(at(service, &["spec", "externalIPs"]));
    let known = old.map(listed).unwrap_or_default();
    for address in listed(service).iter().filter(|address| !known.contains(address)) {
        // What is no address was refused before.
        let Ok(parsed) = address.parse::<IpAddr>() else { continue };
        if let Some(why) = refusal(call, plain(parsed)) {
            let why = format!("Use of external IPs is denied by admission control. spec.externalIPs: {address} {why}");
            return Err(ApiError::forbidden(call.resource.subject(name(service)), &why));
        }
    }
    Ok(())
}

fn refusal(call: &Call, address: IpAddr) -> Option<&'static str> {
    let rules = &call.server.external_addresses;
    if !rules.allowed.iter().any(|network| network.contains(address)) {
        return Some("is in no network that an administrator allows (`ferrovirt up --external-ips`)");
    }
    if let Some(why) = special(address) {
        return Some(why);
    }
    if call.server.service_network.contains(address) || rules.reserved.iter().any(|n| n.contains(address)) {
        return Some("belongs to the cluster's own networks");
    }
    is_of_this_machine(address).then_some("is an address of the node itself")
}

/// Only what a machine has can be bound, whatever interface it got it on since this program started.
fn is_of_this_machine(address: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}

/// Why an address means something else on every machine.
fn special(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    };
    match address {
        _ if address.is_unspecified() => Some("may not be unspecified (0.0.0.0 or ::)"),
        _ if address.is_loopback() => Some("may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        _ if link_local => Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        _ if address.is_multicast() => Some("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
        _ => None,
    }
}

/// Endpoints are other machines or pods. Only this server itself may be on the loopback address.
fn endpoints(call: &Call, object: &Value) -> Result<(), ApiError> {
    if call.user.in_group(MASTERS) {
        return Ok(());
    }
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all: Vec<(String, String)> = Vec::new();
    for (i, subset) in list(&object["subsets"]).iter().enumerate() {
        for key in ["addresses", "notReadyAddresses"] {
            let found = list(&subset[key]);
            let ips = found.iter().enumerate().map(|(j, a)| (format!("subsets[{i}].{key}[{j}].ip"), &a["ip"]));
            all.extend(ips.map(|(field, ip)| (field, ip.as_str().unwrap_or_default().to_owned())));
        }
    }
    for (i, endpoint) in list(&object["endpoints"]).iter().enumerate() {
        let addresses = strings(endpoint.get("addresses")).into_iter().enumerate();
        all.extend(addresses.map(|(j, address)| (format!("endpoints[{i}].addresses[{j}]"), address)));
    }
    let causes: Vec<Cause> = all
        .into_iter()
        .filter_map(|(field, text)| {
            let why = special(plain(text.parse().ok()?))?;
            Some(Cause::invalid(field, &json!(text), why))
        })
        .collect();
    match causes.as_slice() {
        [] => Ok(()),
        causes => Err(ApiError::invalid(call.resource.kind_subject(name(object)), causes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_what_they_say() {
        let network = |text: &str| text.parse::<Network>().unwrap();
        for (text, address, expected) in [
            ("192.0.2.0/24", "192.0.2.7", true),
            ("192.0.2.0/24", "192.0.3.7", false),
            ("192.0.2.9", "192.0.2.9", true),
            ("192.0.2.9", "192.0.2.8", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("::ffff:192.0.2.0/24", "192.0.2.7", true),
        ] {
            assert_eq!(network(text).contains(plain(address.parse().unwrap())), expected, "{text} {address}");
        }
        for wrong in ["", "a", "192.0.2.0/33", "192.0.2.0/", "::/129", "192.0.2.0/-1"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn special_addresses_are_known_in_every_spelling() {
        for text in [
            "127.0.0.1",
            "127.8.8.8",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "::",
            "169.254.169.254",
            "fe80::1",
            "224.0.0.1",
        ] {
            assert!(special(plain(text.parse().unwrap())).is_some(), "{text}");
        }
        assert!(special("192.0.2.1".parse().unwrap()).is_none());
        assert!(is_of_this_machine("127.0.0.1".parse().unwrap()));
        assert!(!is_of_this_machine("198.51.100.1".parse().unwrap()));
    }
}
