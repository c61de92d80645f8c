#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::{Value, json};

use super::*;
use crate::Settings;

fn settings() -> Settings {
    let cache = crate::cache::CachePaths { directory: "/cache".into(), pods: "/pods".into() };
    Settings { image: "ferrovirt:1".into(), pull_policy: "IfNotPresent".into(), cache: Some(cache) }
}

fn volume(source: Value) -> DataVolume {
    serde_json::from_value(json!({
        "metadata": { "name": "disk", "namespace": "a", "uid": "u1" },
        "spec": { "source": source, "storage": { "resources": { "requests": { "storage": "1Gi" } } } },
    }))
    .unwrap()
}

struct World {
    volume: DataVolume,
    claim: Option<PersistentVolumeClaim>,
    pod: Option<Pod>,
    origin: Option<PersistentVolumeClaim>,
    user: Option<&'static str>,
    classes: Vec<StorageClass>,
    server: Option<Pod>,
    progress: Option<Progress>,
    upload_key: &'static str,
    same_under_way: bool,
    knows: (bool, bool),
}

impl World {
    fn new(source: Value) -> Self {
        Self {
            volume: volume(source),
            claim: None,
            pod: None,
            origin: None,
            user: None,
            classes: vec![],
            server: None,
            progress: None,
            upload_key: "public",
            same_under_way: false,
            knows: (true, true),
        }
    }

    fn plan(&self) -> Plan {
        plan(&Observed {
            volume: &self.volume,
            source: self.volume.spec.source.as_ref(),
            claim: self.claim.as_ref(),
            pod: self.pod.as_ref(),
            origin: self.origin.as_ref(),
            origin_user: self.user,
            classes: &self.classes,
            server: self.server.as_ref(),
            progress: self.progress.as_ref(),
            settings: &settings(),
            upload_key: self.upload_key,
            same_under_way: self.same_under_way,
            random: "r4nd0m",
            certificate: "pem",
            knows_server: self.knows.0,
            knows_importer: self.knows.1,
            now: Timestamp::UNIX_EPOCH,
        })
    }

    /// Does what the plan says, as the API would.
    fn step(&mut self) -> String {
        let plan = self.plan();
        self.volume.status = plan.status;
        for action in plan.actions {
            match action {
                Action::CreateClaim(claim) => self.claim = Some(*claim),
                Action::CreatePod(pod) | Action::CreateCloner(pod, _) | Action::CreateReceiver(pod, _) => {
                    self.pod = Some(*pod);
                }
                Action::DeletePod => self.pod = None,
                Action::CreateServer(pod, _) => self.server = Some(*pod),
                Action::DeleteServer => self.server = None,
                Action::Hold(hold) => {
                    self.volume.metadata.finalizers = hold.then(|| vec![names::CLONE_FINALIZER.to_owned()]);
                }
                Action::MarkClaim { phase, ready } => {
                    let annotations = &mut self.claim.as_mut().unwrap().metadata.annotations;
                    let annotations = annotations.get_or_insert_default();
                    annotations.insert(names::POD_PHASE.into(), phase.into());
                    annotations.insert(names::POD_READY.into(), ready.to_string());
                }
            }
        }
        self.volume.status.phase.clone()
    }

    fn pod_phase(&mut self, phase: &str, message: Option<&str>) {
        let status = json!({ "phase": phase, "containerStatuses": [{
            "name": "importer", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": 1, "message": message } },
        }] });
        self.pod.as_mut().unwrap().status = Some(serde_json::from_value(status).unwrap());
    }

    fn condition(&self, type_: &str) -> (String, String, String) {
        let found = self.volume.status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
        (found.status.clone(), found.reason.clone(), found.message.clone())
    }
}

#[test]
fn an_import_goes_from_pending_to_succeeded() {
    let mut world = World::new(json!({ "http": { "url": "http://h/i.qcow2" } }));
    assert_eq!(world.step(), "Pending");
    assert_eq!(world.claim.as_ref().unwrap().spec.as_ref().unwrap().access_modes, Some(vec!["ReadWriteOnce".into()]));
    assert_eq!(world.step(), "ImportScheduled");
    let spec = serde_json::to_value(world.pod.as_ref().unwrap().spec.as_ref().unwrap()).unwrap();
    assert_eq!(spec["containers"][0]["volumeMounts"][0]["mountPath"], "/data");
    assert!(spec["volumes"][1]["hostPath"]["path"].as_str().unwrap().starts_with("/cache/"));
    let job: Value = serde_json::from_str(spec["containers"][0]["env"][0]["value"].as_str().unwrap()).unwrap();
    assert_eq!((job["size"].clone(), job["from"]["http"]["url"].clone()), (json!(1 << 30), json!("http://h/i.qcow2")));
    world.pod_phase("Running", None);
    world.progress = Some(Progress { done: 1, total: Some(4), ..Progress::default() });
    assert_eq!(world.step(), "ImportInProgress");
    assert_eq!(world.volume.status.progress, "25.00%");
    assert_eq!(world.condition("Running").0, "True");
    world.pod_phase("Succeeded", None);
    assert_eq!(world.step(), "Succeeded");
    assert!(world.pod.is_none());
    assert_eq!(world.condition("Ready").0, "True");
    assert_eq!(world.step(), "Succeeded");
}

#[test]
fn a_killed_importer_is_followed_by_another_and_a_verdict_is_final() {
    let mut world = World::new(json!({ "http": { "url": "http://h/i" } }));
    world.step();
    world.step();
    world.pod_phase("Failed", Some("some log\nkilled"));
    assert_eq!(world.step(), "ImportScheduled");
    assert_eq!(world.volume.status.restart_count, 1);
    assert!(world.pod.is_none());
    assert_eq!(world.step(), "ImportScheduled");
    world.pod_phase("Failed", Some("log\n{\"reason\":\"ImageTooLarge\",\"message\":\"ask for more\"}\n"));
    assert_eq!(world.step(), "Failed");
    assert_eq!(world.condition("Ready"), ("False".into(), "ImageTooLarge".into(), "ask for more".into()));
    assert_eq!(world.step(), "Failed");
    assert!(world.pod.is_none());
}

#[test]
fn every_source_gets_what_it_needs() {
    for (source, path, value) in [
        (
            json!({ "blank": {} }),
            "/spec/containers/0/env/0/value",
            json!(r#"{"from":"blank","block":false,"size":1073741824,"cache":false,"scratch":false}"#),
        ),
        (
            json!({ "registry": { "url": "docker://r/x:1", "secretRef": "s" } }),
            "/spec/volumes/1/image/reference",
            json!("r/x:1"),
        ),
        (
            json!({ "registry": { "url": "docker://r/x:1", "secretRef": "s" } }),
            "/spec/imagePullSecrets/0/name",
            json!("s"),
        ),
        (json!({ "http": { "url": "http://h", "secretRef": "s" } }), "/spec/volumes/1/secret/secretName", json!("s")),
        (json!({ "http": { "url": "http://h", "certConfigMap": "c" } }), "/spec/volumes/1/configMap/name", json!("c")),
    ] {
        let mut world = World::new(source.clone());
        world.step();
        world.step();
        let pod = serde_json::to_value(world.pod.as_ref().unwrap()).unwrap();
        assert_eq!(pod.pointer(path), Some(&value), "{source}");
    }
    let mut upload = World::new(json!({ "upload": {} }));
    upload.step();
    assert!(upload.claim.as_ref().unwrap().metadata.annotations.as_ref().unwrap().contains_key(names::UPLOAD_REQUEST));
    assert_eq!(upload.step(), "UploadScheduled");
    upload.pod_phase("Running", None);
    assert_eq!(upload.step(), "UploadScheduled", "it does not answer yet");
    upload.progress = Some(Progress::default());
    assert_eq!(upload.step(), "UploadReady");
    let annotations = upload.claim.as_ref().unwrap().metadata.annotations.clone().unwrap();
    assert_eq!((annotations[names::POD_PHASE].as_str(), annotations[names::POD_READY].as_str()), ("Running", "true"));
}

#[test]
fn a_clone_waits_for_its_origin_and_takes_its_size() {
    let mut world = World::new(json!({ "pvc": { "namespace": "a", "name": "golden" } }));
    world.volume.spec.storage.as_mut().unwrap().resources = Default::default();
    assert_eq!(world.step(), "Pending");
    assert!(world.claim.is_none());
    let origin =
        json!({ "metadata": { "name": "golden" }, "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
    world.origin = Some(serde_json::from_value(origin).unwrap());
    world.step();
    let claim = serde_json::to_value(world.claim.as_ref().unwrap()).unwrap();
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "2147483648");
    assert_eq!(world.step(), "CloneScheduled");
    let pod = serde_json::to_value(world.pod.as_ref().unwrap()).unwrap();
    let mounted = pod["spec"]["volumes"].to_string();
    assert!(mounted.contains("\"golden\"") && mounted.contains("\"disk\""), "{mounted}");
}

#[test]
fn a_storage_that_clones_is_left_to_it() {
    let class = |name: &str, strategy: &str, mode: &str, default: bool| -> StorageClass {
        let annotations = json!({
            "cdi.kubevirt.io/clone-strategy": strategy,
            "storageclass.kubernetes.io/is-default-class": default.to_string(),
        });
        serde_json::from_value(json!({
            "metadata": { "name": name, "annotations": annotations }, "provisioner": "p", "volumeBindingMode": mode,
        }))
        .unwrap()
    };
    let classes = vec![
        class("fast", "csi-clone", "Immediate", true),
        class("slow", "copy", "Immediate", false),
        class("late", "csi-clone", "WaitForFirstConsumer", false),
    ];
    let start = |wanted: Option<&str>, of_origin: &str, namespace: &str, mode: &str| {
        let mut world = World::new(json!({ "pvc": { "namespace": namespace, "name": "golden" } }));
        world.volume.spec.storage.as_mut().unwrap().storage_class_name = wanted.map(str::to_owned);
        let spec = json!({
            "storageClassName": of_origin, "volumeMode": mode, "resources": { "requests": { "storage": "1Gi" } },
        });
        let origin = json!({ "metadata": { "name": "golden", "namespace": namespace }, "spec": spec });
        world.origin = Some(serde_json::from_value(origin).unwrap());
        world.classes.clone_from(&classes);
        world
    };
    for (wanted, of_origin, namespace, mode, by_storage) in [
        (None, "fast", "a", "Filesystem", true),
        (Some("fast"), "fast", "a", "Filesystem", true),
        (Some("fast"), "fast", "a", "Block", false),
        (Some("fast"), "fast", "b", "Filesystem", false),
        (Some("fast"), "slow", "a", "Filesystem", false),
        (Some("slow"), "slow", "a", "Filesystem", false),
        (Some("late"), "late", "a", "Filesystem", false),
        (Some("gone"), "gone", "a", "Filesystem", false),
    ] {
        let mut world = start(wanted, of_origin, namespace, mode);
        world.step();
        let claim = serde_json::to_value(world.claim.as_ref().unwrap()).unwrap();
        let source = &claim["spec"]["dataSource"];
        assert_eq!(source["name"] == "golden", by_storage, "{wanted:?} {of_origin} {namespace} {mode}");
    }
    let mut world = start(None, "fast", "a", "Filesystem");
    world.user = Some("a-vm");
    assert_eq!(world.step(), "CloneScheduled");
    assert!(world.claim.is_none() && world.condition("Ready").2.contains("in use by pod \"a-vm\""));
    world.user = None;
    world.step();
    assert_eq!(world.step(), "CSICloneInProgress");
    assert!(world.pod.is_none());
    world.claim.as_mut().unwrap().status = serde_json::from_value(json!({ "phase": "Bound" })).unwrap();
    assert_eq!(world.step(), "Succeeded");
    assert_eq!(world.condition("Ready").0, "True");
}

#[test]
fn a_claim_of_another_namespace_is_shown_by_a_pod_there() {
    let mut world = World::new(json!({ "pvc": { "namespace": "images", "name": "golden" } }));
    let spec = json!({ "resources": { "requests": { "storage": "1Gi" } } });
    let origin = json!({ "metadata": { "name": "golden", "namespace": "images", "uid": "g" }, "spec": spec });
    world.origin = Some(serde_json::from_value(origin).unwrap());
    world.step();
    assert_eq!(world.step(), "CloneScheduled");
    assert!(world.volume.metadata.finalizers.is_some() && world.server.is_none(), "held before anything is made there");
    world.step();
    let server = serde_json::to_value(world.server.as_ref().unwrap()).unwrap();
    assert_eq!(server["metadata"]["namespace"], "images");
    assert_eq!(server["metadata"]["name"], "clone-source-u1");
    world.step();
    assert!(world.pod.is_none(), "the source is not shown yet");
    world.server.as_mut().unwrap().status =
        serde_json::from_value(json!({ "phase": "Running", "podIP": "192.0.2.7" })).unwrap();
    world.step();
    let job = job_of(world.pod.as_ref().unwrap()).unwrap();
    let crate::job::From::Clone { url } = job.from else { panic!("not a clone") };
    assert_eq!(url, "https://192.0.2.7:8443/disk");
    assert!(!job.cache, "a guest's disk is nobody else's");
    world.pod_phase("Succeeded", None);
    assert_eq!(world.step(), "Succeeded");
    world.step();
    assert!(world.server.is_none());
    world.step();
    assert!(world.volume.metadata.finalizers.is_none(), "nothing is left there");
}

/// Two ends of a clone, up to the moment when the importer was made.
fn cloning() -> World {
    let mut world = World::new(json!({ "pvc": { "namespace": "images", "name": "golden" } }));
    let spec = json!({ "resources": { "requests": { "storage": "1Gi" } } });
    let origin = json!({ "metadata": { "name": "golden", "namespace": "images", "uid": "g" }, "spec": spec });
    world.origin = Some(serde_json::from_value(origin).unwrap());
    (0..3).for_each(|_| drop(world.step()));
    world.server.as_mut().unwrap().status =
        serde_json::from_value(json!({ "phase": "Running", "podIP": "192.0.2.7" })).unwrap();
    world.step();
    assert!(world.pod.is_some());
    world
}

#[test]
fn who_may_look_at_pods_learns_nothing_that_lets_one_fetch_a_clone() {
    let world = cloning();
    for pod in [world.server.as_ref().unwrap(), world.pod.as_ref().unwrap()] {
        let spec = serde_json::to_value(pod.spec.as_ref().unwrap()).unwrap();
        let environment = spec["containers"][0]["env"].to_string();
        assert!(!environment.contains("r4nd0m") && !environment.contains("oken"), "{environment}");
        let volumes = spec["volumes"].as_array().unwrap();
        let secret = volumes.iter().find_map(|volume| volume["secret"]["secretName"].as_str());
        assert_eq!(secret, Some("clone-r4nd0m"));
    }
}

#[test]
fn a_clone_whose_keys_are_forgotten_begins_anew() {
    // The importer waits for a secret that nobody can make any more.
    let mut world = cloning();
    world.knows = (false, false);
    assert_eq!(world.step(), "CloneScheduled");
    assert!(world.pod.is_none());
    world.step();
    assert!(world.server.is_none(), "its keys are not known either");
    world.knows = (true, true);
    world.step();
    assert!(world.server.is_some());
    // One that runs has what it needs.
    let mut world = cloning();
    world.knows = (false, false);
    world.pod_phase("Running", None);
    assert_eq!(world.step(), "CloneInProgress");
    assert!(world.pod.is_some() && world.server.is_some());
}

#[test]
fn a_clone_whose_source_goes_away_begins_anew() {
    let mut world = cloning();
    world.pod_phase("Running", None);
    world.server = None;
    assert_eq!(world.step(), "CloneScheduled");
    assert!(world.pod.is_none() && world.condition("Running").2.contains("begins anew"), "{:?}", world.volume.status);
    let mut world = cloning();
    world.pod_phase("Running", None);
    world.server.as_mut().unwrap().status = serde_json::from_value(json!({ "phase": "Failed" })).unwrap();
    world.step();
    assert!(world.pod.is_none());
}

#[test]
fn what_cannot_be_is_said_at_once() {
    let mut small = World::new(json!({ "pvc": { "namespace": "a", "name": "golden" } }));
    let origin =
        json!({ "metadata": { "name": "golden" }, "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
    small.origin = Some(serde_json::from_value(origin).unwrap());
    let mut unsized_ = World::new(json!({ "blank": {} }));
    unsized_.volume.spec.storage.as_mut().unwrap().resources = Default::default();
    for (mut world, said) in [
        (World::new(json!({})), "names 0 sources"),
        (World::new(json!({ "blank": {}, "upload": {} })), "names 2 sources"),
        (World::new(json!({ "s3": { "url": "x" } })), "s3 is not supported"),
        (unsized_, "size is missing"),
        (small, "to be cloned 2147483648"),
    ] {
        assert_eq!(world.step(), "Failed");
        assert!(world.condition("Ready").2.contains(said), "{}", world.condition("Ready").2);
    }
}

#[test]
fn an_importer_cannot_write_what_others_import_from() {
    let pod = |namespace: &str, source: Value| {
        let mut world = World::new(json!({ "http": source }));
        world.volume.metadata.namespace = Some(namespace.to_owned());
        world.step();
        world.step();
        serde_json::to_value(world.pod.unwrap().spec.unwrap()).unwrap()
    };
    let cache = |spec: &Value| {
        let volumes = spec["volumes"].as_array().unwrap().iter();
        volumes.filter_map(|volume| volume["hostPath"]["path"].as_str().map(str::to_owned)).next()
    };
    let plain = pod("a", json!({ "url": "https://h/i" }));
    let mounts = plain["containers"][0]["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["mountPath"] == "/cache").unwrap();
    assert_eq!(mount["readOnly"], true);
    let own = cache(&plain).unwrap();
    // Nobody else's: not another namespace's, another address's, nor what has another checksum.
    for (namespace, source) in [
        ("b", json!({ "url": "https://h/i" })),
        ("a", json!({ "url": "https://h/j" })),
        ("a", json!({ "url": "https://h/i", "checksum": "sha256:00" })),
    ] {
        assert_ne!(cache(&pod(namespace, source.clone())).unwrap(), own, "{namespace} {source}");
    }
    // What takes a secret to get, or comes from nobody knows whom, is not kept at all.
    for source in [
        json!({ "url": "https://h/i", "secretRef": "s" }),
        json!({ "url": "https://h/i", "certConfigMap": "c" }),
        json!({ "url": "https://h/i", "extraHeaders": ["X-Key: k"] }),
        json!({ "url": "https://h/i", "insecureSkipVerify": true }),
        json!({ "url": "https://user:password@h/i" }),
    ] {
        assert_eq!(cache(&pod("a", source.clone())), None, "{source}");
    }
}

#[test]
fn an_importer_waits_for_another_that_brings_the_same_image() {
    let mut world = World::new(json!({ "http": { "url": "http://h/i" } }));
    world.step();
    world.same_under_way = true;
    assert_eq!(world.step(), "ImportScheduled");
    assert!(world.pod.is_none() && world.condition("Running").2.contains("the same image"));
    world.same_under_way = false;
    world.step();
    assert!(world.pod.is_some());
}

#[test]
fn an_upload_leaves_no_secret_in_what_view_reads() {
    let mut world = World::new(json!({ "upload": {} }));
    world.step();
    world.claim.as_mut().unwrap().metadata.uid = Some("c1".to_owned());
    world.step();
    let pod = serde_json::to_value(world.pod.as_ref().unwrap()).unwrap();
    assert_eq!(pod["spec"]["volumes"][1]["secret"]["secretName"], "upload-r4nd0m");
    assert_eq!(pod["spec"]["containers"][0]["env"].as_array().unwrap().len(), 1);
    let job = job_of(world.pod.as_ref().unwrap()).unwrap();
    let from = |certificate: &str| crate::job::From::Upload {
        key: "public".into(),
        claim: "c1".into(),
        certificate: certificate.into(),
    };
    assert_eq!(job.from, from("pem"));
    // When the signers have another key, the importer must know it.
    world.pod_phase("Running", None);
    world.progress = Some(Progress::default());
    assert_eq!(world.step(), "UploadReady");
    world.upload_key = "another";
    assert_eq!(world.step(), "UploadScheduled");
    assert!(world.pod.is_none());
}

#[test]
fn an_importer_that_takes_uploads_in_clear_or_waits_in_vain_is_replaced() {
    let mut world = World::new(json!({ "upload": {} }));
    world.step();
    world.step();
    world.knows.1 = false;
    world.pod_phase("Running", None);
    world.progress = Some(Progress::default());
    assert_eq!(world.step(), "UploadReady", "one that runs has its key, whoever gave it");
    world.pod_phase("Pending", None);
    assert_eq!(world.step(), "UploadScheduled");
    assert!(world.pod.is_none());
    world.step();
    // As an earlier version made it.
    let container = &mut world.pod.as_mut().unwrap().spec.as_mut().unwrap().containers[0];
    let job = container.env.as_mut().unwrap()[0].value.as_mut().unwrap();
    *job = job.replace(r#","certificate":"pem""#, "");
    world.pod_phase("Running", None);
    world.step();
    assert!(world.pod.is_none());
}

/// The claim of a class that waits is bound by the pod of a VM, and filled then.
#[test]
fn a_volume_of_a_class_that_waits_is_filled_once_somebody_uses_it() {
    let waits: StorageClass = serde_json::from_value(json!({
        "metadata": { "name": "waits" }, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer",
    }))
    .unwrap();
    let world = |source: Value, annotations: Value| {
        let mut world = World::new(source);
        world.volume.spec.storage.as_mut().unwrap().storage_class_name = Some("waits".into());
        world.volume.metadata.annotations = serde_json::from_value(annotations).unwrap();
        world.classes = vec![waits.clone()];
        world.step();
        world
    };
    for source in [json!({ "http": { "url": "http://h/i" } }), json!({ "blank": {} })] {
        let mut unused = world(source, json!({}));
        assert_eq!(unused.step(), "WaitForFirstConsumer");
        assert!(unused.pod.is_none() && unused.condition("Ready").0 == "False");
        unused.claim.as_mut().unwrap().status = serde_json::from_value(json!({ "phase": "Bound" })).unwrap();
        assert_eq!(unused.step(), "ImportScheduled");
        assert!(unused.pod.is_some());
    }
    let mut at_once = world(json!({ "blank": {} }), json!({ names::IMMEDIATE_BINDING: "" }));
    assert_eq!(at_once.step(), "ImportScheduled");
    let mut upload = world(json!({ "upload": {} }), json!({}));
    assert_eq!(upload.step(), "UploadScheduled");
}

/// KubeVirt, and whoever watches, knows these reasons.
#[test]
fn a_source_that_cannot_be_reached_is_an_error_as_long_as_it_is() {
    let mut registry = World::new(json!({ "registry": { "url": "docker://r/x:1" } }));
    registry.step();
    registry.step();
    let wait = |reason: &str| {
        let state = json!({ "waiting": { "reason": reason, "message": "no such host r" } });
        let container = json!({ "name": "importer", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        serde_json::from_value(json!({ "phase": "Pending", "containerStatuses": [container] })).unwrap()
    };
    for reason in ["ErrImagePull", "ImagePullBackOff"] {
        registry.pod.as_mut().unwrap().status = Some(wait(reason));
        assert_eq!(registry.step(), "ImportScheduled");
        let expected = ("False".into(), "ImagePullFailed".into(), "failed to pull image: no such host r".into());
        assert_eq!(registry.condition("Running"), expected);
    }
    registry.pod.as_mut().unwrap().status = Some(wait("ContainerCreating"));
    registry.step();
    assert_eq!(registry.condition("Running").1, "Pending");

    let mut web = World::new(json!({ "http": { "url": "http://h/i" } }));
    web.step();
    web.step();
    web.pod.as_mut().unwrap().status = Some(serde_json::from_value(json!({ "phase": "Running" })).unwrap());
    web.progress = Some(Progress { trouble: "cannot connect to h:80".into(), ..Progress::default() });
    assert_eq!(web.step(), "ImportInProgress");
    let (status, reason, message) = web.condition("Running");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Error"));
    assert!(message.contains("cannot connect to h:80"), "{message}");
    web.progress = Some(Progress::default());
    web.step();
    assert_eq!(web.condition("Running").0, "True");
}
