//! Probes of a pod's container, with the kubelet's meaning: a liveness probe that keeps failing ends the container, a
//! readiness probe says whether the pod is ready.
//!
//! They run as root with the host's place in the network, and their owner is whoever made the pod. So they go to the pod's own
//! address and nowhere else, say one request and nothing more, and of what comes back little is kept.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderName, HeaderValue};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Pod, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::events::{Events, Severity};

/// Most of a failed probe's output that is shown, that is kept, and that is read before it is enough.
const OUTPUT: usize = 1024;
const KEPT: usize = 10 << 10;
const ENOUGH: usize = 16 << 20;

/// What the probes say now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Health {
    pub ready: bool,
    /// Why the container has to end.
    pub dead: Option<String>,
}

/// Probes of one container; they stop when this is dropped.
pub(crate) struct Probes {
    health: watch::Receiver<Health>,
    _tasks: JoinSet<()>,
}

/// How the container is reached.
#[derive(Clone)]
pub(crate) struct Target {
    /// Runs `pod-exec`.
    pub program: PathBuf,
    pub directory: PathBuf,
    pub address: Option<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Liveness,
    Readiness,
}

/// Counts as the kubelet does: the verdict changes after so many of the same in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counter {
    successes_wanted: u32,
    failures_wanted: u32,
    last: Option<bool>,
    run: u32,
}

impl Counter {
    fn new(probe: &Probe) -> Self {
        let or = |value: Option<i32>, default: u32| {
            value.and_then(|value| u32::try_from(value).ok()).filter(|value| *value > 0).unwrap_or(default)
        };
        Self {
            successes_wanted: or(probe.success_threshold, 1),
            failures_wanted: or(probe.failure_threshold, 3),
            last: None,
            run: 0,
        }
    }

    /// The verdict after one more result, if it is clear.
    fn count(&mut self, success: bool) -> Option<bool> {
        self.run = if self.last == Some(success) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(success);
        let wanted = if success { self.successes_wanted } else { self.failures_wanted };
        (self.run >= wanted).then_some(success)
    }
}

impl Probes {
    pub(crate) fn start(pod: &Arc<Pod>, target: &Target, started_at: Timestamp, events: &Events) -> Self {
        let container = pod.spec.as_ref().and_then(|spec| spec.containers.first()).cloned().unwrap_or_default();
        let (sender, health) =
            watch::channel(Health { ready: container.readiness_probe.is_none(), ..Health::default() });
        let sender = Arc::new(sender);
        let mut tasks = JoinSet::new();
        for (kind, probe) in
            [(Kind::Liveness, &container.liveness_probe), (Kind::Readiness, &container.readiness_probe)]
        {
            if let Some(probe) = probe {
                let age = Duration::try_from(Timestamp::now().duration_since(started_at)).unwrap_or_default();
                let delay = seconds(probe.initial_delay_seconds, 0).saturating_sub(age);
                let asking = Asking {
                    kind,
                    probe: probe.clone(),
                    container: container.clone(),
                    target: target.clone(),
                    pod: pod.clone(),
                    events: events.clone(),
                };
                tasks.spawn(asking.run(delay, sender.clone()));
            }
        }
        Self { health, _tasks: tasks }
    }

    pub(crate) fn health(&mut self) -> Health {
        self.health.borrow_and_update().clone()
    }

    /// Waits until the health changed. Never returns where there is no probe.
    pub(crate) async fn changed(&mut self) {
        if self.health.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

struct Asking {
    kind: Kind,
    probe: Probe,
    container: Container,
    target: Target,
    pod: Arc<Pod>,
    events: Events,
}

impl Asking {
    async fn run(self, delay: Duration, health: Arc<watch::Sender<Health>>) {
        let mut counter = Counter::new(&self.probe);
        let timeout = seconds(self.probe.timeout_seconds, 1);
        let mut ticks = tokio::time::interval(seconds(self.probe.period_seconds, 10));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::time::sleep(delay).await;
        loop {
            ticks.tick().await;
            let result = match tokio::time::timeout(timeout, self.ask()).await {
                Ok(result) => result,
                Err(_) => Err(format!("it took longer than {} s", timeout.as_secs())),
            };
            let word = match self.kind {
                Kind::Liveness => "Liveness",
                Kind::Readiness => "Readiness",
            };
            if let Err(why) = &result {
                let message = format!("{word} probe failed: {why}");
                self.events.publish("kubelet", &self.pod, Severity::Warning, "Unhealthy", &message);
            }
            match (self.kind, counter.count(result.is_ok())) {
                (Kind::Readiness, Some(ready)) => {
                    health.send_if_modified(|health| std::mem::replace(&mut health.ready, ready) != ready);
                }
                (Kind::Liveness, Some(false)) => {
                    let name = &self.container.name;
                    let message = format!("Container {name} failed liveness probe, will be killed");
                    health.send_modify(|health| health.dead = Some(message));
                    return;
                }
                _ => {}
            }
        }
    }

    async fn ask(&self) -> Result<(), String> {
        if let Some(exec) = &self.probe.exec {
            return self.exec(exec.command.as_deref().unwrap_or_default()).await;
        }
        if let Some(http) = &self.probe.http_get {
            return self.http_get(http).await;
        }
        if let Some(tcp) = &self.probe.tcp_socket {
            return self.connect(tcp.host.as_deref(), &tcp.port).await.map(drop);
        }
        Err("the probe asks for nothing that is known here".to_owned())
    }

    async fn exec(&self, command: &[String]) -> Result<(), String> {
        let failed = |error| format!("cannot run {}: {error}", self.target.program.display());
        let mut child = tokio::process::Command::new(&self.target.program)
            .arg("pod-exec")
            .arg(&self.target.directory)
            .args(command)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        // Both at once: a program may fill either before the other.
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (out, err) = tokio::try_join!(first_bytes(stdout), first_bytes(stderr))?;
        let status = child.wait().await.map_err(failed)?;
        if status.success() {
            return Ok(());
        }
        let mut text = out;
        text.extend_from_slice(&err);
        text.truncate(OUTPUT);
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        Err(if text.is_empty() { status.to_string() } else { text })
    }

    async fn connect(&self, host: Option<&str>, port: &IntOrString) -> Result<(TcpStream, SocketAddr), String> {
        let own = self.target.address.ok_or("the pod has no address")?;
        if let Some(host) = host.filter(|host| !host.is_empty() && host.parse::<IpAddr>() != Ok(own)) {
            return Err(format!(
                "the probe names the host {host:?}, and probes go to the pod only: leave its host out"
            ));
        }
        let address = SocketAddr::new(own, self.port(port)?);
        let stream = TcpStream::connect(address).await.map_err(|error| format!("dial tcp {address}: {error}"))?;
        Ok((stream, address))
    }

    fn port(&self, port: &IntOrString) -> Result<u16, String> {
        let number = match port {
            IntOrString::Int(number) => Some(*number),
            IntOrString::String(name) => {
                let mut ports = self.container.ports.iter().flatten();
                ports.find(|port| port.name.as_ref() == Some(name)).map(|port| port.container_port)
            }
        };
        number.and_then(|number| u16::try_from(number).ok()).ok_or_else(|| format!("there is no port {port:?}"))
    }

    async fn http_get(&self, http: &HTTPGetAction) -> Result<(), String> {
        if http.scheme.as_deref().is_some_and(|scheme| scheme != "HTTP") {
            return Err("only the scheme HTTP is known here; use a tcpSocket or exec probe".to_owned());
        }
        let path = path(http.path.as_deref().unwrap_or("/"))?;
        let headers = headers(http)?;
        let (mut stream, address) = self.connect(http.host.as_deref(), &http.port).await?;
        let request = request(&path, &headers, &address);
        let failed = |error: std::io::Error| format!("Get \"http://{address}{path}\": {error}");
        stream.write_all(&request).await.map_err(failed)?;
        let mut head = Vec::new();
        (&mut stream).take(64).read_to_end(&mut head).await.map_err(failed)?;
        let head = String::from_utf8_lossy(&head);
        match status_code(&head) {
            Some(200..=399) => Ok(()),
            Some(code) => Err(format!("HTTP probe failed with statuscode: {code}")),
            None => Err(format!("Get \"http://{address}{path}\": malformed HTTP response {head:?}")),
        }
    }
}

/// The beginning of what a program writes. The rest is read and thrown away, but not for ever.
async fn first_bytes(stream: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, String> {
    let Some(mut stream) = stream else { return Ok(vec![]) };
    let (mut kept, mut all) = (Vec::new(), 0);
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        let more = buffer.get(..length.min(KEPT - kept.len())).unwrap_or_default();
        kept.extend_from_slice(more);
        all += length;
        if all > ENOUGH {
            return Err(format!("it wrote more than {} MiB", ENOUGH >> 20));
        }
    }
    Ok(kept)
}

/// The request's target: without anything that would end it, and what a target cannot hold in its encoded form.
fn path(given: &str) -> Result<String, String> {
    let mut path = String::with_capacity(given.len() + 1);
    if !given.starts_with('/') {
        path.push('/');
    }
    for byte in given.bytes() {
        match byte {
            0..=0x1f | 0x7f => return Err(format!("httpGet.path {given:?} holds control characters")),
            b'!'..=b'~' => path.push(char::from(byte)),
            _ => drop(write!(path, "%{byte:02X}")),
        }
    }
    Ok(path)
}

/// The headers that the probe asks for, but for those that say where a request ends.
fn headers(http: &HTTPGetAction) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let framing = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::TRAILER, header::CONNECTION];
    let mut found = vec![];
    for given in http.http_headers.iter().flatten() {
        let name = HeaderName::from_bytes(given.name.as_bytes());
        let name = name.map_err(|_| format!("httpGet.httpHeaders: {:?} is no name of a header", given.name))?;
        let value = HeaderValue::from_str(&given.value);
        let value = value.map_err(|_| format!("httpGet.httpHeaders: the value of {name} holds control characters"))?;
        if !framing.contains(&name) {
            found.push((name, value));
        }
    }
    Ok(found)
}

fn request(path: &str, headers: &[(HeaderName, HeaderValue)], address: &SocketAddr) -> Vec<u8> {
    let host = headers.iter().find(|(name, _)| *name == header::HOST);
    let address = address.to_string();
    let host = host.map_or(address.as_bytes(), |(_, value)| value.as_bytes());
    let mut request = format!("GET {path} HTTP/1.1\r\nHost: ").into_bytes();
    request.extend_from_slice(host);
    request.extend_from_slice(b"\r\nUser-Agent: kube-probe/1.36\r\n");
    for (name, value) in headers.iter().filter(|(name, _)| *name != header::HOST) {
        request.extend_from_slice(name.as_str().as_bytes());
        request.extend_from_slice(b": ");
        request.extend_from_slice(value.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"Accept: */*\r\nConnection: close\r\n\r\n");
    request
}

fn status_code(head: &str) -> Option<u16> {
    let mut words = head.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.get(..3)?.parse().ok()
}

fn seconds(value: Option<i32>, default: u64) -> Duration {
    let value = value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0);
    Duration::from_secs(value.unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_changes_after_a_row() {
        let probe = Probe { success_threshold: Some(2), failure_threshold: Some(3), ..Default::default() };
        let mut counter = Counter::new(&probe);
        let results = [true, true, false, false, true, false, false, false, true, true];
        let verdicts: Vec<_> = results.into_iter().map(|result| counter.count(result)).collect();
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(verdicts, [None, yes, None, None, None, None, None, no, None, yes]);
        let mut defaults = Counter::new(&Probe::default());
        assert_eq!([true, false, false, false].map(|result| defaults.count(result)), [yes, None, None, no]);
    }

    #[test]
    fn a_status_line_is_read() {
        assert_eq!(status_code("HTTP/1.1 204 No Content\r\n"), Some(204));
        assert_eq!(status_code("HTTP/1.0 503\r\n"), Some(503));
        for bad in ["", "SSH-2.0-dropbear\r\n", "HTTP/1.1 ", "HTTP/2 200"] {
            assert_eq!(status_code(bad), None, "{bad}");
        }
    }

    fn asking(probe: serde_json::Value, address: IpAddr) -> Asking {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, std::io::Error>(http::Response::new(http_body_util::Full::<bytes::Bytes>::default()))
        });
        Asking {
            kind: Kind::Readiness,
            probe: serde_json::from_value(probe).unwrap(),
            container: serde_json::from_value(serde_json::json!({
                "name": "c", "ports": [{ "name": "web", "containerPort": 1 }] }))
            .unwrap(),
            target: Target { program: "/bin/echo".into(), directory: "/x".into(), address: Some(address) },
            pod: Arc::default(),
            events: Events::new(kube::Client::new(service, "default"), "node"),
        }
    }

    #[tokio::test]
    async fn a_probe_that_names_a_host_reaches_nobody_but_its_pod() {
        let host = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = host.local_addr().unwrap().port();
        let pod = IpAddr::from([127, 0, 0, 2]);
        for name in ["127.0.0.1", "localhost", "127.1", "::1"] {
            for probe in [
                serde_json::json!({ "httpGet": { "port": port, "host": name } }),
                serde_json::json!({ "tcpSocket": { "port": port, "host": name } }),
            ] {
                let answer = asking(probe, pod).ask().await.unwrap_err();
                assert!(answer.contains("probes go to the pod only"), "{answer}");
            }
        }
        assert_eq!(host.into_std().unwrap().accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        // Its own address may be named.
        let own = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
        let port = own.local_addr().unwrap().port();
        let probe = serde_json::json!({ "tcpSocket": { "port": port, "host": "127.0.0.2" } });
        assert_eq!(asking(probe, pod).ask().await, Ok(()));
    }

    #[test]
    fn a_probe_with_line_ends_smuggles_no_request() {
        for bad in ["/ HTTP/1.1\r\nHost: x\r\n\r\nDELETE /", "/\n", "/\r", "/\0", "/\u{7f}"] {
            assert!(path(bad).is_err(), "{bad:?}");
        }
        assert_eq!(path("a b?c=\u{85}").unwrap(), "/a%20b?c=%C2%85");
        let with = |name: &str, value: &str| {
            let given = serde_json::json!({ "port": 1, "httpHeaders": [{ "name": name, "value": value }] });
            headers(&serde_json::from_value(given).unwrap())
        };
        for (name, value) in [("a\r\nb", ""), ("a: b\r\n", ""), ("", ""), ("a", "x\r\n\r\nGET /"), ("host", "x\n")] {
            assert!(with(name, value).is_err(), "{name:?}: {value:?}");
        }
        assert!(with("Transfer-Encoding", "chunked").unwrap().is_empty());
        let address = "10.0.0.1:80".parse().unwrap();
        let text = String::from_utf8(request("/a", &with("X-A", "b").unwrap(), &address)).unwrap();
        assert_eq!(text.matches("\r\n\r\n").count(), 1);
        assert!(
            text.starts_with("GET /a HTTP/1.1\r\nHost: 10.0.0.1:80\r\n") && text.contains("\r\nx-a: b\r\n"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn an_exec_probe_that_writes_without_end_costs_little() {
        let mut child = tokio::process::Command::new("cat")
            .arg("/dev/zero")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let error = first_bytes(child.stdout.take()).await.unwrap_err();
        assert_eq!(error, "it wrote more than 16 MiB");
        let mut much = tokio::process::Command::new("head")
            .args(["-c", "1000000", "/dev/zero"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(first_bytes(much.stdout.take()).await.unwrap().len(), KEPT);
        assert!(much.wait().await.unwrap().success());
    }

    #[tokio::test]
    async fn http_and_tcp_go_to_the_pods_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            for answer in ["HTTP/1.1 302 Found\r\n\r\n", "HTTP/1.1 500 Oops\r\n\r\n", ""] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0u8; 512];
                if !answer.is_empty() {
                    let length = stream.read(&mut request).await.unwrap();
                    assert!(request[..length].starts_with(b"GET /healthz HTTP/1.1\r\nHost: guest\r\n"));
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let here = IpAddr::from([127, 0, 0, 1]);
        let http = serde_json::json!({ "httpGet": { "port": port, "path": "healthz",
            "httpHeaders": [{ "name": "host", "value": "guest" }] } });
        assert_eq!(asking(http.clone(), here).ask().await, Ok(()));
        assert_eq!(asking(http, here).ask().await, Err("HTTP probe failed with statuscode: 500".into()));
        assert_eq!(asking(serde_json::json!({ "tcpSocket": { "port": port } }), here).ask().await, Ok(()));
        let closed = asking(serde_json::json!({ "tcpSocket": { "port": "web" } }), here).ask().await.unwrap_err();
        assert!(closed.starts_with("dial tcp 127.0.0.1:1: "), "{closed}");
        let unknown = asking(serde_json::json!({ "tcpSocket": { "port": "none" } }), here).ask().await;
        assert!(unknown.is_err());
        assert_eq!(asking(serde_json::json!({ "exec": { "command": ["true"] } }), here).ask().await, Ok(()));
    }
}
