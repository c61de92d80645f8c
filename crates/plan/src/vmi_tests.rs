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

/// A pod on the node `m` whose labels are as those of an instance there.
fn labelled(phase: &str) -> Pod {
    let mut pod = pod(Some("m"), phase, true);
    pod.metadata.labels = Some([(names::NODE_NAME_LABEL.to_owned(), "m".to_owned())].into());
    pod
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
    let plan = plan(&Observed {
        vmi,
        pod,
        foreign: None,
        consumer: None,
        config: &pod::Config::default(),
        storage,
        node_gone: false,
        now,
    });
    let mut words: Vec<String> = plan
        .actions
        .iter()
        .map(|action| match action {
            Action::AddFinalizer => "hold".into(),
            Action::RemoveFinalizer => "release".into(),
            Action::CreatePod(_) => "create".into(),
            Action::CreateConsumer(_) => "go-ahead".into(),
            Action::DeletePod { resource_version: Some(version), .. } => format!("delete-if({version})"),
            Action::DeletePod { .. } => "delete".into(),
            Action::SetUnpaused { unpaused, .. } => format!("unpaused({unpaused})"),
            Action::FollowMetadata { labels, annotations, .. } => {
                let said = |(key, value): (&String, &Option<String>)| {
                    format!("{}={}", key.rsplit('/').next().unwrap(), value.as_deref().unwrap_or("-"))
                };
                format!("follow({})", labels.iter().chain(annotations).map(said).collect::<Vec<_>>().join(","))
            }
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
    for phase in ["Scheduled", "Running"] {
        // Its node's agent knows whether it runs, and is told that it should not.
        let lost = check(&vmi(phase), None, phase);
        assert!(conditions::lost_its_pod(&lost.conditions), "{phase}");
    }
    let mut terminating = pod(Some("m"), "Running", true);
    terminating.metadata.deletion_timestamp = Some(Time("2026-11-15T12:00:00Z".parse().unwrap()));
    let status = check(&vmi("Running"), Some(&terminating), "node(m) Running");
    assert_eq!(conditions::find(&status.conditions, "Ready").unwrap().reason, "PodTerminating");
}

#[test]
fn an_instance_that_is_to_leave_its_node_says_so() {
    let mut marked = vmi("Running");
    marked.status.evacuation_node_name = "m".into();
    let pod = pod(Some("m"), "Running", true);
    marked.status = check(&marked, Some(&pod), "node(m) Running");
    let said = conditions::find(&marked.status.conditions, "EvictionRequested").unwrap();
    assert_eq!((said.status.as_str(), said.message.as_str()), ("True", "VMI is marked for eviction"));
    marked.status.evacuation_node_name = String::new();
    let status = check(&marked, Some(&pod), "node(m) Running");
    assert!(conditions::find(&status.conditions, "EvictionRequested").is_none());
}

/// A launcher that starts before its disk is filled writes to an empty one.
#[test]
fn a_pod_goes_ahead_for_volumes_that_wait_for_one() {
    let mut waits = vmi("Pending");
    waits.spec.volumes = serde_json::from_value(json!([{ "name": "d", "dataVolume": { "name": "dv" } }])).unwrap();
    let storage = |phase: &str| {
        let volume = crate::storage::DataVolume { phase: phase.into(), ..Default::default() };
        let claim = crate::storage::Claim { bound: phase != "WaitForFirstConsumer", ..Default::default() };
        Storage { data_volumes: [("dv".into(), volume)].into(), claims: [("dv".into(), claim)].into() }
    };
    let unbound = check_with(&waits, None, &storage("WaitForFirstConsumer"), "go-ahead Pending");
    assert!(conditions::is_true(&unbound.conditions, "Provisioning") && unbound.active_pods.is_empty());
    let mut ahead = pod(None, "Pending", false);
    ahead.status.as_mut().unwrap().conditions = serde_json::from_value(json!([
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes" },
    ]))
    .unwrap();
    let step = |phase: &str| {
        let (config, storage) = (pod::Config::default(), storage(phase));
        let now = "2026-11-15T12:00:00Z".parse().unwrap();
        let (vmi, consumer) = (&waits, Some(&ahead));
        plan(&Observed {
            vmi,
            pod: None,
            foreign: None,
            consumer,
            config: &config,
            storage: &storage,
            node_gone: false,
            now,
        })
    };
    let waiting = step("WaitForFirstConsumer");
    assert_eq!(waiting.actions, []);
    let told = conditions::find(&waiting.status.conditions, "PodScheduled").unwrap();
    assert_eq!((told.reason.as_str(), told.message.as_str()), ("Unschedulable", "0/1 nodes"));
    let dismissed = Action::DeletePod { name: "p".into(), uid: "pod-uid".into(), resource_version: None };
    assert_eq!(step("ImportInProgress").actions, [dismissed]);
    assert!(matches!(&step("Succeeded").actions[..], [Action::CreatePod(_), Action::DeletePod { .. }]));
    // A volume that is made on its own for whoever waits for it keeps its pod waiting, without our help.
    check_with(&waits, None, &storage("PendingPopulation"), "create Scheduling");
}

#[test]
fn the_data_volumes_of_an_instance_are_summed_up() {
    let mut uses = vmi("Scheduling");
    let volumes =
        json!([{ "name": "a", "dataVolume": { "name": "a" } }, { "name": "b", "dataVolume": { "name": "b" } }]);
    uses.spec.volumes = serde_json::from_value(volumes).unwrap();
    let pod = pod(Some("m"), "Pending", false);
    let with = |a: bool, b: bool| {
        let volume = |ready| crate::storage::DataVolume { phase: "Succeeded".into(), ready, ..Default::default() };
        let data_volumes = [("a".to_owned(), volume(a)), ("b".to_owned(), volume(b))].into();
        Storage { data_volumes, ..Storage::default() }
    };
    for (storage, status, reason) in
        [(with(true, false), "False", "NotAllDVsReady"), (with(true, true), "True", "AllDVsReady")]
    {
        assert!(follows_data_volumes(&uses));
        uses.status = check_with(&uses, Some(&pod), &storage, "node(m) Scheduling");
        let said = conditions::find(&uses.status.conditions, "DataVolumesReady").unwrap();
        assert_eq!((said.status.as_str(), said.reason.as_str()), (status, reason));
    }
    assert!(!follows_data_volumes(&uses), "what is filled stays filled");
    assert!(!follows_data_volumes(&vmi("Running")));
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
    let lost = check(&going, None, "node(m) Pending");
    assert!(conditions::lost_its_pod(&lost.conditions), "whoever removed the pod does not want to wait for the guest");
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
    let scheduled = conditions::find(&missing.conditions, "PodScheduled").unwrap();
    assert_eq!((scheduled.status.as_str(), scheduled.reason.as_str()), ("False", "Unschedulable"));
    assert_eq!(scheduled.message, "PVC n/dv does not exist, waiting for it to appear");
    let importing = crate::storage::DataVolume { phase: "ImportInProgress".into(), ..Default::default() };
    storage.data_volumes.insert("dv".into(), importing);
    waits.status = missing;
    let provisioning = check_with(&waits, None, &storage, "Pending");
    assert!(conditions::is_true(&provisioning.conditions, "Provisioning"));
    assert!(conditions::find(&provisioning.conditions, "Synchronized").is_none());
    assert!(conditions::find(&provisioning.conditions, "PodScheduled").is_none());
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
        plan(&Observed {
            vmi,
            pod: None,
            foreign: None,
            consumer: None,
            config: &config,
            storage: &storage,
            node_gone,
            now,
        })
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
        let mut pod = labelled("Running");
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
            consumer: None,
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

#[test]
fn a_paused_guest_leaves_services_until_it_goes_on() {
    let gated = |said: Option<&str>, phase: &str| {
        let mut pod = labelled(phase);
        let gate = json!([{ "conditionType": pod::UNPAUSED }]);
        pod.spec.as_mut().unwrap().readiness_gates = serde_json::from_value(gate).unwrap();
        let conditions = said.map(|status| json!([{ "type": pod::UNPAUSED, "status": status }])).unwrap_or(json!([]));
        pod.status.as_mut().unwrap().conditions = serde_json::from_value(conditions).unwrap();
        pod
    };
    let mut vmi = vmi("Running");
    vmi.metadata.labels = Some([(names::NODE_NAME_LABEL.to_owned(), "m".to_owned())].into());
    check(&vmi, Some(&gated(None, "Running")), "unpaused(true) Running");
    check(&vmi, Some(&gated(Some("False"), "Running")), "unpaused(true) Running");
    check(&vmi, Some(&gated(Some("True"), "Running")), "Running");
    check(&vmi, Some(&gated(None, "Succeeded")), "Running");
    // One of before there were gates.
    check(&vmi, Some(&labelled("Running")), "Running");
    let time = Time("2026-11-15T12:00:00Z".parse().unwrap());
    conditions::set_vmi(&mut vmi.status.conditions, &time, condition::PAUSED, true, "PausedByUser", "");
    check(&vmi, Some(&gated(Some("True"), "Running")), "unpaused(false) Running");
    check(&vmi, Some(&gated(Some("False"), "Running")), "Running");
    check(&vmi, Some(&gated(None, "Running")), "Running");
}

#[test]
fn a_pod_that_runs_follows_its_instance() {
    let mut vmi = vmi("Running");
    let mut launcher = pod(Some("m"), "Running", true);
    vmi.metadata.labels.get_or_insert_default().insert(names::NODE_NAME_LABEL.into(), "m".into());
    check(&vmi, Some(&launcher), "follow(nodeName=m) Running");
    launcher.metadata.labels.get_or_insert_default().insert(names::NODE_NAME_LABEL.into(), "m".into());
    check(&vmi, Some(&launcher), "Running");
    let evict = "descheduler.alpha.kubernetes.io/evict".to_owned();
    vmi.metadata.annotations.get_or_insert_default().insert(evict.clone(), "true".into());
    check(&vmi, Some(&launcher), "follow(evict=true) Running");
    vmi.metadata.annotations = None;
    launcher.metadata.annotations.get_or_insert_default().insert(evict, "true".into());
    check(&vmi, Some(&launcher), "follow(evict=-) Running");
    // What has ended keeps what it had.
    launcher.status.as_mut().unwrap().phase = Some("Succeeded".into());
    check(&vmi, Some(&launcher), "Running");
}

#[test]
fn what_no_node_has_is_said_on_the_instance() {
    let mut waiting = pod(None, "Pending", false);
    let refused =
        json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes fit." }]);
    waiting.status.as_mut().unwrap().conditions = serde_json::from_value(refused).unwrap();
    let config = pod::Config {
        unmet: vec!["no node has the architecture arm64 (they have amd64)".into()],
        ..Default::default()
    };
    let now = "2026-11-15T12:00:00Z".parse().unwrap();
    let (vmi, storage) = (vmi("Scheduling"), Storage::default());
    let observed = |pod| Observed {
        vmi: &vmi,
        pod,
        foreign: None,
        consumer: None,
        config: &config,
        storage: &storage,
        node_gone: false,
        now,
    };
    let plan = plan(&observed(Some(&waiting)));
    let said = conditions::find(&plan.status.conditions, POD_SCHEDULED).unwrap();
    assert_eq!(said.message, "0/1 nodes fit. no node has the architecture arm64 (they have amd64)");
    assert_eq!((said.status.as_str(), said.reason.as_str()), ("False", "Unschedulable"));
    assert_eq!(plan.requeue, Some(LOOK_AT_NODES));
}
