//! Commands and ports of pods, over real connections, into real namespaces. Needs root, like the product.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake_api;
mod node_config;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fake_api::FakeApi;
use ferrovirt_node_lite::cgroup::Limits;
use ferrovirt_node_lite::records::{InitPlan, PodRecord};
use ferrovirt_node_lite::sandbox::{Running, Sandboxes};
use ferrovirt_node_lite::streams::{Caller, Streams};
use ferrovirt_node_lite::{Config, LogOptions, read_log};
use futures::{SinkExt, StreamExt};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};

struct Node {
    api: FakeApi,
    config: Config,
    sandboxes: Sandboxes,
    address: String,
    _root: tempfile::TempDir,
}

impl Node {
    async fn new(number: u8) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test makes namespaces and cgroups: run it as root");
        let root = tempfile::tempdir().unwrap();
        let config = Config {
            instance: format!("{:04x}{:02x}", std::process::id() & 0xffff, 0x40 + number),
            ..node_config::of(root.path(), number, (200, 8), "10.201.48.0/20")
        };
        let sandboxes = Sandboxes::open(&config).unwrap();
        sandboxes.prepare().unwrap();
        let api = FakeApi::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(serve(listener, Streams::new(api.client(), &config), api.clone()));
        Self { api, config, sandboxes, address, _root: root }
    }

    /// A pod that runs a script, and its object.
    async fn pod(&self, name: &str, script: &str, privileged: bool) -> Running {
        let plan = self.plan(name, script, privileged).await;
        let running = self.sandboxes.start(&plan).await.unwrap();
        let uid = &plan.pod_uid;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.log(uid).contains("up") {
            assert!(Instant::now() < deadline, "{name} is not up: {}", self.log(uid));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.announce(name);
        running
    }

    /// All but its start.
    async fn plan(&self, name: &str, script: &str, privileged: bool) -> InitPlan {
        let uid = format!("uid-{name}");
        let record = PodRecord {
            uid: uid.clone(),
            namespace: "default".into(),
            name: name.into(),
            container: "compute".into(),
            grace_seconds: 30,
            netns: self.sandboxes.netns(&uid),
        };
        let dir = self.sandboxes.create_dir(&record).unwrap();
        let limits = Limits { cpu_request_milli: 100, cpu_limit_milli: None, memory_limit_bytes: Some(64 << 20) };
        let cgroup_procs = self.sandboxes.create_cgroup(&uid, &limits, None).unwrap();
        self.sandboxes.attach_network(&record, vec![]).await.unwrap();
        let user = if privileged { 0 } else { 107 };
        InitPlan {
            privileged,
            memory_placement: false,
            pod_uid: uid,
            container: "compute".into(),
            hostname: name.into(),
            netns: record.netns,
            cgroup_procs,
            staging: dir.staging(),
            launcher: "/bin/sh".into(),
            program_path: None,
            command: vec!["/bin/sh".into(), "-c".into(), format!("{script}\necho up; while :; do sleep 0.05; done")],
            working_dir: "/".into(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("POD".into(), name.into())],
            uid: user,
            gid: user,
            groups: vec![],
            sidecar: None,
            first_id: None,
            devices: vec![],
            sysctls: vec![],
            mounts: vec![],
            files: vec![],
        }
    }

    /// Makes its object, which says that it runs.
    fn announce(&self, name: &str) {
        self.api.put(
            &format!("/api/v1/namespaces/default/pods/{name}"),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
                "spec": { "nodeName": "n1", "containers": [{ "name": "compute" }] },
                "status": { "phase": "Running" },
            }),
        );
    }

    fn log(&self, uid: &str) -> String {
        let bytes = read_log(&self.config.data_dir, uid, "compute", &LogOptions::default()).unwrap_or_default();
        String::from_utf8(bytes).unwrap()
    }

    fn allow(&self, right: &str) {
        self.api.rights.lock().unwrap().insert(right.to_owned());
    }

    async fn open(&self, user: &str, path: &str, protocol: &str) -> Result<WebSocketStream<TcpStream>, (u16, String)> {
        let mut request =
            format!("ws://{}/api/v1/namespaces/default/pods/{path}", self.address).into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
        request.headers_mut().insert("x-test-user", user.parse().unwrap());
        let stream = TcpStream::connect(&self.address).await.unwrap();
        match tokio_tungstenite::client_async(request, stream).await {
            Ok((socket, response)) => {
                assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
                Ok(socket)
            }
            Err(tungstenite::Error::Http(response)) => {
                let body = response.body().clone().unwrap_or_default();
                Err((response.status().as_u16(), String::from_utf8(body).unwrap()))
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs a command to its end.
    async fn exec(&self, pod: &str, command: &[&str]) -> Said {
        let mut query = "container=compute&stdout=true&stderr=true".to_owned();
        for word in command {
            query.push_str(&format!("&command={}", encode(word)));
        }
        let socket = self.open("admin", &format!("{pod}/exec?{query}"), "v5.channel.k8s.io").await.unwrap();
        hear(socket).await
    }

    async fn finish(self) {
        self.sandboxes.teardown().await.unwrap();
    }
}

/// Enough of an API server that kubectl finds pods, and their streams.
async fn serve(listener: TcpListener, streams: Streams, api: FakeApi) {
    while let Ok((stream, _)) = listener.accept().await {
        let (streams, api) = (streams.clone(), api.clone());
        let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            let (streams, api) = (streams.clone(), api.clone());
            async move {
                let path = request.uri().path().to_owned();
                let found = match path.as_str() {
                    "/api" => Some(json!({ "kind": "APIVersions", "versions": ["v1"] })),
                    "/apis" => Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [] })),
                    "/api/v1" => Some(json!({
                        "kind": "APIResourceList", "groupVersion": "v1",
                        "resources": [{ "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": ["get"] }],
                    })),
                    path => api.get(path),
                };
                if let Some(found) = found {
                    let mut response = http::Response::new(Full::new(Bytes::from(found.to_string())));
                    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
                    return Ok(response);
                }
                // What the API server knows of whoever asks.
                let name = request.headers().get("x-test-user").and_then(|name| name.to_str().ok()).unwrap_or("admin");
                let caller = Caller { name: name.to_owned(), ..Caller::default() };
                request.extensions_mut().insert(caller);
                Ok::<_, std::convert::Infallible>(streams.handle(request).await.map(Full::new))
            }
        });
        tokio::spawn(async move {
            let io = hyper_util::rt::TokioIo::new(stream);
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).with_upgrades().await;
        });
    }
}

#[derive(Debug, Default)]
struct Said {
    out: String,
    err: String,
    status: Value,
}

impl Said {
    fn code(&self) -> i64 {
        match self.status["status"].as_str() {
            Some("Success") => 0,
            _ => {
                self.status["details"]["causes"][0]["message"].as_str().and_then(|text| text.parse().ok()).unwrap_or(-1)
            }
        }
    }
}

async fn hear(mut socket: WebSocketStream<TcpStream>) -> Said {
    let mut said = Said::default();
    let all = async {
        while let Some(Ok(message)) = socket.next().await {
            let Message::Binary(bytes) = message else { continue };
            let text = String::from_utf8_lossy(&bytes[1..]).into_owned();
            match bytes[0] {
                1 => said.out.push_str(&text),
                2 => said.err.push_str(&text),
                3 if !text.is_empty() => said.status = serde_json::from_str(&text).unwrap(),
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), all).await.expect("the session does not end");
    said
}

fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn message(channel: u8, bytes: &[u8]) -> Message {
    Message::Binary(Bytes::from([&[channel], bytes].concat()))
}

#[tokio::test]
async fn a_command_has_the_pods_rights_and_no_more() {
    let node = Node::new(1).await;
    node.allow("admin create default/exec");
    let _running = node.pod("tour", "", false).await;
    let script = "echo uid=$(id -u) host=$(hostname) pod=$POD first=$(tr '\\0' ' ' </proc/1/cmdline | cut -c1-7); \
        grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t' | tr '\\n' ' '; echo; \
        grep -c 'poduid-tour' /proc/self/cgroup >&2; \
        unshare --mount true 2>/dev/null && echo open; mount -t tmpfs x /tmp 2>/dev/null && echo open; \
        ls -l /proc/self/fd | grep -c -e '->' | awk '{print \"fds=\" ($1 <= 4)}'; exit 3";
    let said = node.exec("tour", &["/bin/sh", "-c", script]).await;
    assert_eq!(said.code(), 3, "{said:?}");
    assert!(said.out.starts_with("uid=107 host=tour pod=tour first=/bin/sh"), "{said:?}");
    let rights = "CapPrm:0000000000000000 CapEff:0000000000000000 CapBnd:0000000000000000 NoNewPrivs:1 Seccomp:2 ";
    assert!(said.out.contains(rights) && !said.out.contains("open") && said.out.contains("fds=1"), "{said:?}");
    assert_ne!(said.err.trim(), "0", "{said:?}");
    // Looked up inside, and told as a shell does.
    assert_eq!(node.exec("tour", &["true"]).await.code(), 0);
    let missing = node.exec("tour", &["no-such-program"]).await;
    assert!(missing.code() == 127 && missing.err.contains("no-such-program"), "{missing:?}");
    assert_eq!(node.exec("tour", &["sh", "-c", "kill -9 $$"]).await.code(), 137);

    // Input, to its end.
    let query = "tour/exec?stdin=true&stdout=true&command=sh&command=-c&command=cat%3B+echo+done";
    let mut socket = node.open("admin", query, "v5.channel.k8s.io").await.unwrap();
    let large = vec![b'x'; 200_000];
    for part in large.chunks(30_000) {
        socket.send(message(0, part)).await.unwrap();
    }
    socket.send(message(255, &[0])).await.unwrap();
    let said = hear(socket).await;
    assert_eq!((said.out.len(), said.out.ends_with("done\n"), said.code()), (200_005, true, 0));
    node.finish().await;
}

#[tokio::test]
async fn a_terminal_has_a_size_and_hangs_up() {
    let node = Node::new(2).await;
    node.allow("admin create default/exec");
    let running = node.pod("tty", "", false).await;
    let shell = "trap 'echo hung > /tmp/hup; exit' HUP; test -t 0 && echo terminal; read line; stty size; echo got $line; \
                 while :; do sleep 0.05; done";
    let query =
        format!("tty/exec?stdin=true&stdout=true&stderr=true&tty=true&command=sh&command=-c&command={}", encode(shell));
    let mut socket = node.open("admin", &query, "v5.channel.k8s.io").await.unwrap();
    socket.send(message(4, br#"{"Width":100,"Height":40}"#)).await.unwrap();
    let mut seen = String::new();
    let mut answered = false;
    while !seen.contains("got hello") {
        let next =
            tokio::time::timeout(Duration::from_secs(20), socket.next()).await.unwrap_or_else(|_| panic!("{seen}"));
        let Some(Ok(Message::Binary(bytes))) = next else { panic!("it ended: {seen}") };
        seen.push_str(&String::from_utf8_lossy(&bytes[1..]));
        if seen.contains("terminal") && !answered {
            answered = true;
            socket.send(message(0, b"hello\n")).await.unwrap();
        }
    }
    assert!(seen.contains("40 100"), "{seen:?}");
    drop(socket);
    let deadline = Instant::now() + Duration::from_secs(20);
    while node.exec("tty", &["cat", "/tmp/hup"]).await.out != "hung\n" {
        assert!(Instant::now() < deadline, "the command was not told that its terminal is gone");
    }
    running.kill().unwrap();
    running.wait().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn nobody_enters_without_the_right() {
    let node = Node::new(3).await;
    let running = node.pod("mine", "", false).await;
    let _root = node.pod("driver", "", true).await;
    let run = "stdout=true&command=id";
    let refused = |result: Result<WebSocketStream<TcpStream>, (u16, String)>| match result {
        Ok(_) => panic!("entered"),
        Err((code, body)) => {
            (code, serde_json::from_str::<Value>(&body).unwrap()["message"].as_str().unwrap().to_owned())
        }
    };
    let v5 = "v5.channel.k8s.io";
    let (code, message) = refused(node.open("viewer", &format!("mine/exec?{run}"), v5).await);
    assert!(code == 403 && message.contains("cannot create resource \"pods/exec\""), "{code} {message}");
    // The right to one is not the right to the other, nor to another namespace's.
    node.allow("viewer create default/portforward");
    node.allow("viewer create other/exec");
    assert_eq!(refused(node.open("viewer", &format!("mine/exec?{run}"), v5).await).0, 403);
    assert_eq!(refused(node.open("viewer", &format!("mine/attach?{run}"), v5).await).0, 403);
    node.allow("editor create default/exec");
    assert!(node.open("editor", &format!("mine/exec?{run}"), v5).await.is_ok());
    // Root on the node takes more than the right to run commands.
    let (code, message) = refused(node.open("editor", &format!("driver/exec?{run}"), v5).await);
    assert!(code == 403 && message.contains("pods/privileged"), "{code} {message}");
    node.allow("editor create default/privileged");
    assert!(node.open("editor", &format!("driver/exec?{run}"), v5).await.is_ok());
    for (path, code, expected) in [
        ("nobody/exec?stdout=true&command=id", 404, "not found"),
        ("mine/exec?stdout=true&command=id&container=other", 400, "not valid for pod"),
        ("mine/exec?stdout=true", 400, "at least 1 command"),
    ] {
        let (found, message) = refused(node.open("editor", path, v5).await);
        assert!(found == code && message.contains(expected), "{path}: {found} {message}");
    }
    let path = "/api/v1/namespaces/default/pods/mine";
    for (field, value, expected) in [("phase", "Succeeded", "not running"), ("phase", "Pending", "not running")] {
        let mut pod = node.api.get(path).unwrap();
        pod["status"][field] = value.into();
        node.api.put(path, pod);
        let (code, message) = refused(node.open("editor", &format!("mine/exec?{run}"), v5).await);
        assert!(code == 400 && message.contains(expected), "{code} {message}");
    }
    // The object may lie, or be late: it is the process that counts.
    let mut pod = node.api.get(path).unwrap();
    pod["status"]["phase"] = "Running".into();
    node.api.put(path, pod.clone());
    running.kill().unwrap();
    running.wait().await.unwrap();
    node.allow("admin create default/exec");
    let late = node.exec("mine", &["id"]).await;
    assert!(late.out.is_empty() && late.code() != 0, "{late:?}");
    pod["spec"]["nodeName"] = "n2".into();
    node.api.put(path, pod);
    assert_eq!(refused(node.open("editor", &format!("mine/exec?{run}"), v5).await).0, 400);
    node.finish().await;
}

#[tokio::test]
async fn a_right_that_was_withdrawn_ends_what_is_open() {
    let node = Node::new(8).await;
    node.allow("editor create default/exec");
    node.allow("admin create default/exec");
    let running = node.pod("mine", "", false).await;
    let query = "mine/exec?stdin=true&stdout=true&command=sh&command=-c&command=echo+here%3B+cat";
    let mut socket = node.open("editor", query, "v5.channel.k8s.io").await.unwrap();
    let mut seen = String::new();
    while !seen.contains("here") {
        let next = tokio::time::timeout(Duration::from_secs(20), socket.next()).await.unwrap();
        let Some(Ok(Message::Binary(bytes))) = next else { panic!("it ended: {seen}") };
        seen.push_str(&String::from_utf8_lossy(&bytes[1..]));
    }
    node.api.rights.lock().unwrap().remove("editor create default/exec");
    // Ends without a word: there is nobody who may hear one.
    let ended = tokio::time::timeout(Duration::from_secs(20), async { while let Some(Ok(_)) = socket.next().await {} });
    ended.await.expect("the session goes on");
    assert_eq!(node.exec("mine", &["true"]).await.code(), 0, "others are not disturbed");
    running.kill().unwrap();
    running.wait().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn what_a_pod_put_into_its_place_leads_nowhere() {
    let node = Node::new(4).await;
    node.allow("admin create default/exec");
    // Everything that a pod can write is made to lead to whoever enters.
    let traps = "ln -s /proc/self/exe /tmp/exe; ln -s /proc/self/fd/3 /tmp/fd; ln -s /proc/1/root/tmp/exe /tmp/around; \
        mkfifo /tmp/fifo; mkdir /tmp/dir; printf '#!/proc/self/exe\\n' > /tmp/script; chmod +x /tmp/script; \
        (while :; do for p in /proc/[0-9]*; do ls $p/fd >/dev/null 2>&1; \
         for f in $p/fd/*; do case $(readlink $f 2>/dev/null) in */init.json|*/state.json|net:*|mnt:*|user:*) echo leaked $f;; esac; done; \
         done; done) & ";
    let running = node.pod("traps", traps, false).await;
    let program = fs::read(&node.config.self_exe).unwrap();
    for trap in ["/tmp/exe", "/tmp/fd", "/tmp/around", "/proc/self/exe"] {
        let said = node.exec("traps", &[trap, "pod-exec"]).await;
        assert!(said.code() == 126 || said.code() == 127, "{trap}: {said:?}");
        assert!(!said.err.contains("usage") && !said.out.contains("usage"), "our own program ran: {trap}: {said:?}");
    }
    for trap in ["/tmp/fifo", "/tmp/dir", "/tmp"] {
        let said = node.exec("traps", &[trap]).await;
        assert_eq!(said.code(), 126, "{trap}: {said:?}");
    }
    let _ = node.exec("traps", &["/tmp/script"]).await;
    for _ in 0..20 {
        assert_eq!(node.exec("traps", &["true"]).await.code(), 0);
    }
    assert!(!node.log("uid-traps").contains("leaked"), "{}", node.log("uid-traps"));
    assert_eq!(fs::read(&node.config.self_exe).unwrap(), program);
    running.kill().unwrap();
    running.wait().await.unwrap();
    node.finish().await;
}

/// A pod is called running as soon as it is on record, and its owner says how much CPU pod-init gets.
#[tokio::test]
async fn nobody_enters_a_pod_that_is_not_shut_in_yet() {
    let node = Node::new(7).await;
    node.allow("admin create default/exec");
    let mut plan = node.plan("slow", "", false).await;
    // pod-init waits here, still in the host's own namespaces.
    let gate = node.config.data_dir.join("gate");
    assert!(std::process::Command::new("mkfifo").arg(&gate).status().unwrap().success());
    plan.netns = gate.clone();
    let running = node.sandboxes.start(&plan).await.unwrap();
    node.announce("slow");
    let query = "slow/exec?stdout=true&stderr=true&command=sh&command=-c&command=echo+entered";
    let socket = node.open("admin", query, "v5.channel.k8s.io").await.unwrap();
    let heard = tokio::spawn(hear(socket));
    let deadline = Instant::now() + Duration::from_secs(20);
    while !heard.is_finished() && !waits_for_it("pod-session", &plan.pod_uid) {
        assert!(Instant::now() < deadline, "nobody waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It is no network, so pod-init ends.
    tokio::task::spawn_blocking(move || drop(fs::OpenOptions::new().write(true).open(gate))).await.unwrap();
    let said = heard.await.unwrap();
    assert!(said.out.is_empty() && said.code() != 0, "entered the host: {said:?}");
    running.wait().await.unwrap();
    node.finish().await;
}

/// True if a process of ours for a pod waits for something to happen.
fn waits_for_it(what: &str, uid: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let read = |path: PathBuf| fs::read(path).unwrap_or_default();
    let mut found = processes.filter(|process| {
        let line = String::from_utf8_lossy(&read(process.join("cmdline"))).into_owned();
        line.contains(what) && line.contains(uid)
    });
    found.any(|process| String::from_utf8_lossy(&read(process.join("wchan"))).contains("poll"))
}

#[tokio::test]
async fn ports_and_output_of_a_pod_are_reached() {
    let node = Node::new(5).await;
    node.allow("admin create default/portforward");
    node.allow("admin create default/attach");
    let running = node.pod("web", "(sleep 2; while :; do echo tick; sleep 0.1; done) &", false).await;
    let netns: PathBuf = node.sandboxes.netns("uid-web");
    let listener = ferrovirt_net::netns::enter(&netns, || std::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        use std::io::Write;
        let _ = listener.accept().unwrap().0.write_all(b"from inside");
    });
    let socket = node.open("admin", &format!("web/portforward?ports={port}"), "v4.channel.k8s.io").await.unwrap();
    let mut socket = socket;
    let mut heard = vec![];
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(bytes) = message
            && bytes[0] == 0
        {
            heard.extend_from_slice(&bytes[1..]);
        }
    }
    assert_eq!(heard, [&port.to_le_bytes()[..], b"from inside"].concat());

    let mut socket = node.open("admin", "web/attach?stdout=true&stderr=true", "v5.channel.k8s.io").await.unwrap();
    let mut seen = String::new();
    while !seen.contains("tick") {
        let next = tokio::time::timeout(Duration::from_secs(20), socket.next()).await.unwrap();
        let Some(Ok(Message::Binary(bytes))) = next else { panic!("it ended: {seen}") };
        seen.push_str(&String::from_utf8_lossy(&bytes[1..]));
    }
    assert!(!seen.contains("up"), "what was written before: {seen}");
    running.kill().unwrap();
    running.wait().await.unwrap();
    assert_eq!(hear(socket).await.code(), 0);
    node.finish().await;
}

/// Over websockets, and over SPDY, as older ones and those behind old proxies speak.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_itself_is_served() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Command, Stdio};
    if Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        println!("there is no kubectl on this machine");
        return;
    }
    let node = Node::new(6).await;
    for right in ["exec", "attach", "portforward"] {
        node.allow(&format!("admin create default/{right}"));
    }
    let running = node.pod("web", "", false).await;
    let netns = node.sandboxes.netns("uid-web");
    let listener = ferrovirt_net::netns::enter(&netns, || std::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            let _ = BufReader::new(&stream).read_line(&mut line);
            let _ = write!(stream, "heard {line}");
        }
    });
    let home = tempfile::tempdir().unwrap();
    for websockets in ["true", "false"] {
        let kubectl = |arguments: &[&str]| {
            let mut command = Command::new("kubectl");
            command.env("HOME", home.path()).env("KUBECONFIG", "/dev/null");
            command
                .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
                .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets);
            command.arg("--server").arg(format!("http://{}", node.address)).args(arguments);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        };
        let run = |arguments: &[&str], input: &[u8]| {
            let mut child = kubectl(arguments).spawn().unwrap();
            child.stdin.take().unwrap().write_all(input).unwrap();
            child.wait_with_output().unwrap()
        };
        let said = run(&["exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 3"], b"");
        assert_eq!(said.status.code(), Some(3), "websockets {websockets}: {said:?}");
        assert_eq!(said.stdout, b"out\n", "websockets {websockets}: {said:?}");
        assert!(String::from_utf8_lossy(&said.stderr).contains("err\n"), "websockets {websockets}: {said:?}");
        let large = vec![b'x'; 300_000];
        let said = run(&["exec", "-i", "web", "--", "cat"], &large);
        assert!(said.status.success() && said.stdout == large, "websockets {websockets}: {} bytes", said.stdout.len());
        let said = run(&["exec", "web", "-c", "other", "--", "true"], b"");
        assert!(!said.status.success(), "websockets {websockets}: {said:?}");

        let mut forward = kubectl(&["port-forward", "pod/web", &format!(":{port}")]).spawn().unwrap();
        let mut line = String::new();
        // Held: it writes there for each connection, and ends if nobody listens.
        let mut stdout = BufReader::new(forward.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let local =
            line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_else(|| panic!("{line}"));
        let ask = || -> std::io::Result<String> {
            let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{local}"))?;
            stream.write_all(b"hello\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answers: Vec<_> = (0..3).map(|_| ask().map_err(|error| error.to_string())).collect();
        forward.kill().unwrap();
        let said = forward.wait_with_output().unwrap();
        let expected: Vec<Result<String, String>> = vec![Ok("heard hello\n".into()); 3];
        assert_eq!(answers, expected, "websockets {websockets}: {}", String::from_utf8_lossy(&said.stderr));
    }
    running.kill().unwrap();
    running.wait().await.unwrap();
    node.finish().await;
}
