//! Golden transcripts: what goes over the socket, byte for byte in meaning, with a fake domain behind it.
//!
//! A line is one JSON object: `client` and `server` are frames, `servers` some in any order, `connect` opens a new connection, `closed` says that the
//! server ends it, `domain` is what the fake domain does, `acted` and `changed` what it was told, `exit` the launcher's exit code.
//! Those of version 1 are a promise to launchers and agents that run: they stay as they are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferrovirt_launcher::domain::{DomainEvent, Started};
use ferrovirt_launcher::owner::{Owner, Settings};
use ferrovirt_launcher::server::Server;
use ferrovirt_machine::protocol::{PauseReason, SOCKET_NAME, StopReason};
use serde_json::Value;
use support::{Client, FakeDomain, PATIENCE};
use tokio::sync::mpsc;

#[tokio::test]
async fn transcripts_hold() {
    let mut paths: Vec<_> = fs::read_dir("tests/transcripts").unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 9, "{paths:?}");
    for path in paths {
        play(&path).await;
    }
}

async fn play(path: &Path) {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let sockets = tempfile::tempdir().unwrap();
    let (fake, starts) = FakeDomain::new();
    let (events, receiver) = mpsc::unbounded_channel();
    let settings = Settings {
        hypervisor: "qemu-kvm",
        translate: Arc::new(|_| "<domain/>".into()),
        linger: Duration::from_millis(50),
        exit_timeout: Duration::from_secs(600),
    };
    let (owner, handle) = Owner::new(settings, fake.clone(), receiver);
    let owner = tokio::spawn(owner.run());
    let server = tokio::spawn(Server::bind(sockets.path()).unwrap().serve(handle));
    let socket = sockets.path().join(SOCKET_NAME);
    let mut client = Some(Client::connect(&socket).await);
    let mut owner = Some(owner);

    for (number, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
        let at = format!("{name}:{}", number + 1);
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{at}: {error}"));
        let (key, value) = line.as_object().and_then(|line| line.iter().next()).unwrap();
        match key.as_str() {
            "connect" => client = Some(Client::connect(&socket).await),
            "disconnect" => client = None,
            "client" => client.as_mut().unwrap().send(value).await,
            "server" => {
                let frame = client.as_mut().unwrap().frame().await;
                assert_eq!(frame.as_ref(), Some(value), "{at}");
            }
            // In any order: an answer, and a state that is not about it.
            "servers" => {
                let mut wanted = value.as_array().unwrap().clone();
                while !wanted.is_empty() {
                    let frame = client.as_mut().unwrap().frame().await.expect("a frame");
                    let found = wanted.iter().position(|wanted| *wanted == frame);
                    wanted.remove(found.unwrap_or_else(|| panic!("{at}: {frame}")));
                }
            }
            "closed" => assert_eq!(client.as_mut().unwrap().frame().await, None, "{at}"),
            "domain" => match value.as_str().unwrap() {
                "started" => starts
                    .send(Ok(Started {
                        virt_type: Some("qemu".into()),
                        machine_type: Some("pc-q35-7.2".into()),
                        paused: false,
                    }))
                    .unwrap(),
                "failed" => starts.send(Err("no such file".into())).unwrap(),
                event => events.send(event_of(event)).unwrap(),
            },
            "acted" => {
                let acted = format!("{:?}", fake.actions.lock().unwrap());
                assert_eq!(acted, value.as_str().unwrap(), "{at}");
            }
            "changed" => {
                let changed = format!("{:?}", fake.changes.lock().unwrap());
                assert_eq!(changed, value.as_str().unwrap(), "{at}");
            }
            "exit" => {
                let code = tokio::time::timeout(PATIENCE, owner.take().unwrap()).await.expect("an exit").unwrap();
                assert_eq!(u64::from(code), value.as_u64().unwrap(), "{at}");
            }
            key => panic!("{at}: unknown {key}"),
        }
    }
    server.abort();
    if let Some(owner) = owner {
        owner.abort();
    }
}

fn event_of(name: &str) -> DomainEvent {
    match name {
        "suspended" => DomainEvent::Suspended(PauseReason::User),
        "resumed" => DomainEvent::Resumed,
        "poweredOff" => DomainEvent::Stopped(StopReason::GuestShutdown),
        "destroyed" => DomainEvent::Stopped(StopReason::Destroyed),
        "crashed" => DomainEvent::Stopped(StopReason::Crashed),
        "agent" => DomainEvent::Agent { connected: true },
        name => panic!("unknown event {name}"),
    }
}
