//! Tells the guest its addresses: a DHCP server per interface, for as long as the launcher lives.

use std::{
    fs, io,
    net::{Ipv4Addr, Ipv6Addr},
    thread,
};

use ferrovirt_machine::spec::{Dhcp6Server, DhcpServer};
use ferrovirt_net::{
    dhcp::{self, Lease},
    dhcp6,
};

/// Serving needs a socket and a packet's worth of buffer.
const STACK: usize = 64 << 10;

/// Starts the servers. A guest without addresses still runs, so trouble is reported and nothing else.
pub(crate) fn serve(servers: &[DhcpServer]) {
    let resolver = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    for server in servers {
        let (device, lease) = (server.device.clone(), lease(server, &resolver));
        if let Some(server) = &server.ipv6 {
            let (device, lease) = (device.clone(), lease6(server, &lease, &resolver));
            start(format!("dhcp6-{device}"), move || dhcp6::serve(&device, &lease));
        }
        start(format!("dhcp-{device}"), move || dhcp::serve(&device, &lease));
    }
}

fn start(name: String, serve: impl FnOnce() -> io::Result<()> + Send + 'static) {
    let thread = thread::Builder::new().name(name.clone()).stack_size(STACK);
    let started = thread.spawn(move || {
        if let Err(error) = serve() {
            tracing::error!(name, %error, "the guest is not told its address");
        }
    });
    if let Err(error) = started {
        tracing::error!(%error, "cannot start the DHCP server");
    }
}

fn lease6(server: &Dhcp6Server, lease: &Lease, resolver: &str) -> dhcp6::Lease {
    let servers = resolver.lines().filter_map(|line| line.trim().strip_prefix("nameserver")).map(str::trim);
    let servers = servers.filter_map(|word| word.parse::<Ipv6Addr>().ok()).filter(|address| !address.is_loopback());
    dhcp6::Lease {
        address: server.address,
        server: server.server,
        dns: servers.collect(),
        search: lease.search.clone(),
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
            ipv6: Some(Dhcp6Server { address: "fd10:0:2::2".parse().unwrap(), server: [2; 6] }),
        };
        let resolver = "# made by hand\nsearch a.b c\nnameserver 127.0.0.53\nnameserver 10.96.0.10\nnameserver ::1\nnameserver fd00::10\n";
        let lease = lease(&server, resolver);
        let ipv6 = lease6(server.ipv6.as_ref().unwrap(), &lease, resolver);
        assert_eq!(lease.dns, [Ipv4Addr::new(10, 96, 0, 10)]);
        assert_eq!(lease.search, ["a.b", "c"]);
        assert_eq!(ipv6.dns, ["fd00::10".parse::<Ipv6Addr>().unwrap()]);
        assert_eq!(ipv6.search, lease.search);
    }
}
