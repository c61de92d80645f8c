//! `exec`, `attach` and `portforward` of pods, as a kubelet serves them.
//!
//! ```text
//!   client ── websocket (v5, v4 channels) or SPDY/3.1 ── session ── pod-session ══ the command, in the pod
//!   client ── SPDY/3.1, alone or in a websocket, or v4 channels ── forward ══ a port, dialled in the pod's network namespace
//! ```
//!
//! Whoever gets here was authorized for the subresource. What is looked at here: that the pod is one of this node and runs, that
//! the caller may run commands where the pod is privileged, and how many sessions there are.
//! The pod is meant by its uid from then on, its first process by a pidfd; nothing that the pod can change is believed.

mod access;
mod budget;
mod channels;
mod command;
mod commands_over_spdy;
mod forward;
mod header_block;
mod session;
mod spdy;
mod tunnel;

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use serde_json::json;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

pub use access::Caller;
use command::Exec;
use forward::Place;
use session::Wanted;

use crate::Config;
use crate::records::{self, InitPlan, PodDir};

/// When whoever calls has to show new credentials. An extension of the request.
#[derive(Debug, Clone, Copy)]
pub struct Until(pub SystemTime);

/// Sessions at a time: of all pods, of those of a namespace, and of one.
const MOST: usize = 512;
const MOST_OF_NAMESPACE: usize = 128;
const MOST_OF_ONE: usize = 32;
/// The largest message of a client.
const MOST_MESSAGE: usize = 1 << 20;
/// Words of a command, and their bytes.
const MOST_WORDS: usize = 1024;
const MOST_BYTES: usize = 128 << 10;
/// How soon a caller whose right was withdrawn loses what is open.
const RECHECK: Duration = Duration::from_secs(5);
/// Of one request for the older way to forward.
const MOST_PORTS: usize = 64;
const SPDY: &str = "SPDY/3.1";
const PROTOCOL_HEADER: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const PORTFORWARD: &str = "portforward.k8s.io";

/// Answers requests for streams into the pods of this node.
#[derive(Clone)]
pub struct Streams {
    client: kube::Client,
    node: String,
    data_dir: PathBuf,
    netns_dir: PathBuf,
    program: PathBuf,
    sessions: Arc<Sessions>,
}

/// Why there is no stream, as the API says it.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub code: StatusCode,
    pub reason: &'static str,
    pub message: String,
}

impl Refusal {
    fn bad(message: impl Into<String>) -> Self {
        Self { code: StatusCode::BAD_REQUEST, reason: "BadRequest", message: message.into() }
    }

    fn internal(error: impl ToString) -> Self {
        Self { code: StatusCode::INTERNAL_SERVER_ERROR, reason: "InternalError", message: error.to_string() }
    }

    fn forbidden(message: impl Into<String>) -> Self {
        Self { code: StatusCode::FORBIDDEN, reason: "Forbidden", message: message.into() }
    }

    fn respond(self) -> Response<Bytes> {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": self.reason, "message": self.message, "code": self.code.as_u16(),
        });
        let mut response = Response::new(Bytes::from(status.to_string()));
        *response.status_mut() = self.code;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    namespace: String,
    pod: String,
    what: What,
    container: Option<String>,
    wanted: Wanted,
    command: Vec<String>,
    ports: Vec<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Exec,
    Attach,
    PortForward,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }
}

impl Asked {
    fn parse(path: &str, query: &str) -> Result<Self, Refusal> {
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let ["api", "v1", "namespaces", namespace, "pods", pod, what] = segments.as_slice() else {
            return Err(Refusal::bad("there is no such stream"));
        };
        let what = match *what {
            "exec" => What::Exec,
            "attach" => What::Attach,
            "portforward" => What::PortForward,
            other => return Err(Refusal::bad(format!("{other:?} is no stream of pods"))),
        };
        let pairs: Vec<(String, String)> = form(query);
        let all = |name: &str| -> Vec<String> {
            pairs.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
        };
        let flag = |name: &str| all(name).first().is_some_and(|value| matches!(value.as_str(), "true" | "1"));
        let tty = flag("tty");
        let wanted = Wanted { stdin: flag("stdin"), stdout: flag("stdout"), stderr: flag("stderr") && !tty, tty };
        let command = all("command");
        if command.len() > MOST_WORDS || command.iter().map(String::len).sum::<usize>() > MOST_BYTES {
            return Err(Refusal::bad("the command is too long"));
        }
        if command.iter().any(|word| word.contains('\0')) {
            return Err(Refusal::bad("command: no word of it may contain a zero byte"));
        }
        if what == What::Exec && command.first().is_none_or(String::is_empty) {
            return Err(Refusal::bad("you must specify at least 1 command for the container"));
        }
        if what != What::PortForward && !(wanted.stdin || wanted.stdout || wanted.stderr) {
            return Err(Refusal::bad("you must specify at least one of stdin, stdout, stderr"));
        }
        let mut ports = vec![];
        for text in all("ports").iter().flat_map(|list| list.split(',')) {
            match text.parse::<u16>() {
                Ok(port) if port > 0 && ports.len() < MOST_PORTS => ports.push(port),
                _ => return Err(Refusal::bad(format!("ports: {text:?} is not a port, or there are too many"))),
            }
        }
        let container = all("container").into_iter().next().filter(|name| !name.is_empty());
        Ok(Self { namespace: (*namespace).into(), pod: (*pod).into(), what, container, wanted, command, ports })
    }
}

/// The pairs of a query.
fn form(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| {
        let mut out = Vec::with_capacity(text.len());
        let mut bytes = text.bytes();
        while let Some(byte) = bytes.next() {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            match byte {
                b'+' => out.push(b' '),
                b'%' => {
                    let (high, low) = (digit(bytes.next()), digit(bytes.next()));
                    out.extend(high.zip(low).and_then(|(high, low)| u8::try_from(high * 16 + low).ok()));
                }
                byte => out.push(byte),
            }
        }
        String::from_utf8_lossy(&out).into_owned()
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect()
}

/// A pod that a stream leads into.
struct Target {
    uid: String,
    container: String,
    /// It takes more than the right to the subresource.
    privileged: bool,
}

impl Streams {
    pub fn new(client: kube::Client, config: &Config) -> Self {
        Self {
            client,
            node: config.node_name.clone(),
            data_dir: config.data_dir.clone(),
            netns_dir: config.run_dir.join("netns"),
            program: config.self_exe.clone(),
            sessions: Arc::default(),
        }
    }

    /// Answers a request that was authorized. Its connection is upgraded if there is a stream.
    pub async fn handle<B>(&self, mut request: Request<B>) -> Response<Bytes> {
        self.answer(&mut request).await.unwrap_or_else(Refusal::respond)
    }

    async fn answer<B>(&self, request: &mut Request<B>) -> Result<Response<Bytes>, Refusal> {
        if !matches!(*request.method(), Method::GET | Method::POST) {
            let message = "the server does not allow this method on the requested resource".to_owned();
            return Err(Refusal { code: StatusCode::METHOD_NOT_ALLOWED, reason: "MethodNotAllowed", message });
        }
        let asked = Asked::parse(request.uri().path(), request.uri().query().unwrap_or_default())?;
        let carrier = Carrier::of(request.headers(), asked.what)?;
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Refusal::forbidden("nobody knows who asks"))?;
        let target = self.target(&asked, &caller).await?;
        let place = self.sessions.enter(&asked.namespace, &target.uid)?;
        let until = request.extensions().get::<Until>().map(|until| until.0);
        let upgraded = hyper::upgrade::on(&mut *request);
        let response = carrier.response(request.headers());
        let streams = self.clone();
        tokio::spawn(async move {
            // For as long as the session lasts.
            let _place = place;
            let Ok(io) = upgraded.await else { return };
            let withdrawn = streams.withdrawn(&caller, asked.clone(), target.privileged);
            let served = streams.serve(carrier, asked, target, TokioIo::new(io));
            tokio::select! {
                () = served => {}
                () = expired(until) => {}
                () = withdrawn => {}
            }
        });
        Ok(response)
    }

    /// Resolves when the caller may not do any more what he does.
    async fn withdrawn(&self, caller: &Caller, asked: Asked, privileged: bool) {
        let Asked { namespace, pod, what, .. } = asked;
        loop {
            tokio::time::sleep(RECHECK).await;
            // An API server that does not answer has withdrawn nothing.
            let own = access::may(&self.client, caller, &namespace, &pod, what.name()).await;
            let root = match privileged {
                true => access::may(&self.client, caller, &namespace, "", "privileged").await,
                false => Ok(true),
            };
            if matches!(own, Ok(false)) || matches!(root, Ok(false)) {
                return;
            }
        }
    }

    /// The pod, if it is here and runs, and the caller may do that with it.
    async fn target(&self, asked: &Asked, caller: &Caller) -> Result<Target, Refusal> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), &asked.namespace);
        let found = pods.get_opt(&asked.pod).await.map_err(Refusal::internal)?;
        let pod = found.ok_or_else(|| Refusal {
            code: StatusCode::NOT_FOUND,
            reason: "NotFound",
            message: format!("pods {:?} not found", asked.pod),
        })?;
        // A client that speaks websocket asks with GET; to run something is to create it all the same.
        if !access::may(&self.client, caller, &asked.namespace, &asked.pod, asked.what.name()).await? {
            return Err(Refusal::forbidden(format!(
                "pods {:?} is forbidden: User {:?} cannot create resource \"pods/{}\" in the namespace {:?}",
                asked.pod,
                caller.name,
                asked.what.name(),
                asked.namespace
            )));
        }
        let spec = pod.spec.unwrap_or_default();
        if spec.node_name.as_deref() != Some(&self.node) {
            return Err(Refusal::bad(format!("pod {} does not have a host assigned", asked.pod)));
        }
        let names: Vec<&str> = spec.containers.iter().map(|container| container.name.as_str()).collect();
        let container = match (&asked.container, names.as_slice()) {
            (Some(name), names) if names.contains(&name.as_str()) => name.clone(),
            (Some(name), _) => {
                return Err(Refusal::bad(format!("container {name} is not valid for pod {}", asked.pod)));
            }
            (None, [only]) => (*only).to_owned(),
            (None, [first, ..]) if asked.what == What::PortForward => (*first).to_owned(),
            (None, names) => {
                let names = names.join(" ");
                let pod = &asked.pod;
                return Err(Refusal::bad(format!(
                    "a container name must be specified for pod {pod}, choose one of: [{names}]"
                )));
            }
        };
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        if phase != "Running" {
            return Err(Refusal::bad(format!("pod {} is not running: its phase is {phase}", asked.pod)));
        }
        let uid = pod.metadata.uid.unwrap_or_default();
        // As it was started, which is what counts, and not as the object says now.
        let plan = records::read::<InitPlan>(&PodDir::new(&self.data_dir, &uid).init()).map_err(Refusal::internal)?;
        let plan = plan.ok_or_else(|| Refusal::bad(format!("pod {} has not been started", asked.pod)))?;
        if asked.what != What::PortForward && plan.container != container {
            return Err(Refusal::bad(format!("container {container} of pod {} is not running", asked.pod)));
        }
        let privileged = plan.privileged && asked.what != What::PortForward;
        if privileged && !access::may(&self.client, caller, &asked.namespace, "", "privileged").await? {
            return Err(Refusal::forbidden(
                "this launcher has root on its node; to run something in it takes the right to create pods/privileged, which \
                 cluster administrators have. `ferrovirt console` reaches the guest",
            ));
        }
        Ok(Target { uid, container, privileged })
    }

    async fn serve<I>(&self, carrier: Carrier, asked: Asked, target: Target, io: I)
    where
        I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let place = Place { netns: self.netns_dir.join(&target.uid) };
        match (asked.what, carrier) {
            (What::PortForward, Carrier::Spdy(_)) => {
                let (sender, streams) = spdy::start(io);
                forward::over_spdy(place, sender, streams).await;
            }
            (What::PortForward, Carrier::Socket(TUNNEL)) => {
                let (sender, streams) = spdy::start(tunnel::carry(websocket(io).await));
                forward::over_spdy(place, sender, streams).await;
            }
            (What::PortForward, Carrier::Socket(_)) => {
                forward::over_channels(place, asked.ports, websocket(io).await).await;
            }
            (_, carrier) => {
                let (inside, outside) = session::pair();
                let wanted = asked.wanted;
                let program = self.program(asked, target, inside);
                match carrier {
                    Carrier::Socket(_) => {
                        let joined = channels::join(websocket(io).await, wanted, outside);
                        tokio::join!(program, joined);
                    }
                    Carrier::Spdy(_) => {
                        let (sender, streams) = spdy::start(io);
                        tokio::join!(program, commands_over_spdy::join(sender, streams, wanted, outside));
                    }
                }
            }
        }
    }

    fn program(
        &self,
        asked: Asked,
        target: Target,
        inside: session::Inside,
    ) -> impl Future<Output = ()> + Send + 'static {
        let dir = PodDir::new(&self.data_dir, &target.uid);
        let (program, data_dir) = (self.program.clone(), self.data_dir.clone());
        async move {
            match asked.what {
                What::Attach => command::attach(&data_dir, &target.uid, &target.container, asked.wanted, inside).await,
                _ => {
                    let (pod, wanted) = (dir.root().to_owned(), asked.wanted);
                    command::run(Exec { program, pod, command: asked.command, wanted }, inside).await;
                }
            }
        }
    }
}

async fn expired(until: Option<SystemTime>) {
    match until {
        Some(until) => {
            // Looked at again and again: a machine may sleep.
            while let Ok(left) = until.duration_since(SystemTime::now()) {
                tokio::time::sleep(left.min(Duration::from_secs(60))).await;
            }
        }
        None => std::future::pending().await,
    }
}

async fn websocket<I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(io: I) -> WebSocketStream<I> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MOST_MESSAGE))
        .max_frame_size(Some(MOST_MESSAGE))
        .write_buffer_size(0);
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// What a stream is carried by, with the protocol that both sides speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Socket(&'static str),
    Spdy(&'static str),
}

impl Carrier {
    fn of(headers: &HeaderMap, what: What) -> Result<Self, Refusal> {
        let words = |name: &HeaderName| {
            let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
            values.flat_map(|value| value.split(',')).map(|word| word.trim().to_owned()).collect::<Vec<_>>()
        };
        let has = |name: HeaderName, word: &str| words(&name).iter().any(|found| found.eq_ignore_ascii_case(word));
        let choose = |offered: &[String], known: &[&'static str]| {
            known.iter().copied().find(|known| offered.iter().any(|word| word == known))
        };
        if !has(header::CONNECTION, "upgrade") {
            return Err(Refusal::bad("Upgrade request required"));
        }
        let refused = |offered: Vec<String>, known: &[&str]| Refusal {
            code: StatusCode::FORBIDDEN,
            reason: "Forbidden",
            message: format!(
                "unable to upgrade: unable to negotiate protocol: client supports {offered:?}, server accepts {known:?}"
            ),
        };
        if has(header::UPGRADE, "websocket") {
            if !headers.contains_key(header::SEC_WEBSOCKET_KEY) {
                return Err(Refusal::bad("the websocket's key is missing"));
            }
            let known: &[&'static str] = match what {
                What::PortForward => &[TUNNEL, "v4.channel.k8s.io"],
                What::Exec | What::Attach => &["v5.channel.k8s.io", "v4.channel.k8s.io"],
            };
            let offered = words(&header::SEC_WEBSOCKET_PROTOCOL);
            return choose(&offered, known).map(Self::Socket).ok_or_else(|| refused(offered, known));
        }
        if has(header::UPGRADE, SPDY) {
            let known: &[&'static str] = match what {
                What::PortForward => &[PORTFORWARD],
                What::Exec | What::Attach => &["v4.channel.k8s.io"],
            };
            let offered = words(&PROTOCOL_HEADER);
            return choose(&offered, known).map(Self::Spdy).ok_or_else(|| refused(offered, known));
        }
        Err(Refusal::bad("unable to upgrade: this server speaks websocket and SPDY/3.1"))
    }

    fn response(self, asked: &HeaderMap) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        match self {
            Self::Socket(protocol) => {
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
                headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
                let key = asked.get(header::SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
                if let Some(Ok(key)) = key.map(|key| HeaderValue::from_str(&key)) {
                    headers.insert(header::SEC_WEBSOCKET_ACCEPT, key);
                }
            }
            Self::Spdy(protocol) => {
                headers.insert(header::UPGRADE, HeaderValue::from_static(SPDY));
                headers.insert(PROTOCOL_HEADER, HeaderValue::from_static(protocol));
            }
        }
        response
    }
}

/// How many sessions there are, by namespace and by the uid of the pod.
#[derive(Debug, Default)]
struct Sessions(Mutex<HashMap<String, HashMap<String, usize>>>);

/// A session that counts until it is dropped.
struct Entered {
    sessions: Arc<Sessions>,
    namespace: String,
    uid: String,
}

impl Sessions {
    fn enter(self: &Arc<Self>, namespace: &str, uid: &str) -> Result<Entered, Refusal> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = known.values().flat_map(HashMap::values).sum();
        let own = known.get(namespace);
        let of_namespace: usize = own.into_iter().flat_map(HashMap::values).sum();
        let of_one = own.and_then(|pods| pods.get(uid)).copied().unwrap_or(0);
        let refused =
            |message: String| Err(Refusal { code: StatusCode::TOO_MANY_REQUESTS, reason: "TooManyRequests", message });
        let hint = "end one of them, or try again later";
        if of_one >= MOST_OF_ONE {
            return refused(format!("there are {of_one} sessions with this pod already; {hint}"));
        }
        if of_namespace >= MOST_OF_NAMESPACE {
            return refused(format!("there are {of_namespace} sessions with pods of {namespace} already; {hint}"));
        }
        if all >= MOST {
            return refused("there are too many sessions on this host; try again later".to_owned());
        }
        *known.entry(namespace.to_owned()).or_default().entry(uid.to_owned()).or_default() += 1;
        Ok(Entered { sessions: self.clone(), namespace: namespace.to_owned(), uid: uid.to_owned() })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut known = self.sessions.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pods) = known.get_mut(&self.namespace) else { return };
        if let Some(count) = pods.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                pods.remove(&self.uid);
            }
        }
        if pods.is_empty() {
            known.remove(&self.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(what: &str, query: &str) -> Result<Asked, String> {
        Asked::parse(&format!("/api/v1/namespaces/n/pods/p/{what}"), query).map_err(|refusal| refusal.message)
    }

    #[test]
    fn questions_are_read_and_bad_ones_refused() {
        let asked = parse("exec", "container=compute&stdout=true&command=sh&command=-c&command=echo+%24HOME").unwrap();
        assert_eq!(asked.command, ["sh", "-c", "echo $HOME"]);
        assert_eq!(asked.container.as_deref(), Some("compute"));
        for (what, query, expected) in [
            ("exec", "stdout=true", "at least 1 command"),
            ("exec", "command=&stdout=true", "at least 1 command"),
            ("exec", "command=ls", "at least one of stdin"),
            ("exec", "command=l%00s&stdout=true", "zero byte"),
            ("attach", "", "at least one of stdin"),
            ("portforward", "ports=0", "not a port"),
            ("portforward", "ports=70000", "not a port"),
            ("debug", "", "no stream of pods"),
        ] {
            let refused = parse(what, query).unwrap_err();
            assert!(refused.contains(expected), "{what} {query}: {refused}");
        }
        let long = format!("stdout=true{}", "&command=x".repeat(2000));
        assert!(parse("exec", &long).unwrap_err().contains("too long"));
        let many = format!("ports={}", vec!["1"; 100].join(","));
        assert!(parse("portforward", &many).is_err());
        assert_eq!(parse("portforward", "ports=80,81&ports=82").unwrap().ports, [80, 81, 82]);
        // A terminal has no stream of errors of its own.
        let wanted = parse("exec", "command=sh&stdin=true&stdout=true&stderr=true&tty=true").unwrap().wanted;
        assert_eq!(wanted, Wanted { stdin: true, stdout: true, stderr: false, tty: true });
    }

    #[test]
    fn the_best_protocol_that_both_know_is_spoken() {
        let headers = |upgrade: &'static str, name: &'static str, protocols: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
            headers.insert(header::SEC_WEBSOCKET_KEY, HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
            headers.insert(name, HeaderValue::from_static(protocols));
            headers
        };
        let (ws, spdy) = ("sec-websocket-protocol", "x-stream-protocol-version");
        for (upgrade, name, offered, what, expected) in [
            ("websocket", ws, "v5.channel.k8s.io", What::Exec, Some(Carrier::Socket("v5.channel.k8s.io"))),
            (
                "WebSocket",
                ws,
                "v4.channel.k8s.io, v5.channel.k8s.io",
                What::Attach,
                Some(Carrier::Socket("v5.channel.k8s.io")),
            ),
            ("websocket", ws, "channel.k8s.io", What::Exec, None),
            ("websocket", ws, "SPDY/3.1+portforward.k8s.io", What::PortForward, Some(Carrier::Socket(TUNNEL))),
            ("websocket", ws, "v4.channel.k8s.io", What::PortForward, Some(Carrier::Socket("v4.channel.k8s.io"))),
            ("websocket", ws, "SPDY/3.1+portforward.k8s.io", What::Exec, None),
            (
                "SPDY/3.1",
                spdy,
                "v5.channel.k8s.io,v4.channel.k8s.io",
                What::Exec,
                Some(Carrier::Spdy("v4.channel.k8s.io")),
            ),
            ("SPDY/3.1", spdy, "portforward.k8s.io", What::PortForward, Some(Carrier::Spdy(PORTFORWARD))),
            ("SPDY/3.1", spdy, "portforward.k8s.io", What::Exec, None),
            ("h2c", ws, "v5.channel.k8s.io", What::Exec, None),
        ] {
            let chosen = Carrier::of(&headers(upgrade, name, offered), what);
            assert_eq!(chosen.as_ref().ok(), expected.as_ref(), "{upgrade} {offered} {what:?}");
        }
        let response = Carrier::Socket("v5.channel.k8s.io").response(&headers("websocket", ws, "v5.channel.k8s.io"));
        assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(response.headers()["sec-websocket-protocol"], "v5.channel.k8s.io");
    }

    #[test]
    fn sessions_are_counted() {
        let sessions = Arc::<Sessions>::default();
        let enter = |uid: &str| sessions.enter("n", uid).map_err(|refusal| refusal.code.as_u16());
        let held: Vec<_> = (0..MOST_OF_ONE).map(|_| enter("a").unwrap_or_else(|_| panic!())).collect();
        assert_eq!(enter("a").err(), Some(429));
        let other = enter("b");
        assert!(other.is_ok(), "one pod takes the sessions of another");
        drop(held);
        assert!(enter("a").is_ok());
        assert_eq!(sessions.0.lock().unwrap()["n"].len(), 1);
    }

    #[test]
    fn a_namespace_leaves_sessions_to_others() {
        let sessions = Arc::<Sessions>::default();
        let taken = |namespace: &str| {
            let tries = (0..MOST).map(|number| sessions.enter(namespace, &format!("{namespace}-{}", number % 64)));
            tries.filter_map(Result::ok).collect::<Vec<_>>()
        };
        let greedy = taken("greedy");
        assert_eq!(greedy.len(), MOST_OF_NAMESPACE);
        assert_eq!(taken("modest").len(), MOST_OF_NAMESPACE);
        drop(greedy);
        assert!(sessions.0.lock().unwrap().is_empty(), "something is left of those who went");
    }
}
