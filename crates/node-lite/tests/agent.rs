//! The whole node against a small API server in memory: scheduling, start, status, deletion, restart.

#![allow(clippy::unwrap_used, clippy::panic)]

mod fake_api;
mod node_config;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_api::FakeApi;
use ferrovirt_api::names;
use ferrovirt_node_lite::images::{ImageError, Images};
use ferrovirt_node_lite::{Config, LogOptions, read_log, run, teardown};
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// Of the one program that these nodes have.
const DIGEST: &str = "5f0c0d8e4a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5";

fn image() -> String {
    format!("ferrovirt-launcher@sha256:{DIGEST}")
}

struct OneImage(PathBuf);

impl Images for OneImage {
    fn resolve(&self, reference: &str) -> Result<PathBuf, ImageError> {
        match reference {
            "demo:1" => Ok(self.0.clone()),
            other => Err(ImageError::NotFound(other.to_owned())),
        }
    }
}

struct Node {
    api: FakeApi,
    config: Config,
    stop: Option<oneshot::Sender<()>>,
    task: Option<tokio::task::JoinHandle<()>>,
    root: tempfile::TempDir,
}

impl Node {
    fn new(number: u8) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test makes namespaces and cgroups: run it as root");
        let root = tempfile::tempdir().unwrap();
        let image = root.path().join("image");
        std::fs::create_dir_all(image.join("disk")).unwrap();
        std::fs::write(image.join("disk/disk.img"), "bootable").unwrap();
        std::fs::create_dir(root.path().join("bin")).unwrap();
        std::fs::copy("/bin/sh", root.path().join("bin").join(format!("ferrovirt-launcher-{DIGEST}"))).unwrap();
        let mut config = Config {
            node_ip: "192.0.2.7".parse().unwrap(),
            images: Arc::new(OneImage(image)),
            ..node_config::of(root.path(), number, (128, 64), "10.201.0.0/20")
        };
        config.cni_plugin_dirs.push(root.path().join("cni"));
        let mut node = Self { api: FakeApi::default(), config, stop: None, task: None, root };
        node.up();
        node
    }

    fn up(&mut self) {
        let (stop, stopped) = oneshot::channel::<()>();
        let (client, config) = (self.api.client(), self.config.clone());
        self.stop = Some(stop);
        self.task = Some(tokio::spawn(async move {
            run(client, config, async { drop(stopped.await) }).await.unwrap();
        }));
    }

    async fn down(&mut self) {
        drop(self.stop.take());
        self.task.take().unwrap().await.unwrap();
    }

    fn pod(&self, name: &str) -> Option<Value> {
        self.api.get(&format!("/api/v1/namespaces/default/pods/{name}"))
    }

    async fn until(&self, what: &str, name: &str, condition: impl Fn(Option<&Value>) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let pod = self.pod(name);
            if condition(pod.as_ref()) {
                return pod.unwrap_or_default();
            }
            assert!(Instant::now() < deadline, "{what}: {:#}", pod.unwrap_or_default());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn phase(&self, name: &str, phase: &str) -> Value {
        self.until(phase, name, |pod| pod.is_some_and(|pod| pod["status"]["phase"] == phase)).await
    }

    fn log(&self, pod: &Value) -> String {
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let bytes = read_log(&self.config.data_dir, uid, "compute", &LogOptions::default()).unwrap_or_default();
        String::from_utf8(bytes).unwrap()
    }

    fn events(&self) -> Vec<String> {
        let events = self.api.list("/api/v1/namespaces/default/events/");
        events.iter().map(|event| format!("{}: {}", event["reason"], event["message"])).collect()
    }

    async fn finish(mut self) {
        self.down().await;
        teardown(&self.config).await.unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let base = self.root.path().to_str().unwrap();
        let left: Vec<&str> = mounts.lines().filter(|line| line.contains(base)).collect();
        assert_eq!(left, Vec::<&str>::new());
        assert!(!Path::new("/sys/class/net").join(format!("fv{}", self.config.instance)).exists());
    }
}

fn pod(name: &str, script: &str, more: Value) -> Value {
    let mut spec = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 20,
        "securityContext": {"runAsUser": 107, "fsGroup": 107},
        "volumes": [
            {"name": "sockets", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "config", "configMap": {"name": "settings", "items": [{"key": "a", "path": "sub/a"}]}},
            {"name": "user", "secret": {"secretName": "user"}},
            {"name": "info", "downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['note']"}}]}},
            {"name": "disk", "image": {"reference": "demo:1"}},
        ],
        "containers": [{
            "name": "compute", "image": image(),
            "command": ["/bin/sh", "-c", script],
            "env": [
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "user", "key": "userdata"}}},
                {"name": "BOTH", "value": "$(IP)/$(KEY)"},
            ],
            "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}},
            "volumeMounts": [
                {"name": "sockets", "mountPath": "/var/run/kubevirt/sockets"},
                {"name": "shm", "mountPath": "/memory"},
                {"name": "config", "mountPath": "/config"},
                {"name": "user", "mountPath": "/var/run/kubevirt-private/secret/user"},
                {"name": "info", "mountPath": "/etc/podinfo"},
                {"name": "disk", "mountPath": "/var/run/kubevirt/container-disks/root"},
            ],
        }],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
           "metadata": {"name": name, "namespace": "default", "labels": {"app": "x"},
                        "annotations": {"note": "first", names::CREATED_BY: names::CONTROLLER_USER}}})
}

fn settings(node: &Node) {
    node.api.put("/api/v1/namespaces/default/configmaps/settings", json!({"data": {"a": "1", "b": "2"}}));
    node.api.put("/api/v1/namespaces/default/secrets/user", json!({"data": {"userdata": "I2Nsb3Vk"}}));
}

#[tokio::test]
async fn a_pod_is_scheduled_runs_with_its_volumes_and_succeeds() {
    let node = Node::new(1);
    settings(&node);
    let script = "echo $BOTH; cat /config/sub/a /var/run/kubevirt-private/secret/user/userdata /etc/podinfo/labels; echo; \
                  cat /var/run/kubevirt/container-disks/root/disk/disk.img; echo; ls /config; touch /memory/x && echo mem; \
                  touch /var/run/kubevirt/sockets/x && echo sock; exit 0";
    node.api.create("/api/v1/namespaces/default/pods", pod("one", script, json!({})));
    let done = node.phase("one", "Succeeded").await;
    let log = node.log(&done);
    let ip = done["status"]["podIP"].as_str().unwrap();
    assert_eq!(log, format!("{ip}/#cloud\n1#cloudapp=\"x\"\nbootable\nsub\nmem\nsock\n"));
    assert_eq!(done["spec"]["nodeName"], "n1");
    assert_eq!(done["status"]["hostIP"], "192.0.2.7");
    assert_eq!(done["status"]["qosClass"], "Burstable");
    let state = &done["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&state["exitCode"], &state["reason"]), (&json!(0), &json!("Completed")));
    let events = node.events().join("\n");
    assert!(events.contains("Scheduled") && events.contains("Started container compute"), "{events}");
    let registered = node.api.get("/api/v1/nodes/n1").unwrap();
    assert_eq!(registered["metadata"]["labels"]["kubernetes.io/os"], "linux");
    assert!(node.api.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1").is_some());

    node.api.delete("/api/v1/namespaces/default/pods/one");
    node.until("the object is deleted", "one", |pod| pod.is_none()).await;
    node.finish().await;
}

#[tokio::test]
async fn what_cannot_run_says_why() {
    let node = Node::new(2);
    settings(&node);
    let reason = |pod: Option<&Value>, wanted: &str| {
        pod.is_some_and(|pod| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == wanted)
    };
    let foreign = json!({"containers": [{"name": "web", "image": "nginx:1"}], "volumes": []});
    node.api.create("/api/v1/namespaces/default/pods", pod("foreign", "", foreign));
    let seen = node.until("refused", "foreign", |pod| reason(pod, "UnsupportedImage")).await;
    assert_eq!(seen["status"]["phase"], "Pending");

    let no_image = json!({"volumes": [{"name": "disk", "image": {"reference": "missing:1"}}],
        "containers": [{"name": "compute", "image": image(), "command": ["/bin/true"]}]});
    node.api.create("/api/v1/namespaces/default/pods", pod("imageless", "", no_image));
    let seen = node.until("back off", "imageless", |pod| reason(pod, "ImagePullBackOff")).await;
    assert!(seen.to_string().contains("missing:1"), "{seen:#}");
    // And again, as long as it does not work.
    node.until("another try", "imageless", |pod| reason(pod, "ErrImagePull")).await;
    node.until("back off again", "imageless", |pod| reason(pod, "ImagePullBackOff")).await;

    let big = json!({"containers": [{"name": "compute", "image": image(),
        "resources": {"requests": {"memory": "100Ti"}}}], "volumes": []});
    node.api.create("/api/v1/namespaces/default/pods", pod("big", "", big));
    let condition =
        |pod: &Value| pod["status"]["conditions"][0]["message"] == "0/1 nodes are available: 1 Insufficient memory.";
    node.until("unschedulable", "big", |pod| pod.is_some_and(condition)).await;

    for name in ["foreign", "imageless"] {
        node.api.delete(&format!("/api/v1/namespaces/default/pods/{name}"));
        node.until("the object is deleted", name, |pod| pod.is_none()).await;
    }
    assert!(node.events().iter().any(|event| event.contains("FailedScheduling")), "{:?}", node.events());
    node.finish().await;
}

/// A pod that a user made to look like a launcher.
fn users_pod(name: &str, script: &str, more: Value) -> Value {
    let mut pod = pod(name, script, more);
    pod["metadata"]["annotations"][names::CREATED_BY] = "alice".into();
    pod["metadata"]["labels"]["kubevirt.io"] = "virt-launcher".into();
    pod
}

#[tokio::test]
async fn pods_of_users_do_not_run_until_an_administrator_allows_them() {
    let node = Node::new(4);
    settings(&node);
    let alone = |more: Value| {
        let mut spec = json!({"volumes": []});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let container = |image: &str, script: &str| json!({"containers": [{"name": "compute", "image": image, "command": ["/bin/sh", "-c", script]}]});
    node.api.create("/api/v1/namespaces/default/pods", users_pod("waits", "", alone(container(&image(), "echo ran"))));
    // Past the scheduler.
    let bound = alone(json!({"nodeName": "n1", "containers": container(&image(), "echo ran")["containers"]}));
    node.api.create("/api/v1/namespaces/default/pods", users_pod("bound", "", bound));
    let says = |pod: &Value| pod.to_string().contains("kubectl label namespace default ferrovirt.io/run-pods=true");
    let waits = node.until("told why", "waits", |pod| pod.is_some_and(says)).await;
    let bound = node.until("told why", "bound", |pod| pod.is_some_and(says)).await;
    assert_eq!((&waits["status"]["phase"], &waits["spec"]["nodeName"]), (&json!("Pending"), &Value::Null));
    assert_eq!(bound["status"]["containerStatuses"][0]["state"]["waiting"]["reason"], "NotAllowed");
    assert!(!node.config.data_dir.join("pods").join(bound["metadata"]["uid"].as_str().unwrap()).exists());
    assert!(node.events().iter().any(|event| event.contains("FailedScheduling")), "{:?}", node.events());

    node.api.put("/api/v1/namespaces/default", json!({"metadata": {"labels": {names::RUN_PODS_LABEL: "true"}}}));
    for name in ["waits", "bound"] {
        let done = node.phase(name, "Succeeded").await;
        assert_eq!(node.log(&done), "ran\n");
    }
    // And then it gets nothing of the host, and no program but ours.
    let host = json!({"volumes": [{"name": "h", "hostPath": {"path": "/etc"}}]});
    let root = json!({"containers": [{"name": "compute", "image": image(),
        "securityContext": {"privileged": true, "runAsUser": 0, "runAsGroup": 0}}]});
    let shadow = json!({"securityContext": {"runAsUser": 107, "supplementalGroups": [42]}});
    let unknown = format!("ferrovirt-launcher@sha256:{}", "0".repeat(64));
    for (name, more, expected) in [
        ("host", host, "hostPath"),
        ("root", alone(root), "privileged"),
        ("shadow", alone(shadow), "supplementalGroups is 42"),
        ("named", alone(container("ferrovirt-launcher:latest", "")), "known by its digest"),
        ("unknown", alone(container(&unknown, "")), "none of this host"),
    ] {
        node.api.create("/api/v1/namespaces/default/pods", users_pod(name, "", more));
        let refused =
            |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].to_string().contains(expected);
        let seen = node.until("refused", name, |pod| pod.is_some_and(refused)).await;
        assert_eq!(seen["status"]["phase"], "Pending");
        assert!(!node.config.data_dir.join("pods").join(seen["metadata"]["uid"].as_str().unwrap()).exists());
    }
    node.finish().await;
}

/// A plugin that attaches and does not release.
fn sticky_plugin(node: &Node) {
    use std::os::unix::fs::PermissionsExt;
    let dir = node.root.path().join("cni");
    std::fs::create_dir_all(&dir).unwrap();
    let script = "#!/bin/sh\ncat > /dev/null\n[ $CNI_COMMAND = ADD ] && echo '{\"cniVersion\":\"1.0.0\"}' && exit 0\n\
                  echo '{\"code\":11,\"msg\":\"the switch does not answer\"}'; exit 1\n";
    std::fs::write(dir.join("sticky"), script).unwrap();
    std::fs::set_permissions(dir.join("sticky"), std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn a_plugin_that_is_missing_or_fails_does_not_keep_a_pod_alive() {
    let mut node = Node::new(5);
    settings(&node);
    sticky_plugin(&node);
    for (name, plugin) in [("nowhere", "no-such-plugin"), ("stuck", "sticky")] {
        let config = json!({"cniVersion": "1.0.0", "name": name, "type": plugin}).to_string();
        let path = format!("/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions/{name}");
        node.api.put(
            &path,
            json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": name, "namespace": "default"}, "spec": {"config": config}}),
        );
        let mut pod = pod(name, WAITS, json!({}));
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] = name.into();
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "name": format!("vm-{name}"), "uid": format!("uid-{name}"), "controller": true}]);
        node.api.create("/api/v1/namespaces/default/pods", pod);
    }
    let waits = |pod: &Value| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"].to_string().contains("no CNI plugin")
    };
    let nowhere = node.until("told why", "nowhere", |pod| pod.is_some_and(waits)).await;
    let stuck = node.phase("stuck", "Running").await;
    let addresses = || {
        std::fs::read_dir(node.config.data_dir.join(format!("cni/ipam/fv{}", node.config.instance)))
            .map_or(0, |entries| {
                entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("10.")).count()
            })
    };
    assert!(addresses() >= 1);
    for (name, pod) in [("nowhere", &nowhere), ("stuck", &stuck)] {
        node.api.delete(&format!("/api/v1/namespaces/default/pods/{name}"));
        node.until("the object is deleted", name, |pod| pod.is_none()).await;
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        assert!(!node.config.data_dir.join("pods").join(uid).exists());
        assert!(!node.config.run_dir.join("netns").join(uid).exists());
        let note = node.config.data_dir.join(format!("cni/leftovers/{uid}.json"));
        assert!(std::fs::read_to_string(&note).is_ok_and(|text| text.contains(name)), "{name} is not remembered");
    }
    assert_eq!(addresses(), 0, "an address is lost");
    let about = |name: &str, kind: &str| {
        let events = node.api.list("/api/v1/namespaces/default/events/");
        events.iter().any(|event| {
            event["reason"] == "NetworkNotReleased"
                && event["type"] == "Warning"
                && event["involvedObject"]["kind"] == kind
                && event["involvedObject"]["name"] == name
        })
    };
    let told = |_: Option<&Value>| {
        ["nowhere", "stuck"]
            .iter()
            .all(|name| about(name, "Pod") && about(&format!("vm-{name}"), "VirtualMachineInstance"))
    };
    node.until("told on the pod and on the machine", "nowhere", told).await;
    // A restarted node still knows.
    node.down().await;
    node.up();
    assert_eq!(std::fs::read_dir(node.config.data_dir.join("cni/leftovers")).unwrap().count(), 2);
    node.finish().await;
}

const WAITS: &str = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done";

#[tokio::test]
async fn pods_survive_a_restart_of_the_node_and_end_when_asked() {
    let mut node = Node::new(3);
    settings(&node);
    for name in ["stays", "ends", "forced"] {
        let script = if name == "ends" {
            "until [ -e /var/run/kubevirt/sockets/stop ]; do sleep 0.05; done; exit 3"
        } else {
            WAITS
        };
        node.api.create("/api/v1/namespaces/default/pods", pod(name, script, json!({})));
    }
    let mut pods = BTreeMap::new();
    for name in ["stays", "ends", "forced"] {
        pods.insert(name, node.phase(name, "Running").await);
    }
    let state = |node: &Node, name: &str| {
        let uid = pods[name]["metadata"]["uid"].as_str().unwrap();
        std::fs::read_to_string(node.config.data_dir.join("pods").join(uid).join("state.json")).ok()
    };
    let before = state(&node, "stays").unwrap();
    node.api.patch_annotation("/api/v1/namespaces/default/pods/stays", "note", "second");
    let uid = pods["stays"]["metadata"]["uid"].as_str().unwrap().to_owned();
    let note = node.config.data_dir.join("pods").join(&uid).join("volumes/kubernetes.io~downward-api/info/note");
    node.until("the annotation arrives", "stays", |_| {
        std::fs::read_to_string(&note).is_ok_and(|text| text == "second")
    })
    .await;
    node.until("the trap is set", "forced", |_| node.log(&pods["forced"]).contains("up")).await;

    node.down().await;
    let ends = pods["ends"]["metadata"]["uid"].as_str().unwrap();
    let stop = node.config.data_dir.join("pods").join(ends).join("volumes/kubernetes.io~empty-dir/sockets/stop");
    std::fs::write(stop, "").unwrap();
    let exit = node.config.data_dir.join("pods").join(ends).join("exit.json");
    node.until("its end is recorded", "ends", |_| exit.exists()).await;
    node.api.remove("/api/v1/namespaces/default/pods/forced");
    assert!(state(&node, "forced").is_some());
    node.up();

    let ended = node.phase("ends", "Failed").await;
    assert_eq!(ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    node.until("the orphan is ended and removed", "forced", |_| state(&node, "forced").is_none()).await;
    assert_eq!(node.pod("stays").unwrap()["status"]["phase"], "Running");
    assert_eq!(state(&node, "stays").unwrap(), before);

    node.api.delete("/api/v1/namespaces/default/pods/stays");
    node.until("the object is deleted", "stays", |pod| pod.is_none()).await;
    assert!(node.events().iter().any(|event| event.contains("Killing")), "{:?}", node.events());
    assert!(!node.config.data_dir.join("pods").join(uid).exists());
    node.finish().await;
}
