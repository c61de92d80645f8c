use std::collections::HashMap;

use ferrovirt_machine::protocol::{GuestReport, Outcome, Secret, ServerFrame};

use super::*;

/// Answers from a table; what is not in it is an unknown command. Notes what it was asked.
#[derive(Clone, Default)]
struct FakeAgent {
    answers: Arc<Mutex<HashMap<String, Vec<Value>>>>,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl FakeAgent {
    fn new(answers: Value) -> Self {
        let answers = answers.as_object().unwrap().iter().map(|(name, answers)| {
            // Popped from the end.
            let answers = answers.as_array().unwrap().iter().rev().cloned().collect();
            (name.clone(), answers)
        });
        Self { answers: Arc::new(Mutex::new(answers.collect())), asked: Arc::default() }
    }

    fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked.iter().map(|command| command["execute"].as_str().unwrap().to_owned()).collect()
    }
}

impl Agent for FakeAgent {
    async fn command(&self, command: Value, _patience: Duration) -> Result<Value, DomainError> {
        self.asked.lock().unwrap().push(command.clone());
        let mut answers = self.answers.lock().unwrap();
        let known = answers.get_mut(command["execute"].as_str().unwrap());
        let known = known.ok_or_else(|| DomainError::Agent("unknown command".into()))?;
        // The last answer stays.
        Ok(if known.len() > 1 { known.pop().unwrap() } else { known[0].clone() })
    }
}

fn debian() -> Value {
    json!({
        "guest-info": [{"version": "7.2.0", "supported_commands": [{"name": "guest-ping", "enabled": true, "success-response": true}]}],
        "guest-fsfreeze-status": ["thawed"],
        "guest-get-host-name": [{"host-name": "demo"}],
        "guest-get-timezone": [{"zone": "CET", "offset": 3600}],
        "guest-get-osinfo": [{"id": "debian", "name": "Debian GNU/Linux", "pretty-name": "Debian GNU/Linux 12 (bookworm)",
            "version": "12 (bookworm)", "version-id": "12", "kernel-release": "6.1.0", "kernel-version": "#1 SMP", "machine": "x86_64"}],
        "guest-network-get-interfaces": [[
            {"name": "lo", "ip-addresses": [{"ip-address": "127.0.0.1", "ip-address-type": "ipv4", "prefix": 8}]},
            {"name": "enp1s0", "hardware-address": "02:00:00:AA:00:01", "ip-addresses": [
                {"ip-address": "10.0.2.2", "ip-address-type": "ipv4", "prefix": 24},
                {"ip-address": "fe80::1", "ip-address-type": "ipv6", "prefix": 64}]},
            {"name": "down0", "hardware-address": "02:00:00:aa:00:02"}]],
        "guest-get-users": [[{"user": "root", "login-time": 1_700_000_000.5}]],
        "guest-get-fsinfo": [[{"name": "vda1", "mountpoint": "/", "type": "ext4", "used-bytes": 5, "total-bytes": 9,
            "disk": [{"serial": "s", "bus-type": "virtio", "bus": 0}]}]],
    })
}

#[tokio::test]
async fn a_report_says_what_the_agent_says() {
    let agent = FakeAgent::new(debian());
    let Answer::Report { report } = answer(&agent, &Memory::default(), GuestCall::Report {}).await.unwrap() else {
        panic!("a report")
    };
    assert_eq!((report.agent_version.as_str(), report.commands.len()), ("7.2.0", 1));
    assert_eq!(report.facts.hostname, "demo");
    assert_eq!(report.facts.timezone, "CET, 3600");
    assert_eq!(report.facts.os.pretty_name, "Debian GNU/Linux 12 (bookworm)");
    let interfaces: Vec<_> = report.facts.interfaces.iter().map(|i| (i.name.as_str(), i.mac.as_str())).collect();
    assert_eq!(interfaces, [("enp1s0", "02:00:00:aa:00:01"), ("down0", "02:00:00:aa:00:02")]);
    assert_eq!(report.facts.interfaces[0].addresses, ["10.0.2.2", "fe80::1"]);
    assert_eq!(report.users[0].name, "root");
    assert_eq!((report.filesystems[0].mount_point.as_str(), report.filesystems[0].disks.len()), ("/", 1));
}

#[tokio::test]
async fn an_agent_with_few_commands_is_no_error() {
    let agent = FakeAgent::new(json!({"guest-info": [{"version": "2.0"}]}));
    let report = report::read(&agent).await.unwrap();
    assert_eq!(report, GuestReport { agent_version: "2.0".into(), ..Default::default() });
}

#[tokio::test(start_paused = true)]
async fn a_command_is_waited_for_and_its_output_comes_back() {
    let done = json!({"exited": true, "exitcode": 3, "out-data": "aGVsbG8=", "err-data": "b29wcw=="});
    let agent = FakeAgent::new(
        json!({"guest-exec": [{"pid": 7}], "guest-exec-status": [{"exited": false}, {"exited": false}, done]}),
    );
    let call =
        |timeout_seconds| GuestCall::Exec { command: "/bin/false".into(), args: vec!["-x".into()], timeout_seconds };
    let result = answer(&agent, &Memory::default(), call(5)).await.unwrap();
    let expected = ExecResult { exit_code: 3, stdout: "hello".into(), stderr: "oops".into() };
    assert_eq!(result, Answer::Exec { result: expected });
    assert_eq!(
        agent.asked.lock().unwrap()[0]["arguments"],
        json!({"path": "/bin/false", "arg": ["-x"], "capture-output": true})
    );

    let hangs = FakeAgent::new(json!({"guest-exec": [{"pid": 7}], "guest-exec-status": [{"exited": false}]}));
    let error = answer(&hangs, &Memory::default(), call(2)).await.unwrap_err();
    assert!(matches!(error, DomainError::ExecTimeout { seconds: 2, .. }), "{error:?}");

    let killed =
        FakeAgent::new(json!({"guest-exec": [{"pid": 7}], "guest-exec-status": [{"exited": true, "signal": 9}]}));
    let result = answer(&killed, &Memory::default(), call(2)).await.unwrap();
    assert!(matches!(&result, Answer::Exec { result } if result.exit_code == 137), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn frozen_file_systems_thaw_by_themselves_unless_somebody_does() {
    let answers =
        json!({"guest-fsfreeze-status": ["thawed"], "guest-fsfreeze-freeze": [1], "guest-fsfreeze-thaw": [1]});
    let memory = Memory::default();
    let agent = FakeAgent::new(answers.clone());
    let freeze = |seconds| GuestCall::Freeze { unfreeze_timeout_seconds: seconds };
    answer(&agent, &memory, freeze(10)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(agent.asked(), ["guest-fsfreeze-status", "guest-fsfreeze-freeze"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(agent.asked().last().unwrap(), "guest-fsfreeze-thaw");

    for (seconds, thaws) in [(10, 1), (0, 1)] {
        let agent = FakeAgent::new(answers.clone());
        answer(&agent, &memory, freeze(seconds)).await.unwrap();
        answer(&agent, &memory, GuestCall::Unfreeze {}).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(agent.asked().iter().filter(|c| *c == "guest-fsfreeze-thaw").count(), thaws, "{seconds}");
    }
}

#[tokio::test]
async fn credentials_reach_the_agent_in_its_words_and_no_log() {
    let agent = FakeAgent::new(json!({"guest-set-user-password": [{}], "guest-ssh-add-authorized-keys": [{}]}));
    let password = GuestCall::SetPassword { user: "demo".into(), password: Secret("hunter2".into()) };
    assert!(!format!("{password:?}").contains("hunter2"));
    let keys = GuestCall::SetSshKeys { user: "demo".into(), keys: vec!["ssh-ed25519 AAAA".into()] };
    for call in [password, keys] {
        answer(&agent, &Memory::default(), call).await.unwrap();
    }
    let asked = agent.asked.lock().unwrap();
    assert_eq!(asked[0]["arguments"], json!({"username": "demo", "password": "aHVudGVyMg==", "crypted": false}));
    assert_eq!(asked[1]["arguments"], json!({"username": "demo", "keys": ["ssh-ed25519 AAAA"], "reset": true}));
}

#[tokio::test(start_paused = true)]
async fn the_watch_tells_what_changes_and_keeps_what_a_frozen_guest_cannot_tell() {
    let mut answers = debian();
    answers["guest-fsfreeze-status"] = json!(["thawed", "frozen"]);
    let (memory, (connected, receiver)) = (Memory::default(), tokio::sync::watch::channel(false));
    let (events, mut seen) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(watch::follow(FakeAgent::new(answers), memory.clone(), receiver, events));
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(seen.try_recv().is_err());
    connected.send_replace(true);
    let crate::domain::DomainEvent::Guest(first) = seen.recv().await.unwrap() else { panic!() };
    assert_eq!((first.hostname.as_str(), first.frozen), ("demo", false));
    memory.changed.notify_one();
    let crate::domain::DomainEvent::Guest(second) = seen.recv().await.unwrap() else { panic!() };
    assert_eq!((second.hostname.as_str(), second.frozen), ("demo", true));
}

/// An agent that answers everything with the same value.
#[derive(Clone)]
struct Strange(Value);

impl Agent for Strange {
    async fn command(&self, _: Value, _: Duration) -> Result<Value, DomainError> {
        Ok(self.0.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn no_answer_of_a_guest_breaks_its_launcher() {
    let numbers = [json!(i64::MAX), json!(i64::MIN), json!(u64::MAX), json!(1e300), json!(-1)];
    let others =
        [json!(null), json!(""), json!([[], {}, null, 1]), json!({"a": {"b": []}}), json!("\u{0}".repeat(9000))];
    let keys = ["exited", "exitcode", "signal", "pid", "out-data", "return", "offset", "zone", "host-name", "version"];
    let lists =
        ["supported_commands", "users", "filesystems", "ip-addresses", "disk", "name", "statistics", "login-time"];
    for value in numbers.iter().chain(&others) {
        let mut object: serde_json::Map<String, Value> =
            keys.iter().chain(&lists).map(|key| ((*key).to_owned(), value.clone())).collect();
        object.insert("exited".into(), true.into());
        object.insert("pid".into(), 1.into());
        object.remove("exitcode");
        for strange in [value.clone(), object.clone().into(), json!([object.clone(), value, [object]])] {
            let agent = Strange(strange);
            let exec = GuestCall::Exec { command: "x".into(), args: vec![], timeout_seconds: 1 };
            for call in [GuestCall::Report {}, exec, GuestCall::Ping {}] {
                // Whatever it is, there is an answer or an error.
                let _ = answer(&agent, &Memory::default(), call).await;
            }
        }
    }
}

/// A guest that says as much as it can of everything.
#[tokio::test(start_paused = true)]
async fn what_a_guest_says_has_a_bound() {
    let long = "\u{1}\"\u{1f600}".repeat(500);
    let address = json!({"ip-address": "\"".repeat(500)});
    let interface = json!({"name": long, "hardware-address": long, "ip-addresses": vec![address; 40]});
    let disk = json!({"serial": long, "bus-type": long});
    let filesystem = json!({"name": long, "mountpoint": long, "type": long, "disk": vec![disk; 40]});
    let output = STANDARD.encode("\u{1}".repeat(10 << 20));
    let mut answers = debian();
    for (command, answer) in [
        ("guest-get-host-name", json!({"host-name": long})),
        ("guest-get-timezone", json!({"zone": long})),
        (
            "guest-get-osinfo",
            json!({"id": long, "name": long, "pretty-name": long, "version": long, "version-id": long,
            "kernel-release": long, "kernel-version": long, "machine": long}),
        ),
        ("guest-network-get-interfaces", json!(vec![interface; 150])),
        ("guest-get-users", json!(vec![json!({"user": long, "domain": long}); 1000])),
        ("guest-get-fsinfo", json!(vec![filesystem; 150])),
        (
            "guest-info",
            json!({"version": long, "supported_commands": vec![json!({"name": long, "enabled": true}); 1000]}),
        ),
        ("guest-exec", json!({"pid": 1})),
        ("guest-exec-status", json!({"exited": true, "exitcode": 0, "out-data": output, "err-data": output})),
    ] {
        answers[command] = json!([answer]);
    }
    let agent = FakeAgent::new(answers);
    let facts = report::facts(&agent).await.unwrap();
    assert_eq!((facts.interfaces.len(), facts.interfaces[0].addresses.len()), (128, 32));
    // An API server stores a megabyte and a half.
    let state = serde_json::to_vec(&facts).unwrap().len();
    assert!(state < 800_000, "{state}");
    for call in [GuestCall::Report {}, GuestCall::Exec { command: "x".into(), args: vec![], timeout_seconds: 1 }] {
        let answer = answer(&agent, &Memory::default(), call.clone()).await.unwrap();
        // As text each quotation mark becomes two characters.
        let text = answer.clone().into_text().unwrap();
        for frame in [
            ServerFrame::Reply { id: 1, version: None, text, error: None },
            ServerFrame::Answer { id: 1, result: Outcome::Ok(answer) },
        ] {
            let length = ferrovirt_machine::protocol::encode(&frame).map(|bytes| bytes.len());
            assert!(length.is_ok(), "{call:?}: {length:?}");
        }
    }
    // A time that nobody lives to see is no reason to panic.
    let forever = GuestCall::Exec { command: "x".into(), args: vec![], timeout_seconds: u64::MAX };
    answer(&agent, &Memory::default(), forever).await.unwrap();
}
