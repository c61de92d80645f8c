//! `ferrovirt port-forward`: ports of a guest on this machine.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use futures::{SinkExt, StreamExt};
use kube::Client;
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::mpsc,
    task::JoinSet,
};
use tokio_tungstenite::tungstenite::Message;

use crate::{client::ClientArgs, persona, socket, target, wait};

#[derive(Args)]
pub struct PortForwardArgs {
    /// The machine: vm/NAME[/NAMESPACE], vmi/NAME[/NAMESPACE] or NAME
    target: String,
    /// Ports: [tcp|udp/]LOCAL[:GUEST]
    #[arg(required = true)]
    ports: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
    /// Use standard input and output instead of a port, as a proxy command of ssh
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    stdio: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Forward {
    protocol: &'static str,
    local: u16,
    guest: u16,
}

pub async fn run(arguments: PortForwardArgs) -> Result<()> {
    let named = target::path(&arguments.target)?;
    let forwards = arguments.ports.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
    let client = arguments.client.connect().await?;
    let namespace = named.namespace.clone().unwrap_or_else(|| arguments.client.namespace(&client).to_owned());
    let path = |forward: &Forward| {
        let below = format!("portforward/{}/{}", forward.guest, forward.protocol);
        socket::path(&namespace, named.kind.resource(), &named.name, &below)
    };
    if arguments.stdio {
        let [forward] = forwards.as_slice() else { bail!("--stdio takes one port") };
        if forward.protocol != "tcp" {
            bail!("--stdio takes a tcp port");
        }
        let socket = socket::open(&client, &path(forward)).await?;
        socket::join(socket, tokio::io::stdin(), tokio::io::stdout()).await?;
        return Ok(());
    }
    if !persona::is_virtctl() {
        wait::until_guest_runs(&client, &namespace, &named.name).await?;
    }
    let mut listeners = JoinSet::new();
    for forward in forwards {
        let path = path(&forward);
        let place = format!("port {} of {}", forward.guest, named.name);
        let address = SocketAddr::new(arguments.address, forward.local);
        let problem = || format!("cannot listen on {address}; choose another with LOCAL:{}", forward.guest);
        let bound = if forward.protocol == "udp" {
            let local = UdpSocket::bind(address).await.with_context(problem)?;
            let bound = local.local_addr()?;
            listeners.spawn(udp(client.clone(), path, place, local));
            bound
        } else {
            let listener = TcpListener::bind(address).await.with_context(problem)?;
            let bound = listener.local_addr()?;
            listeners.spawn(tcp(client.clone(), path, place, listener));
            bound
        };
        println!("forwarding {} {bound} to {}:{}", forward.protocol, named.name, forward.guest);
    }
    while let Some(ended) = listeners.join_next().await {
        ended??;
    }
    Ok(())
}

fn parse(text: &str) -> Result<Forward> {
    let (protocol, ports) = match text.split_once('/') {
        None | Some(("tcp", _)) => ("tcp", text.strip_prefix("tcp/").unwrap_or(text)),
        Some(("udp", ports)) => ("udp", ports),
        Some((other, _)) => bail!("{text:?}: {other:?} is not a protocol; there are tcp and udp"),
    };
    let port = |part: &str| part.parse::<u16>().with_context(|| format!("{text:?}: {part:?} is not a port"));
    let (local, guest) = match ports.split_once(':') {
        Some((local, guest)) => (port(local)?, port(guest)?),
        None => (port(ports)?, port(ports)?),
    };
    if guest == 0 {
        bail!("{text:?}: a guest has no port 0");
    }
    Ok(Forward { protocol, local, guest })
}

/// What to say of a connection that did not come about.
fn failure(place: &str, error: &anyhow::Error) -> String {
    let message = crate::client::explain(error);
    match message.to_lowercase() {
        lower if lower.contains("connection refused") => {
            format!("nothing listens on {place}: start what should, or name another port ({message})")
        }
        lower if lower.contains("timed out") || lower.contains("did not answer") => {
            format!("{place} does not answer: the guest may still be booting, or its firewall drops it ({message})")
        }
        _ => message,
    }
}

async fn tcp(client: Client, path: String, place: String, listener: TcpListener) -> Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let _ = stream.set_nodelay(true);
        let (client, path, place) = (client.clone(), path.clone(), place.clone());
        tokio::spawn(async move {
            let joined = async {
                let socket = socket::open(&client, &path).await?;
                let (reader, writer) = stream.into_split();
                socket::join(socket, reader, writer).await
            };
            match joined.await {
                Ok(None) => {}
                Ok(Some(reason)) => eprintln!("the connection of {peer} was ended: {reason}"),
                Err(error) => eprintln!("the connection of {peer} failed: {}", failure(&place, &error)),
            }
        });
    }
}

/// One stream for each peer that sends something.
async fn udp(client: Client, path: String, place: String, local: UdpSocket) -> Result<()> {
    let local = Arc::new(local);
    let mut peers: HashMap<SocketAddr, mpsc::Sender<Bytes>> = HashMap::new();
    let mut buffer = vec![0u8; 65_536];
    loop {
        let (length, peer) = local.recv_from(&mut buffer).await?;
        let datagram = Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
        peers.retain(|_, sender| !sender.is_closed());
        let sender = peers.entry(peer).or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(64);
            tokio::spawn(peer_stream(client.clone(), path.clone(), place.clone(), local.clone(), peer, receiver));
            sender
        });
        // A datagram that nobody takes is lost, as on any network.
        let _ = sender.try_send(datagram);
    }
}

async fn peer_stream(
    client: Client,
    path: String,
    place: String,
    local: Arc<UdpSocket>,
    peer: SocketAddr,
    mut datagrams: mpsc::Receiver<Bytes>,
) {
    let socket = match socket::open(&client, &path).await {
        Ok(socket) => socket,
        Err(error) => return eprintln!("the datagrams of {peer} go nowhere: {}", failure(&place, &error)),
    };
    let (mut to_server, mut from_server) = socket.split();
    loop {
        tokio::select! {
            datagram = datagrams.recv() => {
                let Some(datagram) = datagram else { return };
                if to_server.send(Message::Binary(datagram)).await.is_err() {
                    return;
                }
            }
            message = from_server.next() => match message {
                Some(Ok(Message::Binary(datagram))) => drop(local.send_to(&datagram, peer).await),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_port_is_named() {
        let said = |message: &str| failure("port 81 of demo", &anyhow::anyhow!("{message}"));
        let closed = said("cannot reach the guest: cannot connect to 10.0.2.2:81: Connection refused (os error 111)");
        assert!(closed.starts_with("nothing listens on port 81 of demo: "), "{closed}");
        assert!(said("connection timed out").starts_with("port 81 of demo does not answer"));
        assert_eq!(said("forbidden"), "forbidden");
    }

    #[test]
    fn ports_are_written_in_four_ways() {
        let forward = |protocol, local, guest| Forward { protocol, local, guest };
        assert_eq!(parse("8080").unwrap(), forward("tcp", 8080, 8080));
        assert_eq!(parse("8080:80").unwrap(), forward("tcp", 8080, 80));
        assert_eq!(parse("tcp/0:22").unwrap(), forward("tcp", 0, 22));
        assert_eq!(parse("udp/53").unwrap(), forward("udp", 53, 53));
        for bad in ["", "ssh", "sctp/1", "1:", ":1", "70000", "1:0", "udp/x:1"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
