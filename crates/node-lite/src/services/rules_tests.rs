//! Tests of the rules of services.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

fn limits() -> Limits {
    let net = |text: &str, prefix| Net { address: text.parse().unwrap(), prefix };
    Limits {
        own: vec![net("10.42.0.0", 24), net("10.43.0.0", 16)],
        external: vec![net("192.0.2.0", 24), net("127.0.0.0", 8), net("10.0.0.0", 8), net("198.51.100.0", 24)],
        balancer: vec![net("203.0.113.0", 24), net("198.51.100.7", 32)],
        machine: ["198.51.100.7".parse().unwrap(), "10.42.0.1".parse().unwrap()].into(),
    }
}

/// The slice's name, its port's, and addresses with whether they are ready.
type Slice<'a> = (&'a str, &'a str, &'a [(&'a str, bool)]);

fn view(namespace: &str, name: &str, spec: Value, slices: &[Slice<'_>]) -> View {
    let service = json!({ "metadata": { "name": name, "namespace": namespace }, "spec": spec });
    let slice = |(slice, port, addresses): &(&str, &str, &[(&str, bool)])| {
        let endpoints: Vec<_> = addresses
            .iter()
            .map(|(address, ready)| json!({ "addresses": [address], "conditions": { "ready": ready } }))
            .collect();
        let object = json!({
            "metadata": { "name": slice, "namespace": namespace, "labels": { "kubernetes.io/service-name": name } },
            "addressType": "IPv4", "ports": [{ "name": port, "port": 8080, "protocol": "TCP" }], "endpoints": endpoints,
        });
        ((namespace.to_owned(), (*slice).to_owned()), Arc::new(serde_json::from_value(object).unwrap()))
    };
    View {
        services: [((namespace.into(), name.into()), Arc::new(serde_json::from_value(service).unwrap()))].into(),
        slices: slices.iter().map(slice).collect(),
    }
}

#[test]
fn ports_lead_to_ready_endpoints() {
    let spec = json!({
        "clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "externalIPs": ["192.0.2.1"],
        "sessionAffinity": "ClientIP",
        "ports": [
            { "name": "http", "port": 80, "nodePort": 30080, "protocol": "TCP" },
            { "name": "dns", "port": 53, "protocol": "UDP" },
        ],
    });
    let slices: &[Slice<'_>] = &[
        ("web-a", "http", &[("10.42.0.3", true), ("10.42.0.2", true), ("10.42.0.4", false)]),
        ("other", "admin", &[("10.42.0.9", true)]),
    ];
    let targets = targets(&view("default", "web", spec, slices), &limits());
    assert_eq!(targets.len(), 2);
    let shown: Vec<String> = targets[0].endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.42.0.2:8080", "10.42.0.3:8080"]);
    assert_eq!((targets[0].node_port, targets[0].protocol, targets[0].sticky), (Some(30080), nft::TCP, true));
    assert_eq!((targets[0].addresses.len(), targets[0].external.len()), (1, 1));
    assert!(targets[1].endpoints.is_empty());
    assert_ne!(targets[0].chain, targets[1].chain);
}

#[test]
fn external_ips_take_nothing_that_is_not_theirs() {
    let taken = |address: &str, limits: &Limits| {
        let spec = json!({ "clusterIPs": ["10.43.0.9"], "externalIPs": [address], "ports": [{ "port": 80 }] });
        targets(&view("t", "web", spec, &[]), limits)[0].external.len()
    };
    for (address, expected) in [
        ("192.0.2.1", 1),
        // On no list.
        ("8.8.8.8", 0),
        // On the list, and still not to be had: loopback, this machine's own address, pods, services.
        ("127.0.0.5", 0),
        ("198.51.100.7", 0),
        ("10.42.0.9", 0),
        ("10.43.0.1", 0),
        ("::ffff:192.0.2.1", 0),
    ] {
        assert_eq!(taken(address, &limits()), expected, "{address}");
    }
    assert_eq!(taken("192.0.2.1", &Limits { external: vec![], ..limits() }), 0, "without a list there is none");
}

#[test]
fn a_load_balancers_address_is_no_way_to_take_the_machines() {
    let mut view = view("t", "web", json!({ "clusterIPs": ["10.43.0.9"], "ports": [{ "port": 80 }] }), &[]);
    let service = view.services.values_mut().next().unwrap();
    Arc::make_mut(service).status = serde_json::from_value(json!({ "loadBalancer": { "ingress": [
        { "ip": "203.0.113.4" }, { "ip": "127.0.0.1" }, { "ip": "169.254.169.254" }, { "ip": "198.51.100.7" },
    ] } }))
    .unwrap();
    let shown = |view: &View| {
        let Target { external, balanced, local, .. } = targets(view, &limits()).remove(0);
        [external, balanced, local].map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(shown(&view), ["", "203.0.113.4", ""]);
    // The machine's own address is had by who was given it, and by no other one.
    let service = view.services.values_mut().next().unwrap();
    let spec = Arc::make_mut(service).spec.as_mut().unwrap();
    spec.type_ = Some("LoadBalancer".into());
    assert_eq!(shown(&view), ["", "203.0.113.4", "198.51.100.7"]);
    let service = view.services.values_mut().next().unwrap();
    Arc::make_mut(service).spec.as_mut().unwrap().load_balancer_class = Some("example.com/other".into());
    assert_eq!(shown(&view), ["", "203.0.113.4", ""]);
}

#[test]
fn a_list_of_sources_that_is_not_understood_lets_nobody_in() {
    let sources = |ranges: Value| {
        let spec = json!({ "type": "LoadBalancer", "loadBalancerSourceRanges": ranges });
        let service: Service = serde_json::from_value(json!({ "spec": spec })).unwrap();
        super::sources(&service).map(|nets| nets.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(sources(json!(null)), None);
    assert_eq!(sources(json!([])), None);
    assert_eq!(
        sources(json!([" 192.0.2.0/24", "fd00::/8", "x", "192.0.2.0/33"])),
        Some(vec!["192.0.2.0/24".into(), "fd00::/8".into()])
    );
    assert_eq!(sources(json!(["everybody"])), Some(vec![]));
}

/// A client, this machine and a pod, each in a network of its own.
#[test]
fn packets_to_a_load_balancer_reach_its_pod_and_nothing_else_does() {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    let dir = tempfile::tempdir().unwrap();
    let (client, pod) = (dir.path().join("client"), dir.path().join("pod"));
    let ip = |arguments: String| {
        let output = std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {arguments}: {output:?}");
    };
    let says = |listener: TcpListener, word: &'static str| {
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = stream.unwrap().write_all(word.as_bytes());
            }
        });
    };
    let hear = |address: &str| {
        let mut stream = TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_millis(700))?;
        let mut word = String::new();
        stream.read_to_string(&mut word)?;
        std::io::Result::Ok(word)
    };
    std::thread::scope(|scope| {
        let machine = scope.spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
            for (netns, link) in [(&client, "c0"), (&pod, "p0")] {
                crate::netns::create(netns).unwrap();
                ip(format!("link add {link} type veth peer name eth0 netns {}", netns.display()));
                ip(format!("link set {link} up"));
            }
            ip("link set lo up".into());
            ip("addr add 198.51.100.7/24 dev c0".into());
            ip("addr add 10.42.0.1/24 dev p0".into());
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            let inside = |netns: &std::path::Path, lines: &[&str]| {
                ferrovirt_net::netns::enter(netns, || {
                    lines.iter().for_each(|line| ip((*line).to_owned()));
                    Ok(())
                })
                .unwrap();
            };
            inside(
                &client,
                &["addr add 198.51.100.20/24 dev eth0", "link set eth0 up", "route add default via 198.51.100.7"],
            );
            inside(&pod, &["addr add 10.42.0.2/24 dev eth0", "link set eth0 up", "route add default via 10.42.0.1"]);
            says(ferrovirt_net::netns::enter(&pod, || TcpListener::bind("10.42.0.2:8080")).unwrap(), "pod");
            says(TcpListener::bind("198.51.100.7:2222").unwrap(), "machine");
            let target = |port: u16, sources: Option<&str>| Target {
                chain: format!("target-{port}"),
                addresses: vec![],
                external: vec![],
                balanced: vec!["203.0.113.4".parse().unwrap()],
                local: vec!["198.51.100.7".parse().unwrap()],
                sources: sources.map(|text| vec![Net { address: text.parse().unwrap(), prefix: 32 }]),
                port,
                node_port: None,
                protocol: nft::TCP,
                endpoints: vec!["10.42.0.2:8080".parse().unwrap()],
                sticky: false,
            };
            let network = Network { pods: 77, services: Net { address: "10.43.0.0".parse().unwrap(), prefix: 16 } };
            let targets = [target(80, None), target(81, Some("198.51.100.99")), target(82, Some("198.51.100.20"))];
            let with = program("t", &network, &targets);
            with.replace().unwrap();
            let asks = |address: &'static str| ferrovirt_net::netns::enter(&client, || hear(address)).ok();
            for (address, expected) in [
                ("198.51.100.7:80", Some("pod")),
                ("203.0.113.4:80", Some("pod")),
                ("198.51.100.7:81", None),
                ("203.0.113.4:81", None),
                ("198.51.100.7:82", Some("pod")),
                ("203.0.113.4:82", Some("pod")),
                // What the machine itself serves, and what nobody does.
                ("198.51.100.7:2222", Some("machine")),
                ("203.0.113.4:2222", None),
            ] {
                assert_eq!(asks(address).as_deref(), expected, "{address}");
            }
            // The machine's own traffic is nobody's.
            assert!(hear("198.51.100.7:80").is_err() && hear("203.0.113.4:80").is_err());
            // When the service goes, so does the way to it.
            program("t", &network, &[]).update(&with).unwrap();
            assert_eq!((asks("198.51.100.7:80"), asks("203.0.113.4:80")), (None, None));
        });
        machine.join().unwrap();
    });
    for netns in [client, pod] {
        crate::netns::remove(&netns).unwrap();
    }
}

#[test]
fn a_slice_does_not_lead_to_the_machine_or_its_loopback() {
    let led = |namespace: &str, name: &str, address: &str| {
        let spec = json!({ "clusterIPs": ["10.43.0.9"], "ports": [{ "name": "a", "port": 80, "nodePort": 30000 }] });
        let view = view(namespace, name, spec, &[("mine", "a", &[(address, true)])]);
        targets(&view, &limits())[0].endpoints.len()
    };
    for (namespace, name, address, expected) in [
        ("t", "web", "203.0.113.9", 1),
        ("t", "web", "127.0.0.1", 0),
        ("t", "web", "0.0.0.0", 0),
        ("t", "web", "169.254.169.254", 0),
        ("t", "web", "198.51.100.7", 0),
        ("t", "web", "10.42.0.1", 0),
        ("t", "kubernetes", "198.51.100.7", 0),
        ("default", "kubernetes", "198.51.100.7", 1),
        ("default", "kubernetes", "127.0.0.1", 0),
        ("kube-system", "kube-dns", "10.42.0.1", 1),
    ] {
        assert_eq!(led(namespace, name, address), expected, "{namespace}/{name} {address}");
    }
}

#[test]
fn the_kernel_takes_the_rules() {
    let target = |port: u16, endpoints: &[&str], node_port: Option<u16>, sticky: bool| Target {
        chain: format!("target-{port}"),
        addresses: vec!["10.43.0.9".parse().unwrap()],
        external: vec!["192.0.2.1".parse().unwrap()],
        balanced: vec![],
        local: vec![],
        sources: None,
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
    let network = Network { pods: 77, services: Net { address: "10.43.0.0".parse().unwrap(), prefix: 16 } };
    let rules = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
        let mut before = program("t", &network, &[]);
        before.replace().unwrap();
        for targets in [&targets[..], &targets[1..], &targets] {
            let now = program("t", &network, targets);
            now.update(&before).unwrap();
            assert!(now.is_there().unwrap());
            before = now;
        }
        let output = std::process::Command::new("nft").args(["list", "ruleset"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    let rules = rules.join().unwrap();
    for expected in [
        "iifgroup 77 ip daddr . meta l4proto . th dport vmap @services",
        "fib daddr type local jump node-ports",
        "10.43.0.9 . tcp . 80 : jump target-80",
        "192.0.2.1 . tcp . 81 : jump target-81",
        "tcp . 30080 : jump target-80",
        "numgen random mod 2 0",
        "dnat to 10.42.0.2:8080",
        "dnat to 10.42.0.3:8080",
        "jhash ip saddr mod 2",
        "ip saddr . ip daddr @hairpins ct status dnat masquerade",
        "10.42.0.2 . 10.42.0.2",
        "ip daddr 10.43.0.0/16 reject with tcp reset",
        "ip saddr 127.0.0.0/8 oifgroup 77 masquerade",
    ] {
        assert!(rules.contains(expected), "no {expected:?} in\n{rules}");
    }
    assert!(!rules.contains("target-82"), "nobody is behind it:\n{rules}");
    let output = rules.split("chain output").nth(1).unwrap().split('}').next().unwrap();
    assert!(!output.contains("external"), "this machine's own traffic is not taken:\n{output}");
}
