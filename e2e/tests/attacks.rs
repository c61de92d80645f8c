//! What somebody tries who may edit one namespace and has a root shell in a guest there. Every case is an attack that once
//! worked or a neighbour of one; each ends with a look at what it was after. docs/security.md says which boundary each holds.

use std::{
    fs,
    io::Read,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Case, Console, Host, Options,
    command::Outcome,
    manifest,
    process::Process,
    suite,
    wait::{self, Seen},
};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("an_editors_pod_reaches_nothing_of_the_host", an_editors_pod_reaches_nothing_of_the_host),
    ("an_editor_cannot_pose_as_a_controller", an_editor_cannot_pose_as_a_controller),
    ("machines_are_confined_and_share_no_user", machines_are_confined_and_share_no_user),
    ("a_launchers_pod_is_not_its_owners_to_change", a_launchers_pod_is_not_its_owners_to_change),
    ("another_tenants_volume_is_not_mounted", another_tenants_volume_is_not_mounted),
    ("traffic_of_others_is_not_taken", traffic_of_others_is_not_taken),
    ("probes_reach_nothing_but_their_guest", probes_reach_nothing_but_their_guest),
    ("upload_pods_carry_no_secret", upload_pods_carry_no_secret),
    ("clone_pods_carry_no_secret", clone_pods_carry_no_secret),
    ("a_guest_does_not_reach_the_host", a_guest_does_not_reach_the_host),
    ("the_tenant_leaves_nothing_behind", the_tenant_leaves_nothing_behind),
    ("no_part_of_the_host_lacks_a_right", no_part_of_the_host_lacks_a_right),
];

const TENANT: &str = "mallory";

const EMBEDDED_ONLY: &[(&str, &str)] = &[
    ("an_editors_pod_reaches_nothing_of_the_host", "a cluster runs pods of users; its own Pod Security judges them"),
    (
        "a_launchers_pod_is_not_its_owners_to_change",
        "who made a pod is stamped by the embedded API; clusters guard privileged launchers",
    ),
    ("no_part_of_the_host_lacks_a_right", "a cluster's parts have these very roles, and its suites would fail"),
    ("another_tenants_volume_is_not_mounted", "volumes are bound by the cluster's own controllers"),
    ("traffic_of_others_is_not_taken", "services are the cluster's own"),
    ("a_guest_does_not_reach_the_host", "the cluster's network decides what pods reach on nodes"),
];

fn main() -> ExitCode {
    suite(Options { embedded_only: EMBEDDED_ONLY, ..Options::default() }, CASES)
}

/// `kubectl` of somebody with the role `edit` in the namespace `mallory`, and no other right.
struct Mallory<'a> {
    host: &'a Host,
    config: String,
}

impl<'a> Mallory<'a> {
    fn new(host: &'a Host) -> Result<Self> {
        let config = host.work_dir().join(TENANT);
        if !config.exists() {
            host.kubectl(&["create", "namespace", TENANT])?;
            let user = format!("--user={TENANT}");
            host.kubectl(&["create", "rolebinding", TENANT, "--clusterrole=edit", &user, "-n", TENANT])?;
            fs::write(&config, host.kubeconfig_of(TENANT)?)?;
        }
        Ok(Self { host, config: config.display().to_string() })
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<Outcome> {
        let own = ["--kubeconfig", &self.config, "--namespace", TENANT];
        // Before the rest, so that a case can name another namespace.
        self.host.try_kubectl(&[&own, arguments].concat(), input)
    }

    fn create(&self, object: &Value) -> Result<Outcome> {
        self.kubectl(&["create", "-f", "-"], &object.to_string())
    }

    /// What was said, if creating it was refused with all of these words.
    fn refused(&self, what: &str, object: &Value, words: &[&str]) -> Result<()> {
        let said = self.create(object)?;
        ensure!(!said.succeeded(), "{what} was taken");
        ensure!(words.iter().all(|word| said.stderr.contains(word)), "{what} was refused without {words:?}: {said}");
        Ok(())
    }

    fn get(&self, kind: &str, name: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.kubectl(&["get", kind, name, "-o", "json"], "")?.success()?)?)
    }

    /// A VM of the tenant's that runs, and its instance.
    fn machine(&self, name: &str) -> Result<Value> {
        let mut vm = manifest::vm(name, "Always");
        vm["metadata"]["namespace"] = TENANT.into();
        self.create(&vm)?.success()?;
        self.running(name)
    }

    fn running(&self, name: &str) -> Result<Value> {
        wait::until(&format!("the tenant's vm/{name} to run"), wait::BOOT, || {
            let vm = self.get("vm", name)?;
            Ok(match vm["status"]["printableStatus"] == "Running" {
                true => Seen::Yes(()),
                false => Seen::Not(format!("{:#}", vm["status"])),
            })
        })?;
        self.get("vmi", name)
    }
}

fn pod(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": TENANT }, "spec": spec })
}

/// The names of our images, as anybody can learn them.
fn our_images(host: &Host) -> Result<Vec<String>> {
    host.apply(&manifest::plain_vm("victim", "Always"))?;
    let vmi = host.wait_running("victim")?;
    let image = host.pod_of(&vmi)?["spec"]["containers"][0]["image"].as_str().context("no image")?.to_owned();
    let name = image.split(['@', ':']).next().unwrap_or_default().to_owned();
    Ok(vec![image, format!("{name}:latest"), format!("example.org/evil/{name}:1"), "ferrovirt:latest".into()])
}

/// The pod that ended as root: the launcher's image by name, any command, any id, any path of the host.
fn an_editors_pod_reaches_nothing_of_the_host(host: &Host) -> Result<()> {
    let mallory = Mallory::new(host)?;
    let proof = host.work_dir().join("proof");
    let touch = |user: i64| json!({ "runAsUser": user, "runAsGroup": user });
    for (number, image) in our_images(host)?.iter().enumerate() {
        let container = |context: Value| {
            let command = ["/bin/sh", "-c", "cat /host/etc/shadow > /host/proof; touch /proof"];
            json!({ "name": "c", "image": image, "command": command, "securityContext": context })
        };
        let mounted = |path: &str| {
            let mut container = container(touch(107));
            container["volumeMounts"] = json!([{ "name": "host", "mountPath": "/host" }]);
            json!({ "containers": [container], "volumes": [{ "name": "host", "hostPath": { "path": path } }] })
        };
        for path in ["/", "/etc", "/var/lib/../../etc", "/proc/1/root", &*host.data_dir().to_string_lossy()] {
            mallory.refused(&format!("hostPath {path}"), &pod("evil", mounted(path)), &["forbidden"])?;
        }
        for (what, spec) in [
            ("privileged", json!({ "containers": [container(json!({ "privileged": true }))] })),
            ("SYS_ADMIN", json!({ "containers": [container(json!({ "capabilities": { "add": ["SYS_ADMIN"] } }))] })),
            ("the host's processes", json!({ "hostPID": true, "containers": [container(json!({}))] })),
            ("the host's network", json!({ "hostNetwork": true, "containers": [container(json!({}))] })),
            ("group shadow", json!({ "containers": [container(touch(42))] })),
            ("root", json!({ "containers": [container(touch(0))] })),
            ("a group of files", json!({ "securityContext": { "fsGroup": 42 }, "containers": [container(json!({}))] })),
            (
                "more groups",
                json!({ "securityContext": { "supplementalGroups": [42, 6] }, "containers": [container(json!({}))] }),
            ),
        ] {
            mallory.refused(what, &pod("evil", spec), &["forbidden"])?;
        }
        // With nothing to object to it is stored, and does not run: not with labels, owners or words of ours either.
        let name = format!("plain-{number}");
        let mut plain = pod(&name, json!({ "containers": [container(json!({}))] }));
        plain["metadata"]["labels"] = json!({ "kubevirt.io": "virt-launcher", "app": "containerized-data-importer" });
        plain["metadata"]["annotations"] =
            json!({ "ferrovirt.io/created-by": "system:serviceaccount:kubevirt:kubevirt-controller" });
        let made = mallory.create(&plain)?;
        if made.succeeded() {
            let stored = wait::until(&format!("pod/{name} to be told why it does not run"), wait::SOON, || {
                let pod = mallory.get("pod", &name)?;
                let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
                let told =
                    conditions.any(|condition| condition["message"].as_str().is_some_and(|m| m.contains(TENANT)));
                Ok(if told { Seen::Yes(pod.clone()) } else { Seen::Not(format!("{:#}", pod["status"])) })
            })?;
            let by = &stored["metadata"]["annotations"]["ferrovirt.io/created-by"];
            ensure!(by == TENANT, "the pod says that {by} made it");
            ensure!(stored["status"]["phase"] == "Pending", "the pod is {}", stored["status"]["phase"]);
        }
    }
    ensure!(!proof.exists() && !fs::exists("/proof")?, "a tenant's pod wrote to the host");
    Ok(())
}

/// Rights that would turn `edit` into more.
fn an_editor_cannot_pose_as_a_controller(host: &Host) -> Result<()> {
    let mallory = Mallory::new(host)?;
    let may = |words: &[&str]| -> Result<bool> {
        Ok(mallory.kubectl(&[&["auth", "can-i"], words].concat(), "")?.stdout.trim() == "yes")
    };
    for words in [
        &["create", "pods", "--subresource=privileged"][..],
        &["create", "pods", "--subresource=hostpath"],
        &["create", "pods", "--subresource=ids"],
        &["create", "pods", "--subresource=binding"],
        &["patch", "pods", "--subresource=status"],
        &["create", "persistentvolumes"],
        &["patch", "namespaces"],
        &["create", "network-attachment-definitions.k8s.cni.cncf.io"],
        &["create", "validatingwebhookconfigurations"],
        &["create", "customresourcedefinitions"],
        &["create", "apiservices"],
        &["impersonate", "users"],
        &["create", "clusterrolebindings"],
        &["create", "rolebindings"],
        &["patch", "services", "--subresource=status"],
        &["get", "secrets", "--namespace=kubevirt"],
        &["create", "serviceaccounts", "--subresource=token", "--namespace=kubevirt"],
    ] {
        ensure!(!may(words)?, "edit may {words:?}");
    }
    let said = mallory.kubectl(&["label", "namespace", TENANT, "ferrovirt.io/run-pods=true"], "")?;
    ensure!(said.stderr.contains("orbidden"), "an editor labels the namespace: {said}");
    // Who may bind a Role of one namespace gets no ClusterRole of that name by it.
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "trick" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "cluster-admin" },
        "subjects": [{ "kind": "User", "name": TENANT, "apiGroup": "rbac.authorization.k8s.io" }],
    });
    let said = host.try_kubectl(&["create", "-f", "-"], &binding.to_string())?;
    ensure!(!said.succeeded(), "a ClusterRoleBinding takes a Role: {said}");
    ensure!(!may(&["get", "secrets", "--namespace=kube-system"])?, "and gives what a ClusterRole of that name may");
    Ok(())
}

/// A field of `/proc/PID/status`.
fn status(process: &Process, field: &str) -> Result<String> {
    let text = fs::read_to_string(format!("/proc/{}/status", process.pid))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("no {field} in the status of {}", process.pid))?.trim().to_owned())
}

fn machines_are_confined_and_share_no_user(host: &Host) -> Result<()> {
    let mallory = Mallory::new(host)?;
    host.apply(&manifest::plain_vm("victim", "Always"))?;
    host.wait_running("victim")?;
    mallory.machine("evil")?;
    let mut users = vec![];
    for (namespace, name) in [("default", "victim"), (TENANT, "evil")] {
        let processes = host.processes();
        let qemu = ferrovirt_e2e::process::qemu(&processes, namespace, name).context("no QEMU")?.clone();
        let launcher = host.launcher_of(&qemu)?;
        for process in [&qemu, &launcher] {
            let program = process.program().to_owned();
            ensure!(status(process, "Seccomp")? == "2", "{program} of {name} runs without a filter of system calls");
            ensure!(status(process, "NoNewPrivs")? == "1", "{program} of {name} could get new privileges");
            for set in ["CapEff", "CapPrm", "CapBnd", "CapAmb"] {
                let held = status(process, set)?;
                ensure!(held.trim_matches('0').is_empty(), "{program} of {name} has {set} {held}");
            }
        }
        users.push(status(&qemu, "Uid")?);
        let groups = status(&qemu, "Groups")?;
        ensure!(!groups.split_whitespace().any(|group| group == "0"), "QEMU of {name} is in the group root: {groups}");
    }
    if host.cluster().is_none() {
        ensure!(users[0] != users[1], "two machines run as the same user of the host: {users:?}");
    }
    Ok(())
}

/// The launcher's pod is in the tenant's namespace, where `edit` may patch pods.
fn a_launchers_pod_is_not_its_owners_to_change(host: &Host) -> Result<()> {
    let mallory = Mallory::new(host)?;
    let vmi = mallory.get("vmi", "evil")?;
    let pods: Value = serde_json::from_str(&mallory.kubectl(&["get", "pods", "-o", "json"], "")?.success()?)?;
    let own = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["uid"] == vmi["metadata"]["uid"];
    let pod = pods["items"].as_array().into_iter().flatten().find(own).context("no pod of the tenant's machine")?;
    let name = pod["metadata"]["name"].as_str().context("no name")?;
    let before = &pod["metadata"]["annotations"]["ferrovirt.io/created-by"];
    for patch in [
        json!({ "metadata": { "annotations": { "ferrovirt.io/created-by": "system:ferrovirt:up" } } }),
        json!({ "metadata": { "annotations": { "ferrovirt.io/created-by": null } } }),
    ] {
        let _ = mallory.kubectl(&["patch", "pod", name, "--type=merge", "-p", &patch.to_string()], "")?;
        let after = mallory.get("pod", name)?;
        ensure!(after["metadata"]["annotations"]["ferrovirt.io/created-by"] == *before, "its maker can be rewritten");
    }
    let image = json!([{ "op": "replace", "path": "/spec/containers/0/image", "value": "ferrovirt:latest" }]);
    let said = mallory.kubectl(&["patch", "pod", name, "--type=json", "-p", &image.to_string()], "")?;
    ensure!(!said.succeeded(), "an editor changes what a launcher's pod runs: {said}");
    mallory.running("evil").map(drop)
}

fn claim(name: &str, more: Value) -> Value {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": TENANT },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "16Mi" } } },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        claim["spec"][key] = value.clone();
    }
    claim
}

/// A claim may say which volume it wants; whose that is, the volume says.
fn another_tenants_volume_is_not_mounted(host: &Host) -> Result<()> {
    let mallory = Mallory::new(host)?;
    let mut treasure = claim("treasure", json!({}));
    treasure["metadata"]["namespace"] = "default".into();
    host.apply(&treasure)?;
    let bound = host.wait_for("pvc", "treasure", "to be bound", |claim| claim["status"]["phase"] == "Bound")?;
    let volume = bound["spec"]["volumeName"].as_str().context("bound to nothing")?;
    mallory.create(&claim("thief", json!({ "volumeName": volume, "storageClassName": "local" })))?.success()?;
    // A claim that the tenant calls bound is not.
    let patch = json!({ "status": { "phase": "Bound" } }).to_string();
    let said = mallory.kubectl(&["patch", "pvc", "thief", "--subresource=status", "--type=merge", "-p", &patch], "")?;
    ensure!(!said.succeeded(), "an editor writes a claim's status: {said}");
    let mut vm = manifest::plain_vm("thief", "Always");
    vm["metadata"]["namespace"] = TENANT.into();
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["domain"]["devices"]["disks"] = json!([{ "name": "root", "disk": {} }]);
    spec["volumes"] = json!([{ "name": "root", "persistentVolumeClaim": { "claimName": "thief" } }]);
    mallory.create(&vm)?.success()?;
    // An honest machine that is made after it runs, so the thief had its time.
    mallory.machine("honest")?;
    let processes = host.processes();
    ensure!(ferrovirt_e2e::process::qemu(&processes, TENANT, "thief").is_none(), "the thief's machine runs");
    let thief = mallory.get("pvc", "thief")?;
    ensure!(thief["status"]["phase"] != "Bound", "the thief's claim is bound: {}", thief["status"]);
    for (kind, name) in [("vm", "thief"), ("vm", "honest"), ("pvc", "thief")] {
        mallory.kubectl(&["delete", kind, name], "")?.success()?;
    }
    host.kubectl(&["delete", "pvc", "treasure"]).map(drop)
}

fn traffic_of_others_is_not_taken(host: &Host) -> Result<()> {
    let mallory = Mallory::new(host)?;
    for address in ["127.0.0.1", "127.0.0.53", "169.254.169.254", "8.8.8.8", "10.0.0.1"] {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "taker", "namespace": TENANT },
            "spec": { "ports": [{ "port": 53 }], "externalIPs": [address] },
        });
        mallory.refused(&format!("the address {address}"), &service, &["externalIPs"])?;
    }
    let slice = |address: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "taker", "namespace": TENANT, "labels": { "kubernetes.io/service-name": "taker" } },
            "endpoints": [{ "addresses": [address] }], "ports": [{ "port": 6443 }],
        })
    };
    for address in ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1"] {
        // `edit` has no right on endpoints at all, as upstream since CVE-2021-25740.
        mallory.refused(&format!("an endpoint at {address}"), &slice(address), &["endpointslices", "forbidden"])?;
    }
    let networks = json!([{ "name": "n", "multus": { "networkName": "kubevirt/any" } }]);
    let mut vm = manifest::plain_vm("other-net", "Halted");
    vm["metadata"]["namespace"] = TENANT.into();
    vm["spec"]["template"]["spec"]["networks"] = networks;
    vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"] = json!([{ "name": "n", "bridge": {} }]);
    mallory.refused("a network of another namespace", &vm, &["network"])
}

fn probes_reach_nothing_but_their_guest(host: &Host) -> Result<()> {
    let mallory = Mallory::new(host)?;
    for (what, get) in [
        ("another host", json!({ "port": 80, "host": "127.0.0.1" })),
        ("a second request in the path", json!({ "port": 80, "path": "/ HTTP/1.1\r\nHost: x\r\n\r\nDELETE /" })),
        (
            "a second request in a header",
            json!({ "port": 80, "httpHeaders": [{ "name": "X", "value": "1\r\n\r\nDELETE / HTTP/1.1" }] }),
        ),
        ("a header that is none", json!({ "port": 80, "httpHeaders": [{ "name": "A: b\r\nC", "value": "1" }] })),
    ] {
        for probe in ["readinessProbe", "livenessProbe"] {
            let mut vm = manifest::plain_vm("prober", "Halted");
            vm["metadata"]["namespace"] = TENANT.into();
            vm["spec"]["template"]["spec"][probe] = json!({ "httpGet": get });
            mallory.refused(&format!("{probe}: {what}"), &vm, &[probe])?;
        }
    }
    Ok(())
}

/// Whoever may look at pods sees their whole specification.
fn upload_pods_carry_no_secret(host: &Host) -> Result<()> {
    let mallory = Mallory::new(host)?;
    let volume = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "name": "uploaded", "namespace": TENANT },
        "spec": { "source": { "upload": {} }, "storage": { "resources": { "requests": { "storage": "16Mi" } } } },
    });
    mallory.create(&volume)?.success()?;
    let pods = wait::until("the upload's pod", wait::BOOT, || {
        let pods: Value = serde_json::from_str(&mallory.kubectl(&["get", "pods", "-o", "json"], "")?.success()?)?;
        let found = pods["items"].as_array().into_iter().flatten().any(|pod| pod.to_string().contains("uploaded"));
        Ok(if found { Seen::Yes(pods) } else { Seen::Not("none yet".into()) })
    })?;
    for pod in pods["items"].as_array().into_iter().flatten() {
        // Its certificate stands there, which is for everybody to see.
        ensure!(!pod.to_string().contains("PRIVATE KEY"), "a pod shows a key: {pod}");
        for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
            for variable in container["env"].as_array().into_iter().flatten() {
                let (name, value) = (variable["name"].as_str(), variable["value"].as_str());
                let (name, value) = (name.unwrap_or_default().to_lowercase(), value.unwrap_or_default());
                let secret = ["token", "secret", "password", "key"].iter().any(|word| name.contains(word));
                // A public key is no secret.
                ensure!(!secret || name.contains("public") || value.is_empty(), "a pod shows {name}={value}");
            }
        }
    }
    mallory.kubectl(&["delete", "dv", "uploaded"], "")?.success().map(drop)
}

/// A disk goes from one namespace to another. Both pods are seen from their making to their end.
fn clone_pods_carry_no_secret(host: &Host) -> Result<()> {
    Mallory::new(host)?;
    let disk = |name: &str, namespace: &str, source: Value| {
        json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "source": source, "storage": { "resources": { "requests": { "storage": "16Mi" } } } },
        })
    };
    let succeeded = |name: &str, namespace: &str| {
        wait::until(&format!("{namespace}/{name} to be filled"), wait::BOOT, || {
            let phase = host.kubectl(&["get", "dv", name, "-n", namespace, "-o", "jsonpath={.status.phase}"])?;
            ensure!(phase != "Failed", "{namespace}/{name} failed");
            Ok(if phase == "Succeeded" { Seen::Yes(()) } else { Seen::Not(phase) })
        })
    };
    host.apply(&disk("golden", "default", json!({ "blank": {} })))?;
    succeeded("golden", "default")?;
    let seen = host.work_dir().join("seen-pods");
    let mut watch = host.command("kubectl");
    watch.args(["get", "pods", "--all-namespaces", "--watch", "-o", "jsonpath={.metadata.name} {.spec}{\"\\n\"}"]);
    let mut watch = watch.stdout(fs::File::create(&seen)?).spawn()?;
    host.apply(&disk("copy", TENANT, json!({ "pvc": { "namespace": "default", "name": "golden" } })))?;
    let done = succeeded("copy", TENANT);
    watch.kill()?;
    watch.wait()?;
    done?;
    let seen = fs::read_to_string(&seen)?;
    let pods: Vec<&str> = seen.lines().filter(|line| line.contains("FERROVIRT_IMPORT")).collect();
    for what in ["clone-source-", "https://"] {
        ensure!(pods.iter().any(|pod| pod.contains(what)), "no pod with {what} was seen: {seen}");
    }
    for pod in pods {
        ensure!(!pod.contains("Bearer") && !pod.contains("\\\"token"), "a pod shows what opens a disk: {pod}");
        ensure!(!pod.contains("http://"), "a disk goes in clear: {pod}");
    }
    // What let the importer in goes with the pods.
    wait::until("the secrets of the clone to go", wait::BOOT, || {
        let secrets = host.kubectl(&["get", "secrets", "--all-namespaces", "-o", "name"])?;
        Ok(if secrets.contains("/clone-") { Seen::Not(secrets) } else { Seen::Yes(()) })
    })?;
    host.kubectl(&["delete", "dv", "copy", "-n", TENANT])?;
    host.kubectl(&["delete", "dv", "golden", "-n", "default"]).map(drop)
}

/// A root shell in a guest, and a service of the host that listens on all addresses.
fn a_guest_does_not_reach_the_host(host: &Host) -> Result<()> {
    let mallory = Mallory::new(host)?;
    mallory.running("evil")?;
    let (port, heard) = listen_everywhere()?;
    let nodes: Value = serde_json::from_str(&host.kubectl(&["get", "nodes", "-o", "json"])?)?;
    let node = nodes["items"][0]["status"]["addresses"][0]["address"].as_str().context("the node has no address")?;
    let mut command = host.command("ferrovirt");
    command.env_remove("FERROVIRT_DATA_DIR").args(["console", "evil", "-n", TENANT, "--kubeconfig", &mallory.config]);
    let mut console = Console::start(&mut command)?;
    console.login("evil")?;
    let route = console.shell("ip route")?;
    // The guest's own gateway is in its pod; what stands behind it is the host's.
    let pod_gateway = host_bridge_address(host)?;
    for target in [node, &pod_gateway, "127.0.0.1", "10.0.2.1"] {
        let said = console.shell(&format!("timeout 5 wget -T 3 -qO- http://{target}:{port} 2>&1; echo rc=$?"))?;
        ensure!(!said.contains("rc=0"), "a guest reads from {target}:{port} of the host: {said} ({route})");
    }
    ensure!(heard.load(Ordering::SeqCst) == 0, "the host's service heard from a guest");
    // But for names and what is outside, its network works.
    let said = console.shell("timeout 20 nslookup kubernetes.default.svc.cluster.local 2>&1")?;
    ensure!(said.contains("10."), "names are not answered: {said}");
    console.line("exit")?;
    console.leave()
}

/// A server on all addresses, and how many have connected to it.
fn listen_everywhere() -> Result<(u16, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("0.0.0.0:0")?;
    let port = listener.local_addr()?.port();
    let heard = Arc::new(AtomicUsize::new(0));
    let count = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = std::io::Write::write_all(&mut &stream, b"HTTP/1.0 200 OK\r\n\r\nthe host's secret\n");
            let _ = (&stream).read(&mut [0; 512]);
        }
    });
    Ok((port, heard))
}

fn host_bridge_address(host: &Host) -> Result<String> {
    let text = ferrovirt_e2e::command::output("ip", &["-j", "-4", "addr"])?;
    let links: Value = serde_json::from_str(&text)?;
    let ours = |link: &&Value| link["ifname"].as_str().is_some_and(|name| name.contains(host.instance()));
    let link = links.as_array().into_iter().flatten().find(ours).context("the host has no bridge")?;
    Ok(link["addr_info"][0]["local"].as_str().context("the bridge has no address")?.to_owned())
}

fn the_tenant_leaves_nothing_behind(host: &Host) -> Result<()> {
    if host.cluster().is_none() {
        for name in ["store", "pki", "pods", "kubeconfig"] {
            let mode = fs::metadata(host.data_dir().join(name))?.permissions().mode();
            ensure!(mode & 0o077 == 0, "{name} can be read by others: {mode:o}");
        }
    }
    host.kubectl(&["delete", "namespace", TENANT])?;
    host.kubectl(&["delete", "vm", "victim"])?;
    host.wait_gone("vmi", "victim")
}

/// The parts of a host have the chart's roles. What a role lacks shows as a refusal in the audit log, and not before a cluster.
fn no_part_of_the_host_lacks_a_right(_: &Host) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("fv-audit-").tempdir_in("/tmp")?;
    let log = directory.path().join("audit.log");
    let arguments = vec!["--audit-log".into(), log.display().to_string()];
    let host = Host::start_with(Options { arguments, ..Options::default() })?;
    host.apply(&json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "d", "namespace": "default" },
        "spec": { "source": { "blank": {} }, "storage": { "resources": { "requests": { "storage": "16Mi" } } } },
    }))?;
    let mut vm = manifest::vm("all", "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    let disk = json!({ "name": "data", "disk": { "bus": "virtio" } });
    spec["domain"]["devices"]["disks"].as_array_mut().context("no disks")?.push(disk);
    let volume = json!({ "name": "data", "dataVolume": { "name": "d" } });
    spec["volumes"].as_array_mut().context("no volumes")?.push(volume);
    host.apply(&vm)?;
    host.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "all", "namespace": "default" },
        "spec": { "selector": { "kubevirt.io/vm": "all" }, "ports": [{ "port": 80 }] },
    }))?;
    host.wait_running("all")?;
    host.ferrovirt(&["restart", "all"])?;
    host.ferrovirt(&["delete", "vm", "all"])?;
    host.kubectl(&["delete", "dv", "d"])?;
    host.down()?;
    let mode = fs::metadata(&log)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "the audit log has the mode {mode:o}");
    let text = fs::read_to_string(&log)?;
    let mut parts = 0;
    for line in text.lines() {
        let event: Value = serde_json::from_str(line)?;
        let user = event["user"]["username"].as_str().unwrap_or_default();
        if !["system:serviceaccount:kubevirt:", "system:node:", "system:ferrovirt:"].iter().any(|p| user.starts_with(p))
        {
            continue;
        }
        parts += 1;
        ensure!(event["responseStatus"]["code"] != 403, "{user} lacks a right: {line}");
        ensure!(!event["user"]["groups"].to_string().contains("system:masters"), "{user} is a master of everything");
    }
    ensure!(parts > 100, "the host's own parts asked {parts} times only: are they in the log?");
    Ok(())
}
