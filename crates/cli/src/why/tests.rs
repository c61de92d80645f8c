//! Broken situations, each as the API shows it.

use clap::CommandFactory as _;

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

/// What can never work is told at once, and so is what is tried again.
#[test]
fn an_import_is_in_vain() {
    let not_yet = "vm/a does not run: Provisioning.";
    let volume = || json!({ "name": "d", "dataVolume": { "name": "root" } });
    let data = |phase: &str, reason: &str, message: &str| Facts {
        data_volumes: vec![json!({
            "metadata": { "name": "root", "uid": "dv" },
            "status": {
                "phase": phase, "progress": "N/A",
                "conditions": [{ "type": "Running", "status": "True", "reason": reason, "message": message }],
            },
        })],
        ..waiting_for(volume())
    };
    let outlook = |facts: &Facts| explain(facts).obstacle().map(|finding| finding.outlook);
    for (message, words, next, expected) in [
        (
            "0 MiB transferred; cannot connect to nowhere.example:443: failed to lookup address information: Name does not resolve",
            "cannot be filled so far: cannot connect to nowhere.example:443",
            "no server has this name",
            Outlook::Stuck,
        ),
        (
            "0 MiB transferred; cannot connect to h:80: Connection refused (os error 111)",
            "Connection refused",
            "the server runs",
            Outlook::Doubtful,
        ),
        (
            "0 MiB transferred; cannot connect to 127.0.0.1:80: Connection refused",
            "127.0.0.1",
            "importer's own",
            Outlook::Stuck,
        ),
    ] {
        let facts = data("ImportInProgress", "Retrying", message);
        check(&facts, not_yet, "dv/root", words, next);
        assert_eq!(outlook(&facts), Some(expected), "{message}");
    }
    for (message, next) in [
        ("http://h/x answered 404 Not Found", "correct the URL"),
        ("cannot connect to h:443: invalid peer certificate: UnknownIssuer", "certConfigMap"),
        ("the image has the sha256 checksum a, not b", "checksum"),
        ("the image is a disk of 9 bytes and the target has 3; ask for a larger disk", "--disk-size"),
        ("the image needs qcow2 with encryption, which is not supported", "raw or qcow2"),
    ] {
        let facts = data("Failed", "SourceRefused", message);
        check(&facts, not_yet, "dv/root", message, next);
        check(&facts, not_yet, "dv/root", "could not be filled", "make it anew");
        assert_eq!(outlook(&facts), Some(Outlook::Stuck), "{message}");
    }
    let refused = json!({
        "metadata": { "name": "importer-root", "ownerReferences": [{ "kind": "DataVolume", "name": "root", "uid": "dv" }] },
        "status": { "containerStatuses": [{ "image": "i", "state": { "waiting": {
            "reason": "ErrImagePull", "message": "quay.io says that there is no such image, or that it is not for you",
        } } }] },
    });
    let by_registry =
        Facts { pods: vec![refused], ..data("ImportScheduled", "Pending", "the importer is being started") };
    check(&by_registry, not_yet, "dv/root", "its importer does not start: ErrImagePull: quay.io", "login");
    assert_eq!(outlook(&by_registry), Some(Outlook::Stuck));
    let fine = data("ImportInProgress", "Pod is running", "3 of 9 MiB transferred, 1 MiB/s");
    check(&fine, not_yet, "dv/root", "is being filled (ImportInProgress): 3 of 9 MiB", "wait for it");
    assert_eq!(outlook(&fine), None);
    let waits = data("Pending", "Pending", "the DataSource \"x\" does not exist, or names no claim of its namespace");
    check(&waits, not_yet, "dv/root", "waits: the DataSource", "make, free or correct");
}

#[test]
fn no_node_is_large_enough_or_of_that_architecture() {
    let scheduling = "vm/a does not run yet: Scheduling.";
    let node = json!({
        "metadata": { "name": "n", "labels": { "kubernetes.io/arch": "amd64" } },
        "status": { "allocatable": { "memory": "23Gi", "cpu": "4" } },
    });
    let asking = |spec: Value, message: &str| {
        let condition = json!([{ "type": "PodScheduled", "status": "False", "message": message }]);
        let mut pod = pod(json!({ "conditions": condition }));
        pod["spec"] = spec;
        Facts { pods: vec![pod], nodes: vec![node.clone()], ..starting() }
    };
    let memory = |memory: &str| json!({ "containers": [{ "resources": { "requests": { "memory": memory } } }] });
    let full = "0/1 nodes are available: 1 Insufficient memory.";
    let pod = "pod/virt-launcher-a";
    let large = asking(memory("100Gi"), full);
    check(&large, scheduling, pod, "asks for 100.0 GiB of memory; the largest node has 23.0 GiB", "memory.guest");
    check(&asking(memory("2Gi"), full), scheduling, pod, full, "the nodes are full");
    let foreign = json!({ "nodeSelector": { "kubernetes.io/arch": "arm64" }, "containers": [] });
    let message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
    check(&asking(foreign, message), scheduling, pod, "no node has architecture arm64", "architecture");
}

#[test]
fn the_network_is_not_taken_back() {
    let mut deleted = vm("Always", json!({ "printableStatus": "Terminating" }));
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut instance = vmi("Running", json!([]));
    instance["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let message = "cannot take network blue back: DEL: no plugin sriov in /opt/cni/bin";
    let facts = Facts {
        vm: Some(deleted),
        vmi: Some(instance),
        pods: vec![pod(json!({}))],
        events: vec![event("Pod", "virt-launcher-a", "NetworkNotReleased", message)],
        ..facts()
    };
    check(&facts, "vm/a is being deleted.", "vmi/a", "60 s", "");
    check(&facts, "vm/a is being deleted.", "pod/virt-launcher-a", message, "install the network's plugin");
    let without_pod = Facts {
        pods: vec![],
        events: vec![event("VirtualMachineInstance", "a", "NetworkNotReleased", message)],
        ..facts
    };
    check(&without_pod, "vm/a is being deleted.", "vmi/a", message, "install the network's plugin");
}

#[test]
fn next_steps_can_be_typed() {
    let matches = crate::Cli::command().get_matches_from(["ferrovirt", "why", "a", "-n", "shop", "--data-dir", "/d"]);
    let flags = next::Flags::of(&matches);
    let stopped = Facts { vm: Some(vm("Manual", json!({ "printableStatus": "Stopped" }))), flags, ..facts() };
    check(&stopped, "vm/a is off.", "vm/a", "nobody has started it", "ferrovirt start a -n shop --data-dir /d");
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
