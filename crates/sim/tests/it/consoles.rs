//! Consoles by the hundred, over the whole way from a client's TLS connection to the socket of a guest that only echoes.
//!
//! The long form (`FERROVIRT_LONG=1`) connects 10,000 times and looks at the memory, too.

use std::{fs, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use ferrovirt_apiserver::{ServingCertificate, StaticTokens, TlsConfig};
use ferrovirt_sim::{Cluster, Options, cluster::eventually};
use futures::{SinkExt, StreamExt, TryStreamExt, stream};
use rcgen::{CertificateParams, KeyPair};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest},
};

use crate::support::{SOON, create, vm, wait_vmi};

const CONSOLES: usize = 200;
/// Guests that write and write when they are told so; nobody reads what they write.
const SLOW: usize = 20;
const TOKEN: &str = "a-token-of-this-test";
/// How many connect at the same time.
const TOGETHER: usize = 32;
/// What may be left by tasks that come and go by themselves.
const SLACK: usize = 12;

type Socket = WebSocketStream<TlsStream<TcpStream>>;

struct Door {
    address: std::net::SocketAddr,
    tls: TlsConnector,
}

impl Door {
    /// Serves the cluster's API on a port, with a certificate made for it.
    async fn open(cluster: &Cluster) -> Result<Self> {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec!["localhost".into()])?.self_signed(&key)?;
        let pem = certificate.pem();
        let tls =
            TlsConfig { certificate: ServingCertificate::new(&pem, &key.serialize_pem())?, client_ca_pem: pem.clone() };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let api = cluster.api.clone();
        tokio::spawn(async move { api.serve(listener, tls, std::future::pending()).await });
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        Ok(Self { address, tls: TlsConnector::from(Arc::new(config)) })
    }

    async fn console(&self, name: &str) -> Result<Socket> {
        let stream = TcpStream::connect(self.address).await?;
        let stream = self.tls.connect(ServerName::try_from("localhost")?, stream).await?;
        let path = format!(
            "wss://localhost/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/{name}/console"
        );
        let mut request = path.into_client_request()?;
        let headers = request.headers_mut();
        headers.insert("authorization", format!("Bearer {TOKEN}").parse()?);
        headers.insert("sec-websocket-protocol", "plain.kubevirt.io".parse()?);
        Ok(client_async(request, stream).await.with_context(|| format!("the console of {name}"))?.0)
    }
}

/// A guest at its serial port: it echoes, and after a `!` it writes without end.
async fn guest(listener: UnixListener) {
    while let Ok((mut port, _)) = listener.accept().await {
        while echo(&mut port).await.is_ok() {}
    }
}

async fn echo(port: &mut UnixStream) -> std::io::Result<()> {
    let mut buffer = [0; 1024];
    let length = port.read(&mut buffer).await?;
    let bytes = buffer.get(..length).unwrap_or_default();
    match bytes {
        [] => Err(std::io::ErrorKind::UnexpectedEof.into()),
        [b'!', ..] => loop {
            port.write_all(&[b'.'; 1024]).await?;
        },
        _ => port.write_all(bytes).await,
    }
}

async fn ask(socket: &mut Socket, text: &str) -> Result<()> {
    socket.send(Message::Binary(text.to_owned().into())).await?;
    let mut heard = String::new();
    while !heard.contains(text) {
        match tokio::time::timeout(SOON, socket.next()).await.context("no echo came")? {
            Some(Ok(Message::Binary(bytes))) => heard.push_str(&String::from_utf8_lossy(&bytes)),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            other => bail!("instead of an echo came {other:?}"),
        }
    }
    Ok(())
}

/// What a leak makes grow.
#[derive(Debug, Clone, Copy)]
struct Held {
    files: usize,
    tasks: usize,
    resident_kib: usize,
}

impl Held {
    fn now() -> Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(Self {
            files: fs::read_dir("/proc/self/fd")?.count(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
            resident_kib: line.trim().trim_end_matches(" kB").parse()?,
        })
    }
}

/// Waits until there are no more files and tasks than this.
async fn back_to(files: usize, tasks: usize) -> Result<Held> {
    eventually("files and tasks are as they were", SOON, || async {
        let now = Held::now()?;
        ensure!(now.files <= files + SLACK && now.tasks <= tasks + SLACK, "{now:?}, allowed {files} and {tasks}");
        Ok(now)
    })
    .await
}

/// Client and server are this one process: it needs twice the files that either would.
fn allow_many_files() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}

fn name(index: usize) -> String {
    format!("vm-{index}")
}

/// Connects and leaves again, in each of the ways one can.
async fn come_and_go(door: &Door, round: usize) -> Result<()> {
    let mut socket = door.console(&name(SLOW + round % (CONSOLES - SLOW))).await?;
    match round % 4 {
        0 => ask(&mut socket, "hello").await.or_else(taken_over)?,
        1 => socket.close(None).await?,
        // Says something and hangs up without waiting for the answer.
        2 => socket.send(Message::Binary("x".into())).await?,
        _ => {}
    }
    Ok(())
}

/// Others may connect to the same guest in the meantime; who came last has it.
fn taken_over(error: anyhow::Error) -> Result<()> {
    match error.to_string().contains("instead of an echo") {
        true => Ok(()),
        false => Err(error),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consoles_by_the_hundred_leave_nothing() -> Result<()> {
    allow_many_files()?;
    let tokens = StaticTokens::parse(&format!("{TOKEN},tester,1,system:masters\n"))?;
    let cluster = Cluster::start(Options { tokens, ..Options::default() }).await?;
    let door = Door::open(&cluster).await?;
    let names = stream::iter((0..CONSOLES).map(Ok));
    let ours = &cluster;
    let make = |index| async move { create(ours, vm(&name(index), "Always")).await.map(drop) };
    names.try_for_each_concurrent(TOGETHER, make).await?;
    let mut guests = tokio::task::JoinSet::new();
    for index in 0..CONSOLES {
        let vmi = wait_vmi(&cluster, &name(index), "it runs", |vmi| vmi.status.phase == "Running").await?;
        let pod = vmi.status.active_pods.keys().next().context("no pod")?;
        let private = format!("pods/{pod}/volumes/kubernetes.io~empty-dir/private");
        let directory = cluster.kubelet_root().join(private).join(vmi.metadata.uid.as_deref().unwrap_or_default());
        fs::create_dir_all(&directory)?;
        // The path is too long for a socket's address.
        let opened = fs::File::open(&directory)?;
        let short = format!("/proc/self/fd/{}/virt-serial0", std::os::fd::AsRawFd::as_raw_fd(&opened));
        guests.spawn(guest(UnixListener::bind(short)?));
    }

    // All at once, and each has its own guest.
    let all: Vec<Socket> = stream::iter(0..CONSOLES)
        .map(|index| {
            let door = &door;
            async move {
                let mut socket = door.console(&name(index)).await?;
                ask(&mut socket, &format!("I am {index}.")).await?;
                anyhow::Ok(socket)
            }
        })
        .buffered(TOGETHER)
        .try_collect()
        .await?;
    let before = Held::now()?;
    ensure!(all.len() == CONSOLES);

    // Some read nothing of what their guests write; the others do not notice.
    let mut all = all.into_iter();
    let mut slow: Vec<Socket> = all.by_ref().take(SLOW).collect();
    for socket in &mut slow {
        socket.send(Message::Binary("!".into())).await?;
    }
    let mut quick: Vec<Socket> = all.collect();
    for socket in &mut quick {
        ask(socket, "still here").await?;
    }
    // Nobody says good-bye.
    drop(quick);
    drop(slow);

    let long = std::env::var_os("FERROVIRT_LONG").is_some();
    let rounds = if long { 5_000 } else { 300 };
    let go = |rounds: usize| {
        let door = &door;
        stream::iter((0..rounds).map(Ok)).try_for_each_concurrent(TOGETHER, move |round| come_and_go(door, round))
    };
    go(rounds).await?;
    // Each console that was open had a socket at either end, and a task at least.
    let half = back_to(before.files - 2 * CONSOLES, before.tasks - CONSOLES).await?;
    go(rounds).await?;
    let end = back_to(half.files, half.tasks).await?;
    println!("before: {before:?}\nafter {rounds}: {half:?}\nafter {}: {end:?}", 2 * rounds);
    if long {
        let grown = end.resident_kib.saturating_sub(half.resident_kib);
        ensure!(grown < rounds, "{grown} KiB more after {rounds} more connections: {half:?}, {end:?}");
    }
    guests.shutdown().await;
    tokio::time::timeout(Duration::from_secs(60), cluster.stop()).await.context("the cluster does not stop")
}
