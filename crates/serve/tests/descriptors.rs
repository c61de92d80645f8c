//! A process without descriptors left, which is asked how it is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ferrovirt_serve::{Limits, Reception};
use http::Response;
use http_body_util::{BodyExt as _, Full};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio_util::sync::CancellationToken;

/// Set for the process that is the server.
const STARVED: &str = "FERROVIRT_TEST_STARVED";
const DESCRIPTORS: u64 = 96;
const PATIENCE: Duration = Duration::from_secs(60);

static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Not a test of its own: serves until its input ends. `/starve` takes every descriptor that is left.
#[tokio::test]
async fn starved() {
    if std::env::var_os(STARVED).is_none() {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum }).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("\nSERVING {}", listener.local_addr().unwrap());
    let limits = Limits { stranger_idle: Duration::from_secs(600), ..Limits::new(1000, 0.5) };
    let receive = || Reception {
        tls: None,
        meet: Box::new(|_| {
            Some(Box::new(|request| {
                Box::pin(async move {
                    match request.uri().path() {
                        "/starve" => {
                            while let Ok(file) = File::open("/dev/null") {
                                HELD.lock().unwrap().push(file);
                            }
                        }
                        "/feed" => HELD.lock().unwrap().clear(),
                        _ => {}
                    }
                    Response::new(Full::from("ok").map_err(|never| match never {}).boxed_unsync())
                })
            }))
        }),
    };
    let end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let shutdown = async {
        let _ = end.await;
    };
    ferrovirt_serve::serve(listener, limits, receive, CancellationToken::new(), shutdown).await;
}

struct Server(Child, SocketAddr);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start() -> Server {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "starved", "--nocapture"]).env(STARVED, "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.find_map(|line| Some(line.unwrap().strip_prefix("SERVING ")?.parse().unwrap()));
    // The rest of its output has a place to go.
    std::thread::spawn(move || lines.for_each(drop));
    Server(child, address.expect("the server starts"))
}

fn ask(address: SocketAddr, path: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let sent = stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes());
    let mut answer = String::new();
    sent.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200 OK")
}

/// Processor time of a process, in ticks.
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let after = stat.rsplit_once(')').unwrap().1;
    after.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

/// More clients than descriptors: the listener keeps to its part, and the process has some left.
#[test]
fn a_flood_does_not_reach_the_descriptor_limit() {
    let server = start();
    let idle: Vec<_> = (0..1000).map(|_| TcpStream::connect(server.1).unwrap()).collect();
    assert!(ask(server.1, "/healthz"));
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.0.id())).unwrap().count();
    assert!(open < DESCRIPTORS as usize * 3 / 4, "{open} of {DESCRIPTORS} descriptors");
    drop(idle);
}

/// Others of the process took every descriptor: health is still answered, nothing spins, and it recovers.
#[test]
fn descriptor_exhaustion_leaves_health_alive_and_does_not_spin() {
    let server = start();
    assert!(ask(server.1, "/starve"));
    // The connection that asked for it ended and gave its own back; that one and the spares are what there is.
    for round in 0..3 {
        assert!(ask(server.1, "/healthz"), "in round {round}");
    }
    let idle: Vec<_> = (0..200).map(|_| TcpStream::connect(server.1).unwrap()).collect();
    let (before, since) = (ticks(server.0.id()), Instant::now());
    let until = since + Duration::from_secs(2);
    while Instant::now() < until {
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let spent = ticks(server.0.id()) - before;
    let wall = since.elapsed().as_millis() as u64 / 10;
    assert!(spent < wall / 3, "{spent} of {wall} ticks for nothing");
    let until = Instant::now() + PATIENCE;
    while !ask(server.1, "/feed") {
        assert!(Instant::now() < until, "nobody is answered");
    }
    drop(idle);
    for _ in 0..20 {
        assert!(ask(server.1, "/healthz"));
    }
}
