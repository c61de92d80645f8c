use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::*;

fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

fn vm(spec: serde_json::Value) -> VirtualMachine {
    let mut value = json!({
        "metadata": {
            "name": "a", "namespace": "n", "uid": "vm-uid", "generation": 3,
            "finalizers": [names::VIRTUAL_MACHINE_CONTROLLER_FINALIZER],
        },
        "spec": spec,
    });
    value["spec"]["template"] =
        json!({ "metadata": { "labels": { "x": "y" } }, "spec": { "domain": { "devices": {} } } });
    serde_json::from_value(value).unwrap()
}

fn vmi(of: &VirtualMachine, phase: &str) -> VirtualMachineInstance {
    let mut vmi = VirtualMachineInstance {
        metadata: ObjectMeta {
            name: Some("a".into()),
            uid: Some("vmi-uid".into()),
            owner_references: Some(vec![owner_reference(of)]),
            ..Default::default()
        },
        ..Default::default()
    };
    vmi.status.phase = phase.into();
    vmi
}

/// What the plan does, in a word each, and the status it shows.
fn check(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, expected: &str) {
    let plan = plan(&Observed { vm, vmi, now: now() });
    let mut words: Vec<String> = plan
        .actions
        .iter()
        .map(|action| match action {
            Action::AddFinalizer => "hold".into(),
            Action::RemoveFinalizer => "release".into(),
            Action::Create(_) => "create".into(),
            Action::Delete { uid } => format!("delete({uid})"),
            Action::Adopt { .. } => "adopt".into(),
        })
        .collect();
    words.push(plan.status.printable_status.clone());
    for request in &plan.status.state_change_requests {
        words.push(format!("[{}]", request.action));
    }
    if plan.requeue.is_some() {
        words.push("later".into());
    }
    assert_eq!(words.join(" "), expected);
}

#[test]
fn run_strategies_without_an_instance() {
    check(&vm(json!({ "runStrategy": "Always" })), None, "create Starting");
    check(&vm(json!({ "running": true })), None, "create Starting");
    check(&vm(json!({ "running": false })), None, "Stopped");
    check(&vm(json!({ "runStrategy": "Halted" })), None, "Stopped");
    check(&vm(json!({ "runStrategy": "Manual" })), None, "Stopped");
    check(&vm(json!({ "runStrategy": "Once" })), None, "create Stopped");
    let mut manual = vm(json!({ "runStrategy": "Manual" }));
    manual.status.state_change_requests = serde_json::from_value(json!([{ "action": "Start" }])).unwrap();
    check(&manual, None, "create Stopped");
    let mut once = vm(json!({ "runStrategy": "Once" }));
    once.status.run_strategy = "Once".into();
    check(&once, None, "Stopped");
}

#[test]
fn run_strategies_with_an_instance() {
    let always = vm(json!({ "runStrategy": "Always" }));
    check(&always, Some(&vmi(&always, "Running")), "Running");
    check(&always, Some(&vmi(&always, "Scheduling")), "Starting");
    check(&always, Some(&vmi(&always, "Succeeded")), "delete(vmi-uid) Starting");
    let halted = vm(json!({ "runStrategy": "Halted" }));
    check(&halted, Some(&vmi(&halted, "Running")), "delete(vmi-uid) Stopping");
    let rerun = vm(json!({ "runStrategy": "RerunOnFailure" }));
    check(&rerun, Some(&vmi(&rerun, "Succeeded")), "Stopped");
    let once = vm(json!({ "runStrategy": "Once" }));
    check(&once, Some(&vmi(&once, "Failed")), "Stopped");
}

#[test]
fn a_rerun_after_failure_is_remembered_until_it_happened() {
    let mut rerun = vm(json!({ "runStrategy": "RerunOnFailure" }));
    rerun.status.run_strategy = "RerunOnFailure".into();
    let mut failed = vmi(&rerun, "Failed");
    failed.status.phase_transition_timestamps = serde_json::from_value(json!([{ "phase": "Running" }])).unwrap();
    check(&rerun, Some(&failed), "delete(vmi-uid) Starting [Start]");
    rerun.status.state_change_requests = serde_json::from_value(json!([{ "action": "Start" }])).unwrap();
    check(&rerun, None, "create Stopped");
}

#[test]
fn nothing_is_created_while_an_instance_is_still_going() {
    let always = vm(json!({ "runStrategy": "Always" }));
    let mut going = vmi(&always, "Failed");
    going.metadata.deletion_timestamp = Some(Time(now()));
    check(&always, Some(&going), "CrashLoopBackOff");
    let mut stopping = vmi(&always, "Running");
    stopping.metadata.deletion_timestamp = Some(Time(now()));
    check(&always, Some(&stopping), "Stopping");
}

#[test]
fn a_restart_deletes_the_named_instance_only() {
    let mut always = vm(json!({ "runStrategy": "Always" }));
    always.status.state_change_requests =
        serde_json::from_value(json!([{ "action": "Stop", "uid": "vmi-uid" }, { "action": "Start" }])).unwrap();
    check(&always, Some(&vmi(&always, "Running")), "delete(vmi-uid) Stopping [Stop] [Start]");
    let mut other = vmi(&always, "Running");
    other.metadata.uid = Some("next-uid".into());
    check(&always, Some(&other), "Running");
}

#[test]
fn failed_starts_back_off() {
    let mut always = vm(json!({ "runStrategy": "Always" }));
    let failed = vmi(&always, "Failed");
    let first = plan(&Observed { vm: &always, vmi: Some(&failed), now: now() });
    assert_eq!(first.status.start_failure.as_ref().unwrap().consecutive_fail_count, 1);
    always.status = first.status;
    check(&always, None, "CrashLoopBackOff later");
    let later = now().checked_add(SignedDuration::from_secs(11)).unwrap();
    let retry = plan(&Observed { vm: &always, vmi: None, now: later });
    assert!(matches!(retry.actions[..], [Action::Create(_)]));
    let mut second = vmi(&always, "Failed");
    second.metadata.uid = Some("second".into());
    let again = plan(&Observed { vm: &always, vmi: Some(&second), now: later });
    assert_eq!(again.status.start_failure.unwrap().consecutive_fail_count, 2);
}

#[test]
fn deletion_waits_for_the_instance_and_orphans_on_request() {
    let mut always = vm(json!({ "runStrategy": "Always" }));
    always.metadata.deletion_timestamp = Some(Time(now()));
    check(&always, Some(&vmi(&always, "Running")), "delete(vmi-uid) Terminating");
    check(&always, None, "release Terminating");
    always.metadata.finalizers.as_mut().unwrap().push("orphan".into());
    check(&always, Some(&vmi(&always, "Running")), "release Terminating");
}

#[test]
fn foreign_instances_are_left_alone_and_orphans_adopted() {
    let always = vm(json!({ "runStrategy": "Always" }));
    let mut orphan = vmi(&always, "Running");
    orphan.metadata.owner_references = None;
    check(&always, Some(&orphan), "adopt Running");
    let mut new = vm(json!({ "runStrategy": "Always" }));
    new.metadata.finalizers = None;
    check(&new, None, "hold Starting");
}

#[test]
fn identity_is_stable_over_restarts() {
    let always = vm(json!({ "runStrategy": "Always" }));
    let (one, two) = (build_instance(&always), build_instance(&always));
    assert_eq!(one.spec, two.spec);
    let mac = &one.spec.domain.devices.interfaces[0].mac_address;
    assert!(mac.starts_with("02:") && mac.len() == 17, "{mac}");
    assert_eq!(one.spec.domain.firmware.unwrap().uuid.len(), 36);
    assert_eq!(one.metadata.labels.unwrap()["x"], "y");
    let mut other = always.clone();
    other.metadata.uid = Some("another".into());
    assert_ne!(two.spec, build_instance(&other).spec);
}
