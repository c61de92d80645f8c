//! From policies to rules. Pure.
//!
//! ```text
//! forward ── known connection: accept ── egress map by source ─jump─ chain of that pod's policies ── drop
//!                                     └─ ingress map by destination ─jump─ chain ── drop
//! ```
//!
//! A pod without policies is in neither map, so a packet costs two lookups however many policies there are. Chains say who
//! is let through by sets, which policies with the same selector share: a pod that comes or goes changes elements, no rules.
//! Pods whose policies say the same share a chain.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use ferrovirt_net::nft::{self, Family, Field, Hook, Key, Net, Program, Rule, Set};
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sha2::{Digest, Sha256};

use super::select::matches;
use super::{Facts, PodFacts};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];
/// The port that a name server answers on for the world.
const NAME_SERVICE: u16 = 53;
/// The label that every namespace has with its own name.
const OWN_NAME: &str = "kubernetes.io/metadata.name";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Direction {
    Ingress,
    Egress,
}

/// Who a rule lets through.
enum Peer {
    Anybody,
    /// The name of a set, without its family.
    Pods(String),
    Block {
        net: Net,
        except: Vec<Net>,
    },
}

/// At which port.
enum Port {
    Any,
    Numbers {
        protocol: u8,
        first: u16,
        last: u16,
    },
    /// A set of addresses with protocols and ports, without its family.
    Named(String),
}

/// The table for all policies. `pods` is the group of interfaces that lead to pods.
pub(super) fn program(table: &str, pods: u32, facts: &Facts) -> Program {
    let mut plan = Plan::new(table, facts);
    let frame = &mut plan.program;
    frame.hook("through", Hook::FilterForward);
    frame.hook("to-this-machine", Hook::FilterInput);
    frame.rule("through", Rule::new().established().accept());
    frame.rule("to-this-machine", Rule::new().not_from_group(pods).accept());
    frame.rule("to-this-machine", Rule::new().established().accept());
    for neighbour in [135, 136] {
        let rule = Rule::new().family(Family::Ipv6).protocol(nft::ICMP_6).icmp_type(neighbour);
        frame.rule("to-this-machine", rule.accept());
    }
    for family in FAMILIES {
        let pair = [Field::Source(family), Field::Destination(family)];
        // Nobody is kept from itself.
        frame.rule("through", Rule::new().family(family).within(&pair, &named("selves", family)).accept());
        let egress = |rule: Rule| rule.dispatch(&[Field::Source(family)], &named("egress", family));
        frame.rule("through", egress(Rule::new().family(family)));
        let ingress = [Field::Destination(family)];
        frame.rule("through", Rule::new().family(family).dispatch(&ingress, &named("ingress", family)));
        frame.rule("to-this-machine", egress(Rule::new().family(family)));
    }
    plan.isolate();
    plan.program
}

/// A namespace, its policies that select a pod, and the pod's named ports.
type ChainKey<'a> = (&'a str, Vec<usize>, Direction, &'a [(String, u8, u16)]);

struct Plan<'a> {
    facts: &'a Facts,
    program: Program,
    /// The pods of each namespace.
    pods: BTreeMap<&'a str, Vec<&'a PodFacts>>,
    policies: BTreeMap<&'a str, Vec<&'a NetworkPolicy>>,
    sets: BTreeSet<String>,
    chains: HashMap<Vec<Rule>, String>,
    names: BTreeSet<String>,
    /// The name server, as a pod.
    name_server: Option<PodFacts>,
}

impl<'a> Plan<'a> {
    fn new(table: &str, facts: &'a Facts) -> Self {
        let mut pods: BTreeMap<&str, Vec<&PodFacts>> = BTreeMap::new();
        for pod in &facts.pods {
            pods.entry(&pod.namespace).or_default().push(pod);
        }
        let mut policies: BTreeMap<&str, Vec<&NetworkPolicy>> = BTreeMap::new();
        for policy in &facts.policies {
            policies.entry(policy.metadata.namespace.as_deref().unwrap_or_default()).or_default().push(policy);
        }
        let name_server = facts.names.map(|address| PodFacts {
            namespace: "kube-system".into(),
            labels: [("k8s-app".to_owned(), "kube-dns".to_owned())].into(),
            addresses: vec![address.ip()],
            ports: vec![],
        });
        let program = Program::new(Family::Both, table);
        let (sets, chains, names) = (BTreeSet::new(), HashMap::new(), BTreeSet::new());
        Self { facts, program, pods, policies, sets, chains, names, name_server }
    }

    /// Gives every pod that policies select its chain.
    fn isolate(&mut self) {
        let mut maps: BTreeMap<(Direction, u8), Vec<(Key, String)>> = BTreeMap::new();
        let mut selves: BTreeMap<u8, Vec<Key>> = BTreeMap::new();
        // Pods of a namespace that the same policies select, with the same ports, get the same answer.
        let mut known: HashMap<ChainKey<'_>, String> = HashMap::new();
        for pod in &self.facts.pods {
            let Some(policies) = self.policies.get(pod.namespace.as_str()).cloned() else { continue };
            let mut isolated = false;
            for direction in [Direction::Ingress, Direction::Egress] {
                let selecting: Vec<usize> = policies
                    .iter()
                    .enumerate()
                    .filter(|(_, policy)| selects(policy, pod, direction))
                    .map(|(index, _)| index)
                    .collect();
                if selecting.is_empty() {
                    continue;
                }
                isolated = true;
                let key = (pod.namespace.as_str(), selecting.clone(), direction, pod.ports.as_slice());
                let chain = match known.get(&key) {
                    Some(chain) => chain.clone(),
                    None => {
                        let chosen = selecting.iter().filter_map(|index| policies.get(*index).copied());
                        let chain = self.chain(chosen.collect(), direction, pod);
                        known.insert(key, chain.clone());
                        chain
                    }
                };
                for address in &pod.addresses {
                    let entry = (Key::from(*address), chain.clone());
                    maps.entry((direction, Family::of(*address) as u8)).or_default().push(entry);
                }
            }
            for address in pod.addresses.iter().filter(|_| isolated) {
                let pair = Key::new().address(*address).address(*address);
                selves.entry(Family::of(*address) as u8).or_default().push(pair);
            }
        }
        for family in FAMILIES {
            let mut take = |direction| maps.remove(&(direction, family as u8)).unwrap_or_default();
            let (ingress, egress) = (take(Direction::Ingress), take(Direction::Egress));
            self.program.set(&named("ingress", family), Set::map(&[Field::Destination(family)], ingress));
            self.program.set(&named("egress", family), Set::map(&[Field::Source(family)], egress));
            let pair = [Field::Source(family), Field::Destination(family)];
            let selves = selves.remove(&(family as u8)).unwrap_or_default();
            self.program.set(&named("selves", family), Set::of(&pair, selves));
        }
    }

    /// The chain that lets through what any of the policies lets through, and nothing else.
    fn chain(&mut self, policies: Vec<&'a NetworkPolicy>, direction: Direction, pod: &PodFacts) -> String {
        let mut rules: Vec<Rule> = vec![];
        for policy in policies {
            let Some(spec) = &policy.spec else { continue };
            let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
            for (peers, ports) in entries(spec, direction) {
                for rule in self.entry(namespace, peers, ports, direction, pod) {
                    if !rules.contains(&rule) {
                        rules.push(rule);
                    }
                }
            }
        }
        rules.push(Rule::new().drop());
        if let Some(name) = self.chains.get(&rules) {
            return name.clone();
        }
        let mut name = format!("allow-{}", hash(&rules));
        while !self.names.insert(name.clone()) {
            name.push('x');
        }
        for rule in &rules {
            self.program.rule(&name, rule.clone());
        }
        self.chains.insert(rules, name.clone());
        name
    }

    /// The rules of one `from` or `to`, with its ports.
    fn entry(
        &mut self,
        namespace: &str,
        peers: &'a [NetworkPolicyPeer],
        ports: &[NetworkPolicyPort],
        direction: Direction,
        pod: &PodFacts,
    ) -> Vec<Rule> {
        let selectors: Vec<&NetworkPolicyPeer> = peers.iter().filter(|peer| peer.ip_block.is_none()).collect();
        let mut who: Vec<Peer> = peers.iter().filter_map(|peer| block(peer.ip_block.as_ref()?)).collect();
        if peers.is_empty() {
            who.push(Peer::Anybody);
        } else if !selectors.is_empty() {
            who.push(Peer::Pods(self.peers(namespace, &selectors)));
        }
        let mut at = vec![];
        if ports.is_empty() {
            at.push(Port::Any);
        }
        for port in ports {
            let Some(protocol) = crate::services::rules::protocol(port.protocol.as_deref()) else { continue };
            match (&port.port, direction) {
                (None, _) => at.push(Port::Numbers { protocol, first: 0, last: u16::MAX }),
                (Some(IntOrString::Int(first)), _) => {
                    let last = port.end_port.unwrap_or(*first);
                    if let (Ok(first), Ok(last)) = (u16::try_from(*first), u16::try_from(last)) {
                        at.push(Port::Numbers { protocol, first, last });
                    }
                }
                (Some(IntOrString::String(name)), Direction::Ingress) => {
                    let own = pod.ports.iter().filter(|(known, of, _)| known == name && *of == protocol);
                    at.extend(own.map(|(_, _, number)| Port::Numbers { protocol, first: *number, last: *number }));
                }
                (Some(IntOrString::String(name)), Direction::Egress) => {
                    at.push(Port::Named(self.named_ports(name, protocol)));
                }
            }
        }
        let mut rules = vec![];
        for peer in &who {
            for port in &at {
                rules.extend(FAMILIES.into_iter().filter_map(|family| allow(peer, port, family, direction)));
            }
        }
        if direction == Direction::Egress {
            rules.extend(self.name_service(&who, &at));
        }
        rules
    }

    /// Policies let pods ask for names at port 53, and the name server is at another one.
    fn name_service(&self, who: &[Peer], at: &[Port]) -> Vec<Rule> {
        let Some(server) = self.facts.names.filter(|server| server.port() != NAME_SERVICE) else { return vec![] };
        let family = Family::of(server.ip());
        let mut rules = vec![];
        for peer in who {
            for port in at {
                if let Port::Numbers { protocol, first, last } = port
                    && (*first..=*last).contains(&NAME_SERVICE)
                    && !(*first..=*last).contains(&server.port())
                {
                    let rule = Rule::new().family(family).destination(server.ip());
                    let rule = matching(rule, peer, family, Direction::Egress);
                    rules.extend(rule.map(|rule| rule.protocol(*protocol).destination_port(server.port()).leave()));
                }
            }
        }
        rules
    }

    /// The set of pods that selectors select, seen from a namespace.
    fn peers(&mut self, namespace: &str, selectors: &[&NetworkPolicyPeer]) -> String {
        // Only a selector of pods alone means another thing in another namespace.
        let mut texts: Vec<String> = selectors
            .iter()
            .map(|peer| {
                let own = if peer.namespace_selector.is_none() { namespace } else { "" };
                format!("{own}|{}", serde_json::to_string(peer).unwrap_or_default())
            })
            .collect();
        texts.sort();
        texts.dedup();
        let name = format!("peers-{}", digest(&texts));
        if self.sets.insert(name.clone()) {
            let mut members: BTreeSet<IpAddr> = BTreeSet::new();
            for peer in selectors {
                let everybody = LabelSelector::default();
                let selector = peer.pod_selector.as_ref().unwrap_or(&everybody);
                for namespace in self.namespaces(peer.namespace_selector.as_ref(), namespace) {
                    let pods = self.pods.get(namespace).into_iter().flatten().copied();
                    let server = self.name_server.iter().filter(|server| server.namespace == namespace);
                    let chosen = pods.chain(server).filter(|pod| matches(selector, &pod.labels));
                    members.extend(chosen.flat_map(|pod| &pod.addresses));
                }
            }
            for family in FAMILIES {
                let members = members.iter().filter(|address| Family::of(**address) == family).map(|a| Key::from(*a));
                // Sources and destinations look the same in a set.
                self.program.set(&named(&name, family), Set::of(&[Field::Source(family)], members));
            }
        }
        name
    }

    /// The namespaces that a selector selects; without one, the policy's own.
    fn namespaces<'b>(&'b self, selector: Option<&LabelSelector>, own: &'b str) -> Vec<&'b str> {
        let Some(selector) = selector else { return vec![own] };
        if let Some(name) = selector.match_labels.as_ref().and_then(|labels| labels.get(OWN_NAME)) {
            let found = self.facts.namespaces.get_key_value(name).filter(|(_, labels)| matches(selector, labels));
            return found.map(|(name, _)| name.as_str()).into_iter().collect();
        }
        let chosen = self.facts.namespaces.iter().filter(|(_, labels)| matches(selector, labels));
        chosen.map(|(name, _)| name.as_str()).collect()
    }

    /// The set of every pod's port of a name, for policies that say where their pods may go by it.
    fn named_ports(&mut self, port: &str, protocol: u8) -> String {
        let name = format!("ports-{}", digest(&[port, &protocol.to_string()]));
        if self.sets.insert(name.clone()) {
            for family in FAMILIES {
                let mut members = vec![];
                for pod in &self.facts.pods {
                    let numbers = pod.ports.iter().filter(|(known, of, _)| known == port && *of == protocol);
                    for (_, _, number) in numbers {
                        let own = pod.addresses.iter().filter(|address| Family::of(**address) == family);
                        members.extend(own.map(|a| Key::new().address(*a).protocol(protocol).port(*number)));
                    }
                }
                self.program.set(&named(&name, family), Set::of(&place(family), members));
            }
        }
        name
    }
}

/// Whether a policy isolates a pod in a direction.
fn selects(policy: &NetworkPolicy, pod: &PodFacts, direction: Direction) -> bool {
    let Some(spec) = &policy.spec else { return false };
    let everybody = LabelSelector::default();
    applies(spec, direction) && matches(spec.pod_selector.as_ref().unwrap_or(&everybody), &pod.labels)
}

fn applies(spec: &NetworkPolicySpec, direction: Direction) -> bool {
    let listed = |name: &str| spec.policy_types.iter().flatten().any(|kind| kind == name);
    let silent = spec.policy_types.as_ref().is_none_or(Vec::is_empty);
    match direction {
        Direction::Ingress => silent || listed("Ingress"),
        Direction::Egress => {
            listed("Egress") || (silent && spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()))
        }
    }
}

type Entry<'a> = (&'a [NetworkPolicyPeer], &'a [NetworkPolicyPort]);

fn entries(spec: &NetworkPolicySpec, direction: Direction) -> Vec<Entry<'_>> {
    match direction {
        Direction::Ingress => spec
            .ingress
            .iter()
            .flatten()
            .map(|rule| (rule.from.as_deref().unwrap_or_default(), rule.ports.as_deref().unwrap_or_default()))
            .collect(),
        Direction::Egress => spec
            .egress
            .iter()
            .flatten()
            .map(|rule| (rule.to.as_deref().unwrap_or_default(), rule.ports.as_deref().unwrap_or_default()))
            .collect(),
    }
}

/// The rule that lets a peer through at a port, in one family. None where there is none.
fn allow(peer: &Peer, port: &Port, family: Family, direction: Direction) -> Option<Rule> {
    let rule = matching(Rule::new().family(family), peer, family, direction)?;
    let rule = match port {
        Port::Any => rule,
        Port::Numbers { protocol, first, last } => rule.protocol(*protocol).destination_ports(*first, *last),
        Port::Named(set) => rule.within(&place(family), &named(set, family)),
    };
    Some(rule.leave())
}

fn matching(rule: Rule, peer: &Peer, family: Family, direction: Direction) -> Option<Rule> {
    let field = match direction {
        Direction::Ingress => Field::Source(family),
        Direction::Egress => Field::Destination(family),
    };
    match peer {
        Peer::Anybody => Some(rule),
        Peer::Pods(set) => Some(rule.within(&[field], &named(set, family))),
        Peer::Block { net, except } => {
            if Family::of(net.address) != family {
                return None;
            }
            let inside = match direction {
                Direction::Ingress => rule.source(*net),
                Direction::Egress => rule.destination(*net),
            };
            Some(except.iter().fold(inside, |rule, net| match direction {
                Direction::Ingress => rule.not_source(*net),
                Direction::Egress => rule.not_destination(*net),
            }))
        }
    }
}

/// A block that cannot be read lets nobody through; nor does one with an exception that cannot be read.
fn block(block: &IPBlock) -> Option<Peer> {
    let net = |text: &str| {
        let (address, prefix) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        Some(Net { address, prefix: prefix.parse().ok().filter(|prefix| *prefix <= most)? })
    };
    let except: Option<Vec<Net>> = block.except.iter().flatten().map(|text| net(text)).collect();
    let (net, except) = (net(&block.cidr)?, except?);
    let except = except.into_iter().filter(|other| other.address.is_ipv4() == net.address.is_ipv4()).collect();
    Some(Peer::Block { net, except })
}

fn place(family: Family) -> [Field; 3] {
    [Field::Destination(family), Field::Protocol, Field::DestinationPort]
}

fn named(set: &str, family: Family) -> String {
    if family == Family::Ipv6 { format!("{set}-6") } else { set.to_owned() }
}

/// Of what tenants write: whoever could make two of them meet would say who may reach somebody else.
fn digest(texts: &[impl AsRef<str>]) -> String {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update((text.as_ref().len() as u64).to_le_bytes());
        digest.update(text.as_ref());
    }
    digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn hash(what: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
