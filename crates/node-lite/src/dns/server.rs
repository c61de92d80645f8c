//! Answers on UDP and TCP, from the zone or from the machine's own name servers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferrovirt_net::nft::Net;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::message::{Malformed, NO_ERROR, NO_SUCH_NAME, Question, SERVER_FAILURE};
use super::zone::{Lookup, lookup};
use crate::services::View;

/// Preferred, so that the endpoint stays the same over restarts.
const PORT: u16 = 10053;
const MAX_QUERY: usize = 4096;
/// Queries under way; more than this are dropped, and their clients ask again.
const MAX_BUSY: usize = 256;
/// Connections at a time; they are not taken from the others, which need no room for longer than an answer takes.
const MAX_CONNECTIONS: usize = 128;
/// Connections, and other queries under way, of one client: nobody keeps the server from the others.
const CONNECTIONS_OF_ONE: usize = 8;
const QUERIES_OF_ONE: usize = 32;
/// How long no connection is taken after a failure to take one.
const PAUSE: Duration = Duration::from_millis(100);
const FORWARD_TIME: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);

pub(crate) struct Server {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    /// Who is answered: pods, and this machine by its address among them.
    clients: Vec<Net>,
    views: watch::Receiver<Arc<View>>,
}

impl Server {
    /// Listens on an address that need not exist yet: the bridge that has it comes with the first pod.
    pub fn bind(address: IpAddr, clients: Vec<Net>, views: watch::Receiver<Arc<View>>) -> io::Result<Self> {
        let (udp, tcp) = listen(SocketAddr::new(address, PORT)).or_else(|_| listen(SocketAddr::new(address, 0)))?;
        Ok(Self { udp: Arc::new(udp), tcp, clients, views })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    pub async fn run(self) {
        let Self { udp, tcp, clients, views } = self;
        let connections = Busy::new(clients.clone(), MAX_CONNECTIONS, CONNECTIONS_OF_ONE);
        let queries = Busy::new(clients, MAX_BUSY, QUERIES_OF_ONE);
        let mut buffer = vec![0; MAX_QUERY];
        let mut pause = None;
        loop {
            tokio::select! {
                () = async { if let Some(pause) = &mut pause { Pin::as_mut(pause).await } }, if pause.is_some() => pause = None,
                received = udp.recv_from(&mut buffer) => {
                    let Ok((length, client)) = received else { continue };
                    let Some(permit) = queries.admit(client.ip()) else { continue };
                    let (query, socket) = (buffer.get(..length).unwrap_or_default().to_vec(), udp.clone());
                    let view = views.borrow().clone();
                    tokio::spawn(async move {
                        if let Some(reply) = answer(&view, &query, true).await {
                            // A client that is gone asks nobody else.
                            let _ = socket.send_to(&reply, client).await;
                        }
                        drop(permit);
                    });
                }
                accepted = tcp.accept(), if pause.is_none() => {
                    let Ok((stream, client)) = accepted else {
                        // Out of descriptors, most likely: what has no connection is answered meanwhile.
                        pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                        continue;
                    };
                    let Some(permit) = connections.admit(client.ip()) else { continue };
                    let views = views.clone();
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(IDLE, connection(stream, views)).await;
                        drop(permit);
                    });
                }
            }
        }
    }
}

/// Who is being answered.
struct Busy {
    clients: Vec<Net>,
    all: Arc<Semaphore>,
    /// How many places one client may have.
    most: usize,
    by_client: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A place among those who are being answered, given back when dropped.
struct Permit {
    client: IpAddr,
    by_client: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _one_of_all: OwnedSemaphorePermit,
}

impl Busy {
    fn new(clients: Vec<Net>, all: usize, most: usize) -> Self {
        Self { clients, all: Arc::new(Semaphore::new(all)), most, by_client: Arc::default() }
    }

    /// None for who is no client of ours, and for who asks too much at once.
    fn admit(&self, client: IpAddr) -> Option<Permit> {
        if !self.clients.iter().any(|net| net.contains(client)) {
            return None;
        }
        let one_of_all = self.all.clone().try_acquire_owned().ok()?;
        let mut by_client = self.by_client.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_client.entry(client).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        drop(by_client);
        Some(Permit { client, by_client: self.by_client.clone(), _one_of_all: one_of_all })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut by_client = self.by_client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_client.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                by_client.remove(&self.client);
            }
        }
    }
}

/// Both protocols on one port.
fn listen(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    setsockopt(&socket, sockopt::IpFreebind, &true)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let tcp = socket.listen(64)?;
    let family =
        if address.is_ipv4() { nix::sys::socket::AddressFamily::Inet } else { nix::sys::socket::AddressFamily::Inet6 };
    let flags = nix::sys::socket::SockFlag::SOCK_CLOEXEC | nix::sys::socket::SockFlag::SOCK_NONBLOCK;
    let udp = nix::sys::socket::socket(family, nix::sys::socket::SockType::Datagram, flags, None)?;
    setsockopt(&udp, sockopt::IpFreebind, &true)?;
    let bound: nix::sys::socket::SockaddrStorage = tcp.local_addr()?.into();
    nix::sys::socket::bind(std::os::fd::AsRawFd::as_raw_fd(&udp), &bound)?;
    Ok((UdpSocket::from_std(std::net::UdpSocket::from(udp))?, tcp))
}

/// Each message has its length before it.
async fn connection(mut stream: TcpStream, views: watch::Receiver<Arc<View>>) -> io::Result<()> {
    loop {
        let length = usize::from(stream.read_u16().await?);
        if length > MAX_QUERY {
            return Ok(());
        }
        let mut query = vec![0; length];
        stream.read_exact(&mut query).await?;
        let view = views.borrow().clone();
        let Some(reply) = answer(&view, &query, false).await else { return Ok(()) };
        stream.write_u16(u16::try_from(reply.len()).unwrap_or(0)).await?;
        stream.write_all(&reply).await?;
    }
}

async fn answer(view: &View, query: &[u8], udp: bool) -> Option<Vec<u8>> {
    let question = match Question::parse(query) {
        Ok(question) => question,
        Err(Malformed::Ignore) => return None,
        Err(Malformed::Refuse(reply)) => return Some(reply),
    };
    let reply = match lookup(view, &question.name, question.kind) {
        Lookup::Known(records) => question.answer(NO_ERROR, &records, udp),
        Lookup::Unknown => question.answer(NO_SUCH_NAME, &[], udp),
        // The client follows the alias itself: it has to ask us again anyway.
        Lookup::Alias { record, .. } => question.answer(NO_ERROR, &[record], udp),
        Lookup::Elsewhere => match forward(query, udp).await {
            Some(reply) => reply,
            None => question.failure(SERVER_FAILURE),
        },
    };
    Some(reply)
}

/// Asks the machine's name servers, one after the other.
async fn forward(query: &[u8], udp: bool) -> Option<Vec<u8>> {
    let config = tokio::fs::read_to_string("/etc/resolv.conf").await.unwrap_or_default();
    for server in name_servers(&config) {
        let server = SocketAddr::new(server, 53);
        let asked = async { if udp { ask_by_udp(server, query).await } else { ask_by_tcp(server, query).await } };
        match tokio::time::timeout(FORWARD_TIME, asked).await {
            Ok(Ok(reply)) => return Some(reply),
            Ok(Err(error)) => tracing::debug!(%server, %error, "a name server cannot be asked"),
            Err(_) => tracing::debug!(%server, "a name server does not answer"),
        }
    }
    None
}

async fn ask_by_udp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; MAX_QUERY];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // An answer to another question is not ours.
        if buffer.get(..2) == query.get(..2) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn ask_by_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_u16(u16::try_from(query.len()).map_err(io::Error::other)?).await?;
    stream.write_all(query).await?;
    let length = usize::from(stream.read_u16().await?);
    let mut reply = vec![0; length];
    stream.read_exact(&mut reply).await?;
    Ok(reply)
}

fn name_servers(config: &str) -> Vec<IpAddr> {
    let lines = config.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    lines.filter_map(|rest| rest.trim().split('%').next()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_are_answered_and_none_of_them_takes_all_places() {
        let pods = Net { address: "10.42.0.0".parse().unwrap(), prefix: 24 };
        let busy = Busy::new(vec![pods], MAX_BUSY, QUERIES_OF_ONE);
        let admit = |text: &str| busy.admit(text.parse().unwrap());
        assert!(admit("192.0.2.1").is_none() && admit("fd00::1").is_none(), "a stranger is answered");
        let greedy: Vec<Permit> = (0..MAX_BUSY).filter_map(|_| admit("10.42.0.2")).collect();
        assert_eq!(greedy.len(), QUERIES_OF_ONE);
        assert!(admit("10.42.0.3").is_some());
        drop(greedy);
        assert!(admit("10.42.0.2").is_some());
        assert!(busy.by_client.lock().unwrap().is_empty());
    }

    #[test]
    fn name_servers_are_read() {
        let config =
            "search a\nnameserver 192.0.2.1\n nameserver\t2001:db8::1\nnameserver fe80::1%eth0\nnameserver x\n";
        let shown: Vec<String> = name_servers(config).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.1", "2001:db8::1", "fe80::1"]);
    }
}
