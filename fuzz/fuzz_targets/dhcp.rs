//! What a guest sends to the servers that give it its address. An answer fits into a packet.
#![no_main]

use std::net::{Ipv4Addr, Ipv6Addr};

use ferrovirt_net::{dhcp, dhcp6};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let bytes = &bytes[..bytes.len().min(1500)];
    let four = dhcp::Lease {
        address: Ipv4Addr::new(10, 0, 2, 2),
        prefix: 24,
        gateway: Some(Ipv4Addr::new(10, 0, 2, 1)),
        server: Ipv4Addr::new(10, 0, 2, 1),
        client: None,
        dns: vec![Ipv4Addr::new(10, 96, 0, 10)],
        search: vec!["default.svc.cluster.local".into(), "cluster.local".into()],
        hostname: "vm".into(),
        mtu: 1500,
    };
    let six = dhcp6::Lease {
        address: Ipv6Addr::LOCALHOST,
        server: [2, 0, 0, 0, 0, 1],
        dns: vec![Ipv6Addr::LOCALHOST],
        search: vec!["cluster.local".into()],
    };
    assert!(dhcp::answer(bytes, &four).is_none_or(|answer| answer.len() <= 1500));
    assert!(dhcp6::answer(bytes, &six).is_none_or(|answer| answer.len() <= 3000));
});
