//! Broken situations, each as the API shows it.

use super::{explain::Report, *};

fn facts() -> Facts {
    Facts { name: "a".into(), namespace: "default".into(), ..Default::default() }
}

fn vm(strategy: &str, status: Value) -> Value {
    json!({
        "metadata": { "name": "a", "namespace": "default", "finalizers": ["kubevirt.io/virtualMachineControllerFinalize"] },
        "spec": { "runStrategy": strategy, "template": { "spec": { "volumes": [] } } },
        "status": status,
    })
}

fn vmi(phase: &str, conditions: Value) -> Value {
    json!({
        "metadata": { "name": "a", "uid": "u" }, "spec": { "terminationGracePeriodSeconds": 60 },
        "status": { "phase": phase, "nodeName": "n", "conditions": conditions, "interfaces": [{ "ipAddress": "10.0.0.2" }] },
    })
}

fn pod(status: Value) -> Value {
    json!({
        "metadata": { "name": "virt-launcher-a", "ownerReferences": [{ "uid": "u" }] }, "spec": { "nodeName": "n" },
        "status": status,
    })
}

fn event(kind: &str, name: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": "Warning", "reason": reason, "message": message, "lastTimestamp": "2026-01-01T00:00:00Z",
        "involvedObject": { "kind": kind, "name": name },
    })
}

fn with_volume(mut vm: Value, volume: Value) -> Value {
    vm["spec"]["template"]["spec"]["volumes"] = json!([volume]);
    vm
}

fn starting() -> Facts {
    let status = json!({ "printableStatus": "Starting", "created": true });
    Facts { vm: Some(vm("Always", status)), vmi: Some(vmi("Scheduling", json!([]))), ..facts() }
}

fn waiting_for(volume: Value) -> Facts {
    let status = json!({ "printableStatus": "Provisioning" });
    Facts { vm: Some(with_volume(vm("Always", status), volume)), ..facts() }
}

fn running(conditions: Value) -> Facts {
    let status = json!({ "printableStatus": "Running", "created": true, "ready": true });
    Facts { vm: Some(vm("Always", status)), vmi: Some(vmi("Running", conditions)), ..facts() }
}

/// The report has this summary, and one of its findings is about this object and has these words and this next step.
fn check(facts: &Facts, summary: &str, about: &str, words: &str, next: &str) {
    let report = explain(facts);
    assert_eq!(report.summary, summary, "{report:#?}");
    let found = report.findings.iter().any(|finding| {
        finding.about == about
            && finding.message.contains(words)
            && finding.next.as_deref().unwrap_or_default().contains(next)
    });
    assert!(found, "no finding about {about} with {words:?} and {next:?} in {report:#?}");
}

#[test]
fn there_is_none() {
    let gone = "There is no VM a in the namespace default.";
    check(&facts(), gone, "cluster", "no VM has this name", "get vms -A");
    let elsewhere = vec![json!({ "metadata": { "name": "a", "namespace": "other" } })];
    check(&Facts { elsewhere, ..facts() }, gone, "namespace/other", "has a VM a", "why a -n other");
}

#[test]
fn it_is_meant_to_be_off() {
    let stopped = || json!({ "printableStatus": "Stopped" });
    let off = |vm: Value, vmi: Option<Value>| Facts { vm: Some(vm), vmi, ..facts() };
    let ended = || Some(vmi("Succeeded", json!([])));
    check(&off(vm("Halted", stopped()), None), "vm/a is off.", "vm/a", "Halted", "ferrovirt start a");
    check(&off(vm("Manual", stopped()), None), "vm/a is off.", "vm/a", "nobody has started it", "ferrovirt start a");
    check(&off(vm("Manual", stopped()), ended()), "vm/a is off.", "vm/a", "powered itself off", "ferrovirt start a");
    check(
        &off(vm("RerunOnFailure", stopped()), ended()),
        "vm/a is off.",
        "vm/a",
        "only a failure",
        "ferrovirt start a",
    );
    check(&off(vm("Once", stopped()), ended()), "vm/a is off.", "vm/a", "does not run again", "runStrategy");
    assert!(explain(&off(vm("Halted", stopped()), None)).well);
    assert!(!explain(&off(vm("Manual", stopped()), None)).well);
}

#[test]
fn nobody_looks_at_it() {
    let unseen = Facts { vm: Some(vm("Always", Value::Null)), ..facts() };
    check(&unseen, "vm/a was not noticed.", "vm/a", "no controller", "virt-controller");
}

#[test]
fn it_is_being_deleted() {
    let mut deleted = vm("Always", json!({ "printableStatus": "Terminating" }));
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let guest = Facts { vm: Some(deleted.clone()), vmi: Some(vmi("Running", json!([]))), ..facts() };
    check(&guest, "vm/a is being deleted.", "vmi/a", "60 s", "");
    let held = Facts { vm: Some(deleted), ..facts() };
    check(&held, "vm/a is being deleted.", "vm/a", "kubevirt.io/virtualMachineControllerFinalize", "controller");
}

#[test]
fn it_fails_again_and_again() {
    let status = json!({
        "printableStatus": "CrashLoopBackOff",
        "startFailure": { "consecutiveFailCount": 3, "retryAfterTimestamp": "2026-01-01T00:05:00Z" },
    });
    let looping = Facts { vm: Some(vm("Always", status)), ..facts() };
    check(&looping, "vm/a does not run: CrashLoopBackOff.", "vm/a", "3 times", "kubectl logs");
    let mut told = looping;
    if let Some(vm) = &mut told.vm {
        vm["status"]["conditions"] =
            json!([{ "type": "Synchronized", "status": "False", "message": "the libvirt daemon ended at once" }]);
    }
    check(&told, "vm/a does not run: CrashLoopBackOff.", "vm/a", "daemon ended at once", "mend");
}

#[test]
fn the_quota_is_used_up() {
    let condition =
        json!([{ "type": "Failure", "status": "True", "message": "pods \"x\" is forbidden: exceeded quota: q" }]);
    let status = json!({ "printableStatus": "Provisioning", "conditions": condition });
    let full = Facts { vm: Some(vm("Always", status)), ..facts() };
    check(&full, "vm/a does not run: Provisioning.", "vm/a", "exceeded quota", "quota");
    let events = vec![event("VirtualMachineInstance", "a", "FailedCreate", "pods is forbidden: exceeded quota: q")];
    let by_event = Facts { events, ..starting() };
    check(&by_event, "vm/a does not run yet: Scheduling.", "vmi/a", "exceeded quota", "quota");
}

#[test]
fn a_volume_is_missing_or_not_ready() {
    let not_yet = "vm/a does not run: Provisioning.";
    let claim = || json!({ "name": "d", "persistentVolumeClaim": { "claimName": "data" } });
    check(&waiting_for(claim()), not_yet, "pvc/data", "no such claim", "make it");
    let pending = |class: &str| json!({ "metadata": { "name": "data" }, "spec": { "storageClassName": class }, "status": { "phase": "Pending" } });
    let no_class = Facts { claims: vec![pending("fast")], ..waiting_for(claim()) };
    check(&no_class, not_yet, "pvc/data", "storage class fast, which does not exist", "storageclasses");
    let no_default = Facts { claims: vec![pending("")], ..waiting_for(claim()) };
    check(&no_default, not_yet, "pvc/data", "no default", "storageClassName");
    let unbound = Facts {
        claims: vec![pending("fast")],
        storage_classes: vec![json!({ "metadata": { "name": "fast" } })],
        events: vec![event("PersistentVolumeClaim", "data", "ProvisioningFailed", "the disk is full")],
        ..waiting_for(claim())
    };
    check(&unbound, not_yet, "pvc/data", "the disk is full", "describe pvc");
    let lost = json!({ "metadata": { "name": "data" }, "status": { "phase": "Lost" } });
    check(&Facts { claims: vec![lost], ..waiting_for(claim()) }, not_yet, "pvc/data", "lost its volume", "restore");
}

#[test]
fn an_image_is_not_imported() {
    let not_yet = "vm/a does not run: Provisioning.";
    let volume = || json!({ "name": "d", "dataVolume": { "name": "root" } });
    let data = |status: Value| Facts {
        data_volumes: vec![json!({ "metadata": { "name": "root" }, "status": status })],
        ..waiting_for(volume())
    };
    check(&waiting_for(volume()), not_yet, "dv/root", "no such data volume", "make it");
    check(&data(json!({ "phase": "ImportInProgress", "progress": "42.0%" })), not_yet, "dv/root", "42.0%", "wait");
    let failing = json!({
        "phase": "ImportInProgress", "restartCount": 4,
        "conditions": [{ "type": "Running", "status": "False", "reason": "Error", "message": "404 Not Found" }],
    });
    check(&data(failing), not_yet, "dv/root", "failed 4 times: 404 Not Found", "source");
    check(&data(json!({ "phase": "Failed" })), not_yet, "dv/root", "could not be filled", "anew");
}

#[test]
fn no_node_takes_it() {
    let scheduling = "vm/a does not run yet: Scheduling.";
    for (message, next) in [
        ("0/1 nodes are available: 1 Insufficient devices.kubevirt.io/kvm.", "useEmulation"),
        ("0/1 nodes are available: 1 Insufficient memory.", "less memory"),
        ("0/1 nodes are available: 1 Insufficient cpu.", "fewer CPUs"),
        ("0/2 nodes are available: 2 node(s) had untolerated taint {x: y}.", "tolerations"),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", "nodeSelector"),
        ("0/0 nodes are available.", "describe nodes"),
    ] {
        let condition = json!([{ "type": "PodScheduled", "status": "False", "message": message }]);
        let stuck = Facts { pods: vec![pod(json!({ "conditions": condition }))], ..starting() };
        check(&stuck, scheduling, "pod/virt-launcher-a", message, next);
    }
}

#[test]
fn the_pod_does_not_start() {
    let scheduling = "vm/a does not run yet: Scheduling.";
    let about = "pod/virt-launcher-a";
    let waiting = |reason: &str, message: &str| {
        let state = json!({ "waiting": { "reason": reason, "message": message } });
        Facts { pods: vec![pod(json!({ "containerStatuses": [{ "image": "x", "state": state }] }))], ..starting() }
    };
    check(&waiting("ImagePullBackOff", ""), scheduling, about, "cannot get the image x", "image import");
    check(&waiting("ErrImagePull", "no such image y"), scheduling, about, "no such image y", "image's name");
    check(&waiting("CreateContainerConfigError", "secret \"s\" not found"), scheduling, about, "secret \"s\"", "make");
    let mount = event("Pod", "virt-launcher-a", "FailedMount", "configmap \"c\" not found");
    let mounting = Facts { pods: vec![pod(json!({}))], events: vec![mount], ..starting() };
    check(&mounting, scheduling, about, "configmap \"c\" not found", "ConfigMap");
    let sandbox = event("Pod", "virt-launcher-a", "FailedCreatePodSandBox", "no network blue");
    let netless = Facts { pods: vec![pod(json!({}))], events: vec![sandbox], ..starting() };
    check(&netless, scheduling, about, "no network blue", "NetworkAttachmentDefinition");
    check(&starting(), scheduling, "vmi/a", "no launcher pod", "virt-controller");
}

#[test]
fn the_guest_failed() {
    let status = json!({ "printableStatus": "Stopped" });
    let ended =
        pod(json!({ "containerStatuses": [{ "state": { "terminated": { "exitCode": 1, "message": "QEMU died" } } }] }));
    let failed =
        Facts { vm: Some(vm("Manual", status)), vmi: Some(vmi("Failed", json!([]))), pods: vec![ended], ..facts() };
    check(&failed, "vm/a does not run: Stopped.", "vmi/a", "QEMU died", "kubectl logs");
    let alone = Facts { vm: None, ..failed };
    check(&alone, "vmi/a failed.", "vmi/a", "QEMU died", "kubectl logs");
}

#[test]
fn it_runs_but() {
    let ready = json!({ "type": "Ready", "status": "True" });
    let paused = |reason: &str| running(json!([{ "type": "Paused", "status": "True", "reason": reason }]));
    check(&paused("PausedByUser"), "vm/a is paused.", "vmi/a", "somebody paused", "unpause a");
    check(&paused("PausedIOError"), "vm/a is paused.", "vmi/a", "a disk reported an error", "make room");
    let unready = running(json!([{ "type": "Ready", "status": "False", "message": "connection refused" }]));
    check(&unready, "vm/a runs, but is not ready.", "vmi/a", "connection refused", "console a");
    let node = json!({ "metadata": { "name": "n" }, "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "message": "no heartbeat" }] } });
    let lost = Facts { nodes: vec![node], ..running(json!([ready])) };
    check(&lost, "vm/a may still run, but its node does not answer.", "node/n", "no heartbeat", "out-of-service");
    let mut changed = running(json!([ready]));
    changed.vm.as_mut().unwrap()["status"]["conditions"] = json!([{ "type": "RestartRequired", "status": "True" }]);
    check(&changed, "vm/a runs.", "vm/a", "needs a restart", "ferrovirt restart a");
    let emulated = running(json!([ready, { "type": "SoftwareEmulation", "status": "True" }]));
    check(&emulated, "vm/a runs.", "vmi/a", "emulated", "hardware");
    let mut mute = running(json!([ready]));
    mute.vmi.as_mut().unwrap()["status"]["interfaces"] = json!([{ "name": "default" }]);
    check(&mute, "vm/a runs.", "vmi/a", "no address", "console");
}

#[test]
fn nothing_is_wrong() {
    let report = explain(&running(json!([{ "type": "Ready", "status": "True" }])));
    assert_eq!(report, Report { summary: "vm/a runs.".into(), well: true, findings: vec![] });
}

#[test]
fn it_asks_for_what_we_lack() {
    let condition =
        json!([{ "type": "Failure", "status": "True", "message": "spec.template.spec.domain.devices.gpus[0]: no" }]);
    let status = json!({ "printableStatus": "Stopped", "conditions": condition });
    let asking = Facts { vm: Some(vm("Always", status)), ..facts() };
    check(&asking, "vm/a does not run: Stopped.", "vm/a", "gpus[0]", "change what the message names");
}
