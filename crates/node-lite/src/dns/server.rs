//! Answers on UDP and TCP, from the zone or from the machine's own name servers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};

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
/// Connections, and other queries under way, of one client: no guest keeps others from being answered.
const CONNECTIONS_OF_ONE: usize = 8;
const QUERIES_OF_ONE: usize = 32;
/// How long no connection is taken after a failure to take one.
const PAUSE: Duration = Duration::from_millis(100);
const FORWARD_TIME: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);

pub(crate) struct Server {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    views: watch::Receiver<Arc<View>>,
}

impl Server {
    /// Listens on an address that need not exist yet: the bridge that has it comes with the first pod.
    pub fn bind(address: IpAddr, views: watch::Receiver<Arc<View>>) -> io::Result<Self> {
        let (udp, tcp) = listen(SocketAddr::new(address, PORT)).or_else(|_| listen(SocketAddr::new(address, 0)))?;
        Ok(Self { udp: Arc::new(udp), tcp, views })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    pub async fn run(self) {
        let busy = Arc::new(Semaphore::new(MAX_BUSY));
        let Self { udp, tcp, views } = self;
        let (connections, clients) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), Clients::default());
        let askers = Clients::default();
        let mut buffer = vec![0; MAX_QUERY];
        let mut pause = None;
        loop {
            tokio::select! {
                () = async { if let Some(pause) = &mut pause { Pin::as_mut(pause).await } }, if pause.is_some() => pause = None,
                received = udp.recv_from(&mut buffer) => {
                    let Ok((length, client)) = received else { continue };
                    let Some(asker) = askers.enter(client.ip(), QUERIES_OF_ONE) else { continue };
                    let Ok(permit) = busy.clone().try_acquire_owned() else { continue };
                    let (query, socket) = (buffer.get(..length).unwrap_or_default().to_vec(), udp.clone());
                    let view = views.borrow().clone();
                    tokio::spawn(async move {
                        if let Some(reply) = answer(&view, &query, true).await {
                            // A client that is gone asks nobody else.
                            let _ = socket.send_to(&reply, client).await;
                        }
                        drop((permit, asker));
                    });
                }
                accepted = tcp.accept(), if pause.is_none() => {
                    let Ok((stream, client)) = accepted else {
                        // Out of descriptors, most likely: what has no connection is answered meanwhile.
                        pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                        continue;
                    };
                    let Some(client) = clients.enter(client.ip(), CONNECTIONS_OF_ONE) else { continue };
                    let Ok(permit) = connections.clone().try_acquire_owned() else { continue };
                    let views = views.clone();
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(IDLE, connection(stream, views)).await;
                        drop((permit, client));
                    });
                }
            }
        }
    }
}

/// How much each client has under way.
#[derive(Clone, Default)]
struct Clients(Arc<Mutex<HashMap<IpAddr, usize>>>);

struct Entered(Clients, IpAddr);

impl Clients {
    fn enter(&self, address: IpAddr, most: usize) -> Option<Entered> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Entered(self.clone(), address))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut counts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.1);
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

    /// One guest that holds connections or asks without end does not keep others from being answered.
    #[test]
    fn a_client_that_floods_has_its_share_only() {
        let clients = Clients::default();
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut held: Vec<_> = (0..3).map(|_| clients.enter(one, 3).unwrap()).collect();
        assert!(clients.enter(one, 3).is_none() && clients.enter(other, 3).is_some());
        held.pop();
        held.push(clients.enter(one, 3).unwrap());
        drop(held);
        assert!(clients.0.lock().unwrap().is_empty(), "nothing stays behind");
    }

    #[test]
    fn name_servers_are_read() {
        let config =
            "search a\nnameserver 192.0.2.1\n nameserver\t2001:db8::1\nnameserver fe80::1%eth0\nnameserver x\n";
        let shown: Vec<String> = name_servers(config).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.1", "2001:db8::1", "fe80::1"]);
    }
}
