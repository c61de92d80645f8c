//! What pods may send at all, and what of this machine they may reach. Pure: from ports to rules.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ferrovirt_net::nft::{self, Family, Field, Hook, Key, Net, Program, Rule, Set};

use super::{Network, Port, gateway};

const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const FAMILIES: [(Family, &str); 2] = [(Family::Ipv4, "sources"), (Family::Ipv6, "sources-6")];

pub(super) fn table_name(instance: &str) -> String {
    format!("ferrovirt-{instance}-guard")
}

/// A table for packets and one for ARP.
pub(super) fn programs(network: &Network, ports: &BTreeMap<String, Port>) -> Vec<Program> {
    vec![packets(network, ports), arp(network, ports)]
}

fn packets(network: &Network, ports: &BTreeMap<String, Port>) -> Program {
    let mut program = Program::new(Family::Both, &table_name(&network.instance));
    let pod = || Rule::new().from_group(network.group);
    program.hook("arriving", Hook::RawPrerouting);
    program.rule("arriving", pod().jump("from-pods"));
    for net in &network.pods {
        // Nobody else is a pod.
        let other = Rule::new().not_from_interface("lo").family(Family::of(net.address));
        program.rule("arriving", other.source(*net).drop());
    }
    for (family, set) in FAMILIES {
        let key = [Field::Interface, Field::Source(family)];
        program.rule("from-pods", Rule::new().family(family).not_within(&key, set).drop());
        program.set(set, Set::of(&key, sources(ports, family)));
    }
    // Node ports also answer on loopback, for which the kernel has to be told not to drop this by itself.
    program.rule("from-pods", Rule::new().family(Family::Ipv4).destination(loopback()).drop());
    program.rule("from-pods", Rule::new().accept());

    program.hook("to-this-machine", Hook::FilterInput);
    program.rule("to-this-machine", pod().jump("pods-to-this-machine"));
    let mut allow = |rule: Rule| program.rule("pods-to-this-machine", rule.accept());
    allow(Rule::new().established());
    for kind in [NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT] {
        allow(Rule::new().family(Family::Ipv6).protocol(nft::ICMP_6).icmp_type(kind));
    }
    for net in &network.pods {
        let (protocol, echo) = if net.address.is_ipv4() { (nft::ICMP, 8) } else { (nft::ICMP_6, 128) };
        let gateway = Rule::new().family(Family::of(net.address)).destination(gateway(net));
        allow(gateway.protocol(protocol).icmp_type(echo));
    }
    // Services alone lead here: the name server, and the API where it listens for others. The proxy sees to it that no
    // other service does.
    for net in &network.services {
        allow(Rule::new().family(Family::of(net.address)).redirected().first_addressed_to(*net));
    }
    refuse(&mut program, "pods-to-this-machine", Rule::new);

    // Where clouds tell a machine its secrets.
    program.hook("through", Hook::FilterForward);
    refuse(&mut program, "through", || pod().family(Family::Ipv4).destination(this_link()));
    program
}

fn arp(network: &Network, ports: &BTreeMap<String, Port>) -> Program {
    let key = [Field::Interface, Field::ArpSource];
    let mut program = Program::new(Family::Arp, &table_name(&network.instance));
    program.set("sources", Set::of(&key, sources(ports, Family::Ipv4)));
    program.hook("arriving", Hook::ArpInput);
    program.rule("arriving", Rule::new().from_group(network.group).not_within(&key, "sources").drop());
    program
}

fn refuse(program: &mut Program, chain: &str, what: impl Fn() -> Rule) {
    program.rule(chain, what().protocol(nft::TCP).reset());
    program.rule(chain, what().refuse());
}

fn sources(ports: &BTreeMap<String, Port>, family: Family) -> impl Iterator<Item = Key> {
    ports.values().flat_map(move |port| {
        let own = port.addresses.iter().filter(move |address| Family::of(**address) == family);
        own.map(|address| Key::new().interface(port.index).address(*address))
    })
}

fn loopback() -> Net {
    Net { address: IpAddr::from([127, 0, 0, 0]), prefix: 8 }
}

fn this_link() -> Net {
    Net { address: IpAddr::from([169, 254, 0, 0]), prefix: 16 }
}
