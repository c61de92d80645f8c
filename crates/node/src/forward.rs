//! Connections to a guest's ports. Where they go is not the guest's to say: its agent may claim any address, of the node's
//! loopback or of somebody else.
//!
//! ```text
//!   masquerade   dialled inside the pod's network namespace, to the address that our DHCP server gives the guest
//!   bridge       the guest has the pod's address and the namespace has none, so it is dialled from here, to the address that
//!                the kubelet says the pod was given
//! ```

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ferrovirt_api::v1::{Interface, Network, VirtualMachineInstance};
use ferrovirt_machine::node_call::Protocol;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    net::{TcpSocket, UdpSocket},
};

use crate::{
    Context, network, pods,
    process::{self, Process},
    streams::{Stream, StreamError},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest datagram there is.
const DATAGRAM: usize = 65_535;

/// Where a guest's port is, and from where it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Inside the pod's network namespace.
    Inside(IpAddr),
    /// From the node: the guest has the address of its pod.
    PodAddress,
}

pub(crate) async fn dial(
    context: &Context,
    vmi: &VirtualMachineInstance,
    port: u16,
    protocol: Protocol,
) -> Result<Stream, StreamError> {
    let way = way(vmi, port, protocol)?;
    let mut last = StreamError::NotHere;
    for pod in pods::here(context, vmi) {
        let launcher = match context.ground.connect(&pod, pods::user(vmi)).await {
            Ok(launcher) => launcher,
            Err(error) => {
                last = StreamError::Pod(io::Error::other(error));
                continue;
            }
        };
        let Some(process) = launcher.process() else { continue };
        return match way {
            Way::Inside(address) => open(address, port, protocol, Some(process.network())).await,
            Way::PodAddress => {
                let status =
                    pods::status(context, vmi, &pod).await.map_err(|e| StreamError::Pod(io::Error::other(e)))?;
                let address = given(&status).ok_or(StreamError::NoAddress)?;
                open_while_it_lives(process, address, port, protocol).await
            }
        };
    }
    Err(last)
}

/// An address is given to another pod when its own is gone, so the launcher must still be there once the connection is.
async fn open_while_it_lives(
    process: &Arc<Process>,
    address: IpAddr,
    port: u16,
    protocol: Protocol,
) -> Result<Stream, StreamError> {
    let stream = open(address, port, protocol, None).await?;
    if process.has_ended() {
        return Err(StreamError::NotHere);
    }
    Ok(stream)
}

/// How the guest is reached, by what the instance asks for alone.
fn way(vmi: &VirtualMachineInstance, port: u16, protocol: Protocol) -> Result<Way, StreamError> {
    let (network, interface) = on_pod_network(vmi).ok_or(StreamError::NoPodNetwork)?;
    if interface.bridge.is_some() {
        return Ok(Way::PodAddress);
    }
    let address = network::guest_address(network, shows_ipv6_only(vmi, interface)).ok_or(StreamError::NoAddress)?;
    let mut open = interface.ports.iter();
    let number = if protocol == Protocol::Udp { "udp" } else { "tcp" };
    let is_open = |p: &ferrovirt_api::v1::Port| {
        let named = if p.protocol.is_empty() { "tcp" } else { p.protocol.as_str() };
        p.port == i32::from(port) && named.eq_ignore_ascii_case(number)
    };
    // The pod lets nothing else through, and the way from inside is no way around that.
    if !interface.ports.is_empty() && !open.any(is_open) {
        let source = io::Error::new(io::ErrorKind::ConnectionRefused, "the instance's interface lists other ports");
        return Err(StreamError::Dial { address: address.to_string(), port, protocol, source });
    }
    Ok(Way::Inside(address))
}

fn on_pod_network(vmi: &VirtualMachineInstance) -> Option<(&Network, &Interface)> {
    let network = vmi.spec.networks.iter().find(|network| network.pod.is_some())?;
    let mut interfaces = vmi.spec.domain.devices.interfaces.iter();
    let interface = interfaces.find(|interface| interface.name == network.name)?;
    (interface.sriov.is_none() && interface.binding.is_none()).then_some((network, interface))
}

/// The pod's own addresses decide which family the guest has; behind a masquerade its agent does not change what is shown.
fn shows_ipv6_only(vmi: &VirtualMachineInstance, interface: &Interface) -> bool {
    let shown = vmi.status.interfaces.iter().find(|shown| shown.name == interface.name);
    let addresses = || shown.iter().flat_map(|s| std::iter::once(&s.ip_address).chain(&s.ip_addresses));
    let mut parsed = addresses().filter_map(|ip| ip.parse::<IpAddr>().ok()).peekable();
    parsed.peek().is_some() && parsed.all(|address| address.is_ipv6())
}

/// The address that the pod was given, as the node's kubelet says. A launcher's pod never shares the node's network.
fn given(status: &PodStatus) -> Option<IpAddr> {
    let host: Vec<IpAddr> = status
        .host_ip
        .iter()
        .chain(status.host_ips.iter().flatten().map(|host| &host.ip))
        .filter_map(|ip| ip.parse().ok())
        .collect();
    let all = status.pod_ip.iter().chain(status.pod_ips.iter().flatten().map(|pod| &pod.ip));
    let mut addresses = all.filter_map(|ip| ip.parse::<IpAddr>().ok());
    // The guest is told of IPv4 addresses only.
    addresses.find(|address| address.is_ipv4() && is_of_a_pod(*address) && !host.contains(address))
}

fn is_of_a_pod(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_loopback() || v4.is_unspecified() || v4.is_link_local() || v4.is_multicast() || v4.is_broadcast())
        }
        IpAddr::V6(v6) => {
            !(v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local() || v6.is_multicast())
                && v6.to_ipv4_mapped().is_none()
        }
    }
}

/// Opens a port, inside a network namespace if there is one given.
async fn open(
    address: IpAddr,
    port: u16,
    protocol: Protocol,
    inside: Option<&process::Network>,
) -> Result<Stream, StreamError> {
    let failed = |source| StreamError::Dial { address: address.to_string(), port, protocol, source };
    let target = SocketAddr::new(address, port);
    match protocol {
        Protocol::Tcp => {
            let make = move || if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
            let socket = match inside {
                Some(namespace) => namespace.inside(make).await,
                None => make(),
            };
            let connecting = tokio::time::timeout(CONNECT_TIMEOUT, socket.map_err(failed)?.connect(target));
            let stream = connecting.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(failed)?;
            let _ = stream.set_nodelay(true);
            Ok(Box::new(stream))
        }
        Protocol::Udp => {
            let any: IpAddr =
                if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let make = move || {
                let socket = std::net::UdpSocket::bind(SocketAddr::new(any, 0))?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            };
            let socket = match inside {
                Some(namespace) => namespace.inside(make).await,
                None => make(),
            };
            let socket = socket.and_then(UdpSocket::from_std).map_err(failed)?;
            socket.connect(target).await.map_err(failed)?;
            let (ours, theirs) = tokio::io::duplex(2 * DATAGRAM);
            tokio::spawn(datagrams(ours, socket));
            Ok(Box::new(theirs))
        }
    }
}

/// Copies datagrams both ways, on the stream's side with their length in front, until the stream ends.
async fn datagrams(stream: DuplexStream, socket: UdpSocket) {
    let (mut from_client, mut to_client) = tokio::io::split(stream);
    let inward = async {
        let mut buffer = vec![0u8; DATAGRAM];
        while let Ok(length) = from_client.read_u16().await {
            let Some(datagram) = buffer.get_mut(..usize::from(length)) else { return };
            if from_client.read_exact(datagram).await.is_err() {
                return;
            }
            // Datagrams may get lost. A closed port shows as an error here, and may be open for the next one.
            let _ = socket.send(datagram).await;
        }
    };
    let outward = async {
        let mut buffer = vec![0u8; DATAGRAM];
        loop {
            let Ok(length) = socket.recv(&mut buffer).await else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let (Ok(prefix), Some(datagram)) = (u16::try_from(length), buffer.get(..length)) else { continue };
            if to_client.write_u16(prefix).await.is_err() || to_client.write_all(datagram).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = inward => {}
        () = outward => {}
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::OwnedFd};

    use serde_json::{Value, json};

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn vmi(interface: Value, shown: Value) -> VirtualMachineInstance {
        let mut interface = interface;
        interface["name"] = json!("default");
        serde_json::from_value(json!({
            "metadata": {},
            "spec": {
                "networks": [{ "name": "default", "pod": {} }],
                "domain": { "devices": { "interfaces": [interface] } },
            },
            "status": { "interfaces": shown },
        }))
        .unwrap()
    }

    #[test]
    fn a_guest_agent_that_claims_an_address_does_not_say_where_we_dial() {
        // Its own interface, and one that it made up, first and last.
        for claimed in ["127.0.0.1", "::1", "192.0.2.1", "169.254.169.254", "10.0.0.1"] {
            let shown = json!([
                { "interfaceName": "lo", "ipAddress": claimed, "ipAddresses": [claimed], "infoSource": "guest-agent" },
                { "name": "default", "ipAddress": "10.1.0.5", "ipAddresses": ["10.1.0.5"] },
                { "ipAddress": claimed, "ipAddresses": [claimed] },
            ]);
            let found = way(&vmi(json!({ "masquerade": {} }), shown.clone()), 80, Protocol::Tcp).unwrap();
            assert_eq!(found, Way::Inside("10.0.2.2".parse().unwrap()), "{claimed}");
            // With a bridge the agent's word replaces what is shown, and it still counts for nothing.
            let own = json!([{ "name": "default", "ipAddress": claimed, "ipAddresses": [claimed] }]);
            let found = way(&vmi(json!({ "bridge": {} }), own), 80, Protocol::Tcp).unwrap();
            assert_eq!(found, Way::PodAddress, "{claimed}");
        }
        let six = json!([{ "name": "default", "ipAddress": "fd00::5", "ipAddresses": ["fd00::5"] }]);
        let found = way(&vmi(json!({ "masquerade": {} }), six), 80, Protocol::Tcp).unwrap();
        assert_eq!(found, Way::Inside("fd10:0:2::2".parse().unwrap()));
        let other = VirtualMachineInstance::default();
        assert!(matches!(way(&other, 80, Protocol::Tcp), Err(StreamError::NoPodNetwork)));
    }

    #[test]
    fn ports_that_the_interface_does_not_list_stay_closed() {
        let listed =
            vmi(json!({ "masquerade": {}, "ports": [{ "port": 80 }, { "port": 53, "protocol": "UDP" }] }), json!([]));
        assert!(way(&listed, 80, Protocol::Tcp).is_ok() && way(&listed, 53, Protocol::Udp).is_ok());
        for (port, protocol) in [(80, Protocol::Udp), (53, Protocol::Tcp), (22, Protocol::Tcp)] {
            assert!(matches!(way(&listed, port, protocol), Err(StreamError::Dial { .. })), "{port}");
        }
    }

    #[test]
    fn only_an_address_of_a_pod_is_dialled_from_the_node() {
        let check = |status: Value, expected: Option<&str>| {
            let status: PodStatus = serde_json::from_value(status.clone()).unwrap();
            assert_eq!(given(&status).map(|ip| ip.to_string()).as_deref(), expected, "{status:?}");
        };
        check(json!({ "podIP": "10.1.0.5", "hostIP": "192.0.2.1" }), Some("10.1.0.5"));
        check(json!({ "podIP": "fd00::5", "podIPs": [{ "ip": "fd00::5" }, { "ip": "10.1.0.5" }] }), Some("10.1.0.5"));
        check(json!({ "podIP": "192.0.2.1", "hostIP": "192.0.2.1" }), None);
        check(json!({ "podIP": "192.0.2.1", "hostIPs": [{ "ip": "192.0.2.1" }] }), None);
        for bad in ["127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255", "nonsense", ""] {
            check(json!({ "podIP": bad }), None);
        }
    }

    /// A network namespace of its own, as a pod has one.
    fn namespace() -> OwnedFd {
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            OwnedFd::from(File::open("/proc/thread-self/ns/net").unwrap())
        })
        .join()
        .unwrap()
    }

    #[tokio::test]
    async fn loopback_dialled_for_a_guest_is_that_of_its_pod() {
        let host = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = host.local_addr().unwrap().port();
        let pod = process::Network::of_test(namespace());
        let error = open(HERE, port, Protocol::Tcp, Some(&pod)).await.err().unwrap();
        assert!(matches!(error, StreamError::Dial { .. }), "{error}");
        // The same from here, to show that it is the namespace which makes the difference.
        open(HERE, port, Protocol::Tcp, None).await.unwrap();
    }

    #[tokio::test]
    async fn tcp_is_the_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut stream = open(HERE, port, Protocol::Tcp, None).await.unwrap();
        let (mut guest, _) = listener.accept().await.unwrap();
        guest.write_all(b"hello").await.unwrap();
        drop(guest);
        let mut all = String::new();
        stream.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "hello");
    }

    #[tokio::test]
    async fn datagrams_keep_their_bounds() {
        let guest = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = guest.local_addr().unwrap().port();
        let mut stream = open(HERE, port, Protocol::Udp, None).await.unwrap();
        stream.write_all(b"\0\x02ab\0\x01c").await.unwrap();
        let mut buffer = [0u8; 16];
        let (length, peer) = guest.recv_from(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..length], b"ab");
        assert_eq!(guest.recv(&mut buffer).await.unwrap(), 1);
        guest.send_to(b"xyz", peer).await.unwrap();
        let mut framed = [0u8; 5];
        stream.read_exact(&mut framed).await.unwrap();
        assert_eq!(&framed, b"\0\x03xyz");
    }
}
