//! A client of the protocol, and a fake domain.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrovirt_launcher::domain::{Action, Backend, DomainError, NewDomain, Started};
use ferrovirt_machine::changes::Change;
use ferrovirt_machine::protocol::{Answer, GuestCall, MachineState, Outcome, ServerFrame, VERSION, decode, encode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Client {
    stream: UnixStream,
    next_id: u64,
    /// The newest state that was seen.
    last: Option<MachineState>,
}

impl Client {
    /// Connects as soon as somebody listens.
    pub async fn connect(socket: &Path) -> Self {
        let attempts = async {
            loop {
                match UnixStream::connect(socket).await {
                    Ok(stream) => return stream,
                    Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
                }
            }
        };
        let stream = tokio::time::timeout(PATIENCE, attempts).await.expect("the launcher listens");
        Self { stream, next_id: 1, last: None }
    }

    pub async fn hello(socket: &Path) -> Self {
        let mut client = Self::connect(socket).await;
        let reply = client.ask(json!({"type": "hello", "minVersion": 1, "maxVersion": VERSION})).await;
        assert!(matches!(reply, ServerFrame::Reply { version: Some(VERSION), error: None, .. }), "{reply:?}");
        client
    }

    pub async fn send(&mut self, frame: &Value) {
        self.stream.write_all(&encode(frame).unwrap()).await.unwrap();
    }

    /// The next frame, or `None` when the server closed the connection.
    pub async fn frame(&mut self) -> Option<Value> {
        let read = async {
            let mut prefix = [0; 4];
            self.stream.read_exact(&mut prefix).await.ok()?;
            let mut body = vec![0; u32::from_be_bytes(prefix) as usize];
            self.stream.read_exact(&mut body).await.ok()?;
            Some(serde_json::from_slice::<Value>(&body).unwrap())
        };
        let frame = tokio::time::timeout(PATIENCE, read).await.expect("a frame in time")?;
        if let Ok(ServerFrame::State { state }) = decode(frame.to_string().as_bytes()) {
            self.last = Some(state);
        }
        Some(frame)
    }

    /// Sends a request and returns its reply.
    pub async fn ask(&mut self, mut request: Value) -> ServerFrame {
        let wanted = self.next_id;
        self.next_id += 1;
        request["id"] = wanted.into();
        self.send(&request).await;
        loop {
            let frame = self.frame().await.expect("a reply before the end");
            let frame: ServerFrame = decode(frame.to_string().as_bytes()).unwrap();
            if matches!(frame, ServerFrame::Reply { id, .. } | ServerFrame::Answer { id, .. } if id == wanted) {
                return frame;
            }
        }
    }

    pub async fn ask_ok(&mut self, request: Value) -> Answer {
        match self.ask(request).await {
            ServerFrame::Answer { result: Outcome::Ok(answer), .. } => answer,
            reply => panic!("{reply:?}"),
        }
    }

    /// Waits until the newest state of a subscribed client fits.
    pub async fn state(&mut self, fits: impl Fn(&MachineState) -> bool) -> MachineState {
        loop {
            if let Some(state) = self.last.as_ref().filter(|state| fits(state)) {
                return state.clone();
            }
            self.frame().await.expect("a state before the end");
        }
    }
}

/// A domain that does what the test says.
#[derive(Clone)]
pub struct FakeDomain {
    starts: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Result<Started, String>>>>,
    pub actions: Arc<Mutex<Vec<Action>>>,
    pub changes: Arc<Mutex<Vec<Change>>>,
}

impl FakeDomain {
    /// The sender decides how the start ends.
    pub fn new() -> (Self, mpsc::UnboundedSender<Result<Started, String>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let fake = Self {
            starts: Arc::new(tokio::sync::Mutex::new(receiver)),
            actions: Arc::default(),
            changes: Arc::default(),
        };
        (fake, sender)
    }
}

impl Backend for FakeDomain {
    async fn start(&self, _domain: NewDomain) -> Result<Started, DomainError> {
        let result = self.starts.lock().await.recv().await.expect("the test says how the start ends");
        result.map_err(DomainError::NoDaemon)
    }

    async fn act(&self, action: Action) -> Result<Answer, DomainError> {
        self.actions.lock().unwrap().push(action);
        match action {
            Action::Xml => Ok(Answer::DomainXml { xml: "<domain/>".into() }),
            Action::Reset => Err(DomainError::NoDaemon("it restarts".into())),
            _ => Ok(Answer::Done {}),
        }
    }

    async fn change(&self, change: Change) -> Result<(), DomainError> {
        if matches!(&change, Change::Link { interface, .. } if interface == "broken") {
            return Err(DomainError::NoInterface("broken".into()));
        }
        self.changes.lock().unwrap().push(change);
        Ok(())
    }

    async fn guest(&self, call: GuestCall) -> Result<Answer, DomainError> {
        match call {
            GuestCall::Stats {} => {
                Ok(Answer::Stats { counters: [("cpu.time".to_owned(), 1.into())].into_iter().collect() })
            }
            _ => Err(DomainError::NoAgent),
        }
    }
}
