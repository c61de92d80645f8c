//! Binds a guest's network in a namespace of its own and asks the kernel's own tools what came of it. Needs root.
#![allow(clippy::unwrap_used)]

use std::{net::Ipv4Addr, path::Path, process::Command, thread};

use ferrovirt_net::{
    link,
    masquerade::{Binding, Ipv6Side, Port, bind},
    tap,
};
use nix::sched::{CloneFlags, unshare};

fn binding(ports: Vec<Port>) -> Binding {
    Binding {
        plug: ferrovirt_net::masquerade::Plug::Tap,
        tap: "tap0".into(),
        outside: "eth0".into(),
        gateway: Ipv4Addr::new(10, 0, 2, 1),
        guest: Ipv4Addr::new(10, 0, 2, 2),
        prefix: 24,
        ipv6: Some(Ipv6Side {
            gateway: "fd10:0:2::1".parse().unwrap(),
            guest: "fd10:0:2::2".parse().unwrap(),
            prefix: 120,
        }),
        ports,
        uid: 107,
        gid: 107,
        queues: 1,
    }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn binding_is_repeatable_and_visible_to_the_kernels_tools() {
    thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        tap::create("eth0", 0, 0, 1).unwrap();
        link::set_up("eth0", Some(1400)).unwrap();
        link::add_address("eth0", Ipv4Addr::new(192, 0, 2, 7).into(), 24).unwrap();

        let here = Path::new("/proc/thread-self/ns/net");
        let bound = bind(here, &binding(vec![])).unwrap();
        assert_eq!(bound.mtu, 1400);
        assert_eq!(bound.addresses, [Ipv4Addr::new(192, 0, 2, 7)]);
        let rules = output("nft", &["list", "ruleset"]);
        assert!(rules.contains("iifname \"eth0\" dnat to 10.0.2.2"), "{rules}");
        assert!(rules.contains("ip saddr 10.0.2.2 oifname \"eth0\" masquerade"), "{rules}");
        assert_eq!((bound.ipv6, rules.contains("ip6")), (None, false), "the pod has no IPv6 address: {rules}");

        bind(here, &binding(vec![Port { protocol: 6, port: 80 }])).unwrap();
        let rules = output("nft", &["list", "ruleset"]);
        assert!(rules.contains("tcp dport 80 dnat to 10.0.2.2"), "{rules}");
        assert_eq!(rules.matches("dnat").count(), 1, "the first binding's rule is gone: {rules}");
        let addresses = output("ip", &["addr", "show", "tap0"]);
        assert!(addresses.contains("10.0.2.1/24") && addresses.contains("mtu 1400"), "{addresses}");

        link::add_address("eth0", "fd00::7".parse().unwrap(), 64).unwrap();
        for _twice in 0..2 {
            let bound = bind(here, &binding(vec![])).unwrap();
            assert_eq!(bound.ipv6.map(|ipv6| ipv6.prefix), Some(120));
            assert_eq!(bound.addresses.len(), 2);
        }
        let rules = output("nft", &["list", "ruleset"]);
        assert!(rules.contains("iifname \"eth0\" dnat to fd10:0:2::2"), "{rules}");
        assert!(rules.contains("ip6 saddr fd10:0:2::2 oifname \"eth0\" masquerade"), "{rules}");
        let addresses = output("ip", &["-6", "addr", "show", "tap0"]);
        // The link's own address may still be looking for a double.
        let ours = addresses.lines().find(|line| line.contains("fd10:0:2::1/120"));
        assert!(ours.is_some_and(|line| !line.contains("tentative")), "{addresses}");
    })
    .join()
    .unwrap();
}

/// A pod with two interfaces has two servers on one port.
#[test]
fn each_interface_has_a_dhcp_server_of_its_own() {
    thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        let lease = ferrovirt_net::dhcp::Lease {
            address: Ipv4Addr::new(10, 0, 2, 2),
            prefix: 24,
            gateway: None,
            server: Ipv4Addr::new(10, 0, 2, 1),
            client: None,
            dns: vec![],
            search: vec![],
            hostname: "a".into(),
            mtu: 1500,
        };
        let (ended, end) = std::sync::mpsc::channel();
        for device in ["tap0", "tap1"] {
            tap::create(device, 0, 0, 1).unwrap();
            link::set_up(device, None).unwrap();
            let (lease, ended) = (lease.clone(), ended.clone());
            thread::spawn(move || ended.send(ferrovirt_net::dhcp::serve(device, &lease)));
        }
        let listening = || output("ss", &["-H", "-uln", "sport", "=", ":67"]).lines().count();
        while listening() < 2 {
            assert!(end.try_recv().is_err(), "a server ended");
            thread::yield_now();
        }
    })
    .join()
    .unwrap();
}
