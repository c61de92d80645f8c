//! Where connections to services go. Pure: from the view of the cluster to targets, and from targets to rules.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ferrovirt_net::nft::{self, Family, Hook, Net, Pick, Rule, Table};
use k8s_openapi::api::core::v1::{Service, ServicePort};

use super::{Key, View};

/// One port of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub addresses: Vec<IpAddr>,
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
    pub bridge: String,
    pub services: Net,
    /// Whether packets between two pods on the bridge pass these rules. If not, answers would come from an address
    /// that the client never asked, and so connections have to seem to come from this machine.
    pub bridged_packets_seen: bool,
}

/// Every service port, in the order of names.
pub(crate) fn targets(view: &View) -> Vec<Target> {
    let mut out = vec![];
    for (key, service) in &view.services {
        let Some(spec) = &service.spec else { continue };
        let addresses = addresses(service);
        for port in spec.ports.iter().flatten() {
            let node_port = port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
            let (Ok(number), Some(protocol)) = (u16::try_from(port.port), protocol(port.protocol.as_deref())) else {
                continue;
            };
            if addresses.is_empty() && node_port.is_none() {
                continue;
            }
            out.push(Target {
                addresses: addresses.clone(),
                port: number,
                node_port,
                protocol,
                endpoints: endpoints(view, key, port),
                sticky: spec.session_affinity.as_deref() == Some("ClientIP"),
            });
        }
    }
    out
}

/// The rules for all targets.
pub(crate) fn table(name: &str, network: &Network, targets: &[Target]) -> Table {
    let family = Family::of(network.services.address);
    let mut table = Table::replace(family, name);
    table.hook("prerouting", Hook::NatPrerouting);
    table.hook("output", Hook::NatOutput);
    table.hook("postrouting", Hook::NatPostrouting);
    table.hook("forward", Hook::FilterForward);
    table.hook("outgoing", Hook::FilterOutput);
    table.hook("guard", Hook::RawPrerouting);
    table.chain("services");
    table.chain("node-ports");
    table.rule("prerouting", Rule::new().from_interface(&network.bridge).jump("services"));
    table.rule("prerouting", Rule::new().destination_is_local().jump("node-ports"));
    table.rule("output", Rule::new().jump("services"));
    table.rule("output", from_here(family).destination_is_local().jump("node-ports"));
    let mut hairpins = vec![];
    for (index, target) in targets.iter().enumerate() {
        let endpoints: Vec<_> = target.endpoints.iter().filter(|e| Family::of(e.ip()) == family).collect();
        if endpoints.is_empty() {
            continue;
        }
        let chain = format!("target-{index}");
        table.chain(&chain);
        for address in target.addresses.iter().filter(|address| Family::of(**address) == family) {
            let rule = Rule::new().destination(*address).protocol(target.protocol).destination_port(target.port);
            table.rule("services", rule.jump(&chain));
        }
        if let Some(port) = target.node_port {
            table.rule("node-ports", Rule::new().protocol(target.protocol).destination_port(port).jump(&chain));
        }
        let count = endpoints.len();
        for (share, endpoint) in endpoints.into_iter().enumerate() {
            let rule = match (count - share, target.sticky) {
                (1, false) => Rule::new(),
                (left, false) => Rule::new().pick(Pick::Random { of: left as u32 }, family),
                (_, true) => Rule::new().pick(Pick::BySource { of: count as u32, share: share as u32 }, family),
            };
            table.rule(&chain, rule.protocol(target.protocol).dnat_to(*endpoint));
            hairpins.push(endpoint.ip());
        }
    }
    // A pod that reaches itself through a service would get its own packet back with its own address on it.
    hairpins.sort();
    hairpins.dedup();
    for address in hairpins {
        table.rule("postrouting", Rule::new().source(address).destination(address).redirected().masquerade());
    }
    if !network.bridged_packets_seen {
        let rule = Rule::new().from_interface(&network.bridge).to_interface(&network.bridge);
        table.rule("postrouting", rule.redirected().masquerade());
    }
    // What is still addressed to a service has nobody behind it. Saying so beats sending it to the world.
    for chain in ["forward", "outgoing"] {
        table.rule(chain, Rule::new().destination(network.services).protocol(nft::TCP).reset());
        table.rule(chain, Rule::new().destination(network.services).reject());
    }
    if family == Family::Ipv4 {
        let loopback = Net { address: IpAddr::from([127, 0, 0, 0]), prefix: 8 };
        // Node ports also answer on loopback (see `proxy::open_loopback`), and nothing else of it is for pods.
        table.rule("postrouting", Rule::new().source(loopback).to_interface(&network.bridge).masquerade());
        table.rule("guard", Rule::new().from_interface(&network.bridge).destination(loopback).drop());
    }
    table
}

/// What this machine asks itself. IPv6 has no way from loopback to a pod: refusing at once lets a client try IPv4.
fn from_here(family: Family) -> Rule {
    match family {
        Family::Ipv4 => Rule::new(),
        Family::Ipv6 => Rule::new().not_destination(Ipv6Addr::LOCALHOST),
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

/// The addresses that a service answers on: its own, those it was given by hand, and those of a load balancer.
fn addresses(service: &Service) -> Vec<IpAddr> {
    let Some(spec) = &service.spec else { return vec![] };
    let own = spec.cluster_ips.iter().flatten().chain(spec.external_ips.iter().flatten());
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let balancer = balancer.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    own.chain(balancer.filter_map(|ingress| ingress.ip.as_ref())).filter_map(|text| text.parse().ok()).collect()
}

fn endpoints(view: &View, key: &Key, port: &ServicePort) -> Vec<SocketAddr> {
    let mut out = vec![];
    for slice in view.slices_of(key) {
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
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn ports_lead_to_ready_endpoints() {
        let key = ("default".to_owned(), "web".to_owned());
        let service = json!({
            "metadata": { "name": "web", "namespace": "default" },
            "spec": {
                "clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "externalIPs": ["192.0.2.1"],
                "sessionAffinity": "ClientIP",
                "ports": [
                    { "name": "http", "port": 80, "nodePort": 30080, "protocol": "TCP" },
                    { "name": "dns", "port": 53, "protocol": "UDP" },
                ],
            },
        });
        let slice = |name: &str, port: &str, addresses: &[(&str, bool)]| {
            let endpoints: Vec<_> = addresses
                .iter()
                .map(|(address, ready)| json!({ "addresses": [address], "conditions": { "ready": ready } }))
                .collect();
            let slice = json!({
                "metadata": { "name": name, "namespace": "default", "labels": { "kubernetes.io/service-name": "web" } },
                "addressType": "IPv4", "ports": [{ "name": port, "port": 8080, "protocol": "TCP" }], "endpoints": endpoints,
            });
            (("default".to_owned(), name.to_owned()), Arc::new(serde_json::from_value(slice).unwrap()))
        };
        let view = View {
            services: [(key, Arc::new(serde_json::from_value(service).unwrap()))].into(),
            slices: [
                slice("web-a", "http", &[("10.42.0.3", true), ("10.42.0.2", true), ("10.42.0.4", false)]),
                slice("other", "admin", &[("10.42.0.9", true)]),
            ]
            .into(),
        };
        let targets = targets(&view);
        assert_eq!(targets.len(), 2);
        let shown: Vec<String> = targets[0].endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.42.0.2:8080", "10.42.0.3:8080"]);
        assert_eq!((targets[0].node_port, targets[0].protocol, targets[0].sticky), (Some(30080), nft::TCP, true));
        assert_eq!(targets[0].addresses.len(), 2);
        assert!(targets[1].endpoints.is_empty());
    }

    #[test]
    fn the_kernel_takes_the_rules() {
        let target = |port: u16, endpoints: &[&str], node_port: Option<u16>, sticky: bool| Target {
            addresses: vec!["10.43.0.9".parse().unwrap()],
            port,
            node_port,
            protocol: nft::TCP,
            endpoints: endpoints.iter().map(|text| text.parse().unwrap()).collect(),
            sticky,
        };
        let targets = [
            target(80, &["10.42.0.2:8080", "10.42.0.3:8080"], Some(30080), false),
            target(81, &["10.42.0.2:81", "10.42.0.3:81"], None, true),
            target(82, &[], None, false),
        ];
        let network = Network {
            bridge: "br0".into(),
            services: Net { address: "10.43.0.0".parse().unwrap(), prefix: 16 },
            bridged_packets_seen: false,
        };
        let rules = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
            for _twice in 0..2 {
                table("t", &network, &targets).apply().unwrap();
            }
            let output = std::process::Command::new("nft").args(["list", "ruleset"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        });
        let rules = rules.join().unwrap();
        for expected in [
            "iifname \"br0\" jump services",
            "fib daddr type local jump node-ports",
            "ip daddr 10.43.0.9 tcp dport 80 jump target-0",
            "tcp dport 30080 jump target-0",
            "numgen random mod 2 0",
            "dnat to 10.42.0.2:8080",
            "dnat to 10.42.0.3:8080",
            "jhash ip saddr mod 2",
            "ip saddr 10.42.0.2 ip daddr 10.42.0.2 ct status dnat masquerade",
            "iifname \"br0\" oifname \"br0\" ct status dnat masquerade",
            "ip daddr 10.43.0.0/16 reject with tcp reset",
            "iifname \"br0\" ip daddr 127.0.0.0/8 drop",
        ] {
            assert!(rules.contains(expected), "no {expected:?} in\n{rules}");
        }
        assert!(!rules.contains("dport 82"), "nobody is behind it:\n{rules}");
        assert_eq!(rules.matches("jump target-1").count(), 1, "{rules}");
    }
}
