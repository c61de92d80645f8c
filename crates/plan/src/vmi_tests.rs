use serde_json::json;

use super::*;

fn vmi(phase: &str) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "metadata": {
            "name": "a", "namespace": "n", "uid": "vmi-uid",
            "finalizers": [names::VIRTUAL_MACHINE_INSTANCE_FINALIZER],
        },
        "spec": { "domain": { "memory": { "guest": "64Mi" }, "devices": {} } },
        "status": { "phase": phase },
    }))
    .unwrap()
}

fn pod(node: Option<&str>, phase: &str, running: bool) -> Pod {
    let state =
        if running { json!({ "running": {} }) } else { json!({ "waiting": { "reason": "ContainerCreating" } }) };
    let container =
        json!({ "name": "compute", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state });
    serde_json::from_value(json!({
        "metadata": { "name": "p", "uid": "pod-uid", "resourceVersion": "7" },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": phase, "containerStatuses": [container] },
    }))
    .unwrap()
}

fn check(vmi: &VirtualMachineInstance, pod: Option<&Pod>, expected: &str) -> VirtualMachineInstanceStatus {
    check_with(vmi, pod, &Storage::default(), expected)
}

fn check_with(
    vmi: &VirtualMachineInstance,
    pod: Option<&Pod>,
    storage: &Storage,
    expected: &str,
) -> VirtualMachineInstanceStatus {
    let now = "2026-11-15T12:00:00Z".parse().unwrap();
    let plan =
        plan(&Observed { vmi, pod, foreign: None, config: &pod::Config::default(), storage, node_gone: false, now });
    let mut words: Vec<String> = plan
        .actions
        .iter()
        .map(|action| match action {
            Action::AddFinalizer => "hold".into(),
            Action::RemoveFinalizer => "release".into(),
            Action::CreatePod(_) => "create".into(),
            Action::DeletePod { resource_version: Some(version), .. } => format!("delete-if({version})"),
            Action::DeletePod { .. } => "delete".into(),
            Action::SetNode { node } => format!("node({node})"),
        })
        .collect();
    words.push(plan.status.phase.clone());
    assert_eq!(words.join(" "), expected);
    plan.status
}

#[test]
fn phases_follow_the_pod() {
    check(&vmi(""), None, "create Scheduling");
    check(&vmi("Pending"), None, "create Scheduling");
    check(&vmi("Pending"), Some(&pod(None, "Pending", false)), "Scheduling");
    check(&vmi("Scheduling"), Some(&pod(Some("m"), "Pending", false)), "node(m) Scheduling");
    let status = check(&vmi("Scheduling"), Some(&pod(Some("m"), "Running", true)), "node(m) Scheduled");
    assert_eq!(status.node_name, "m");
    assert_eq!(status.active_pods["pod-uid"], "m");
    check(&vmi("Scheduling"), Some(&pod(Some("m"), "Failed", false)), "node(m) Failed");
    check(&vmi("Scheduling"), None, "Failed");
    check(&vmi("Running"), None, "Running");
}

#[test]
fn an_instance_is_held_before_anything_is_made() {
    let mut new = vmi("");
    new.metadata.finalizers = None;
    check(&new, None, "hold ");
}

#[test]
fn only_an_instance_that_never_reached_a_node_is_released_here() {
    let mut going = vmi("Pending");
    going.metadata.deletion_timestamp = Some(Time("2026-11-15T12:00:00Z".parse().unwrap()));
    check(&going, None, "release Pending");
    check(&going, Some(&pod(None, "Pending", false)), "delete-if(7) Pending");
    check(&going, Some(&pod(Some("m"), "Pending", false)), "delete node(m) Pending");
    check(&going, Some(&pod(Some("m"), "Running", true)), "node(m) Pending");
    going.status.active_pods.insert("pod-uid".into(), "m".into());
    check(&going, None, "node(m) Pending");
}

#[test]
fn image_and_scheduling_troubles_show_as_conditions() {
    let mut waiting = pod(Some("m"), "Pending", false);
    waiting.status.as_mut().unwrap().container_statuses.as_mut().unwrap()[0].state = serde_json::from_value(json!({
        "waiting": { "reason": "ErrImagePull", "message": "no such image" },
    }))
    .unwrap();
    let status = check(&vmi("Scheduling"), Some(&waiting), "node(m) Scheduling");
    let condition = conditions::find(&status.conditions, "Synchronized").unwrap();
    assert_eq!((condition.reason.as_str(), condition.message.as_str()), ("ErrImagePull", "no such image"));

    let mut unscheduled = pod(None, "Pending", false);
    unscheduled.status.as_mut().unwrap().conditions = serde_json::from_value(json!([
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes" },
    ]))
    .unwrap();
    let status = check(&vmi("Pending"), Some(&unscheduled), "Scheduling");
    assert_eq!(conditions::find(&status.conditions, "PodScheduled").unwrap().reason, "Unschedulable");
}

#[test]
fn the_pod_is_named_by_its_instance() {
    let (one, two) = (pod::render(&vmi(""), &pod::Config::default()), pod::render(&vmi(""), &pod::Config::default()));
    assert_eq!(one, two);
    assert!(one.metadata.name.unwrap().starts_with("virt-launcher-a-"));
    let spec = one.spec.unwrap();
    assert_eq!(spec.security_context.unwrap().run_as_user, Some(107));
    let memory: u64 =
        spec.containers[0].resources.as_ref().unwrap().requests.as_ref().unwrap()["memory"].0.parse().unwrap();
    assert!(memory > 64 << 20, "the overhead is on top of the guest's own memory: {memory}");
}

#[test]
fn a_launcher_asks_for_the_runtimes_filter_and_for_no_privileges() {
    let spec = pod::render(&vmi(""), &pod::Config::default()).spec.unwrap();
    let context = spec.security_context.unwrap();
    assert_eq!(context.seccomp_profile.unwrap().type_, "RuntimeDefault");
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        let own = container.security_context.clone().unwrap();
        assert_eq!(own.allow_privilege_escalation, Some(false), "{}", container.name);
        assert_eq!(own.capabilities.unwrap().drop, Some(vec!["ALL".to_owned()]), "{}", container.name);
        assert!(own.seccomp_profile.is_none() && own.privileged != Some(true), "{}", container.name);
    }
}

#[test]
fn a_pod_is_made_once_its_storage_is_there() {
    let mut waits = vmi("Pending");
    waits.spec.volumes = serde_json::from_value(json!([{ "name": "d", "dataVolume": { "name": "dv" } }])).unwrap();
    let mut storage = Storage::default();
    let missing = check_with(&waits, None, &storage, "Pending");
    let synchronized = conditions::find(&missing.conditions, "Synchronized").unwrap();
    assert_eq!((synchronized.status.as_str(), synchronized.reason.as_str()), ("False", "FailedPvcNotFound"));
    let importing = crate::storage::DataVolume { phase: "ImportInProgress".into(), ..Default::default() };
    storage.data_volumes.insert("dv".into(), importing);
    waits.status = missing;
    let provisioning = check_with(&waits, None, &storage, "Pending");
    assert!(conditions::is_true(&provisioning.conditions, "Provisioning"));
    assert!(conditions::find(&provisioning.conditions, "Synchronized").is_none());
    storage.data_volumes.clear();
    storage.claims.insert("dv".into(), crate::storage::Claim { bound: true, ..Default::default() });
    waits.status = provisioning;
    let made = check_with(&waits, None, &storage, "create Scheduling");
    assert!(conditions::find(&made.conditions, "Provisioning").is_none());
}

#[test]
fn only_an_operators_word_releases_what_was_on_a_node() {
    let observe = |vmi: &VirtualMachineInstance, node_gone: bool| {
        let (config, storage) = (pod::Config::default(), Storage::default());
        let now = "2026-11-15T12:00:00Z".parse().unwrap();
        plan(&Observed { vmi, pod: None, foreign: None, config: &config, storage: &storage, node_gone, now })
    };
    let mut lost = vmi("Running");
    lost.status.node_name = "m".into();
    lost.status.active_pods.insert("pod-uid".into(), "m".into());
    lost.metadata.labels = Some([(names::NODE_NAME_LABEL.to_owned(), "m".to_owned())].into());
    assert_eq!(observe(&lost, false).status.phase, "Running");
    let gone = observe(&lost, true);
    assert_eq!((gone.status.phase.as_str(), gone.status.reason.as_str()), ("Failed", "NodeGone"));
    lost.status = gone.status;
    lost.metadata.deletion_timestamp = Some(Time("2026-11-15T12:00:00Z".parse().unwrap()));
    assert_eq!(observe(&lost, false).actions, []);
    assert_eq!(observe(&lost, true).actions, [Action::RemoveFinalizer]);
    let node = |taint: &str| {
        serde_json::from_value(
            json!({ "metadata": {}, "spec": { "taints": [{ "key": taint, "effect": "NoExecute" }] } }),
        )
        .unwrap()
    };
    assert!(node_is_released(&node("node.kubernetes.io/out-of-service")));
    assert!(!node_is_released(&node("node.kubernetes.io/unreachable")), "that a node does not answer proves nothing");
}

#[test]
fn an_instance_whose_node_is_silent_is_not_ready_and_recovers() {
    let silent = |ready: &str, container_ready: bool| {
        let mut pod = pod(Some("m"), "Running", true);
        let status = pod.status.as_mut().unwrap();
        status.conditions = serde_json::from_value(json!([{ "type": "Ready", "status": ready }])).unwrap();
        status.container_statuses.as_mut().unwrap()[0].ready = container_ready;
        pod
    };
    let mut vmi = vmi("Running");
    vmi.metadata.labels = Some([(names::NODE_NAME_LABEL.to_owned(), "m".to_owned())].into());
    vmi.status.conditions = serde_json::from_value(json!([{ "type": "Ready", "status": "True" }])).unwrap();
    let mut ready_after = |pod: &Pod| {
        vmi.status = check(&vmi, Some(pod), "Running");
        let ready = conditions::find(&vmi.status.conditions, "Ready").unwrap();
        (ready.status.clone(), ready.reason.clone())
    };
    let (yes, missed) = (("True".to_owned(), String::new()), ("False".to_owned(), "NodeNotReady".to_owned()));
    assert_eq!(ready_after(&silent("True", true)), yes);
    assert_eq!(ready_after(&silent("False", false)), yes, "without a probe the agent knows better than the pod");
    assert_eq!(ready_after(&silent("False", true)), missed);
    assert_eq!(ready_after(&silent("True", true)), yes);
}

#[test]
fn a_pod_that_was_made_first_with_the_predictable_name_is_not_adopted() {
    let mut planted = pod(Some("m"), "Running", true);
    let owner = json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "a", "uid": "vmi-uid",
        "controller": true }]);
    planted.metadata.owner_references = serde_json::from_value(owner).unwrap();
    let mut waiting = vmi("Pending");
    assert!(!is_ours(&waiting, &planted, None));
    assert!(!is_ours(&waiting, &planted, Some("another-uid")));
    assert!(is_ours(&waiting, &planted, Some("pod-uid")), "what this process made is its own");
    let step = |vmi: &VirtualMachineInstance, foreign: &Pod| {
        plan(&Observed {
            vmi,
            pod: None,
            foreign: Some(foreign),
            config: &pod::Config::default(),
            storage: &Storage::default(),
            node_gone: false,
            now: "2026-11-15T12:00:00Z".parse().unwrap(),
        })
    };
    // It goes, whatever it says of itself, and nothing is made of it meanwhile.
    for phase in ["", "Pending", "Scheduling"] {
        waiting.status.phase = phase.into();
        let found = step(&waiting, &planted);
        let expected = Action::DeletePod { name: "p".into(), uid: "pod-uid".into(), resource_version: None };
        assert_eq!(found.actions, [expected], "{phase:?}");
        assert_eq!(found.status.phase, "Pending");
        assert!(found.status.active_pods.is_empty() && found.status.node_name.is_empty());
        assert!(found.requeue.is_some() && found.notes.len() == 1);
    }
    planted.metadata.deletion_timestamp = Some(Time("2026-11-15T12:00:00Z".parse().unwrap()));
    assert_eq!(step(&waiting, &planted).actions, []);
    // Once the record is there, another pod of the name is as good as none: the launcher's was removed.
    waiting.status.phase = "Scheduling".into();
    waiting.status.active_pods.insert("made".into(), String::new());
    assert!(!is_ours(&waiting, &planted, None));
    assert_eq!(step(&waiting, &planted).status.phase, "Failed");
    waiting.status.active_pods.insert("pod-uid".into(), String::new());
    assert!(is_ours(&waiting, &planted, None));
    planted.metadata.owner_references = None;
    assert!(!is_ours(&waiting, &planted, None));
}

#[test]
fn a_pod_is_recorded_before_it_has_a_node_and_a_node_is_not_forgotten() {
    let unbound = check(&vmi("Scheduling"), Some(&pod(None, "Pending", false)), "Scheduling");
    assert_eq!(unbound.active_pods["pod-uid"], "");
    let mut going = vmi("Scheduling");
    going.metadata.deletion_timestamp = Some(Time("2026-11-15T12:00:00Z".parse().unwrap()));
    going.status.active_pods = unbound.active_pods;
    check(&going, None, "release Scheduling");
    going.status.active_pods.insert("pod-uid".into(), "m".into());
    check(&going, None, "node(m) Scheduling");
    let kept = check(&going, Some(&pod(None, "Pending", false)), "delete-if(7) node(m) Scheduling");
    assert_eq!(kept.active_pods["pod-uid"], "m");
}
