//! Addresses for services of the type LoadBalancer, from the addresses that an administrator gave for them. On Kubernetes, a
//! cloud or a program such as MetalLB does this.
//!
//! Each port of an address is one service's: the oldest that asks. An address of this machine is given port by port, and only where
//! no program of the machine has the port; the port is then bound, so that none comes later either.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use ferrovirt_net::nft::{Family, Net};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt};
use serde_json::json;

use super::rules::{Limits, protocol};
use super::{Key, View};
use crate::events::{Events, Severity};

const COMPONENT: &str = "service-load-balancer";
/// What a service can name to have its address from here and from nobody else.
const CLASS: &str = "ferrovirt.io/host";
/// Of one network of the pool.
const MOST: u32 = 4096;
/// Ports of this machine's addresses that the services of one namespace have. Each is a descriptor of the host, and one less that its own
/// connections can begin from, wherever they go.
const MOST_HELD: usize = 256;

/// An address, a protocol and a port.
type Place = (IpAddr, u8, u16);

/// What a service gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Given {
    Addresses(Vec<IpAddr>),
    /// Nothing, and why.
    Pending(String),
}

/// Whether a service's address is ours to give.
pub(crate) fn is_ours(service: &Service) -> bool {
    let Some(spec) = &service.spec else { return false };
    spec.type_.as_deref() == Some("LoadBalancer")
        && spec.load_balancer_class.as_deref().is_none_or(|class| class == CLASS)
        && service.metadata.deletion_timestamp.is_none()
}

/// The addresses that the API says a service has.
pub(crate) fn ingress(service: &Service) -> Vec<IpAddr> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    ingress.filter_map(|ingress| ingress.ip.as_ref()?.parse().ok()).collect()
}

/// Gives addresses to all services that want one. `hold` says whether a port of this machine can be had.
pub(crate) fn assign(view: &View, limits: &Limits, mut hold: impl FnMut(Place) -> bool) -> BTreeMap<Key, Given> {
    let mut wanting: Vec<(&Key, &Arc<Service>)> =
        view.services.iter().filter(|(_, service)| is_ours(service)).collect();
    // Whoever was first keeps what it has, whatever others write into their objects.
    wanting.sort_by_key(|(key, service)| (service.metadata.creation_timestamp.as_ref().map(|at| at.0), (*key).clone()));
    let mut taken: BTreeSet<Place> = BTreeSet::new();
    let mut out = BTreeMap::new();
    let mut shares: BTreeMap<&str, usize> = BTreeMap::new();
    for (key, service) in wanting {
        let share = shares.entry(&key.0).or_insert(MOST_HELD);
        let given = one(service, limits, &mut taken, share, &mut hold);
        out.insert(key.clone(), given);
    }
    out
}

/// `share` is what the service's namespace may still have of this machine's own ports.
fn one(
    service: &Service,
    limits: &Limits,
    taken: &mut BTreeSet<Place>,
    share: &mut usize,
    hold: &mut impl FnMut(Place) -> bool,
) -> Given {
    let spec = service.spec.clone().unwrap_or_default();
    let ports = ports(service);
    let wish = spec.load_balancer_ip.as_deref().filter(|text| !text.is_empty());
    let wish: Option<IpAddr> = match wish.map(str::parse) {
        None => None,
        Some(Ok(address)) => Some(address),
        Some(Err(_)) => {
            return Given::Pending(format!("spec.loadBalancerIP {:?} is not an address", wish.unwrap_or_default()));
        }
    };
    if let Some(address) = wish.filter(|address| !limits.balances(*address)) {
        return Given::Pending(format!(
            "spec.loadBalancerIP {address} is not one of the addresses that `ferrovirt up --load-balancer-ips` gives to services"
        ));
    }
    let mut families: Vec<Family> = vec![];
    for address in spec.cluster_ips.iter().flatten().filter_map(|text| text.parse().ok()) {
        let family = Family::of(address);
        if !families.contains(&family) {
            families.push(family);
        }
    }
    let mut addresses = vec![];
    let (mut busy, mut many) = (false, false);
    for family in families {
        // What it has comes first, so that addresses stay.
        let known = ingress(service).into_iter().filter(|_| wish.is_none());
        let candidates = wish.into_iter().chain(known).chain(limits.pool().filter(|_| wish.is_none()));
        for address in candidates.filter(|address| Family::of(*address) == family && limits.balances(*address)) {
            let places: Vec<Place> = ports.iter().map(|(protocol, port)| (address, *protocol, *port)).collect();
            let own = limits.machine.contains(&address);
            if own && places.len() > *share {
                many = true;
                continue;
            }
            let free = !places.iter().any(|place| taken.contains(place));
            if free && (!own || places.iter().all(|place| hold(*place))) {
                *share -= if own { places.len() } else { 0 };
                taken.extend(places);
                addresses.push(address);
                break;
            }
            busy = true;
        }
    }
    match (addresses.is_empty(), busy) {
        (false, _) => Given::Addresses(addresses),
        (true, _) if many => Given::Pending(format!(
            "the services of a namespace have at most {MOST_HELD} ports of this machine's own addresses; ask for fewer"
        )),
        (true, true) => Given::Pending(
            "all addresses for load balancers have its ports in use, by other services or by programs of this machine".into(),
        ),
        (true, false) if limits.balancer.is_empty() => Given::Pending(
            "this host has no addresses for load balancers: start it with `ferrovirt up --load-balancer-ips NETWORK`, or use the \
             service's node ports"
                .into(),
        ),
        (true, false) => Given::Pending("no address for load balancers is of the service's family".into()),
    }
}

impl Limits {
    /// Whether a load balancer may have an address: it is of the pool, and nobody's in the cluster.
    pub(super) fn balances(&self, address: IpAddr) -> bool {
        self.balancer.iter().any(|net| net.contains(address)) && self.is_free(address)
    }

    fn pool(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.balancer.iter().flat_map(|net| hosts(*net))
    }
}

/// The addresses of a network that a host can have.
fn hosts(net: Net) -> impl Iterator<Item = IpAddr> {
    let (bits, first) = match net.address {
        IpAddr::V4(v4) => (32 - net.prefix.min(32), u128::from(u32::from(v4))),
        IpAddr::V6(v6) => (128 - net.prefix.min(128), u128::from(v6)),
    };
    let size = 1u128.checked_shl(u32::from(bits)).unwrap_or(u128::MAX);
    let first = first & !(size - 1);
    // Neither the network itself, nor everybody in it; where there are but two, both are somebody's.
    let (skip, last) = if bits > 1 { (1, size - 1) } else { (0, size) };
    let is_v4 = net.address.is_ipv4();
    (skip..last.min(u128::from(MOST))).map(move |offset| {
        let number = first + offset;
        if is_v4 { IpAddr::V4((number as u32).into()) } else { IpAddr::V6(number.into()) }
    })
}

/// Ports of this machine's addresses that services have.
#[derive(Default)]
pub(crate) struct Balancer {
    held: BTreeMap<Place, OwnedFd>,
}

impl Balancer {
    /// Gives addresses, and writes into the services what they have.
    pub async fn sync(
        &mut self,
        client: &kube::Client,
        view: &View,
        limits: &Limits,
        events: &Events,
    ) -> Result<(), ()> {
        let held = &mut self.held;
        let given = assign(view, limits, |place| {
            held.contains_key(&place) || reserve(place).map(|socket| held.insert(place, socket)).is_ok()
        });
        // What was tried in vain is let go of: a service that gets nothing takes nothing.
        let kept = places(view, &given);
        held.retain(|place, _| kept.contains(place));
        let mut failed = false;
        for (key, service) in &view.services {
            let now = ingress(service);
            let wanted = match given.get(key) {
                Some(Given::Addresses(addresses)) => addresses.clone(),
                Some(Given::Pending(why)) => {
                    events.publish_about(
                        COMPONENT,
                        super::ports::about(service),
                        Severity::Warning,
                        "LoadBalancerPending",
                        why,
                    );
                    vec![]
                }
                // Of another class, or about to go; or it was one of ours, and is no load balancer any more.
                None if is_balanced(service) || now.is_empty() => continue,
                None => vec![],
            };
            if now != wanted {
                failed |= write(client, service, &wanted).await.is_err();
                if !wanted.is_empty() {
                    let text = wanted.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                    let message = format!("the service has the address {text}");
                    events.publish_about(
                        COMPONENT,
                        super::ports::about(service),
                        Severity::Normal,
                        "EnsuredLoadBalancer",
                        &message,
                    );
                }
            }
        }
        if failed { Err(()) } else { Ok(()) }
    }
}

/// All that services were given.
fn places(view: &View, given: &BTreeMap<Key, Given>) -> BTreeSet<Place> {
    let mut out = BTreeSet::new();
    for (key, given) in given {
        if let (Given::Addresses(addresses), Some(service)) = (given, view.services.get(key)) {
            let ports = ports(service);
            out.extend(
                addresses.iter().flat_map(|address| ports.iter().map(|(protocol, port)| (*address, *protocol, *port))),
            );
        }
    }
    out
}

fn ports(service: &Service) -> Vec<(u8, u16)> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports.filter_map(|port| Some((protocol(port.protocol.as_deref())?, u16::try_from(port.port).ok()?))).collect()
}

fn is_balanced(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
}

async fn write(client: &kube::Client, service: &Service, addresses: &[IpAddr]) -> Result<(), ()> {
    let namespace = service.namespace().unwrap_or_default();
    let api: Api<Service> = Api::namespaced(client.clone(), &namespace);
    let ingress: Vec<_> = addresses.iter().map(|address| json!({ "ip": address, "ipMode": "VIP" })).collect();
    // Of this very service, as it was looked at.
    let metadata = json!({ "uid": service.metadata.uid, "resourceVersion": service.metadata.resource_version });
    let ingress = if ingress.is_empty() { json!(null) } else { json!(ingress) };
    let patch = json!({ "metadata": metadata, "status": { "loadBalancer": { "ingress": ingress } } });
    match api.patch_status(&service.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        // It changed or went; the watch tells, and then we look again.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, namespace, name = service.name_any(), "cannot write the address of a load balancer");
            Err(())
        }
    }
}

/// Binds a port and never listens on it: no program of this machine has it, and none will.
fn reserve((address, protocol, port): Place) -> nix::Result<OwnedFd> {
    let kind = match protocol {
        ferrovirt_net::nft::TCP => SockType::Stream,
        ferrovirt_net::nft::UDP => SockType::Datagram,
        _ => return Err(nix::errno::Errno::EPROTONOSUPPORT),
    };
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
    if address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(address, port)))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn limits(pool: &[(&str, u8)]) -> Limits {
        let net = |(address, prefix): &(&str, u8)| Net { address: address.parse().unwrap(), prefix: *prefix };
        Limits {
            own: vec![net(&("10.42.0.0", 24)), net(&("10.43.0.0", 16))],
            external: vec![],
            balancer: pool.iter().map(net).collect(),
            machine: ["192.0.2.7".parse().unwrap(), "10.42.0.1".parse().unwrap()].into(),
        }
    }

    /// Name, age, what else its spec says, and the address that it has.
    type Row<'a> = (&'a str, i64, Value, Option<&'a str>);

    fn view(rows: &[Row<'_>]) -> View {
        let services = rows.iter().map(|(name, made, more, has)| {
            let made = jiff::Timestamp::from_second(*made).unwrap().to_string();
            let mut object = json!({
                "metadata": { "name": name, "namespace": "n", "creationTimestamp": made },
                "spec": { "type": "LoadBalancer", "clusterIPs": ["10.43.0.9"], "ports": [{ "port": 80, "protocol": "TCP" }] },
            });
            object["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            if let Some(has) = has {
                object["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": has }] } });
            }
            (("n".to_owned(), (*name).to_owned()), Arc::new(serde_json::from_value(object).unwrap()))
        });
        View { services: services.collect(), slices: BTreeMap::new() }
    }

    fn told(rows: &[Row<'_>], limits: &Limits, hold: impl FnMut(Place) -> bool) -> Vec<String> {
        let given = assign(&view(rows), limits, hold);
        let shown = given.into_iter().map(|((_, name), given)| match given {
            Given::Addresses(addresses) => format!("{name}={addresses:?}"),
            Given::Pending(why) => format!("{name}: {why}"),
        });
        shown.collect()
    }

    #[test]
    fn addresses_are_given_once_stay_and_are_of_the_pool() {
        let none = json!({});
        let pool = limits(&[("198.51.100.8", 30)]);
        let rows = [
            ("a", 3, none.clone(), None),
            ("b", 1, none.clone(), None),
            ("c", 2, json!({ "ports": [{ "port": 81 }] }), None),
        ];
        assert_eq!(
            told(&rows, &pool, |_| panic!("not of this machine")),
            ["a=[198.51.100.10]", "b=[198.51.100.9]", "c=[198.51.100.9]"],
            "by age, and ports share"
        );
        // What one has it keeps, unless an older one has it.
        let kept = [("a", 3, none.clone(), Some("198.51.100.10")), ("b", 1, none.clone(), None)];
        assert_eq!(told(&kept, &pool, |_| true), ["a=[198.51.100.10]", "b=[198.51.100.9]"]);
        let stolen =
            [("thief", 9, none.clone(), Some("198.51.100.9")), ("victim", 1, none.clone(), Some("198.51.100.9"))];
        assert_eq!(told(&stolen, &pool, |_| true), ["thief=[198.51.100.10]", "victim=[198.51.100.9]"]);
        // And never what is not of the pool, whoever wrote it.
        let forged = [("a", 1, none.clone(), Some("8.8.8.8"))];
        assert_eq!(told(&forged, &pool, |_| true), ["a=[198.51.100.9]"]);
        for (more, expected) in [
            (json!({ "loadBalancerIP": "198.51.100.10" }), "a=[198.51.100.10]"),
            (json!({ "loadBalancerIP": "8.8.8.8" }), "a: spec.loadBalancerIP 8.8.8.8 is not one"),
            (json!({ "loadBalancerIP": "10.43.0.1" }), "a: spec.loadBalancerIP 10.43.0.1 is not one"),
            (json!({ "loadBalancerIP": "x" }), "a: spec.loadBalancerIP \"x\" is not an address"),
            (json!({ "clusterIPs": ["fd00::9"] }), "a: no address for load balancers is of the service's family"),
        ] {
            let shown = told(&[("a", 1, more, None)], &pool, |_| true).remove(0);
            assert!(shown.starts_with(expected), "{shown}");
        }
        let nobody: [Row<'_>; 3] = [
            ("other", 1, json!({ "loadBalancerClass": "example.com/lb" }), None),
            ("plain", 1, json!({ "type": "ClusterIP" }), None),
            ("ours", 1, json!({ "loadBalancerClass": "ferrovirt.io/host" }), None),
        ];
        assert_eq!(told(&nobody, &pool, |_| true), ["ours=[198.51.100.9]"]);
        let shown = told(&[("a", 1, none.clone(), None)], &limits(&[]), |_| true).remove(0);
        assert!(shown.contains("--load-balancer-ips"), "{shown}");
        let full: Vec<Row<'_>> =
            [("a", 1), ("b", 2), ("c", 3)].map(|(name, made)| (name, made, none.clone(), None)).into();
        assert!(told(&full, &pool, |_| true)[2].contains("ports in use"));
    }

    #[test]
    fn an_address_of_this_machine_is_given_where_no_program_has_the_port() {
        let machine = limits(&[("192.0.2.7", 32)]);
        let rows = [("a", 1, json!({}), None), ("b", 2, json!({ "ports": [{ "port": 22 }] }), None)];
        let shown = told(&rows, &machine, |(_, _, port)| port != 22);
        assert_eq!(shown[0], "a=[192.0.2.7]");
        assert!(shown[1].contains("by programs of this machine"), "{shown:?}");
        // One that cannot have all of its ports has none, and keeps none from others.
        let greedy = [("a", 1, json!({ "ports": [{ "port": 80 }, { "port": 22 }] }), None), ("b", 2, json!({}), None)];
        let view = view(&greedy);
        let given = assign(&view, &machine, |(_, _, port)| port != 22);
        assert!(matches!(given[&("n".to_owned(), "a".to_owned())], Given::Pending(_)), "{given:?}");
        let kept: Vec<u16> = places(&view, &given).into_iter().map(|(_, _, port)| port).collect();
        assert_eq!(kept, [80]);
        // The gateway of pods is this machine's too, and never given.
        assert!(told(&rows, &limits(&[("10.42.0.1", 32)]), |_| true)[0].contains("no address"));
    }

    /// All of its ports taken, and a machine could not even connect to others.
    #[test]
    fn a_namespace_takes_few_ports_of_this_machine() {
        let machine = limits(&[("192.0.2.7", 32)]);
        let ports = |from: usize, count: usize| {
            let list: Vec<Value> = (from..from + count).map(|port| json!({ "port": port })).collect();
            json!({ "ports": list })
        };
        let rows = [("a", 1, ports(1, 200), None), ("b", 2, ports(1000, 100), None), ("c", 3, ports(2000, 56), None)];
        let mut held = BTreeSet::new();
        let shown = told(&rows, &machine, |place| held.insert(place));
        assert_eq!((shown[0].as_str(), shown[2].as_str()), ("a=[192.0.2.7]", "c=[192.0.2.7]"));
        assert!(shown[1].contains("at most 256 ports"), "{shown:?}");
        assert_eq!(held.len(), MOST_HELD, "more than is given is tried");
        // Addresses that are nobody's have room for all.
        let pool = limits(&[("198.51.100.8", 30)]);
        assert_eq!(
            told(&[("a", 1, ports(1, 5000), None)], &pool, |_| panic!("not of this machine")),
            ["a=[198.51.100.9]"]
        );
    }

    #[test]
    fn networks_have_the_hosts_that_they_have() {
        let shown = |address: &str, prefix| {
            let hosts = hosts(Net { address: address.parse().unwrap(), prefix });
            hosts.map(|host| host.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(shown("192.0.2.9", 32), ["192.0.2.9"]);
        assert_eq!(shown("192.0.2.9", 31), ["192.0.2.8", "192.0.2.9"]);
        assert_eq!(shown("192.0.2.9", 30), ["192.0.2.9", "192.0.2.10"]);
        assert_eq!(shown("fd00::1", 128), ["fd00::1"]);
        assert_eq!(shown("0.0.0.0", 0).len(), MOST as usize - 1);
        assert_eq!(shown("::", 0).len(), MOST as usize - 1);
    }

    #[test]
    fn a_port_of_this_machine_is_had_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = ("127.0.0.1".parse().unwrap(), ferrovirt_net::nft::TCP, listener.local_addr().unwrap().port());
        assert_eq!(reserve(place).unwrap_err(), nix::errno::Errno::EADDRINUSE);
        drop(listener);
        let held = reserve(place).unwrap();
        assert!(std::net::TcpListener::bind(("0.0.0.0", place.2)).is_err(), "a program has it");
        drop(held);
    }
}
