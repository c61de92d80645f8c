//! Bytes that guests send and that nobody meant. Whatever they are, nothing panics, and an answer is as long as one may be.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::{Ipv4Addr, Ipv6Addr};

use ferrovirt_net::netlink::attributes;
use ferrovirt_net::{dhcp, dhcp6};
use proptest::prelude::*;

fn lease() -> dhcp::Lease {
    dhcp::Lease {
        address: Ipv4Addr::new(10, 0, 2, 2),
        prefix: 24,
        gateway: Some(Ipv4Addr::new(10, 0, 2, 1)),
        server: Ipv4Addr::new(10, 0, 2, 1),
        client: None,
        dns: vec![Ipv4Addr::new(10, 96, 0, 10)],
        search: vec!["default.svc.cluster.local".into(), "cluster.local".into()],
        hostname: "vm".into(),
        mtu: 1500,
    }
}

fn lease6() -> dhcp6::Lease {
    dhcp6::Lease {
        address: Ipv6Addr::LOCALHOST,
        server: [2, 0, 0, 0, 0, 1],
        dns: vec![Ipv6Addr::LOCALHOST],
        search: vec!["cluster.local".into()],
    }
}

/// A request as a client sends it, up to its options.
fn request() -> Vec<u8> {
    let mut request = vec![0; 240];
    request[..3].copy_from_slice(&[1, 1, 6]);
    request[236..].copy_from_slice(&[99, 130, 83, 99]);
    request
}

proptest! {
    #[test]
    fn no_dhcp_request_breaks_the_server(
        options in proptest::collection::vec(any::<u8>(), 0..1260),
        kind in any::<u8>(),
        at in 0_usize..240,
        noise in any::<u8>(),
    ) {
        let mut bytes = request();
        bytes.extend([53, 1, kind]);
        bytes.extend(&options);
        if let Some(answer) = dhcp::answer(&bytes, &lease()) {
            prop_assert!((240..=1500).contains(&answer.len()));
        }
        bytes[at] = noise;
        bytes.truncate(1500);
        let _ = dhcp::answer(&bytes, &lease());
        let _ = dhcp::answer(&options, &lease());
    }

    #[test]
    fn no_dhcp6_request_breaks_the_server(
        kind in 0_u8..14,
        options in proptest::collection::vec(any::<u8>(), 0..1400),
        id in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = vec![kind, 1, 2, 3, 0, 1];
        bytes.extend(u16::try_from(id.len()).unwrap().to_be_bytes());
        bytes.extend(&id);
        bytes.extend(&options);
        let _ = dhcp6::answer(&bytes, &lease6());
        let _ = dhcp6::answer(&options, &lease6());
    }

    #[test]
    fn netlink_attributes_lie_within_their_message(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let found = attributes(&bytes);
        prop_assert!(found.len() <= bytes.len() / 4);
        for (_, value) in found {
            attributes(value);
        }
    }
}
