use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

fn set(replicas: i32) -> VirtualMachineInstanceReplicaSet {
    serde_json::from_value(json!({
        "metadata": { "name": "set", "namespace": "n", "uid": "set-uid" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "x" } },
            "template": { "metadata": { "labels": { "app": "x" } }, "spec": { "domain": {} } },
        },
    }))
    .unwrap()
}

/// `phase`, with a `*` for one that is ready.
fn instance(name: &str, phase: &str, more: Value) -> VirtualMachineInstance {
    let ready = phase.ends_with('*');
    let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({
        "metadata": { "name": name, "uid": name, "labels": { "app": "x" } },
        "status": {
            "phase": phase.trim_end_matches('*'),
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
        },
    }))
    .unwrap();
    vmi.metadata.owner_references = Some(vec![owner_reference(&set(0))]);
    if let Some(labels) = more.get("labels") {
        vmi.metadata.labels = serde_json::from_value(labels.clone()).unwrap();
    }
    if let Some(owners) = more.get("owners") {
        vmi.metadata.owner_references = serde_json::from_value(owners.clone()).unwrap();
    }
    if more.get("going").is_some() {
        vmi.metadata.deletion_timestamp = Some(Time(now()));
    }
    vmi
}

fn check(set: &VirtualMachineInstanceReplicaSet, instances: &[VirtualMachineInstance], expected: &str) -> Plan {
    let plan = plan(&Observed { set, instances, back_off: &BackOff::default(), now: now() });
    let mut words: Vec<String> = plan
        .actions
        .iter()
        .map(|action| match action {
            Action::Create(_) => "create".into(),
            Action::Delete { name, finished: true, .. } => format!("clean({name})"),
            Action::Delete { name, .. } => format!("delete({name})"),
            Action::Adopt { name, .. } => format!("adopt({name})"),
            Action::Release { name, .. } => format!("release({name})"),
        })
        .collect();
    words.push(format!("{}/{}", plan.status.ready_replicas, plan.status.replicas));
    assert_eq!(words.join(" "), expected);
    plan
}

#[test]
fn the_number_is_kept() {
    let none = json!({});
    check(&set(2), &[], "create create 0/0");
    check(&set(1), &[instance("a", "Running*", none.clone())], "1/1");
    let three = [
        instance("ready", "Running*", none.clone()),
        instance("unready", "Running", none.clone()),
        instance("new", "Scheduling", none.clone()),
        instance("newest", "Pending", none.clone()),
    ];
    check(&set(1), &three, "delete(newest) delete(new) delete(unready) 1/4");
    check(&set(0), &three[..1], "delete(ready) 1/1");
    check(&set(1), &[instance("a", "Running*", json!({ "going": true }))], "create 0/0");
    check(&set(1), &[instance("a", "Succeeded", none.clone())], "create clean(a) 0/0");
    // One whose pod is being deleted is not waited for: that may take its whole grace period.
    let mut leaving = instance("a", "Running", none);
    leaving.status.conditions[0].reason = "PodTerminating".into();
    check(&set(1), &[leaving], "create clean(a) 0/0");
}

#[test]
fn the_youngest_of_equals_goes_first() {
    let mut old = instance("old", "Running*", json!({}));
    old.metadata.creation_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
    let mut young = instance("young", "Running*", json!({}));
    young.metadata.creation_timestamp = Some(Time("2026-02-01T00:00:00Z".parse().unwrap()));
    check(&set(1), &[old, young], "delete(young) 2/2");
}

#[test]
fn instances_are_adopted_released_or_left_alone() {
    check(&set(1), &[instance("a", "Running*", json!({ "owners": [] }))], "adopt(a) 1/1");
    check(&set(0), &[instance("a", "Running*", json!({ "labels": { "app": "y" } }))], "release(a) 0/0");
    let foreign = json!([{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true }]);
    check(&set(0), &[instance("a", "Running*", json!({ "owners": foreign }))], "0/0");
    let mut bad = set(1);
    bad.spec.selector = Some(serde_json::from_value(json!({ "matchLabels": { "app": "z" } })).unwrap());
    check(&bad, &[], "0/0");
}

#[test]
fn a_paused_set_counts_and_does_nothing_else() {
    let mut paused = set(3);
    paused.spec.paused = true;
    let plan = check(&paused, &[instance("a", "Running*", json!({}))], "1/1");
    assert_eq!(plan.status.conditions[0].type_, "ReplicaPaused");
    assert_eq!(plan.notes[0].reason, "SuccessfulPaused");
    assert_eq!(plan.status.label_selector, "app=x");
    paused.status = plan.status;
    paused.spec.paused = false;
    let plan = check(&paused, &[instance("a", "Running*", json!({}))], "create create 1/1");
    assert!(plan.status.conditions.is_empty());
    assert_eq!(plan.notes[0].reason, "SuccessfulResumed");
}

#[test]
fn failures_are_replaced_with_back_off_and_forgotten_once_one_runs() {
    let set = set(1);
    let mut back_off = BackOff::default();
    let failed = [instance("a", "Failed", json!({}))];
    back_off.observe(&set, &failed, now());
    back_off.observe(&set, &failed, now());
    let waits = plan(&Observed { set: &set, instances: &failed, back_off: &back_off, now: now() });
    assert!(matches!(&waits.actions[..], [Action::Delete { finished: true, .. }]), "{:?}", waits.actions);
    assert_eq!(waits.requeue, Some(Duration::from_secs(10)), "one failure counts once");
    back_off.observe(&set, &[instance("b", "Failed", json!({}))], now());
    assert_eq!(back_off.wait(now()), Some(Duration::from_secs(40)));
    back_off.observe(&set, &[instance("c", "Running", json!({}))], now());
    assert_eq!(back_off, BackOff::default());
}
