//! Tells the guest its addresses: a DHCP server per interface, for as long as the launcher lives.

use std::{fs, net::Ipv4Addr, thread};

use ferrovirt_machine::spec::DhcpServer;
use ferrovirt_net::dhcp::{self, Lease};

/// Serving needs a socket and a packet's worth of buffer.
const STACK: usize = 64 << 10;

/// Starts the servers. A guest without addresses still runs, so trouble is reported and nothing else.
pub(crate) fn serve(servers: &[DhcpServer]) {
    let resolver = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    for server in servers {
        let (device, lease) = (server.device.clone(), lease(server, &resolver));
        let name = format!("dhcp-{device}");
        let started = thread::Builder::new().name(name).stack_size(STACK).spawn(move || {
            if let Err(error) = dhcp::serve(&device, &lease) {
                tracing::error!(device, %error, "the guest gets no address by DHCP");
            }
        });
        if let Err(error) = started {
            tracing::error!(%error, "cannot start the DHCP server");
        }
    }
}

/// The guest resolves names as its pod does.
fn lease(server: &DhcpServer, resolver: &str) -> Lease {
    let mut lease = Lease {
        address: server.address,
        prefix: server.prefix,
        gateway: server.gateway,
        server: server.server,
        client: server.client,
        dns: vec![],
        search: vec![],
        hostname: server.hostname.clone(),
        mtu: server.mtu,
    };
    for line in resolver.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            // A resolver on loopback is the pod's own, and the guest has another loopback.
            Some("nameserver") => lease.dns.extend(
                words.filter_map(|word| word.parse::<Ipv4Addr>().ok()).filter(|address| !address.is_loopback()),
            ),
            Some("search") => lease.search = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_come_from_the_pod() {
        let server = DhcpServer {
            device: "tap0".into(),
            address: Ipv4Addr::new(10, 0, 2, 2),
            prefix: 24,
            gateway: Some(Ipv4Addr::new(10, 0, 2, 1)),
            server: Ipv4Addr::new(10, 0, 2, 1),
            client: None,
            hostname: "a".into(),
            mtu: 1500,
        };
        let resolver = "# made by hand\nsearch a.b c\nnameserver 127.0.0.53\nnameserver 10.96.0.10\nnameserver ::1\n";
        let lease = lease(&server, resolver);
        assert_eq!(lease.dns, [Ipv4Addr::new(10, 96, 0, 10)]);
        assert_eq!(lease.search, ["a.b", "c"]);
    }
}
