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

fn build(vm: &VirtualMachine) -> VirtualMachineInstance {
    vm_instance::build(vm, &KubeVirtConfiguration::default(), false)
}

/// What the plan does, in a word each, and the status it shows.
fn check(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, expected: &str) {
    check_with(vm, vmi, &Storage::default(), expected);
}

fn plan_at(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, now: Timestamp) -> Plan {
    plan(&Observed {
        vm,
        vmi,
        started_from: None,
        storage: &Storage::default(),
        configuration: &Default::default(),
        now,
    })
}

fn check_with(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, storage: &Storage, expected: &str) {
    let plan = plan(&Observed { vm, vmi, started_from: None, storage, configuration: &Default::default(), now: now() });
    let mut words: Vec<String> = plan
        .actions
        .iter()
        .map(|action| match action {
            Action::AddFinalizer => "hold".into(),
            Action::RemoveFinalizer => "release".into(),
            Action::Create(_) => "create".into(),
            Action::Delete { uid } => format!("delete({uid})"),
            Action::Adopt { .. } => "adopt".into(),
            Action::WantRunning => "want-running".into(),
            Action::CreateDataVolume(volume) => format!("volume({})", volume["metadata"]["name"]),
            Action::SetGeneration(generation) => format!("generation({generation})"),
            Action::FollowTemplate { annotations, .. } => format!("annotations({})", annotations.len()),
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
    check(&vm(json!({ "runStrategy": "Once" })), None, "create Starting");
    let mut manual = vm(json!({ "runStrategy": "Manual" }));
    manual.status.state_change_requests = serde_json::from_value(json!([{ "action": "Start" }])).unwrap();
    check(&manual, None, "create Starting");
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
    check(&rerun, Some(&vmi(&rerun, "Succeeded")), "delete(vmi-uid) Stopped");
    let once = vm(json!({ "runStrategy": "Once" }));
    check(&once, Some(&vmi(&once, "Failed")), "Stopped");
}

/// `restart`, then `stop` before the new instance came: the start is taken back, at whatever moment the VM is looked at.
#[test]
fn a_halt_takes_back_the_start_of_a_restart() {
    let mut halted = vm(json!({ "runStrategy": "Halted" }));
    let requests = json!([{ "action": "Stop", "uid": "vmi-uid" }, { "action": "Start" }]);
    halted.status.state_change_requests = serde_json::from_value(requests).unwrap();
    check(&halted, Some(&vmi(&halted, "Running")), "delete(vmi-uid) Stopping [Stop]");
    let mut going = vmi(&halted, "Running");
    going.metadata.deletion_timestamp = Some(Time(now()));
    check(&halted, Some(&going), "Stopping [Stop]");
    check(&halted, None, "Stopped");
}

#[test]
fn a_halted_vm_can_be_started_paused() {
    let mut halted = vm(json!({ "runStrategy": "Halted" }));
    let request = json!([{ "action": "Start", "data": { "paused": "true" } }]);
    halted.status.state_change_requests = serde_json::from_value(request).unwrap();
    check(&halted, None, "want-running Starting [Start]");
    halted.spec.run_strategy = Some("Always".into());
    let plan = plan_at(&halted, None, now());
    let created = plan.actions.iter().find_map(|action| match action {
        Action::Create(vmi) => Some(vmi),
        _ => None,
    });
    assert_eq!(created.unwrap().spec.start_strategy.as_deref(), Some("Paused"));
}

#[test]
fn a_rerun_after_failure_is_remembered_until_it_happened() {
    let mut rerun = vm(json!({ "runStrategy": "RerunOnFailure" }));
    rerun.status.run_strategy = "RerunOnFailure".into();
    let mut failed = vmi(&rerun, "Failed");
    failed.status.phase_transition_timestamps = serde_json::from_value(json!([{ "phase": "Running" }])).unwrap();
    check(&rerun, Some(&failed), "delete(vmi-uid) Starting [Start]");
    rerun.status.state_change_requests = serde_json::from_value(json!([{ "action": "Start" }])).unwrap();
    check(&rerun, None, "create Starting");
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
    let mut failed = vmi(&always, "Failed");
    failed.status.conditions = serde_json::from_value(json!([
        { "type": "Synchronized", "status": "False", "reason": "SyncFailed", "message": "no daemon" },
        { "type": "AgentConnected", "status": "True" },
    ]))
    .unwrap();
    let first = plan_at(&always, Some(&failed), now());
    assert_eq!(first.status.start_failure.as_ref().unwrap().consecutive_fail_count, 1);
    always.status = first.status;
    check(&always, None, "CrashLoopBackOff later");
    let waiting = plan_at(&always, None, now()).status;
    let told = |status: &VirtualMachineStatus, type_: &str| {
        status.conditions.iter().find(|c| c.type_ == type_).map(|c| c.message.clone())
    };
    assert_eq!(told(&waiting, "Synchronized").as_deref(), Some("no daemon"), "why it failed is told while it waits");
    assert_eq!(told(&waiting, "AgentConnected"), None);
    let running = plan_at(&always, Some(&vmi(&always, "Running")), now()).status;
    assert_eq!(told(&running, "Synchronized"), None);
    let later = now().checked_add(SignedDuration::from_secs(16)).unwrap();
    let retry = plan_at(&always, None, later);
    assert!(matches!(retry.actions[..], [Action::Create(_)]));
    let mut second = vmi(&always, "Failed");
    second.metadata.uid = Some("second".into());
    let again = plan_at(&always, Some(&second), later);
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
    let (one, two) = (build(&always), build(&always));
    assert_eq!(one.spec, two.spec);
    let mac = &one.spec.domain.devices.interfaces[0].mac_address;
    assert!(mac.starts_with("02:") && mac.len() == 17, "{mac}");
    assert_eq!(one.spec.domain.firmware.unwrap().uuid.len(), 36);
    assert_eq!(one.metadata.labels.unwrap()["x"], "y");
    let mut other = always.clone();
    other.metadata.uid = Some("another".into());
    assert_ne!(two.spec, build(&other).spec);
}

/// Every `printableStatus` in scope that comes from the instance or from storage.
#[test]
fn printable_statuses() {
    let always = vm(json!({ "runStrategy": "Always" }));
    let with = |phase: &str, conditions: serde_json::Value| {
        let mut vmi = vmi(&always, phase);
        vmi.status.conditions = serde_json::from_value(conditions).unwrap();
        vmi
    };
    let no = |type_: &str, reason: &str| json!([{ "type": type_, "status": "False", "reason": reason }]);
    for (phase, conditions, expected) in [
        ("Running", json!([]), "Running"),
        ("Running", json!([{ "type": "Paused", "status": "True" }]), "Paused"),
        ("Unknown", json!([]), "Unknown"),
        ("Running", no("Ready", "NodeNotReady"), "Unknown"),
        ("Running", no("Ready", "GuestNotRunning"), "Running"),
        ("Pending", json!([]), "Starting"),
        ("Scheduled", json!([]), "Starting"),
        ("Scheduling", no("PodScheduled", "Unschedulable"), "ErrorUnschedulable"),
        ("Scheduling", no("PodScheduled", "HypervisorNotAvailable"), "ErrorUnschedulable"),
        ("Scheduling", no("Synchronized", "ErrImagePull"), "ErrImagePull"),
        ("Scheduling", no("Synchronized", "ImagePullBackOff"), "ImagePullBackOff"),
        ("Pending", no("Synchronized", "FailedPvcNotFound"), "ErrorPvcNotFound"),
    ] {
        check(&always, Some(&with(phase, conditions)), expected);
    }
}

fn with_volume(run_strategy: &str) -> VirtualMachine {
    let mut vm = vm(json!({ "runStrategy": run_strategy }));
    vm.spec.data_volume_templates =
        serde_json::from_value(json!([{ "metadata": { "name": "dv" }, "spec": { "source": { "blank": {} } } }]))
            .unwrap();
    vm.spec.template.as_mut().unwrap().spec.volumes =
        serde_json::from_value(json!([{ "name": "root", "dataVolume": { "name": "dv" } }])).unwrap();
    vm
}

/// A VM of the same name was deleted a moment ago, and its volume is still there.
#[test]
fn the_volume_of_an_earlier_vm_is_waited_out() {
    let mut going = storage(json!({ "phase": "Succeeded" }), Some(true));
    going.claims.get_mut("dv").unwrap().going = true;
    check_with(&with_volume("Always"), None, &going, "Provisioning later");
    check_with(&with_volume("Halted"), None, &going, "Provisioning later");
    check_with(&with_volume("Always"), None, &Storage::default(), "volume(\"dv\") Provisioning later");
}

fn storage(data_volume: serde_json::Value, bound: Option<bool>) -> Storage {
    let mut storage = Storage::default();
    if !data_volume.is_null() {
        let read = crate::storage::DataVolume::read(&Default::default(), &json!({ "status": data_volume }), None);
        storage.data_volumes.insert("dv".into(), read);
    }
    if let Some(bound) = bound {
        storage.claims.insert("dv".into(), crate::storage::Claim { bound, ..Default::default() });
    }
    storage
}

#[test]
fn data_volumes_are_made_and_waited_for() {
    let mut always = with_volume("Always");
    let nothing = Storage::default();
    check_with(&always, None, &nothing, "volume(\"dv\") Provisioning later");
    check_with(&with_volume("Halted"), None, &nothing, "volume(\"dv\") Provisioning");
    let importing = storage(json!({ "phase": "ImportInProgress", "progress": "3%" }), Some(true));
    check_with(&always, None, &importing, "Provisioning later");
    let said = plan(&Observed {
        vm: &always,
        vmi: None,
        started_from: None,
        storage: &importing,
        configuration: &Default::default(),
        now: now(),
    });
    let ready = said.status.conditions.iter().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!(ready.message, "DataVolume dv is in the phase ImportInProgress, 3% done");
    check_with(&always, None, &storage(json!({ "phase": "Failed" }), None), "DataVolumeError later");
    check_with(&always, None, &storage(json!({ "phase": "Succeeded" }), Some(true)), "create Starting");
    let first = storage(json!({ "phase": "WaitForFirstConsumer" }), Some(false));
    check_with(&always, None, &first, "create Starting");
    check_with(&always, Some(&vmi(&always, "Scheduling")), &first, "WaitingForVolumeBinding");
    // A claim whose DataVolume was tidied away is used as it is.
    check_with(&always, None, &storage(json!(null), Some(true)), "create Starting");
    let annotations = [(names::IMMEDIATE_DATA_VOLUME_CREATION.to_owned(), "false".to_owned())];
    always.metadata.annotations = Some(annotations.into());
    always.spec.run_strategy = Some("Halted".into());
    check_with(&always, None, &nothing, "Provisioning");
}

#[test]
fn a_first_start_that_had_to_wait_still_happens() {
    let mut once = with_volume("Once");
    let waiting = storage(json!({ "phase": "ImportInProgress" }), Some(true));
    once.status = plan(&Observed {
        vm: &once,
        vmi: None,
        started_from: None,
        storage: &waiting,
        configuration: &Default::default(),
        now: now(),
    })
    .status;
    check_with(&once, None, &storage(json!({ "phase": "Succeeded" }), Some(true)), "create Starting");
}

#[test]
fn what_we_lack_is_said_and_not_started() {
    let mut always = vm(json!({ "runStrategy": "Always" }));
    always.spec.template.as_mut().unwrap().spec.domain.cpu =
        Some(serde_json::from_value(json!({ "realtime": {} })).unwrap());
    check(&always, None, "Stopped");
    let first = plan_at(&always, None, now());
    let failure = first.status.conditions.iter().find(|c| c.type_ == "Failure").unwrap();
    assert_eq!((failure.status.as_str(), failure.reason.as_str()), ("True", "FeatureNotSupported"));
    assert!(failure.message.starts_with("spec.template.spec.domain.cpu.realtime: "), "{}", failure.message);
    assert_eq!(first.notes.len(), 1);
    always.status = first.status;
    assert_eq!(plan_at(&always, None, now()).notes, [], "said once");
    always.spec.template.as_mut().unwrap().spec.domain.cpu = None;
    let fixed = plan_at(&always, None, now());
    assert!(!fixed.status.conditions.iter().any(|c| c.type_ == "Failure"));
    assert!(fixed.creates());
}

#[test]
fn a_changed_template_needs_a_restart_and_other_changes_do_not() {
    let mut changed = vm(json!({ "runStrategy": "Always" }));
    let old = changed.spec.clone();
    let mut running = build(&changed);
    running.metadata.uid = Some("vmi-uid".into());
    running.status.phase = "Running".into();
    changed.metadata.generation = Some(4);
    let observe = |vm: &VirtualMachine| {
        let storage = Storage::default();
        plan(&Observed {
            vm,
            vmi: Some(&running),
            started_from: Some(&old),
            storage: &storage,
            configuration: &Default::default(),
            now: now(),
        })
    };
    let same = observe(&changed);
    assert_eq!(same.actions, [Action::SetGeneration(4)]);
    assert_eq!((same.status.observed_generation, same.status.desired_generation), (4, 4));
    // A label needs no restart, and yet the instance has the old one.
    let labels = &mut changed.spec.template.as_mut().unwrap().metadata.labels;
    let before = labels.replace([("x".to_owned(), "z".to_owned())].into());
    let labelled = observe(&changed);
    assert_eq!(labelled.actions, []);
    assert_eq!((labelled.status.observed_generation, labelled.status.desired_generation), (3, 4));
    assert!(!labelled.status.conditions.iter().any(|c| c.type_ == "RestartRequired"));
    changed.spec.template.as_mut().unwrap().metadata.labels = before;
    // What a descheduler may do with it counts at once.
    let spared = "descheduler.alpha.kubernetes.io/prefer-no-eviction".to_owned();
    let annotations = &mut changed.spec.template.as_mut().unwrap().metadata.annotations;
    let before = annotations.replace([(spared.clone(), "true".to_owned()), ("x".to_owned(), "z".to_owned())].into());
    let annotations = [(spared, Some("true".to_owned()))].into();
    assert_eq!(observe(&changed).actions, [Action::FollowTemplate { uid: "vmi-uid".into(), annotations }]);
    changed.spec.template.as_mut().unwrap().metadata.annotations = before;
    changed.spec.template.as_mut().unwrap().spec.domain.cpu =
        Some(serde_json::from_value(json!({ "cores": 4 })).unwrap());
    let other = observe(&changed);
    assert_eq!(other.actions, []);
    assert_eq!((other.status.observed_generation, other.status.desired_generation), (3, 4));
    assert!(other.status.conditions.iter().any(|c| c.type_ == "RestartRequired" && c.status == "True"));
    // It goes away with the instance.
    changed.status = other.status;
    let stopped = plan_at(&changed, None, now());
    assert!(!stopped.status.conditions.iter().any(|c| c.type_ == "RestartRequired"));
}

#[test]
fn back_off_grows_with_the_square_and_has_an_end() {
    let mut always = vm(json!({ "runStrategy": "Always" }));
    let mut seen = vec![];
    for round in 0..7 {
        let mut failed = vmi(&always, "Failed");
        failed.metadata.uid = Some(format!("uid-{round}"));
        always.status = plan_at(&always, Some(&failed), now()).status;
        let retry = always.status.start_failure.as_ref().unwrap().retry_after_timestamp.as_ref().unwrap();
        seen.push(retry.0.duration_since(now()).as_secs());
    }
    for (round, (seconds, least)) in seen.iter().zip([10, 40, 90, 160, 250, 300, 300]).enumerate() {
        assert!((least..=300.min(least * 3 / 2)).contains(seconds), "failure {round}: {seconds} s");
    }
}

/// A guest that ends at once, again and again, is not restarted once a second.
#[test]
fn short_runs_back_off_from_the_second_on() {
    let at = |seconds: i64| now().checked_add(SignedDuration::from_secs(seconds)).unwrap();
    let run = |vm: &VirtualMachine, uid: &str, phase: &str, reason: &str, seconds: i64| {
        let mut vmi = vmi(vm, phase);
        vmi.metadata.uid = Some(uid.into());
        vmi.status.reason = reason.into();
        let times = json!([
            { "phase": "Running", "phaseTransitionTimestamp": Time(now()) },
            { "phase": phase, "phaseTransitionTimestamp": Time(at(seconds)) },
        ]);
        vmi.status.phase_transition_timestamps = serde_json::from_value(times).unwrap();
        vmi
    };
    let delay = |status: &VirtualMachineStatus| {
        let retry = status.start_failure.as_ref()?.retry_after_timestamp.as_ref()?;
        Some(retry.0.duration_since(at(1)).as_secs())
    };
    let mut always = vm(json!({ "runStrategy": "Always" }));
    let mut seen = vec![];
    for round in 0..3 {
        let ended = run(&always, &format!("uid-{round}"), "Succeeded", "GuestPoweredDown", 1);
        let plan = plan_at(&always, Some(&ended), at(1));
        let shown = if round == 0 { "Starting" } else { "CrashLoopBackOff" };
        assert_eq!(plan.status.printable_status, shown);
        seen.push(delay(&plan.status).unwrap());
        always.status = plan.status;
    }
    assert!(seen[0] == 0 && (10..=15).contains(&seen[1]) && (40..=60).contains(&seen[2]), "{seen:?}");

    // One that runs is watched for a while, and then all is forgotten.
    let beginning = run(&always, "next", "Running", "", 0);
    let watched = plan_at(&always, Some(&beginning), at(4));
    assert_eq!(watched.requeue, Some(Duration::from_secs(6)));
    assert!(watched.status.start_failure.is_some());
    assert_eq!(plan_at(&always, Some(&beginning), at(10)).status.start_failure, None);
    assert_eq!(
        plan_at(&always, Some(&run(&always, "next", "Failed", "Crashed", 60)), at(61)).status.start_failure,
        None
    );

    // What somebody else ended, or nobody starts again, is not counted.
    let fresh = |strategy: &str| vm(json!({ "runStrategy": strategy }));
    let mut deleted = run(&always, "u", "Succeeded", "GuestPoweredDown", 1);
    deleted.metadata.deletion_timestamp = Some(Time(at(1)));
    for (strategy, vmi, counted) in [
        ("Always", run(&always, "u", "Failed", "Crashed", 1), true),
        ("Always", run(&always, "u", "Failed", "PodNotExists", 1), false),
        ("Always", run(&always, "u", "Failed", "NodeShutdown", 1), false),
        ("Always", deleted, false),
        ("RerunOnFailure", run(&always, "u", "Failed", "Crashed", 1), true),
        ("RerunOnFailure", run(&always, "u", "Succeeded", "GuestPoweredDown", 1), false),
        ("Manual", run(&always, "u", "Failed", "Crashed", 1), false),
    ] {
        let plan = plan_at(&fresh(strategy), Some(&vmi), at(1));
        assert_eq!(plan.status.start_failure.is_some(), counted, "{strategy} {}", vmi.status.reason);
    }
    // Who starts it by hand need not wait.
    let mut manual = fresh("Manual");
    manual.status.start_failure = always.status.start_failure.clone();
    manual.status.state_change_requests = serde_json::from_value(json!([{ "action": "Start" }])).unwrap();
    check(&manual, None, "create Starting");
}

#[test]
fn a_start_may_ask_for_a_paused_guest() {
    let mut manual = vm(json!({ "runStrategy": "Manual" }));
    manual.status.state_change_requests =
        serde_json::from_value(json!([{ "action": "Start", "data": { "paused": "true" } }])).unwrap();
    let plan = plan_at(&manual, None, now());
    let [Action::Create(vmi)] = &plan.actions[..] else { panic!("{:?}", plan.actions) };
    assert_eq!(vmi.spec.start_strategy.as_deref(), Some("Paused"));
    assert_eq!(vmi.status.virtual_machine_revision_name, "revision-start-vm-vm-uid-3");
}
