//! What upstream documents about policies, with real packets: each case goes from the rules of the one before to its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::super::world::{GROUP, World, alone};
use super::super::{Facts, Labels};
use super::*;

/// Pods of a world: `a` and `b` of the red namespace, `c` of the blue one, and a stranger who is none.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const STRANGER: usize = 3;

/// From, to, protocol, port, and whether it comes through.
type Check = (usize, usize, &'static str, u16, bool);

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn facts(world: &World, policies: &[Value]) -> Facts {
    let mut pods = vec![world.facts(A, "red", "a"), world.facts(B, "red", "b"), world.facts(C, "blue", "c")];
    for (pod, number) in [(A, 80), (B, 5000), (C, 81)] {
        pods[pod].ports = vec![("web".into(), nft::TCP, number)];
    }
    let namespaces = ["red", "blue", "kube-system"].map(|name| {
        (
            name.to_owned(),
            labels(&[("kubernetes.io/metadata.name", name), ("team", if name == "red" { "r" } else { "b" })]),
        )
    });
    let policy = |(number, spec): (usize, &Value)| {
        let mut object = json!({ "metadata": { "name": format!("p{number}"), "namespace": "red" }, "spec": spec });
        if let Some(namespace) = spec.get("in") {
            object["metadata"]["namespace"] = namespace.clone();
        }
        Arc::new(serde_json::from_value(object).unwrap())
    };
    Facts {
        namespaces: namespaces.into(),
        pods,
        policies: policies.iter().enumerate().map(policy).collect(),
        names: Some("10.42.0.1:10053".parse().unwrap()),
    }
}

fn cases() -> Vec<(&'static str, Vec<Value>, Vec<Check>)> {
    let a = json!({ "matchLabels": { "app": "a" } });
    let b = json!({ "matchLabels": { "app": "b" } });
    let tcp = |port: Value| json!([{ "protocol": "TCP", "port": port }]);
    vec![
        (
            "nobody is isolated",
            vec![],
            vec![
                (A, B, "TCP", 80, true),
                (C, A, "TCP", 80, true),
                (STRANGER, A, "TCP", 80, true),
                (A, STRANGER, "UDP", 80, true),
            ],
        ),
        (
            "everything to a is denied, and nothing from it",
            vec![json!({ "podSelector": a })],
            vec![
                (B, A, "TCP", 80, false),
                (C, A, "UDP", 80, false),
                (STRANGER, A, "TCP", 81, false),
                (A, B, "TCP", 80, true),
                (A, STRANGER, "TCP", 80, true),
                (B, C, "TCP", 80, true),
            ],
        ),
        (
            "everything to all pods of the namespace is denied",
            vec![json!({ "podSelector": {} })],
            vec![
                (B, A, "TCP", 80, false),
                (C, B, "TCP", 80, false),
                (A, C, "TCP", 80, true),
                (B, STRANGER, "TCP", 80, true),
            ],
        ),
        (
            "all egress is denied",
            vec![json!({ "podSelector": a, "policyTypes": ["Egress"] })],
            vec![
                (A, B, "TCP", 80, false),
                (A, STRANGER, "UDP", 80, false),
                (B, A, "TCP", 80, true),
                (STRANGER, A, "TCP", 80, true),
            ],
        ),
        (
            "an egress rule without types is for both directions",
            vec![json!({ "podSelector": a, "egress": [{ "to": [{ "podSelector": b }] }] })],
            vec![(A, B, "TCP", 80, true), (A, C, "TCP", 80, false), (B, A, "TCP", 80, false)],
        ),
        (
            "an empty rule allows everybody",
            vec![json!({ "podSelector": a, "ingress": [{}] })],
            vec![(C, A, "TCP", 80, true), (STRANGER, A, "UDP", 5000, true)],
        ),
        (
            "pods of the policy's own namespace",
            vec![json!({ "podSelector": a, "ingress": [{ "from": [{ "podSelector": {} }] }] })],
            vec![(B, A, "TCP", 80, true), (C, A, "TCP", 80, false), (STRANGER, A, "TCP", 80, false)],
        ),
        (
            "all pods of other namespaces",
            vec![
                json!({ "podSelector": a, "ingress": [{ "from": [{ "namespaceSelector": { "matchLabels": { "team": "b" } } }] }] }),
            ],
            vec![(C, A, "TCP", 80, true), (B, A, "TCP", 80, false), (STRANGER, A, "TCP", 80, false)],
        ),
        (
            "all pods of all namespaces, and no stranger",
            vec![json!({ "podSelector": a, "ingress": [{ "from": [{ "namespaceSelector": {} }] }] })],
            vec![(C, A, "TCP", 80, true), (B, A, "TCP", 80, true), (STRANGER, A, "TCP", 80, false)],
        ),
        (
            "both selectors at once are both required",
            vec![json!({ "podSelector": a, "ingress": [{ "from": [{
             "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "blue" } }, "podSelector": b }] }] })],
            vec![(C, A, "TCP", 80, false), (B, A, "TCP", 80, false)],
        ),
        (
            "two peers are either of them",
            vec![json!({ "podSelector": a, "ingress": [{ "from": [
             { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "blue" } } }, { "podSelector": b }] }] })],
            vec![(C, A, "TCP", 80, true), (B, A, "TCP", 80, true), (STRANGER, A, "TCP", 80, false)],
        ),
        (
            "a block",
            vec![json!({ "podSelector": a, "ingress": [{ "from": [{ "ipBlock": { "cidr": "198.51.100.0/24" } }] }] })],
            vec![(STRANGER, A, "TCP", 80, true), (B, A, "TCP", 80, false)],
        ),
        (
            "a block with an exception",
            vec![json!({ "podSelector": a, "ingress": [{ "from": [{ "ipBlock": {
             "cidr": "0.0.0.0/0", "except": ["10.42.0.3/32", "203.0.113.0/24"] } }] }] })],
            vec![(STRANGER, A, "TCP", 80, true), (B, A, "TCP", 80, false), (C, A, "TCP", 80, true)],
        ),
        (
            "a port",
            vec![json!({ "podSelector": a, "ingress": [{ "ports": tcp(json!(80)) }] })],
            vec![
                (B, A, "TCP", 80, true),
                (B, A, "UDP", 80, false),
                (B, A, "TCP", 81, false),
                (STRANGER, A, "TCP", 80, true),
            ],
        ),
        (
            "a protocol alone is all of its ports",
            vec![json!({ "podSelector": a, "ingress": [{ "ports": [{ "protocol": "UDP" }] }] })],
            vec![(B, A, "UDP", 81, true), (B, A, "TCP", 81, false)],
        ),
        (
            "a range of ports",
            vec![json!({ "podSelector": a, "ingress": [{ "ports": [{ "port": 5000, "endPort": 5004 }] }] })],
            vec![(B, A, "TCP", 5000, true), (B, A, "TCP", 5005, false), (B, A, "TCP", 80, false)],
        ),
        (
            "a port by the name that the pod gives it",
            vec![json!({ "podSelector": {}, "ingress": [{ "ports": tcp(json!("web")) }] })],
            vec![
                (C, A, "TCP", 80, true),
                (C, A, "TCP", 5000, false),
                (C, B, "TCP", 5000, true),
                (C, B, "TCP", 80, false),
            ],
        ),
        (
            "a port by the name that the other pod gives it",
            vec![json!({ "podSelector": a, "policyTypes": ["Egress"], "egress": [{ "ports": tcp(json!("web")) }] })],
            vec![
                (A, B, "TCP", 5000, true),
                (A, B, "TCP", 80, false),
                (A, C, "TCP", 81, true),
                (A, C, "TCP", 5000, false),
            ],
        ),
        (
            "policies add up",
            vec![
                json!({ "podSelector": {} }),
                json!({ "podSelector": a, "ingress": [{ "from": [{ "podSelector": b }], "ports": tcp(json!(80)) }] }),
                json!({ "podSelector": a, "ingress": [{ "from": [{ "ipBlock": { "cidr": "198.51.100.0/24" } }] }] }),
            ],
            vec![
                (B, A, "TCP", 80, true),
                (B, A, "TCP", 81, false),
                (STRANGER, A, "TCP", 81, true),
                (C, A, "TCP", 80, false),
                (A, B, "TCP", 80, false),
            ],
        ),
        (
            "both ends have to allow",
            vec![
                json!({ "podSelector": b, "ingress": [{ "from": [{ "podSelector": a }] }] }),
                json!({ "podSelector": a, "policyTypes": ["Egress"], "egress": [{ "ports": tcp(json!(81)) }] }),
            ],
            vec![(A, B, "TCP", 81, true), (A, B, "TCP", 80, false), (C, B, "TCP", 81, false)],
        ),
        (
            "a policy of another namespace is for that one",
            vec![json!({ "in": "blue", "podSelector": {} })],
            vec![(B, A, "TCP", 80, true), (A, C, "TCP", 80, false)],
        ),
        (
            "expressions",
            vec![
                json!({ "podSelector": { "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["b"] }] } }),
            ],
            vec![(B, A, "TCP", 80, false), (A, B, "TCP", 80, true)],
        ),
        ("nobody is isolated any more", vec![], vec![(B, A, "TCP", 80, true), (A, C, "TCP", 80, true)]),
    ]
}

#[test]
fn what_a_policy_denies_does_not_come_through() {
    alone(|| {
        let world = World::new(3);
        let mut before: Option<Program> = None;
        for (name, policies, checks) in cases() {
            let now = program("policies", GROUP, &facts(&world, &policies));
            match &before {
                Some(before) => now.update(before).unwrap_or_else(|error| panic!("{name}: {error}")),
                None => now.replace().unwrap(),
            }
            for (from, to, protocol, port, expected) in checks {
                // A block of IPv4 says nothing of IPv6.
                let blocks = policies.iter().any(|policy| policy.to_string().contains("ipBlock"));
                for ipv6 in [false, true].into_iter().filter(|ipv6| !(*ipv6 && blocks)) {
                    let came = world.reaches(from, to, protocol, port, ipv6, expected);
                    assert_eq!(came, expected, "{name}: {from} to {to}, {protocol} {port}, IPv6: {ipv6}");
                }
            }
            before = Some(now);
        }
    });
}

#[test]
fn a_pod_is_judged_from_its_first_packet_and_reached_by_its_node() {
    alone(|| {
        let world = World::new(3);
        let deny = json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] });
        let mut known = facts(&world, &[deny]);
        let newcomer = known.pods.remove(A);
        let without = program("policies", GROUP, &known);
        without.replace().unwrap();
        assert!(world.reaches(C, A, "TCP", 80, false, true), "it is not known yet");
        known.pods.push(newcomer);
        program("policies", GROUP, &known).update(&without).unwrap();
        assert!(!world.reaches(C, A, "TCP", 80, false, false));
        // The machine is not in the way of itself: kubelets probe.
        for address in [world.places[A].address, world.places[A].address_6] {
            std::net::TcpStream::connect((address, 80)).unwrap();
        }
        // And egress to the machine is egress.
        let machine = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let target = (std::net::Ipv4Addr::new(10, 42, 0, 1), machine.local_addr().unwrap().port()).into();
        let asked = |from: usize, patience: u64| {
            let patience = std::time::Duration::from_millis(patience);
            world.places[from].inside(|| std::net::TcpStream::connect_timeout(&target, patience)).is_ok()
        };
        assert!(asked(C, 10_000) && !asked(A, 150));
    });
}

#[test]
fn a_pod_that_may_ask_for_names_reaches_the_name_server() {
    alone(|| {
        let world = World::new(3);
        let server = std::net::UdpSocket::bind("10.42.0.1:10053").unwrap();
        let heard = |policy: Value, patience: u64| {
            program("policies", GROUP, &facts(&world, &[policy])).replace().unwrap();
            let asked =
                world.places[A].inside(|| std::net::UdpSocket::bind("0.0.0.0:0")?.send_to(b"?", "10.42.0.1:10053"));
            asked.unwrap();
            server.set_read_timeout(Some(std::time::Duration::from_millis(patience))).unwrap();
            server.recv(&mut [0; 8]).is_ok()
        };
        let dns = json!([{ "protocol": "UDP", "port": 53 }]);
        let to = json!([{ "namespaceSelector": {}, "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } } }]);
        let egress = |rule: Value| json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [rule] });
        assert!(heard(egress(json!({ "ports": dns })), 10_000));
        assert!(heard(egress(json!({ "to": to, "ports": dns })), 10_000));
        assert!(heard(egress(json!({ "to": to })), 10_000));
        assert!(!heard(egress(json!({ "to": [{ "podSelector": {} }], "ports": dns })), 150));
        assert!(!heard(egress(json!({ "ports": [{ "protocol": "UDP", "port": 54 }] })), 150));
    });
}

/// So many namespaces with three policies and a pod each, beside the world's own.
fn many(world: &World, namespaces: u32) -> Facts {
    let mut facts = facts(world, &[]);
    for number in 0..namespaces {
        let name = format!("n{number}");
        facts.namespaces.insert(name.clone(), labels(&[("kubernetes.io/metadata.name", &name)]));
        let address = IpAddr::from(std::net::Ipv4Addr::from(0x0a64_0000 + number));
        let pod = PodFacts {
            namespace: name.clone(),
            labels: labels(&[("app", "a")]),
            addresses: vec![address],
            ports: vec![],
        };
        facts.pods.push(pod);
        for spec in [
            json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }),
            json!({ "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {} }] }] }),
            json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{ "to": [{ "namespaceSelector":
                { "matchLabels": { "kubernetes.io/metadata.name": name } } }], "ports": [{ "port": 80 }] }] }),
        ] {
            let policy = json!({ "metadata": { "name": "p", "namespace": name }, "spec": spec });
            facts.policies.push(Arc::new(serde_json::from_value(policy).unwrap()));
        }
    }
    facts
}

#[test]
fn six_thousand_policies_fit_and_one_more_pod_changes_little() {
    alone(|| {
        let world = World::new(3);
        let mut facts = many(&world, 2000);
        let before = program("policies", GROUP, &facts);
        before.replace().unwrap();
        assert!(before.is_there().unwrap());
        facts.pods.push(PodFacts { addresses: vec!["10.99.0.1".parse().unwrap()], ..facts.pods[10].clone() });
        let after = program("policies", GROUP, &facts);
        after.update(&before).unwrap();
        assert!(after.is_there().unwrap());
        assert!(after.difference(&before) < 10, "{} messages", after.difference(&before));
    });
}

/// A measurement, for `make bench-net`. Here it only has to work.
#[test]
fn what_six_thousand_policies_cost_a_new_connection() {
    let rounds = if std::env::var_os("FERROVIRT_MEASURE").is_some() { 10 } else { 1 };
    alone(move || {
        let world = World::new(3);
        let own = json!({ "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {} }] }] });
        let mut many = many(&world, 2000);
        many.policies.push(facts(&world, &[own]).policies.remove(0));
        let tables = [facts(&world, &[]), many].map(|facts| program("policies", GROUP, &facts));
        let target = SocketAddr::new(world.places[A].address, 80);
        let listener = world.places[A].tcp[0].try_clone().unwrap();
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let mut best = [f64::MAX; 2];
        for _ in 0..rounds {
            for (table, best) in tables.iter().zip(&mut best) {
                table.replace().unwrap();
                let took = world.places[B].inside(|| {
                    let begun = Instant::now();
                    for _ in 0..500 {
                        drop(std::net::TcpStream::connect(target)?);
                    }
                    Ok(begun.elapsed().as_secs_f64() / 500.0)
                });
                *best = best.min(took.unwrap());
            }
        }
        let [without, with] = best.map(|seconds| seconds * 1e6);
        println!("a new connection: {without:.1} us without policies, {with:.1} us with 6,001: {:.3}", with / without);
    });
}
