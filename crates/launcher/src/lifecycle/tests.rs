//! The state machine, driven by tables: each step is an input and what must come of it.

use super::*;

/// One input.
enum In {
    Ask(Request),
    Started(bool),
    StartFailed,
    Event(DomainEvent),
    /// Time passes, in seconds since the start.
    Tick(u64),
    Terminate,
}

fn spec(uid: &str) -> Request {
    let spec = MachineSpec { uid: uid.into(), grace_seconds: 30, ..MachineSpec::default() };
    Request::Sync { spec: Box::new(spec) }
}

fn shutdown(grace_seconds: u64) -> In {
    In::Ask(Request::Shutdown { grace_seconds })
}

fn stopped(reason: StopReason) -> In {
    In::Event(DomainEvent::Stopped(reason))
}

/// Runs the steps. Each output is written as `phase[/reason] verdict-or-action`.
fn check(steps: Vec<(In, &str)>) -> Lifecycle {
    let start = Instant::now();
    let mut now = start;
    let mut lifecycle = Lifecycle::default();
    for (index, (input, expected)) in steps.into_iter().enumerate() {
        let before = lifecycle.state().clone();
        let output = match input {
            In::Ask(request) => match lifecycle.request(request, now) {
                Verdict::Done => "done".into(),
                Verdict::Start(_) => "start".into(),
                Verdict::Background(action) => format!("background {action:?}"),
                Verdict::Answer(action) => format!("answer {action:?}"),
                Verdict::Guest(_) => "guest".into(),
                Verdict::Refused(error) => format!("{:?}", error.code),
            },
            In::Started(paused) => action(lifecycle.started(Ok(Started { paused, ..Started::default() }), now)),
            In::StartFailed => action(lifecycle.started(Err("no".into()), now)),
            In::Event(event) => {
                lifecycle.event(event);
                "-".into()
            }
            In::Tick(seconds) => {
                now = start + Duration::from_secs(seconds);
                action(lifecycle.tick(now))
            }
            In::Terminate => action(lifecycle.terminate(now)),
        };
        let state = lifecycle.state();
        let mut seen = format!("{:?}", state.phase);
        if let Some(reason) = state.stop_reason {
            seen += &format!("/{reason:?}");
        }
        if let Some(reason) = state.pause_reason {
            seen += &format!("/{reason:?}");
        }
        assert_eq!(format!("{seen} {output}"), expected, "step {index}");
        let mut same = state.clone();
        same.generation = before.generation;
        assert_eq!(same == before, state.generation == before.generation, "generation at step {index}");
    }
    lifecycle
}

fn running() -> Vec<(In, &'static str)> {
    vec![(In::Ask(spec("u")), "Starting start"), (In::Started(false), "Running -")]
}

fn action(action: Option<Action>) -> String {
    action.map_or("-".into(), |action| format!("{action:?}"))
}

fn after(mut prefix: Vec<(In, &'static str)>, rest: Vec<(In, &'static str)>) -> Vec<(In, &'static str)> {
    prefix.extend(rest);
    prefix
}

#[test]
fn guest_powers_off() {
    let end = check(after(
        running(),
        vec![
            (In::Ask(spec("u")), "Running done"),
            (In::Ask(spec("other")), "Running Conflict"),
            (stopped(StopReason::GuestShutdown), "Stopped/GuestShutdown -"),
            (stopped(StopReason::Crashed), "Stopped/GuestShutdown -"),
            (In::Ask(Request::Kill {}), "Stopped/GuestShutdown done"),
            (In::Ask(Request::Pause {}), "Stopped/GuestShutdown Conflict"),
        ],
    ));
    assert_eq!((end.exit_code(), end.released()), (0, false));
}

#[test]
fn shutdown_asks_again_and_then_kills() {
    let end = check(after(
        running(),
        vec![
            (shutdown(12), "ShuttingDown background Shutdown"),
            (shutdown(12), "ShuttingDown done"),
            (In::Tick(1), "ShuttingDown -"),
            (In::Tick(5), "ShuttingDown Shutdown"),
            (shutdown(12), "ShuttingDown done"),
            (In::Tick(10), "ShuttingDown Shutdown"),
            (In::Tick(12), "ShuttingDown Destroy"),
            (In::Tick(20), "ShuttingDown -"),
            (stopped(StopReason::Destroyed), "Stopped/Destroyed -"),
        ],
    ));
    assert_eq!(end.exit_code(), 0);
    assert!(end.state().message.as_ref().unwrap().contains("grace"));
}

#[test]
fn a_shorter_grace_period_counts() {
    check(after(
        running(),
        vec![
            (shutdown(100), "ShuttingDown background Shutdown"),
            (shutdown(3), "ShuttingDown done"),
            (In::Tick(3), "ShuttingDown Destroy"),
        ],
    ));
    check(after(running(), vec![(shutdown(0), "ShuttingDown background Destroy")]));
}

/// An API takes any number of seconds.
#[test]
fn no_grace_period_is_too_long() {
    for grace in [i64::MAX as u64, u64::MAX] {
        let forever = MachineSpec { uid: "u".into(), grace_seconds: grace, ..MachineSpec::default() };
        let end = check(vec![
            (In::Ask(Request::Sync { spec: Box::new(forever.clone()) }), "Starting start"),
            (In::Started(false), "Running -"),
            (In::Terminate, "ShuttingDown Shutdown"),
            (shutdown(grace), "ShuttingDown done"),
            (In::Tick(1_000_000), "ShuttingDown Shutdown"),
            (shutdown(1), "ShuttingDown done"),
            (In::Tick(1_000_002), "ShuttingDown Destroy"),
        ]);
        assert!(end.deadline().is_none());
    }
}

#[test]
fn what_others_say_has_a_bound() {
    let mut lifecycle = Lifecycle::default();
    let long = "é".repeat(1 << 20);
    lifecycle.event(DomainEvent::Credentials(Err(long.clone())));
    lifecycle.event(DomainEvent::IoError { disk: long.clone(), reason: long.clone() });
    lifecycle.event(DomainEvent::FilesystemLost { tag: "t".into(), why: long });
    let state = serde_json::to_vec(lifecycle.state()).unwrap();
    assert!(state.len() < 16 << 10, "{}", state.len());
}

#[test]
fn pausing() {
    let paused = || In::Event(DomainEvent::Suspended(PauseReason::User));
    check(after(
        running(),
        vec![
            (In::Ask(Request::Pause {}), "Running answer Suspend"),
            (paused(), "Paused/User -"),
            (paused(), "Paused/User -"),
            (In::Ask(Request::Pause {}), "Paused/User done"),
            (In::Ask(Request::SoftReboot {}), "Paused/User Conflict"),
            (In::Ask(Request::Unpause {}), "Paused/User answer Resume"),
            (In::Event(DomainEvent::Resumed), "Running -"),
            (In::Ask(Request::Unpause {}), "Running done"),
            (In::Event(DomainEvent::Suspended(PauseReason::IoError)), "Paused/IoError -"),
            (shutdown(5), "ShuttingDown/IoError background ShutdownPaused"),
        ],
    ));
    check(vec![
        (In::Ask(spec("u")), "Starting start"),
        (In::Started(true), "Paused/Starting -"),
        (shutdown(5), "ShuttingDown/Starting background ShutdownPaused"),
        (In::Event(DomainEvent::Resumed), "ShuttingDown -"),
    ]);
}

#[test]
fn failures_have_exit_code_one() {
    let failed = check(vec![
        (In::Ask(spec("u")), "Starting start"),
        (stopped(StopReason::Crashed), "Starting -"),
        (In::StartFailed, "Stopped/StartFailed -"),
        (In::Ask(Request::Release {}), "Stopped/StartFailed done"),
    ]);
    assert_eq!((failed.exit_code(), failed.released()), (1, true));
    let panicked = check(after(
        running(),
        vec![(In::Event(DomainEvent::Panicked), "Running -"), (stopped(StopReason::Destroyed), "Stopped/Crashed -")],
    ));
    assert_eq!(panicked.exit_code(), 1);
}

#[test]
fn requests_during_the_start_wait_for_it() {
    check(vec![
        (In::Ask(spec("u")), "Starting start"),
        (In::Ask(Request::Kill {}), "Starting background Destroy"),
        (In::Started(false), "ShuttingDown Destroy"),
    ]);
    check(vec![
        (In::Ask(spec("u")), "Starting start"),
        (In::Ask(Request::Kill {}), "Starting background Destroy"),
        (In::StartFailed, "Stopped/Destroyed -"),
    ]);
    check(vec![
        (In::Ask(spec("u")), "Starting start"),
        (shutdown(9), "Starting done"),
        (In::Tick(8), "Starting -"),
        (In::Tick(9), "Starting Destroy"),
        (In::StartFailed, "Stopped/Destroyed -"),
    ]);
    check(vec![
        (In::Ask(spec("u")), "Starting start"),
        (shutdown(9), "Starting done"),
        (In::Started(false), "ShuttingDown Shutdown"),
        (In::Tick(9), "ShuttingDown Destroy"),
    ]);
    // A guest that ends at once: its event may overtake the answer to the start.
    check(vec![
        (In::Ask(spec("u")), "Starting start"),
        (stopped(StopReason::GuestShutdown), "Starting -"),
        (In::Started(false), "Stopped/GuestShutdown -"),
    ]);
}

#[test]
fn nothing_was_started() {
    let end = check(vec![
        (In::Ask(Request::DomainXml {}), "Waiting Conflict"),
        (In::Ask(Request::Release {}), "Waiting done"),
        (In::Terminate, "Stopped/Destroyed -"),
    ]);
    assert_eq!((end.exit_code(), end.released()), (0, true));
}

#[test]
fn termination_uses_the_last_grace_period() {
    check(after(
        running(),
        vec![
            (In::Terminate, "ShuttingDown Shutdown"),
            (In::Tick(29), "ShuttingDown Shutdown"),
            (In::Tick(30), "ShuttingDown Destroy"),
        ],
    ));
}

#[test]
fn a_restarted_daemon_tells_what_was_missed() {
    check(after(
        running(),
        vec![
            (In::Event(DomainEvent::DaemonLost("signal 9".into())), "Running -"),
            (In::Event(DomainEvent::Observed(Observed::Paused(PauseReason::IoError))), "Paused/IoError -"),
            (In::Event(DomainEvent::Observed(Observed::Running)), "Running -"),
            (In::Event(DomainEvent::Observed(Observed::Stopped(StopReason::GuestShutdown))), "Stopped/GuestShutdown -"),
        ],
    ));
}

#[test]
fn a_lost_file_system_is_remembered_while_the_machine_runs() {
    let lost = || In::Event(DomainEvent::FilesystemLost { tag: "data".into(), why: "signal 9".into() });
    let end = check(after(
        running(),
        vec![
            (lost(), "Running -"),
            (lost(), "Running -"),
            (stopped(StopReason::GuestShutdown), "Stopped/GuestShutdown -"),
        ],
    ));
    assert_eq!(end.state().lost_filesystems.get("data").map(String::as_str), Some("signal 9"));
    let end = check(after(
        running(),
        vec![(stopped(StopReason::GuestShutdown), "Stopped/GuestShutdown -"), (lost(), "Stopped/GuestShutdown -")],
    ));
    assert!(end.state().lost_filesystems.is_empty() && end.exit_code() == 0);
}
