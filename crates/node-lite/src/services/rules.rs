//! Where connections to services go. Pure: from the view of the cluster to targets, and from targets to rules.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ferrovirt_net::nft::{self, Family, Field, Hook, Key as Element, Net, Pick, Program, Rule, Set};
use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::{Key, SERVICE_NAME, View, balancer};

/// One port of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The chain of rules that leads to its endpoints. It stays the same for as long as the service has the port.
    pub chain: String,
    /// The service's own addresses.
    pub addresses: Vec<IpAddr>,
    /// Addresses that it was given by hand, which others know it by.
    pub external: Vec<IpAddr>,
    /// Those of its load balancer.
    pub balanced: Vec<IpAddr>,
    /// And those of them that are this machine's own: there it has its ports and no more.
    pub local: Vec<IpAddr>,
    /// Who reaches it at the addresses of its load balancer, if not everybody.
    pub sources: Option<Vec<Net>>,
    pub port: u16,
    /// The port on every address of this machine.
    pub node_port: Option<u16>,
    pub protocol: u8,
    pub endpoints: Vec<SocketAddr>,
    /// A client stays with the endpoint it has.
    pub sticky: bool,
}

/// The machine's side of the pod network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Network {
    /// The group of interfaces that lead to pods.
    pub pods: u32,
    pub services: Net,
}

/// What services may and may not take.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    /// The networks of pods and services, where no address is free to be taken.
    pub own: Vec<Net>,
    /// What an administrator lets services have as `externalIPs`.
    pub external: Vec<Net>,
    /// And what services of the type LoadBalancer are given.
    pub balancer: Vec<Net>,
    /// The addresses of this machine. Services lead there only if they are of the system.
    pub machine: BTreeSet<IpAddr>,
}

/// The services that lead to this machine itself: where its API is, and its name server.
const SYSTEM: [(&str, &str); 2] = [("default", "kubernetes"), ("kube-system", "kube-dns")];

/// Every service port, in the order of names.
pub(crate) fn targets(view: &View, limits: &Limits) -> Vec<Target> {
    let mut slices: BTreeMap<(&str, &str), Vec<&EndpointSlice>> = BTreeMap::new();
    for ((namespace, _), slice) in &view.slices {
        if let Some(service) = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME)) {
            slices.entry((namespace, service)).or_default().push(slice);
        }
    }
    let mut out = vec![];
    for (key, service) in &view.services {
        let Some(spec) = &service.spec else { continue };
        let addresses: Vec<IpAddr> = spec.cluster_ips.iter().flatten().filter_map(|text| text.parse().ok()).collect();
        let external = external(service, limits);
        let (local, balanced) = balanced(service, limits);
        let sources = sources(service);
        let slices = slices.get(&(key.0.as_str(), key.1.as_str())).map(Vec::as_slice).unwrap_or_default();
        for port in spec.ports.iter().flatten() {
            let node_port = port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
            let (Ok(number), Some(protocol)) = (u16::try_from(port.port), protocol(port.protocol.as_deref())) else {
                continue;
            };
            if addresses.is_empty() && node_port.is_none() {
                continue;
            }
            let mut endpoints = endpoints(slices, port);
            endpoints.retain(|endpoint| limits.leads(key, endpoint.ip()));
            out.push(Target {
                chain: chain(key, number, protocol),
                addresses: addresses.clone(),
                external: external.clone(),
                balanced: balanced.clone(),
                local: local.clone(),
                sources: sources.clone(),
                port: number,
                node_port,
                protocol,
                endpoints,
                sticky: spec.session_affinity.as_deref() == Some("ClientIP"),
            });
        }
    }
    out
}

/// The rules for all targets. Finding one takes one lookup, however many there are.
pub(crate) fn program(name: &str, network: &Network, targets: &[Target]) -> Program {
    let family = Family::of(network.services.address);
    let mut program = Program::new(family, name);
    for (chain, hook) in [
        ("prerouting", Hook::NatPrerouting),
        ("output", Hook::NatOutput),
        ("postrouting", Hook::NatPostrouting),
        ("forward", Hook::FilterForward),
        ("outgoing", Hook::FilterOutput),
    ] {
        program.hook(chain, hook);
    }
    let service = [Field::Destination(family), Field::Protocol, Field::DestinationPort];
    let node_port = [Field::Protocol, Field::DestinationPort];
    program.rule("prerouting", Rule::new().from_group(network.pods).dispatch(&service, "services"));
    program.rule("prerouting", Rule::new().destination_is_local().dispatch(&service, "balancers"));
    program.rule("prerouting", Rule::new().destination_is_local().jump("node-ports"));
    // What has an address of this machine is this machine's, whatever services say. And what this machine itself sends goes
    // where it is addressed to.
    program.rule("prerouting", Rule::new().destination_is_local().leave());
    program.rule("prerouting", Rule::new().dispatch(&service, "external"));
    program.rule("output", Rule::new().dispatch(&service, "services"));
    program.rule("output", from_here(family).destination_is_local().jump("node-ports"));
    program.rule("node-ports", Rule::new().dispatch(&node_port, "node-ports"));
    let (mut services, mut external, mut node_ports, mut hairpins) = (vec![], vec![], vec![], BTreeSet::new());
    let mut balancers = vec![];
    for target in targets {
        let endpoints: Vec<_> = target.endpoints.iter().filter(|e| Family::of(e.ip()) == family).collect();
        if endpoints.is_empty() {
            continue;
        }
        let lead = |addresses: &[IpAddr], to: &mut Vec<(Element, String)>, chain: &str| {
            for address in addresses.iter().filter(|address| Family::of(**address) == family) {
                let key = Element::new().address(*address).protocol(target.protocol).port(target.port);
                to.push((key, chain.to_owned()));
            }
        };
        lead(&target.addresses, &mut services, &target.chain);
        lead(&target.external, &mut external, &target.chain);
        if !(target.balanced.is_empty() && target.local.is_empty()) {
            let mut chain = target.chain.clone();
            if let Some(sources) = &target.sources {
                chain = format!("from-{chain}");
                program.chain(&chain);
                for source in sources.iter().filter(|source| Family::of(source.address) == family) {
                    program.rule(&chain, Rule::new().source(*source).jump(&target.chain));
                }
            }
            lead(&target.balanced, &mut external, &chain);
            lead(&target.local, &mut balancers, &chain);
        }
        if let Some(port) = target.node_port {
            node_ports.push((Element::new().protocol(target.protocol).port(port), target.chain.clone()));
        }
        let count = endpoints.len();
        for (share, endpoint) in endpoints.into_iter().enumerate() {
            let rule = match (count - share, target.sticky) {
                (1, false) => Rule::new(),
                (left, false) => Rule::new().pick(Pick::Random { of: left as u32 }, family),
                (_, true) => Rule::new().pick(Pick::BySource { of: count as u32, share: share as u32 }, family),
            };
            program.rule(&target.chain, rule.protocol(target.protocol).dnat_to(*endpoint));
            hairpins.insert(endpoint.ip());
        }
    }
    program.set("services", Set::map(&service, services));
    program.set("external", Set::map(&service, external));
    program.set("balancers", Set::map(&service, balancers));
    program.set("node-ports", Set::map(&node_port, node_ports));
    // A pod that reaches itself through a service would get its own packet back with its own address on it.
    let pair = [Field::Source(family), Field::Destination(family)];
    let hairpins = hairpins.into_iter().map(|address| Element::new().address(address).address(address));
    program.set("hairpins", Set::of(&pair, hairpins));
    program.rule("postrouting", Rule::new().within(&pair, "hairpins").redirected().masquerade());
    // What is still addressed to a service has nobody behind it. Saying so beats sending it to the world.
    for chain in ["forward", "outgoing"] {
        program.rule(chain, Rule::new().destination(network.services).protocol(nft::TCP).reset());
        program.rule(chain, Rule::new().destination(network.services).reject());
    }
    if family == Family::Ipv4 {
        let loopback = Net { address: IpAddr::from([127, 0, 0, 0]), prefix: 8 };
        // Node ports also answer on loopback, for this machine itself; the network's guard keeps pods from it.
        program.rule("postrouting", Rule::new().source(loopback).to_group(network.pods).masquerade());
    }
    program
}

impl Limits {
    /// Whether connections may be led to an address. Nobody but the system leads them to this machine, and nobody at all
    /// to its loopback.
    fn leads(&self, key: &Key, address: IpAddr) -> bool {
        let system = SYSTEM.contains(&(key.0.as_str(), key.1.as_str()));
        is_ordinary(address) && (system || !self.machine.contains(&address))
    }

    fn takes(&self, address: IpAddr) -> bool {
        self.is_free(address) && !self.machine.contains(&address)
    }

    /// Whether an address is nobody's in the cluster.
    pub(super) fn is_free(&self, address: IpAddr) -> bool {
        is_ordinary(address) && !self.own.iter().any(|net| net.contains(address))
    }
}

/// An address that can be somebody's on a network.
fn is_ordinary(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, ..] = v4.octets();
            first != 0 && !v4.is_loopback() && !v4.is_link_local() && !v4.is_multicast() && !v4.is_broadcast()
        }
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(_) => false,
            None => !v6.is_loopback() && !v6.is_unspecified() && !v6.is_multicast() && !v6.is_unicast_link_local(),
        },
    }
}

fn chain(key: &Key, port: u16, protocol: u8) -> String {
    let mut hasher = DefaultHasher::new();
    (key, port, protocol).hash(&mut hasher);
    format!("target-{:016x}", hasher.finish())
}

/// What this machine asks itself. IPv6 has no way from loopback to a pod: refusing at once lets a client try IPv4.
fn from_here(family: Family) -> Rule {
    match family {
        Family::Ipv6 => Rule::new().not_destination(Ipv6Addr::LOCALHOST),
        _ => Rule::new(),
    }
}

pub(crate) fn protocol(name: Option<&str>) -> Option<u8> {
    match name.unwrap_or("TCP") {
        "TCP" => Some(nft::TCP),
        "UDP" => Some(nft::UDP),
        "SCTP" => Some(nft::SCTP),
        _ => None,
    }
}

/// The addresses of a service that it was given by hand, as far as they are allowed.
fn external(service: &Service, limits: &Limits) -> Vec<IpAddr> {
    let given = service.spec.iter().flat_map(|spec| spec.external_ips.iter().flatten());
    let given = given.filter_map(|text| text.parse().ok());
    given.filter(|address| limits.external.iter().any(|net| net.contains(*address)) && limits.takes(*address)).collect()
}

/// The addresses of its load balancer: those of this machine, and others. This machine's own are only what we gave.
fn balanced(service: &Service, limits: &Limits) -> (Vec<IpAddr>, Vec<IpAddr>) {
    let (local, others): (Vec<IpAddr>, Vec<IpAddr>) =
        balancer::ingress(service).into_iter().partition(|address| limits.machine.contains(address));
    let given = |address: &IpAddr| balancer::is_ours(service) && limits.balances(*address);
    let local = local.into_iter().filter(given).collect();
    (local, others.into_iter().filter(|address| limits.takes(*address)).collect())
}

/// Who may reach the load balancer. A list that says nothing we understand lets nobody in.
fn sources(service: &Service) -> Option<Vec<Net>> {
    let texts = service.spec.as_ref()?.load_balancer_source_ranges.as_ref().filter(|texts| !texts.is_empty())?;
    let net = |text: &String| {
        let (address, prefix) = text.trim().split_once('/')?;
        let (address, prefix) = (address.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?);
        (prefix <= if address.is_ipv4() { 32 } else { 128 }).then_some(Net { address, prefix })
    };
    Some(texts.iter().filter_map(net).collect())
}

fn endpoints(slices: &[&EndpointSlice], port: &ServicePort) -> Vec<SocketAddr> {
    let mut out = vec![];
    for slice in slices {
        let name = port.name.as_deref().unwrap_or_default();
        let wanted = slice.ports.iter().flatten().find(|known| known.name.as_deref().unwrap_or_default() == name);
        let Some(number) = wanted.and_then(|port| u16::try_from(port.port?).ok()) else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            if endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true) {
                let address = endpoint.addresses.first().and_then(|address| address.parse().ok());
                out.extend(address.map(|ip: IpAddr| SocketAddr::new(ip, number)));
            }
        }
    }
    out.sort();
    out.dedup();
    out
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
