//! Cluster addresses and node ports of services.
//!
//! What is taken is known from the stored services ([`super::service_numbers`]), so there is no second record that could
//! disagree with them.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::MutexGuard;

use ferrovirt_schema::Cause;
use ferrovirt_store::Key;
use serde_json::{Value, json};

use super::Call;
use super::service_numbers::{Number, Numbers, Taken};
use crate::object::{self, at, default, field_map, items_mut, text};
use crate::status::ApiError;

/// Addresses below this offset are only given to those who ask for them by name.
const FIRST_DYNAMIC: u32 = 256;
const NODE_PORTS: std::ops::RangeInclusive<u32> = 30000..=32767;

/// The addresses of services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceNetwork {
    pub address: Ipv4Addr,
    pub prefix: u8,
    /// The addresses of services that ask for IPv6, if the cluster has it: a network with [`ServiceNetwork::IPV6_PREFIX`].
    pub ipv6: Option<Ipv6Addr>,
}

impl Default for ServiceNetwork {
    fn default() -> Self {
        Self { address: Ipv4Addr::new(10, 43, 0, 0), prefix: 16, ipv6: None }
    }
}

impl std::fmt::Display for ServiceNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl ServiceNetwork {
    pub const IPV6_PREFIX: u8 = 112;

    /// The address of the service `kubernetes`.
    pub fn api_address(self) -> Ipv4Addr {
        self.host(1)
    }

    fn host(self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from((u32::from(self.address) & self.mask()) + offset)
    }

    pub fn contains(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => u32::from(v4) & self.mask() == u32::from(self.address) & self.mask(),
            IpAddr::V6(v6) => self.ipv6.is_some_and(|network| v6.segments()[..7] == network.segments()[..7]),
        }
    }

    /// The nth address of a family. None if the cluster has not got the family.
    fn nth(self, family: Family, offset: u32) -> Option<IpAddr> {
        match family {
            Family::Ipv4 => Some(self.host(offset).into()),
            Family::Ipv6 => self.ipv6.map(|network| Ipv6Addr::from(u128::from(network) + u128::from(offset)).into()),
        }
    }

    fn range(self, family: Family) -> String {
        match (family, self.ipv6) {
            (Family::Ipv6, Some(network)) => format!("{network}/{}", Self::IPV6_PREFIX),
            _ => self.to_string(),
        }
    }

    fn size(self) -> u32 {
        (!self.mask()).saturating_add(1)
    }

    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0)
    }
}

/// Gives a service the numbers that its type needs, and keeps those it has.
pub fn allocate(call: &Call, old: Option<&Value>, service: &mut Value) -> Result<Option<Taken>, ApiError> {
    let kind = text(service, &["spec", "type"]).to_owned();
    if old.is_none() {
        let stray = super::service_rules::stray_node_ports(service);
        if !stray.is_empty() {
            return Err(ApiError::invalid(call.resource.kind_subject(object::name(service)), &stray));
        }
    }
    if let Some(old) = old.filter(|old| text(old, &["spec", "type"]) != kind) {
        forget_type(old, service, &kind);
    }
    if kind == "ExternalName" {
        let spec = field_map(service, "spec");
        for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            spec.remove(key);
        }
        return Ok(None);
    }
    if let Some(old) = old {
        inherit(old, service);
    }
    let selectorless =
        at(service, &["spec", "selector"]).and_then(Value::as_object).is_none_or(serde_json::Map::is_empty);
    if old.is_none() && selectorless && text(service, &["spec", "clusterIP"]) == "None" {
        any_family(service);
    }
    let mut picker = Picker::new(call, object::name(service).to_owned());
    address(&mut picker, call, old, service)?;
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        let wanted =
            kind == "NodePort" || at(service, &["spec", "allocateLoadBalancerNodePorts"]) != Some(&json!(false));
        node_ports(&mut picker, call, wanted, service)?;
    } else {
        items_mut(field_value(service, "spec"), "ports").filter_map(Value::as_object_mut).for_each(|port| {
            port.remove("nodePort");
        });
    }
    Ok(picker.finish(call))
}

/// What may not change.
pub fn validate(service: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let kind = text(service, &["spec", "type"]);
    if !matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer" | "ExternalName") {
        let known = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"].map(|k| json!(k));
        causes.push(Cause::not_supported("spec.type", &json!(kind), &known));
    }
    let headless = text(service, &["spec", "clusterIP"]) == "None";
    let ports = at(service, &["spec", "ports"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if kind == "ExternalName" {
        if text(service, &["spec", "externalName"]).is_empty() {
            causes.push(Cause::required("spec.externalName", ""));
        }
    } else if ports.is_empty() && !headless {
        causes.push(Cause::required("spec.ports", ""));
    }
    let mut seen: HashSet<(&str, i64)> = HashSet::new();
    let mut names: HashSet<&str> = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let number = port["port"].as_i64().unwrap_or_default();
        if !(1..=65535).contains(&number) {
            let field = format!("spec.ports[{index}].port");
            causes.push(Cause::invalid(field, &port["port"], "must be between 1 and 65535, inclusive"));
        }
        causes.extend(super::service_rules::port(index, port));
        let name = text(port, &["name"]);
        if name.is_empty() && ports.len() > 1 {
            causes.push(Cause::required(format!("spec.ports[{index}].name"), ""));
        } else if !names.insert(name) {
            causes.push(Cause::duplicate(format!("spec.ports[{index}].name"), &json!(name)));
        }
        if !seen.insert((text(port, &["protocol"]), number)) {
            causes.push(Cause::duplicate(format!("spec.ports[{index}]"), port));
        }
    }
    causes.extend(super::service_rules::spec(service, old));
    let address = |s: &Value| text(s, &["spec", "clusterIP"]).to_owned();
    if let Some(old) = old
        && kind != "ExternalName"
        && !address(old).is_empty()
        && address(old) != address(service)
    {
        let now = json!([address(service)]);
        causes.push(Cause::invalid("spec.clusterIPs[0]", &now, "may not change once set"));
    }
    causes
}

/// What only the former type of a service meant goes with it, unless the client says something new.
fn forget_type(old: &Value, service: &mut Value, kind: &str) {
    let spec = field_map(service, "spec");
    let external = matches!(kind, "NodePort" | "LoadBalancer");
    for (key, kept) in [
        ("externalTrafficPolicy", external),
        ("allocateLoadBalancerNodePorts", kind == "LoadBalancer"),
        ("internalTrafficPolicy", kind != "ExternalName"),
    ] {
        if !kept && spec.get(key) == at(old, &["spec", key]) {
            spec.remove(key);
        }
    }
}

/// Somebody else writes the endpoints of a service without address and selector, of whatever family.
fn any_family(service: &mut Value) {
    let spec = field_value(service, "spec");
    if spec.get("ipFamilies").is_none() && spec.get("ipFamilyPolicy").is_none() {
        spec["ipFamilies"] = json!(["IPv4", "IPv6"]);
        spec["ipFamilyPolicy"] = "RequireDualStack".into();
    }
}

fn field_value<'a>(object: &'a mut Value, key: &str) -> &'a mut Value {
    field_map(object, key);
    &mut object[key]
}

/// An update that leaves numbers out means those that are there.
fn inherit(old: &Value, service: &mut Value) {
    let spec = field_value(service, "spec");
    for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if let Some(value) = at(old, &["spec", key]) {
            let empty = spec.get(key).is_none_or(|v| v.is_null() || v == "" || v == &json!([]));
            if empty {
                spec[key] = value.clone();
            }
        }
    }
    let before = at(old, &["spec", "ports"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for port in items_mut(spec, "ports") {
        let same = |other: &&Value| other["port"] == port["port"] && other["protocol"] == port["protocol"];
        if let Some(number) = before.iter().find(same).and_then(|p| p.get("nodePort")).cloned() {
            default(port, "nodePort", number);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "IPv4" => Some(Self::Ipv4),
            "IPv6" => Some(Self::Ipv6),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Ipv4 => Self::Ipv6,
            Self::Ipv6 => Self::Ipv4,
        }
    }

    fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }
}

/// The families of a service's addresses, the first one first.
fn families(network: ServiceNetwork, spec: &Value) -> Result<Vec<Family>, Cause> {
    let policy = text(spec, &["ipFamilyPolicy"]);
    let mut out = vec![];
    for (index, name) in at(spec, &["ipFamilies"]).and_then(Value::as_array).into_iter().flatten().enumerate() {
        let family = name.as_str().and_then(Family::parse);
        match family.filter(|family| network.nth(*family, 0).is_some() && !out.contains(family)) {
            Some(family) => out.push(family),
            None => {
                let message = "it is given twice, or not configured on this cluster";
                return Err(Cause::invalid(format!("spec.ipFamilies[{index}]"), name, message));
            }
        }
    }
    if out.is_empty() {
        let given = text(spec, &["clusterIP"]).parse().map_or(Family::Ipv4, Family::of);
        out.push(given);
    }
    match policy {
        "RequireDualStack" if network.ipv6.is_none() => {
            let message = "this cluster is not configured for dual-stack services";
            return Err(Cause::invalid("spec.ipFamilyPolicy", &json!(policy), message));
        }
        "PreferDualStack" | "RequireDualStack" if out.len() == 1 && network.ipv6.is_some() => out.push(out[0].other()),
        "" | "SingleStack" => out.truncate(1),
        _ => {}
    }
    Ok(out)
}

fn address(picker: &mut Picker<'_>, call: &Call, old: Option<&Value>, service: &mut Value) -> Result<(), ApiError> {
    let spec = field_value(service, "spec");
    let network = call.server.service_network;
    let name = picker.name.clone();
    let invalid = |cause: Cause| ApiError::invalid(call.resource.kind_subject(&name), &[cause]);
    if text(spec, &["clusterIP"]) == "None" && text(spec, &["ipFamilyPolicy"]) == "RequireDualStack" {
        // No address has to be found, so it does not matter which families this cluster has.
        spec["clusterIPs"] = json!(["None"]);
        return Ok(());
    }
    let families = families(network, spec).map_err(invalid)?;
    let listed = |object: &Value, index: usize| {
        let list = at(object, &["clusterIPs"]).and_then(|list| list.get(index));
        list.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let mut chosen = vec![];
    for (index, family) in families.iter().enumerate() {
        let wanted = match text(spec, &["clusterIP"]) {
            given if index == 0 && !given.is_empty() => given.to_owned(),
            "None" => break,
            _ => listed(spec, index),
        };
        let kept = old.is_some_and(|old| {
            !wanted.is_empty()
                && (listed(&old["spec"], index) == wanted || index == 0 && text(old, &["spec", "clusterIP"]) == wanted)
        });
        let refuse = |message: String| invalid(Cause::invalid("spec.clusterIPs[0]", &json!([wanted]), message));
        match wanted.as_str() {
            "None" => {}
            _ if kept => {}
            "" => {
                let any = picker.any_address(*family).ok_or_else(|| refuse("all addresses are in use".into()))?;
                chosen.push(any.to_string());
                continue;
            }
            given => {
                let parsed = given.parse::<IpAddr>().ok().filter(|address| Family::of(*address) == *family);
                let parsed = parsed.ok_or_else(|| refuse(format!("must be a valid {} address", family.name())))?;
                if !network.contains(parsed) {
                    let range = network.range(*family);
                    return Err(refuse(format!(
                        "failed to allocate IP {given}: the provided IP is not in the valid range ({range})"
                    )));
                }
                if !picker.take(Number::Address(parsed)) {
                    return Err(refuse(format!("failed to allocate IP {given}: provided IP is already allocated")));
                }
            }
        }
        chosen.push(wanted);
    }
    spec["clusterIP"] = json!(chosen.first());
    spec["clusterIPs"] = json!(chosen);
    spec["ipFamilies"] = families.iter().map(|family| family.name()).collect();
    default(spec, "ipFamilyPolicy", "SingleStack");
    Ok(())
}

fn node_ports(picker: &mut Picker<'_>, call: &Call, wanted: bool, service: &mut Value) -> Result<(), ApiError> {
    let name = picker.name.clone();
    for (index, port) in items_mut(field_value(service, "spec"), "ports").enumerate() {
        let given = port["nodePort"].as_u64().and_then(|p| u32::try_from(p).ok()).unwrap_or(0);
        let refuse = |message: &str| {
            let cause = Cause::invalid(format!("spec.ports[{index}].nodePort"), &json!(given), message);
            ApiError::invalid(call.resource.kind_subject(&name), &[cause])
        };
        if given == 0 {
            if wanted {
                port["nodePort"] = picker.any_port().ok_or_else(|| refuse("all ports are in use"))?.into();
            }
            continue;
        }
        if !NODE_PORTS.contains(&given) {
            return Err(refuse("provided port is not in the valid range. The range of valid ports is 30000-32767"));
        }
        if !picker.take(Number::Port(given)) {
            return Err(refuse("provided port is already allocated"));
        }
    }
    Ok(())
}

/// Chooses free numbers for one service.
struct Picker<'a> {
    name: String,
    network: ServiceNetwork,
    /// Locked, so that nobody else chooses meanwhile.
    numbers: MutexGuard<'a, Numbers>,
    service: Key,
    /// Numbers of this one. Two ports with different protocols may share a node port.
    own: HashSet<Number>,
}

impl<'a> Picker<'a> {
    fn new(call: &'a Call, name: String) -> Self {
        let numbers = call.server.service_numbers.look(&call.server.store);
        // One that has no name yet is no other one without a name.
        let key = if name.is_empty() { format!("/{}", uuid::Uuid::new_v4()) } else { name.clone() };
        let service = Key::new(call.namespace().unwrap_or_default(), key);
        Self { numbers, service, own: HashSet::new(), network: call.server.service_network, name }
    }

    /// What was chosen is this service's until its write is done.
    fn finish(mut self, call: &Call) -> Option<Taken> {
        self.numbers.promise(&call.server, self.service, self.own)
    }

    /// Takes a number unless another service has it.
    fn take(&mut self, number: Number) -> bool {
        let free = !self.numbers.is_taken(number, &self.service);
        if free {
            self.own.insert(number);
        }
        free
    }

    fn any_address(&mut self, family: Family) -> Option<IpAddr> {
        let network = self.network;
        network.nth(family, 0)?;
        let size = match family {
            // The last address is the broadcast address.
            Family::Ipv4 => network.size() - 1,
            Family::Ipv6 => 1 << (128 - ServiceNetwork::IPV6_PREFIX),
        };
        let unused = IpAddr::from(network.address);
        let number = |offset| Number::Address(network.nth(family, offset).unwrap_or(unused));
        self.any(FIRST_DYNAMIC..size, number).and_then(|number| match number {
            Number::Address(address) => Some(address),
            Number::Port(_) => None,
        })
    }

    fn any_port(&mut self) -> Option<u32> {
        self.any(*NODE_PORTS.start()..*NODE_PORTS.end() + 1, Number::Port).and_then(|number| match number {
            Number::Port(port) => Some(port),
            Number::Address(_) => None,
        })
    }

    /// The first free number from a random place on, so that a number is not used again soon.
    fn any(&mut self, range: std::ops::Range<u32>, number: impl Fn(u32) -> Number) -> Option<Number> {
        let size = range.end - range.start;
        let [a, b, c, d, ..] = *uuid::Uuid::new_v4().as_bytes();
        let first = u32::from_be_bytes([a, b, c, d]) % size;
        (0..size)
            .map(|i| number(range.start + (first + i) % size))
            .find(|n| !self.own.contains(n) && !self.numbers.is_taken(*n, &self.service))
            .inspect(|n| {
                self.own.insert(*n);
            })
    }
}
