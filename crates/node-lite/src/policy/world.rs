//! A small world of network namespaces for tests: pods on cables of their own, a machine that routes between them, and a
//! stranger outside. Packets in it are real.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use nix::sched::{CloneFlags, setns, unshare};

use super::PodFacts;

/// The group of the cables.
pub(super) const GROUP: u32 = 77;
/// How long a packet that should come may take, and one that should not is waited for.
const PATIENCE: [(bool, Duration); 2] = [(true, Duration::from_secs(10)), (false, Duration::from_millis(150))];
/// Every pod serves these, by TCP and UDP.
pub(super) const PORTS: [u16; 4] = [80, 81, 5000, 5005];

pub(super) struct Place {
    namespace: File,
    pub address: IpAddr,
    pub address_6: IpAddr,
    pub tcp: Vec<TcpListener>,
    udp: Vec<(u16, UdpSocket)>,
}

/// Runs in a thread of its own, whose network namespace is the machine.
pub(super) struct World {
    pub places: Vec<Place>,
}

pub(super) fn alone<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let worker = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        work()
    });
    match worker.join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

impl World {
    /// So many pods; the last place is no pod and is outside.
    pub fn new(pods: u8) -> Self {
        ip("link set lo up");
        for (setting, value) in [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")] {
            fs::write(format!("/proc/sys/net/{setting}"), value).unwrap();
        }
        Self { places: (0..=pods).map(|number| Place::new(number, number == pods)).collect() }
    }

    pub fn facts(&self, place: usize, namespace: &str, app: &str) -> PodFacts {
        let place = &self.places[place];
        PodFacts {
            namespace: namespace.into(),
            labels: [("app".to_owned(), app.to_owned())].into(),
            addresses: vec![place.address, place.address_6],
            ports: vec![],
        }
    }

    /// Whether a new connection comes through. `expected` only says how long to wait.
    pub fn reaches(&self, from: usize, to: usize, protocol: &str, port: u16, ipv6: bool, expected: bool) -> bool {
        let target = &self.places[to];
        let address = SocketAddr::new(if ipv6 { target.address_6 } else { target.address }, port);
        let patience = PATIENCE.iter().find(|(when, _)| *when == expected).unwrap().1;
        if protocol == "TCP" {
            return self.places[from].inside(|| TcpStream::connect_timeout(&address, patience)).is_ok();
        }
        let sent = self.places[from].inside(|| {
            let socket = UdpSocket::bind(if ipv6 { "[::]:0" } else { "0.0.0.0:0" })?;
            socket.send_to(b"hello", address)
        });
        let server = &target.udp.iter().find(|(known, _)| *known == port).unwrap().1;
        server.set_read_timeout(Some(patience)).unwrap();
        sent.is_ok() && server.recv(&mut [0; 16]).is_ok()
    }
}

impl Place {
    fn new(number: u8, outside: bool) -> Self {
        let namespace = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        let namespace = namespace.join().unwrap();
        let host = u16::from(number) + 2;
        let network = if outside { ("198.51.100", "fd98") } else { ("10.42.0", "fd42") };
        let (address, gateway) = (format!("{}.{host}", network.0), format!("{}.1", network.0));
        let (address_6, gateway_6) = (format!("{}::{host:x}", network.1), format!("{}::1", network.1));
        let cable = format!("veth{number}");
        let path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        ip(&format!("link add {cable} type veth peer name eth0 netns {path}"));
        if !outside {
            ip(&format!("link set {cable} group {GROUP}"));
        }
        ip(&format!("link set {cable} up"));
        ip(&format!("addr add {gateway}/32 dev {cable}"));
        ip(&format!("addr add {gateway_6}/128 dev {cable} nodad"));
        ip(&format!("route add {address}/32 dev {cable}"));
        ip(&format!("-6 route add {address_6}/128 dev {cable}"));
        let mut place = Self {
            namespace,
            address: address.parse().unwrap(),
            address_6: address_6.parse().unwrap(),
            tcp: vec![],
            udp: vec![],
        };
        let (tcp, udp) = place
            .inside(|| {
                for arguments in [
                    "link set lo up".to_owned(),
                    format!("addr add {address}/32 dev eth0"),
                    format!("addr add {address_6}/128 dev eth0 nodad"),
                    "link set eth0 up".to_owned(),
                    format!("route add {gateway} dev eth0"),
                    format!("route add default via {gateway}"),
                    format!("-6 route add {gateway_6} dev eth0"),
                    format!("-6 route add default via {gateway_6}"),
                ] {
                    ip(&arguments);
                }
                let tcp: io::Result<Vec<_>> = PORTS.iter().map(|port| TcpListener::bind(("::", *port))).collect();
                let udp: io::Result<Vec<_>> =
                    PORTS.iter().map(|port| Ok((*port, UdpSocket::bind(("::", *port))?))).collect();
                Ok((tcp?, udp?))
            })
            .unwrap();
        (place.tcp, place.udp) = (tcp, udp);
        place
    }

    pub fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                setns(&self.namespace, CloneFlags::CLONE_NEWNET)?;
                work()
            });
            worker.join().unwrap()
        })
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
