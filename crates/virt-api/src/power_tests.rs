use serde_json::json;

use super::*;

const START: Wish = Wish::Start { paused: false };
const PAUSED: Wish = Wish::Start { paused: true };
const STOP: Wish = Wish::Stop { grace: None };
const RESTART: Wish = Wish::Restart { force: false };
const FORCE: Wish = Wish::Restart { force: true };

/// A VM by what it declares: a run strategy, or `running`.
fn vm(declared: &str) -> VirtualMachine {
    let mut vm = VirtualMachine::default();
    match declared {
        "true" | "false" => vm.spec.running = Some(declared == "true"),
        _ => vm.spec.run_strategy = Some(declared.into()),
    }
    vm
}

fn vmi(phase: &str) -> VirtualMachineInstance {
    let mut vmi = VirtualMachineInstance::default();
    vmi.metadata.uid = Some("u".into());
    vmi.status.phase = phase.into();
    vmi.spec.termination_grace_period_seconds = Some(60);
    vmi
}

fn check(declared: &str, phase: Option<&str>, wish: &Wish, expected: Result<Value, &str>) {
    let vmi = phase.map(vmi);
    let decided = decide(&vm(declared), vmi.as_ref(), wish).map(|decision| {
        let change = match decision.change {
            Change::Spec(spec) => json!({ "spec": spec }),
            Change::Requests(requests) => json!({ "requests": requests }),
        };
        match decision.grace {
            Some(grace) => json!({ "grace": grace, "then": change }),
            None => change,
        }
    });
    assert_eq!(decided, expected.map_err(str::to_owned), "{declared} {phase:?} {wish:?}");
}

#[test]
fn starting() {
    let start = json!({ "requests": [{ "action": "Start" }] });
    let again = json!({ "requests": [{ "action": "Stop", "uid": "u" }, { "action": "Start" }] });
    check("false", None, &START, Ok(json!({ "spec": { "running": true } })));
    check("Halted", None, &START, Ok(json!({ "spec": { "runStrategy": "Always" } })));
    check("Halted", None, &PAUSED, Ok(json!({ "requests": [{ "action": "Start", "data": { "paused": "true" } }] })));
    check("Manual", None, &START, Ok(start.clone()));
    check("Manual", Some("Succeeded"), &START, Ok(again.clone()));
    check("Manual", Some("Failed"), &START, Ok(again.clone()));
    check("RerunOnFailure", None, &START, Ok(start));
    check("RerunOnFailure", Some("Succeeded"), &START, Ok(again));
    let failed = "RerunOnFailure does not support starting VM from failed state";
    check("RerunOnFailure", Some("Failed"), &START, Err(failed));
    check("Always", None, &START, Err("Always does not support manual start requests"));
    check("Once", None, &START, Err("Once does not support manual start requests"));
    for strategy in ["Always", "Halted", "Manual", "RerunOnFailure", "Once"] {
        check(strategy, Some("Running"), &START, Err("VM is already running"));
    }
}

#[test]
fn stopping() {
    let stop = json!({ "requests": [{ "action": "Stop", "uid": "u" }] });
    check("true", Some("Running"), &STOP, Ok(json!({ "spec": { "running": false } })));
    check("Always", Some("Running"), &STOP, Ok(json!({ "spec": { "runStrategy": "Halted" } })));
    check("Always", None, &STOP, Ok(json!({ "spec": { "runStrategy": "Halted" } })));
    check("Once", Some("Running"), &STOP, Ok(json!({ "spec": { "runStrategy": "Halted" } })));
    check("Manual", Some("Running"), &STOP, Ok(stop.clone()));
    check("RerunOnFailure", Some("Scheduling"), &STOP, Ok(stop.clone()));
    check("Manual", Some("Succeeded"), &STOP, Err("VM is not running"));
    check("Manual", None, &STOP, Err("VM is not running"));
    check("Halted", None, &STOP, Err("VM is not running"));
    let shorter = "Halted only supports manual stop requests with a shorter graceperiod";
    check("Halted", Some("Running"), &STOP, Err(shorter));
    check("Halted", Some("Running"), &Wish::Stop { grace: Some(60) }, Err(shorter));
    check("Halted", Some("Running"), &Wish::Stop { grace: Some(0) }, Ok(json!({ "grace": 0, "then": stop })));
    let sooner = Wish::Stop { grace: Some(5) };
    check(
        "Always",
        Some("Running"),
        &sooner,
        Ok(json!({ "grace": 5, "then": { "spec": { "runStrategy": "Halted" } } })),
    );
    check("Always", None, &sooner, Ok(json!({ "spec": { "runStrategy": "Halted" } })));
}

#[test]
fn restarting() {
    let restart = json!({ "requests": [{ "action": "Stop", "uid": "u" }, { "action": "Start" }] });
    for strategy in ["true", "Always", "Manual", "RerunOnFailure"] {
        check(strategy, Some("Running"), &RESTART, Ok(restart.clone()));
        check(strategy, Some("Running"), &FORCE, Ok(json!({ "grace": 1, "then": restart })));
        check(strategy, None, &RESTART, Err("VM is not running: Halted"));
    }
    check("Halted", None, &RESTART, Err("RunStategy Halted does not support manual restart requests"));
    check("Once", Some("Running"), &RESTART, Err("RunStategy Once does not support manual restart requests"));
}

#[test]
fn a_stop_takes_the_place_of_what_is_underway_and_nothing_else_does() {
    let mut busy = vm("Manual");
    busy.status.state_change_requests = serde_json::from_value(json!([{ "action": "Start" }])).unwrap();
    let underway = Err("unable to complete request: stop/start already underway".to_owned());
    assert_eq!(decide(&busy, None, &START), underway);
    assert_eq!(decide(&busy, Some(&vmi("Running")), &RESTART), underway);
    assert!(decide(&busy, Some(&vmi("Running")), &STOP).is_ok());
}

/// The VM shows as stopped while its ended instance goes away.
#[test]
fn a_vm_that_shows_as_stopped_can_be_started() {
    let mut stopped = vm("Manual");
    stopped.status.state_change_requests = serde_json::from_value(json!([{ "action": "Stop", "uid": "u" }])).unwrap();
    let requests = |decision: Result<Decision, String>| match decision.unwrap().change {
        Change::Requests(requests) => requests,
        Change::Spec(spec) => panic!("changes the spec: {spec}"),
    };
    let again = json!([{ "action": "Stop", "uid": "u" }, { "action": "Start" }]);
    assert_eq!(requests(decide(&stopped, Some(&vmi("Failed")), &START)), again);
    assert_eq!(requests(decide(&stopped, None, &START)), json!([{ "action": "Start" }]));
    let underway = Err("unable to complete request: stop/start already underway".to_owned());
    assert_eq!(decide(&stopped, Some(&vmi("Running")), &RESTART), underway);
}
