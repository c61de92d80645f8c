//! Many clients that mean no good, against a server in a process of its own: its memory stays bounded, and others are
//! served meanwhile.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::Server;
use crate::support::kubectl::{Kubectl, connect};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Set for the process that is the server.
const BESIEGED: &str = "FERROVIRT_TEST_BESIEGED";
const IDLE_WATCHES: usize = 1000;
const SLOW_HEADERS: usize = 200;
const SLOW_BODIES: usize = 200;
/// What one attacker may cost the server, in KiB: buffers of its connection and of TLS.
const MAX_PER_CLIENT: u64 = 200;
/// What all of them together may make it buffer beyond that: request bodies, parsed objects, the history of watches.
const MAX_SHARED: u64 = 400 * 1024;

/// Not a test of its own: serves until its input ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn besieged() {
    if std::env::var_os(BESIEGED).is_none() {
        return;
    }
    let k = Kubectl::start(Server::start().await).await;
    println!("\nSERVING {} {}", k.address, k.server.dir.path().display());
    let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    k.stop().await;
}

struct Besieged {
    child: Child,
    /// Kept open: the end of a test is told there, too.
    _output: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
    dir: PathBuf,
}

impl Besieged {
    async fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "siege::besieged", "--nocapture"]).env(BESIEGED, "1");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        loop {
            let line = lines.next_line().await.unwrap().expect("the server starts");
            if let Some((address, dir)) = line.strip_prefix("SERVING ").and_then(|rest| rest.split_once(' ')) {
                return Self { child, _output: lines, address: address.parse().unwrap(), dir: dir.into() };
            }
        }
    }

    /// Resident memory in KiB.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    async fn stop(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().await.unwrap().success());
    }
}

/// One request of somebody who means well, with the answer's status and body.
async fn ask(address: SocketAddr, dir: &Path, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut stream = connect(address, dir).await;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // Who is refused early may find the connection closed.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, serde_json::from_str(body).unwrap_or_default())
}

fn large(name: &str, round: usize) -> String {
    json!({"metadata": {"name": name}, "data": {"round": round.to_string(), "x": "x".repeat(20_000)}}).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_siege_costs_little_and_blocks_nobody() {
    let server = Besieged::start().await;
    let (address, dir) = (server.address, server.dir.as_path());
    assert_eq!(ask(address, dir, "POST", MAPS, &large("hot", 0)).await.0, 201);
    let before = server.memory();

    let mut attackers = Vec::new();
    for _ in 0..IDLE_WATCHES {
        let mut stream = connect(address, dir).await;
        stream.write_all(format!("GET {MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        attackers.push(stream);
    }
    for _ in 0..SLOW_HEADERS {
        let mut stream = connect(address, dir).await;
        stream.write_all(b"GET /api HTTP/1.1\r\nHost: x\r\nX-Long: ").await.unwrap();
        stream.write_all("x".repeat(8000).as_bytes()).await.unwrap();
        attackers.push(stream);
    }
    // Each promises three megabytes, sends most of them and never the rest.
    let body = "x".repeat(2 << 20);
    for _ in 0..SLOW_BODIES {
        let mut stream = connect(address, dir).await;
        let head = format!(
            "POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 3000000\r\n\r\n"
        );
        // Whoever is refused finds the connection closed.
        let _ = stream.write_all(head.as_bytes()).await;
        let _ = stream.write_all(body.as_bytes()).await;
        attackers.push(stream);
    }
    // Deep and wide documents, each answered with an error and forgotten.
    let deep = format!("{{\"metadata\":{{\"name\":\"deep\"}},\"data\":{}", "[".repeat(1 << 20));
    let wide = format!("{{\"metadata\":{{\"name\":\"wide\"}},\"x\":[{}1]}}", "{},".repeat(900_000));
    for body in [&deep, &wide] {
        let (status, answer) = ask(address, dir, "POST", &format!("{MAPS}?fieldValidation=Strict"), body).await;
        assert!(matches!(status, 0 | 400 | 413 | 429), "{status} {answer}");
    }

    // Others write, read and are served, and the watches that nobody reads do not hold them up.
    for round in 1..=100 {
        let (status, answer) = ask(address, dir, "PUT", &format!("{MAPS}/hot"), &large("hot", round)).await;
        assert_eq!(status, 200, "{answer}");
    }
    let (status, answer) = ask(address, dir, "GET", &format!("{MAPS}/hot"), "").await;
    assert_eq!((status, &answer["data"]["round"]), (200, &json!("100")));

    let grown = server.memory().saturating_sub(before);
    let bound = attackers.len() as u64 * MAX_PER_CLIENT + MAX_SHARED;
    assert!(grown < bound, "{grown} KiB for {} clients; at most {bound} KiB are allowed", attackers.len());
    println!("{} attackers cost {} MiB", attackers.len(), grown / 1024);
    drop(attackers);
    assert_eq!(ask(address, dir, "POST", MAPS, &large("after", 0)).await.0, 201);
    server.stop().await;
}
