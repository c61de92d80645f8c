//! Ports of a pod, dialled inside of its network namespace and nowhere else.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::budget::Budget;
use super::channels::{PING, message};
use super::spdy::{QUEUE, Sender, Stream};

const CONNECT: Duration = Duration::from_secs(5);
const CHUNK: usize = 32 << 10;
/// How long the second of two streams that belong together may take.
const PARTNER: Duration = Duration::from_secs(30);
/// Half pairs of one connection.
const MOST_HALVES: usize = 64;

/// Where connections are dialled.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The pod's network namespace: a mount of ours, by the pod's uid.
    pub netns: PathBuf,
}

impl Place {
    /// Connects to a port on the pod's loopback, IPv4 first.
    pub async fn dial(&self, port: u16) -> io::Result<TcpStream> {
        match self.connect(Ipv4Addr::LOCALHOST.into(), port).await {
            Ok(stream) => Ok(stream),
            // What the first one says is what most would expect.
            Err(error) => self.connect(Ipv6Addr::LOCALHOST.into(), port).await.map_err(|_| error),
        }
    }

    /// Only the socket is made on a thread inside, which takes no time. Whoever is to answer may let us wait, many times at once,
    /// and all of the host shares these threads.
    async fn connect(&self, host: IpAddr, port: u16) -> io::Result<TcpStream> {
        let netns = self.netns.clone();
        let made = tokio::task::spawn_blocking(move || {
            // A path that is not a namespace would be the host's own.
            if !crate::netns::is_namespace(&netns) {
                return Err(io::Error::new(io::ErrorKind::NotFound, "the pod has no network any more"));
            }
            let make = || if host.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
            ferrovirt_net::netns::enter(&netns, make)
        });
        let socket = made.await.map_err(io::Error::other)??;
        let connected = tokio::time::timeout(CONNECT, socket.connect(SocketAddr::new(host, port))).await;
        connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Two streams of SPDY that belong together.
#[derive(Default)]
struct Half {
    data: Option<Stream>,
    error: Option<Stream>,
}

/// Forwards what a client asks for, pair by pair, until it is gone.
pub(super) async fn over_spdy(place: Place, sender: Sender, mut streams: mpsc::Receiver<Stream>) {
    let mut halves: HashMap<(String, String), Half> = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let stream = tokio::select! {
            stream = streams.recv() => stream,
            Some(_) = tasks.join_next() => continue,
            // Nobody comes for them any more.
            () = tokio::time::sleep(PARTNER), if !halves.is_empty() => {
                halves.clear();
                continue;
            }
        };
        let Some(stream) = stream else { break };
        let header = |name: &str| stream.headers.get(name).cloned().unwrap_or_default();
        let (kind, key) = (header("streamtype"), (header("port"), header("requestid")));
        if halves.len() >= MOST_HALVES && !halves.contains_key(&key) {
            let _ = sender.finish(stream.id).await;
            continue;
        }
        let half = halves.entry(key.clone()).or_default();
        match kind.as_str() {
            "data" => half.data = Some(stream),
            "error" => half.error = Some(stream),
            _ => drop(sender.finish(stream.id).await),
        }
        if half.data.is_some()
            && half.error.is_some()
            && let Some(Half { data: Some(data), error: Some(error) }) = halves.remove(&key)
        {
            let (place, sender) = (place.clone(), sender.clone());
            tasks.spawn(async move {
                let _ = pair(&place, &key.0, data, error.id, &sender).await;
            });
        }
    }
}

async fn pair(place: &Place, port: &str, data: Stream, error: u32, sender: &Sender) -> Result<(), super::spdy::Gone> {
    let connected = match port.parse::<u16>().ok().filter(|port| *port > 0) {
        Some(number) => place.dial(number).await,
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "that is not a port")),
    };
    let outcome = match connected {
        Ok(connection) => {
            let to_client = |bytes: Bytes| async move { sender.data(data.id, &bytes).await.map_err(|_| ()) };
            tokio::select! {
                result = copy(connection, data.data, to_client) => result,
                () = sender.closed() => return Err(super::spdy::Gone),
            }
        }
        Err(error) => Err(error),
    };
    if let Err(problem) = outcome {
        sender.data(error, refusal(port, &problem).as_bytes()).await?;
    }
    sender.finish(error).await?;
    sender.finish(data.id).await
}

fn refusal(port: &str, error: &io::Error) -> String {
    let port: String = port.chars().take(16).collect();
    format!("an error occurred forwarding port {port} of the pod: {error}")
}

/// Copies both ways until the connection ends. A client that says no more still hears.
async fn copy<F: Future<Output = Result<(), ()>>>(
    connection: TcpStream,
    mut from_client: mpsc::Receiver<Bytes>,
    to_client: impl Fn(Bytes) -> F,
) -> io::Result<()> {
    let (mut reader, mut writer) = connection.into_split();
    let inward = async {
        while let Some(bytes) = from_client.recv().await {
            writer.write_all(&bytes).await?;
        }
        writer.shutdown().await?;
        io::Result::Ok(())
    };
    let outward = async {
        let mut buffer = vec![0; CHUNK];
        loop {
            let count = reader.read(&mut buffer).await?;
            let bytes = Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
            if bytes.is_empty() || to_client(bytes).await.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let (mut inward, mut outward) = (std::pin::pin!(inward), std::pin::pin!(outward));
    tokio::select! {
        result = &mut outward => result,
        // A write that fails is a connection that broke; what it had to say comes first.
        _ = &mut inward => outward.await,
    }
}

/// The older way over a websocket: two channels for each port of the query, and each begins with the port's number.
pub(super) async fn over_channels<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    place: Place,
    ports: Vec<u16>,
    socket: WebSocketStream<S>,
) {
    let (mut to_client, mut from_client) = socket.split();
    let (messages, mut queue) = mpsc::channel::<Message>(QUEUE);
    let mut targets = vec![];
    let mut tasks = JoinSet::new();
    for (number, port) in ports.into_iter().enumerate() {
        // Bounded by whoever parsed the query.
        let data = (number * 2) as u8;
        let (target, said) = mpsc::channel::<Bytes>(QUEUE);
        targets.push(Some(target));
        let (place, messages) = (place.clone(), messages.clone());
        tasks.spawn(async move {
            for channel in [data, data + 1] {
                let _ = messages.send(message(channel, &port.to_le_bytes())).await;
            }
            let outcome = match place.dial(port).await {
                Ok(connection) => {
                    let to_client = |bytes: Bytes| {
                        let messages = messages.clone();
                        async move { messages.send(message(data, &bytes)).await.map_err(|_| ()) }
                    };
                    copy(connection, said, to_client).await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                let _ = messages.send(message(data + 1, refusal(&port.to_string(), &error).as_bytes())).await;
            }
        });
    }
    drop(messages);
    let outward = async {
        let mut pings = tokio::time::interval_at(tokio::time::Instant::now() + PING, PING);
        loop {
            let message = tokio::select! {
                message = queue.recv() => match message {
                    Some(message) => message,
                    // All connections have ended.
                    None => return,
                },
                _ = pings.tick() => Message::Ping(Bytes::new()),
            };
            if to_client.send(message).await.is_err() {
                return;
            }
        }
    };
    let budget = Budget::default();
    let inward = async {
        while let Some(Ok(message)) = from_client.next().await {
            let bytes = match message {
                Message::Binary(bytes) => bytes,
                Message::Close(_) => return,
                _ => continue,
            };
            let Some((channel, [_, ..])) = bytes.split_first() else { continue };
            // Nothing is said on the channel of errors.
            let Some(slot) = targets.get_mut(usize::from(*channel) / 2).filter(|_| channel % 2 == 0) else { continue };
            let Some(target) = slot else { continue };
            let sent = tokio::select! {
                held = budget.hold(bytes.slice(1..)) => target.send(held).await.is_ok(),
                () = target.closed() => false,
            };
            if !sent {
                *slot = None;
            }
        }
    };
    tokio::select! {
        () = outward => {}
        () = inward => {}
    }
    let _ = tokio::time::timeout(Duration::from_secs(2), to_client.close()).await;
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::super::spdy::{self, tests::*};
    use super::*;

    /// A namespace with an echo on one port of its loopback.
    fn place(dir: &std::path::Path) -> (Place, u16) {
        let netns = dir.join("netns");
        crate::netns::create(&netns).expect("this test needs root");
        let listener = ferrovirt_net::netns::enter(&netns, || {
            ferrovirt_net::link::set_up("lo", None)?;
            TcpListener::bind("127.0.0.1:0")
        })
        .unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut said = vec![];
                let _ = stream.read_to_end(&mut said);
                let _ = stream.write_all(&said);
            }
        });
        (Place { netns }, port)
    }

    #[tokio::test]
    async fn ports_are_those_of_the_pod() {
        let dir = tempfile::tempdir().unwrap();
        let (place, port) = place(dir.path());
        // One of this machine is not in there, though it listens.
        let outside = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = outside.local_addr().unwrap().port().to_string();
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (sender, streams) = spdy::start(server);
        tokio::spawn(over_spdy(place.clone(), sender, streams));
        let own = port.to_string();
        for (number, (kind, port, request)) in [
            ("error", own.as_str(), "0"),
            ("data", own.as_str(), "0"),
            ("data", theirs.as_str(), "1"),
            ("error", theirs.as_str(), "1"),
            ("error", "0", "2"),
            ("data", "0", "2"),
        ]
        .into_iter()
        .enumerate()
        {
            let headers = [("streamType", kind), ("port", port), ("requestID", request)];
            client.write_all(&open(2 * number as u32 + 1, &headers, number == 0)).await.unwrap();
        }
        client.write_all(&say(3, b"echo", true)).await.unwrap();
        let mut heard: HashMap<u32, (String, bool)> = HashMap::new();
        while heard.values().filter(|(_, last)| *last).count() < 6 {
            let (stream, bytes, last) = hear(&mut client).await.unwrap();
            let entry = heard.entry(stream).or_default();
            entry.0.push_str(std::str::from_utf8(&bytes).unwrap());
            entry.1 |= last;
        }
        assert_eq!((heard[&3].0.as_str(), heard[&1].0.as_str()), ("echo", ""));
        assert!(heard[&7].0.contains("refused"), "{heard:?}");
        assert!(heard[&9].0.contains("not a port"), "{heard:?}");
        assert_eq!(heard[&5].0, "");
        outside.set_nonblocking(true).unwrap();
        assert!(outside.accept().is_err(), "the host itself was dialled");
        crate::netns::remove(&place.netns).unwrap();
        // Without its namespace there is nothing to dial, and nothing else is.
        let gone = place.dial(outside.local_addr().unwrap().port()).await.unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        std::fs::write(&place.netns, "").unwrap();
        assert!(place.dial(outside.local_addr().unwrap().port()).await.is_err());
    }

    /// The whole host has these threads, and whoever listens in a pod decides how long it takes to answer.
    #[test]
    fn a_port_that_does_not_answer_keeps_no_thread_of_the_host() {
        // On one thread, so that all have begun to dial before others have their second turn.
        let runtime =
            tokio::runtime::Builder::new_current_thread().max_blocking_threads(2).enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let netns = dir.path().join("netns");
        crate::netns::create(&netns).expect("this test needs root");
        // A queue that is full: the kernel drops whoever asks now.
        let (_listener, _queued, port) = ferrovirt_net::netns::enter(&netns, || {
            use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
            ferrovirt_net::link::set_up("lo", None)?;
            let listener = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            listen(&listener, 0)?;
            let listener = TcpListener::from(listener);
            let address = listener.local_addr()?;
            let patience = Duration::from_millis(500);
            let mut queued = vec![];
            while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, patience) {
                queued.push(stream);
            }
            Ok((listener, queued, address.port()))
        })
        .unwrap();
        let place = Place { netns: netns.clone() };
        runtime.block_on(async {
            let mut dials = JoinSet::new();
            for _ in 0..8 {
                let place = place.clone();
                dials.spawn(async move { place.dial(port).await });
            }
            let others = async {
                for _ in 0..20 {
                    tokio::task::spawn_blocking(|| ()).await.unwrap();
                }
            };
            tokio::select! {
                () = others => {}
                dialled = dials.join_next() => panic!("work of others waited for a dial: {dialled:?}"),
            }
        });
        runtime.shutdown_background();
        crate::netns::remove(&netns).unwrap();
    }

    #[tokio::test]
    async fn channels_begin_with_their_port() {
        use tokio_tungstenite::tungstenite::protocol::Role;
        let dir = tempfile::tempdir().unwrap();
        let (place, port) = place(dir.path());
        let (near, far) = tokio::io::duplex(1 << 16);
        let mut client = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
        let server = WebSocketStream::from_raw_socket(far, Role::Server, None).await;
        let netns = place.netns.clone();
        let joined = tokio::spawn(over_channels(place, vec![1, port], server));
        let mut heard: HashMap<u8, Vec<u8>> = HashMap::new();
        while heard.get(&1).is_none_or(|bytes| bytes.len() <= 2) || heard.len() < 4 {
            let Some(Ok(Message::Binary(bytes))) = client.next().await else { panic!("it ended: {heard:?}") };
            heard.entry(bytes[0]).or_default().extend_from_slice(&bytes[1..]);
        }
        assert_eq!((heard[&0].as_slice(), heard[&2].as_slice()), (&[1, 0][..], &port.to_le_bytes()[..]));
        client.send(message(2, b"half")).await.unwrap();
        drop(client);
        joined.await.unwrap();
        crate::netns::remove(&netns).unwrap();
    }
}
