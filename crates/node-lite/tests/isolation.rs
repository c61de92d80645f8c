//! What a pod with root in its network namespace tries on this machine and on its neighbours, with the real plugins and the
//! real kernel. Needs root.

#![allow(clippy::unwrap_used, clippy::panic)]

mod node_config;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ferrovirt_net::netns::enter;
use ferrovirt_node_lite::records::PodRecord;
use ferrovirt_node_lite::sandbox::Sandboxes;
use ferrovirt_node_lite::{Config, Ipv6Networks, detect_ipv6};

/// What should come is waited for longer than what should not.
const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(300);

struct Node {
    config: Config,
    sandboxes: Sandboxes,
    _root: tempfile::TempDir,
}

struct Pod {
    netns: PathBuf,
    addresses: Vec<IpAddr>,
}

impl Node {
    fn new(number: u8) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test makes namespaces: run it as root");
        let root = tempfile::tempdir().unwrap();
        let id = std::process::id();
        let net = |last: u16| {
            (format!("fd77:{:x}:{number:x}:{last:x}::", id & 0xffff).parse::<std::net::Ipv6Addr>().unwrap(), 64).into()
        };
        let config = Config {
            instance: format!("{:04x}{:02x}", id & 0xffff, 0x80 + number),
            ipv6: detect_ipv6().then(|| Ipv6Networks { pods: net(1), services: net(2) }),
            ..node_config::of(root.path(), number, (192, 8), "10.201.32.0/20")
        };
        let sandboxes = Sandboxes::open(&config).unwrap();
        sandboxes.prepare().unwrap();
        Self { config, sandboxes, _root: root }
    }

    async fn pod(&self, uid: &str) -> Pod {
        let netns = self.sandboxes.netns(uid);
        let record = PodRecord {
            uid: uid.into(),
            namespace: "default".into(),
            name: uid.into(),
            container: "compute".into(),
            grace_seconds: 0,
            netns: netns.clone(),
        };
        self.sandboxes.create_dir(&record).unwrap();
        let addresses = self.sandboxes.attach_network(&record, vec![]).await.unwrap();
        Pod { netns, addresses }
    }

    fn gateways(&self) -> Vec<IpAddr> {
        let six = self.config.ipv6.map(|ipv6| match ipv6.pods.address {
            IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) + 1).into()),
            v4 => v4,
        });
        [IpAddr::V4(self.config.pod_cidr.host(1))].into_iter().chain(six).collect()
    }
}

impl Pod {
    fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        enter(&self.netns, work)
    }

    fn ip(&self, arguments: &str) {
        self.inside(|| {
            let output = Command::new("ip").args(arguments.split(' ')).output()?;
            assert!(output.status.success(), "ip {arguments}: {output:?}");
            Ok(())
        })
        .unwrap();
    }

    fn connects(&self, to: SocketAddr, patience: Duration) -> bool {
        self.inside(|| TcpStream::connect_timeout(&to, patience)).is_ok()
    }

    /// Serves one word to whoever connects.
    fn serve(&self, port: u16, word: &'static [u8]) {
        let listener = self.inside(|| TcpListener::bind(("::", port))).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(word);
            }
        });
    }
}

fn heard_from(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect_timeout(&address, LONG).unwrap();
    let mut word = String::new();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let _ = stream.read_to_string(&mut word);
    word
}

#[tokio::test]
async fn a_pod_does_not_reach_what_listens_on_all_addresses_of_the_machine() {
    let node = Node::new(1);
    let pod = node.pod("one").await;
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let datagrams = UdpSocket::bind(("::", port)).unwrap();
    datagrams.set_read_timeout(Some(SHORT)).unwrap();
    // Every address of this machine that a pod could think of, not only its gateway.
    let own = ferrovirt_net::link::all_addresses().unwrap();
    let own = own.into_iter().map(|(_, address, _)| address).filter(|address| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && node.config.ipv6.is_some(),
    });
    for address in own.chain(node.gateways()) {
        let target = SocketAddr::new(address, port);
        assert!(!pod.connects(target, SHORT), "{target} answers");
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let _ = pod.inside(|| UdpSocket::bind(any)?.send_to(b"x", target));
        assert!(datagrams.recv(&mut [0; 8]).is_err(), "{target} heard the pod");
    }
    // This machine reaches the pod, and gets its answer.
    pod.serve(7000, b"pod");
    for address in &pod.addresses {
        assert_eq!(heard_from(SocketAddr::new(*address, 7000)), "pod", "{address}");
    }
    node.sandboxes.teardown().await.unwrap();
}

#[tokio::test]
async fn a_pod_does_not_reach_loopback_even_while_node_ports_answer_there() {
    let node = Node::new(2);
    let pod = node.pod("one").await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    // As the service proxy does for node ports on localhost.
    for entry in fs::read_dir("/proc/sys/net/ipv4/conf").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if route_to(&pod.addresses[0]).contains(&name) {
            fs::write(entry.path().join("route_localnet"), "1").unwrap();
        }
    }
    for arguments in ["link set lo down", "route add 127.0.0.0/8 dev eth0 scope link"] {
        pod.ip(arguments);
    }
    pod.inside(|| fs::write("/proc/sys/net/ipv4/conf/eth0/route_localnet", "1")).unwrap();
    assert!(!pod.connects(target, SHORT), "loopback answers a pod");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
    node.sandboxes.teardown().await.unwrap();
}

fn route_to(address: &IpAddr) -> String {
    let output = Command::new("ip").args(["route", "get", &address.to_string()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_pod_that_takes_its_neighbours_address_gets_nothing_and_sends_nothing() {
    let node = Node::new(3);
    let (thief, victim, witness) = (node.pod("thief").await, node.pod("victim").await, node.pod("witness").await);
    victim.serve(7000, b"victim");
    thief.serve(7000, b"thief");
    for address in &victim.addresses {
        let (prefix, flag) = if address.is_ipv4() { (32, "") } else { (128, " nodad") };
        thief.ip(&format!("addr add {address}/{prefix} dev eth0{flag}"));
    }
    // It announces the address to everybody, as a guest in the place of its pod can.
    let claims = thief.inside(|| {
        let ears = UdpSocket::bind((victim.addresses[0], 0))?;
        for _ in 0..3 {
            let _ = ears.send_to(b"mine", SocketAddr::new(node.gateways()[0], 9));
            let _ = ears.send_to(b"mine", SocketAddr::new(witness.addresses[0], 9));
        }
        Ok(())
    });
    claims.unwrap();
    for address in &victim.addresses {
        let target = SocketAddr::new(*address, 7000);
        assert_eq!(heard_from(target), "victim", "from the machine: {address}");
        let heard = witness.inside(|| Ok(heard_from(target))).unwrap();
        assert_eq!(heard, "victim", "from a neighbour: {address}");
    }
    // What it sends with the stolen address does not arrive; with its own it does.
    for (number, stolen) in victim.addresses.iter().enumerate() {
        let target = SocketAddr::new(witness.addresses[number], 7100);
        let ears = witness.inside(|| UdpSocket::bind(target)).unwrap();
        ears.set_read_timeout(Some(SHORT)).unwrap();
        thief.inside(|| UdpSocket::bind((*stolen, 0))?.send_to(b"stolen", target)).unwrap();
        assert!(ears.recv(&mut [0; 16]).is_err(), "{stolen} was believed");
        ears.set_read_timeout(Some(LONG)).unwrap();
        thief.inside(|| UdpSocket::bind((thief.addresses[number], 0))?.send_to(b"own", target)).unwrap();
        assert_eq!(ears.recv(&mut [0; 16]).unwrap(), 3);
    }
    // An address of nobody is no better.
    thief.ip("addr add 192.0.2.77/32 dev eth0");
    let target = SocketAddr::new(witness.addresses[0], 7200);
    let ears = witness.inside(|| UdpSocket::bind(target)).unwrap();
    ears.set_read_timeout(Some(SHORT)).unwrap();
    thief.inside(|| UdpSocket::bind("192.0.2.77:0")?.send_to(b"x", target)).unwrap();
    assert!(ears.recv(&mut [0; 16]).is_err(), "a stranger's address was believed");
    node.sandboxes.teardown().await.unwrap();
}

#[tokio::test]
async fn pods_share_no_segment_and_still_reach_each_other() {
    let node = Node::new(4);
    let (one, other) = (node.pod("one").await, node.pod("other").await);
    other.serve(7000, b"other");
    // As a guest in the place of its pod does, which believes that its neighbours are on its link.
    let own = one.addresses[0];
    one.ip(&format!("route replace {} dev eth0 scope link src {own}", node.config.pod_cidr));
    for address in &other.addresses {
        let heard = one.inside(|| Ok(heard_from(SocketAddr::new(*address, 7000)))).unwrap();
        assert_eq!(heard, "other", "{address}");
    }
    // What is shouted stays on the cable.
    let ears = other.inside(|| UdpSocket::bind("0.0.0.0:7300")).unwrap();
    ears.set_read_timeout(Some(SHORT)).unwrap();
    one.inside(|| {
        let mouth = UdpSocket::bind((own, 0))?;
        mouth.set_broadcast(true)?;
        mouth.send_to(b"everybody", (Ipv4Addr::BROADCAST, 7300))
    })
    .unwrap();
    assert!(ears.recv(&mut [0; 16]).is_err(), "a broadcast reached a neighbour");
    node.sandboxes.teardown().await.unwrap();
}

/// Pods that an earlier release put on a bridge run on without noticing.
#[tokio::test]
async fn pods_of_a_bridge_are_taken_off_it() {
    let node = Node::new(5);
    let pods = [node.pod("one").await, node.pod("other").await];
    let bridge = format!("fv{}", node.config.instance);
    for pod in &pods {
        let link = route_to(&pod.addresses[0]);
        let link = link.split("dev ").nth(1).unwrap().split(' ').next().unwrap();
        for arguments in [format!("link set {link} master {bridge}"), format!("addr flush dev {link} scope global")] {
            assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "{arguments}");
        }
        for (address, family) in pod.addresses.iter().zip(["-4", "-6"]) {
            assert!(
                Command::new("ip").args([family, "route", "flush", &address.to_string()]).status().unwrap().success()
            );
        }
        let prefix = format!("{}", node.config.pod_cidr);
        pod.ip(&format!("route replace {prefix} dev eth0 scope link src {}", pod.addresses[0]));
    }
    let again = Sandboxes::open(&node.config).unwrap();
    again.prepare().unwrap();
    pods[1].serve(7000, b"other");
    for address in &pods[1].addresses {
        let target = SocketAddr::new(*address, 7000);
        assert_eq!(heard_from(target), "other", "from the machine: {address}");
        let heard = pods[0].inside(|| Ok(heard_from(target))).unwrap();
        assert_eq!(heard, "other", "from a neighbour: {address}");
    }
    let ports = fs::read_dir(format!("/sys/class/net/{bridge}/brif")).unwrap().count();
    assert_eq!(ports, 0, "there are still ports on the bridge");
    again.teardown().await.unwrap();
}
