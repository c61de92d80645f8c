//! What only a real cluster can show: its parts die one by one, leaders change, Services reach guests, quotas and roles hold.

use std::{collections::BTreeMap, fs, process::ExitCode, time::Instant};

use anyhow::{Context, Result, anyhow, ensure};
use ferrovirt_e2e::{
    Case, Host, Options, cluster, command, manifest,
    process::Process,
    suite,
    wait::{self, Seen},
};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("helm_and_install_apply_the_same", helm_and_install_apply_the_same),
    ("guests_do_not_notice_what_dies_around_them", guests_do_not_notice_what_dies_around_them),
    ("another_virt_controller_takes_over", another_virt_controller_takes_over),
    ("new_certificates_are_taken_over", new_certificates_are_taken_over),
    ("an_agent_is_held_to_its_node", an_agent_is_held_to_its_node),
    ("launchers_meet_the_restricted_standard", launchers_meet_the_restricted_standard),
    ("components_tell_prometheus", components_tell_prometheus),
    ("pods_and_guests_reach_each_other", pods_and_guests_reach_each_other),
    ("images_are_copied_where_they_cannot_be_volumes", images_are_copied_where_they_cannot_be_volumes),
    ("a_change_of_all_components_restarts_no_vm", a_change_of_all_components_restarts_no_vm),
    ("nothing_is_written_when_nothing_happens", nothing_is_written_when_nothing_happens),
    ("quotas_hold_pods_and_vms_alike", quotas_hold_pods_and_vms_alike),
    ("whoever_edits_pods_edits_vms", whoever_edits_pods_edits_vms),
];

/// Asks for what only clusters with Prometheus' operator can take.
const MONITORED: &str = "monitoring.serviceMonitor=true";
/// The namespace of the installation.
const NAMESPACE: &str = "kubevirt";
/// The test cluster's own image: a web server, among other things.
const TEST_IMAGE: &str = "ferrovirt.test/testpod:1";

fn main() -> ExitCode {
    suite(Options { cluster_only: true, ..Options::default() }, CASES)
}

/// But for the definitions and the namespace, which Helm makes in its own way, and the notes of who installed what.
fn helm_and_install_apply_the_same(host: &Host) -> Result<()> {
    let chart = "../charts/ferrovirt";
    let version: Value = serde_json::from_str(&host.kubectl(&["get", "--raw", "/version"])?)?;
    let version = version["gitVersion"].as_str().context("the API server has no version")?.to_owned();
    let monitored = host.work_dir().join("monitored.yaml");
    fs::write(&monitored, "monitoring: { serviceMonitor: true }")?;
    let monitored = monitored.to_string_lossy();
    for (values, options) in [
        (vec![], vec![]),
        (
            vec!["replicas=3", "images.launcher=mine:1", "kubeletRoot=/kubelet", "images.pullPolicy=Always", MONITORED],
            vec![
                "--replicas=3",
                "--launcher-image=mine:1",
                "--kubelet-root=/kubelet",
                "--image-pull-policy=Always",
                "--values",
                &monitored,
            ],
        ),
    ] {
        let mut helm = host.command("helm");
        helm.args(["template", "ferrovirt", chart, "--namespace=kubevirt", "--no-hooks", "--kube-version", &version]);
        for value in values {
            helm.args(["--set", value]);
        }
        let of_helm = objects(&command::run(&mut helm, "")?.success()?)?;
        let arguments: Vec<&str> = ["install", "--print"].into_iter().chain(options).collect();
        let of_install = objects(&host.ferrovirt(&arguments)?)?;
        ensure!(!of_helm.is_empty(), "Helm makes nothing of the chart");
        let keys = |all: &BTreeMap<String, Value>| all.keys().cloned().collect::<Vec<_>>();
        ensure!(keys(&of_helm) == keys(&of_install), "Helm: {:?}\nwe: {:?}", keys(&of_helm), keys(&of_install));
        for (name, object) in &of_helm {
            ensure!(of_install.get(name) == Some(object), "{name}: Helm {object:#}\nwe {:#}", of_install[name]);
        }
    }
    Ok(())
}

/// A stream of manifests by kind and name. Some are JSON.
fn objects(manifests: &str) -> Result<BTreeMap<String, Value>> {
    let mut found = BTreeMap::new();
    for document in manifests.split("---\n") {
        let lines: Vec<&str> = document.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        let text = lines.join("\n");
        let mut object: Value = match text.trim_start().chars().next() {
            None => continue,
            Some('{') => serde_json::from_str(&text)?,
            Some(_) => serde_saphyr::from_str(&text).map_err(|error| anyhow!("{error}:\n{text}"))?,
        };
        let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            let labels = metadata.get_mut("labels").and_then(Value::as_object_mut);
            let none_left = labels.is_none_or(|labels| {
                labels.remove("app.kubernetes.io/managed-by");
                labels.is_empty()
            });
            if none_left {
                metadata.remove("labels");
            }
        }
        let helms_own = ["\"CustomResourceDefinition\"", "\"Namespace\"", "\"ConfigMap\""];
        if !helms_own.iter().any(|kind| name.starts_with(kind)) {
            found.insert(name, object);
        }
    }
    Ok(found)
}

/// A VM that runs while other things happen; several cases share it.
fn calm(host: &Host) -> Result<Value> {
    let mut vm = manifest::vm("calm", "Always");
    // An image that is pulled always is pulled by the kubelet once a minute as long as its pod runs, with an event each time.
    vm["spec"]["template"]["spec"]["volumes"][0]["containerDisk"]["imagePullPolicy"] = json!("IfNotPresent");
    host.apply(&vm)?;
    host.wait_running("calm")
}

fn guests_do_not_notice_what_dies_around_them(host: &Host) -> Result<()> {
    let before = calm(host)?;
    let (qemu, pod) = (host.qemu("calm")?, host.pod_of(&before)?);
    let cluster = host.cluster().context("this needs a cluster")?;
    let mut victims: Vec<(String, Vec<Process>)> = vec![];
    for component in ["virt-api", "virt-controller", "virt-handler"] {
        let processes = cluster::components().into_iter().filter(|p| p.arguments.iter().any(|word| word == component));
        victims.push((component.into(), processes.collect()));
    }
    for daemon in ["kubelet", "containerd", "kube-apiserver"] {
        victims.push((daemon.into(), cluster.daemons(daemon)?));
    }
    for (name, processes) in victims {
        ensure!(!processes.is_empty(), "there is no {name} to kill");
        for process in &processes {
            process.kill()?;
        }
        ensure!(qemu.alive(), "QEMU ended with {name}");
        host.up()?;
        let after = host.wait_running("calm")?;
        ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "the VMI was made anew after {name} died");
        ensure!(host.qemu("calm")? == qemu, "another QEMU runs after {name} died");
        let now = host.pod_of(&after)?;
        ensure!(now["metadata"]["uid"] == pod["metadata"]["uid"], "another pod runs after {name} died");
        let restarts = &now["status"]["containerStatuses"][0]["restartCount"];
        ensure!(*restarts == 0, "the launcher was started {restarts} times again after {name} died");
    }
    let mut console = host.console("calm")?;
    console.login("calm")?;
    console.line("exit")?;
    console.leave()
}

fn another_virt_controller_takes_over(host: &Host) -> Result<()> {
    let killed = Instant::now();
    let leader = leader(host)?;
    let uid = host.kubectl(&["-n", NAMESPACE, "get", "pod", &leader, "-o", "jsonpath={.metadata.uid}"])?;
    let process = cluster::components().into_iter().find(|process| process.cgroups().contains(&uid));
    // A pod that was killed comes back under its own name, and could take its own lease again: it is gone for good.
    process.with_context(|| format!("{leader} has no process"))?.kill()?;
    host.kubectl(&["-n", NAMESPACE, "delete", "pod", &leader, "--force", "--grace-period=0", "--wait=false"])?;
    let second = next_leader(host, &leader)?;
    let after_kill = killed.elapsed();
    // Until the one that was killed is back there is nobody to take over.
    host.kubectl(&["-n", NAMESPACE, "rollout", "status", "deployment/virt-controller", "--timeout=120s"])?;

    let stopped = Instant::now();
    host.kubectl(&["-n", NAMESPACE, "delete", "pod", &second, "--wait=false"])?;
    next_leader(host, &second)?;
    let after_stop = stopped.elapsed();
    println!(
        "hand-over: {:.1} s after a kill, {:.1} s after a stop",
        after_kill.as_secs_f32(),
        after_stop.as_secs_f32()
    );
    // Twice what an idle machine must show: this one is busy, and kubectl itself takes its time.
    ensure!(after_kill.as_secs() < 30, "the lease changed hands {after_kill:?} after a kill");
    ensure!(after_stop.as_secs() < 10, "the lease changed hands {after_stop:?} after a clean stop");
    host.kubectl(&["-n", NAMESPACE, "rollout", "status", "deployment/virt-controller", "--timeout=120s"])?;
    Ok(())
}

/// Without a restart of anything: the CA is spoilt, and everyone trusts another one soon.
fn new_certificates_are_taken_over(host: &Host) -> Result<()> {
    // Those that use the certificates; a virt-controller that was deleted before may still be going.
    let users = "kubevirt.io in (virt-api, virt-handler)";
    let shown = "jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[*].restartCount};{end}";
    let restarts = || host.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", users, "-o", shown]);
    let (pods, old) = (restarts()?, bundle(host)?);
    host.kubectl(&[
        "-n",
        NAMESPACE,
        "patch",
        "secret",
        "kubevirt-ca",
        "--type=merge",
        "-p",
        r#"{"data":{"tls.crt":"eA=="}}"#,
    ])?;
    wait::until("another CA", wait::BOOT, || {
        let now = bundle(host)?;
        Ok(if now == old { Seen::Not("the old one is trusted".into()) } else { Seen::Yes(()) })
    })?;
    host.up()?;
    // Through virt-api to the node agent: both have new certificates, and each trusts the other's.
    wait::until("a console with new certificates", wait::SOON, || {
        let mut console = host.console("calm")?;
        console.line("")?;
        Ok(match console.expect("login: ", wait::SOON / 6) {
            Ok(_) => Seen::Yes(()),
            Err(error) => Seen::Not(error.to_string()),
        })
    })?;
    ensure!(restarts()? == pods, "something was restarted");
    Ok(())
}

fn bundle(host: &Host) -> Result<String> {
    host.kubectl(&["get", "apiservice", "v1.subresources.kubevirt.io", "-o", "jsonpath={.spec.caBundle}"])
}

/// With an agent's own token, which names the node that it was made for.
fn an_agent_is_held_to_its_node(host: &Host) -> Result<()> {
    let selector = ["-n", NAMESPACE, "get", "pods", "-l", "kubevirt.io=virt-handler", "-o", "json"];
    let pods: Value = serde_json::from_str(&host.kubectl(&selector)?)?;
    let pod = &pods["items"][0];
    let (name, uid) = (pod["metadata"]["name"].as_str(), pod["metadata"]["uid"].as_str());
    let (name, uid) = (name.context("no virt-handler")?, uid.context("no uid")?);
    let node = pod["spec"]["nodeName"].as_str().context("not on a node")?;
    let token = host.kubectl(&[
        "-n",
        NAMESPACE,
        "create",
        "token",
        "kubevirt-handler",
        "--bound-object-kind=Pod",
        "--bound-object-name",
        name,
        "--bound-object-uid",
        uid,
    ])?;
    let label = |node: &str| {
        let arguments = ["--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--server", "https://127.0.0.1:16443"];
        let mut all = arguments.to_vec();
        all.extend(["--token", token.trim(), "apply", "--server-side", "--validate=false", "-f", "-"]);
        let metadata = json!({ "name": node, "annotations": { "kubevirt.io/tried": "yes" } });
        let change = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata });
        host.try_kubectl(&all, &change.to_string())
    };
    let other = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "elsewhere" } });
    host.try_kubectl(&["create", "-f", "-"], &other.to_string())?.success()?;
    let (own, others) = (label(node)?, label("elsewhere")?);
    host.kubectl(&["delete", "node", "elsewhere"])?;
    own.success()?;
    host.kubectl(&["annotate", "node", node, "kubevirt.io/tried-"])?;
    let said = others.failure()?;
    ensure!(
        said.contains("only its own node"),
        "an agent changes another node, or it is refused for another reason: {said}"
    );
    Ok(())
}

/// The launcher's pod once more, in a namespace that enforces Kubernetes' strictest standard.
fn launchers_meet_the_restricted_standard(host: &Host) -> Result<()> {
    let mut pod = host.pod_of(&host.wait_running("calm")?)?;
    let mut bare = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "again", "namespace": "strict" } });
    bare["spec"] = pod["spec"].take();
    bare["spec"]["nodeName"].take();
    host.kubectl(&["create", "namespace", "strict"])?;
    host.kubectl(&["label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted"])?;
    wait::until("a service account in the new namespace", wait::SOON, || {
        let found = host.try_kubectl(&["-n", "strict", "get", "serviceaccount", "default"], "")?;
        Ok(if found.succeeded() { Seen::Yes(()) } else { Seen::Not(found.stderr) })
    })?;
    let taken = host.try_kubectl(&["create", "--dry-run=server", "-f", "-"], &bare.to_string())?;
    // That this says anything at all: a pod without any precaution is refused.
    let naked = host.try_kubectl(&["-n", "strict", "run", "naked", "--image=x", "--dry-run=server"], "")?;
    host.kubectl(&["delete", "namespace", "strict"])?;
    naked.failure()?;
    taken.success()?;
    Ok(())
}

/// Each of what it knows, and one virt-controller of all machines: the one that leads.
fn components_tell_prometheus(host: &Host) -> Result<()> {
    for (component, metric) in [
        ("virt-api", "kubevirt_virt_api_ready_status 1"),
        ("virt-controller", "kubevirt_vmi_info{"),
        ("virt-handler", "kubevirt_vmi_cpu_usage_seconds_total{"),
    ] {
        let selector = format!("kubevirt.io={component},prometheus.kubevirt.io=true");
        let named = "jsonpath={.items[*].metadata.name}";
        let names = host.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", &selector, "-o", named])?;
        let mut told = String::new();
        for name in names.split_whitespace() {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}:8080/proxy/metrics");
            told += &host.kubectl(&["get", "--raw", &path])?;
        }
        let found = told.lines().filter(|line| line.starts_with(metric));
        let about_calm = |line: &&str| !metric.ends_with('{') || line.contains("name=\"calm\"");
        ensure!(found.filter(about_calm).count() > 0, "no {metric} of {names}:\n{told}");
    }
    Ok(())
}

/// A guest and a pod of the cluster, each behind a Service.
fn pods_and_guests_reach_each_other(host: &Host) -> Result<()> {
    let service = |name: &str, selector: Value, port: u16| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "default" },
            "spec": { "selector": selector, "ports": [{ "port": port }] },
        })
    };
    let pod = |name: &str, arguments: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default", "labels": { "app": name } },
            "spec": {
                "restartPolicy": "OnFailure",
                "containers": [{ "name": "main", "image": TEST_IMAGE, "imagePullPolicy": "Never", "args": arguments }],
            },
        })
    };
    let create = |object: Value| host.try_kubectl(&["create", "-f", "-"], &object.to_string())?.success();
    create(service("guest", json!({ "kubevirt.io/vm": "calm" }), 22))?;
    create(service("web", json!({ "app": "web" }), 8080))?;
    create(pod("web", json!(["serve", ":8080"])))?;
    // The guest speaks SSH, which is no HTTP; the complaint quotes its greeting.
    create(pod("visitor", json!(["get", "http://guest.default.svc.cluster.local:22"])))?;
    wait::until("a pod to reach the guest", wait::BOOT, || {
        let said = host.try_kubectl(&["logs", "visitor"], "")?;
        Ok(if said.stdout.contains("SSH-2.0") { Seen::Yes(()) } else { Seen::Not(said.to_string()) })
    })?;
    host.kubectl(&["wait", "pod/web", "--for=condition=Ready", "--timeout=120s"])?;
    let address = host.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"])?;
    let mut console = host.console("calm")?;
    console.login("calm")?;
    let said = console.shell(&format!("wget -q -O - http://{address}:8080"))?;
    console.line("exit")?;
    console.leave()?;
    ensure!(said == "web", "the guest gets {said:?} from the pod's Service");
    host.kubectl(&["delete", "pod/web", "pod/visitor", "service/web", "service/guest", "--grace-period=1"])?;
    Ok(())
}

/// What clusters with older kubelets or container runtimes choose.
fn images_are_copied_where_they_cannot_be_volumes(host: &Host) -> Result<()> {
    let set = |gates: Value| {
        let developer = json!({ "disabledFeatureGates": gates });
        let patch = json!({ "spec": { "configuration": { "developerConfiguration": developer } } }).to_string();
        host.kubectl(&["-n", NAMESPACE, "patch", "kubevirt", "kubevirt", "--type=merge", "-p", &patch])
    };
    set(json!(["ImageVolume"]))?;
    let ran = wait::until("a launcher with a copy of its image", wait::BOOT, || {
        host.apply(&manifest::plain_vm("copied", "Always"))?;
        let pod = host.pod_of(&host.wait_running("copied")?)?;
        let mut first = pod["spec"]["initContainers"].as_array().into_iter().flatten();
        if first.any(|container| container["name"] == "copy-tool") {
            return Ok(Seen::Yes(()));
        }
        // The controller had not seen the change yet.
        host.ferrovirt(&["delete", "vm", "copied"])?;
        host.wait_gone("vmi", "copied")?;
        Ok(Seen::Not(pod["spec"].to_string()))
    });
    set(json!(null))?;
    ran?;
    host.ferrovirt(&["delete", "vm", "copied"])?;
    host.wait_gone("vmi", "copied")
}

/// As an upgrade does it: every component's pod is replaced.
fn a_change_of_all_components_restarts_no_vm(host: &Host) -> Result<()> {
    let before = host.wait_running("calm")?;
    let qemu = host.qemu("calm")?;
    let parts = ["deployment/virt-api", "deployment/virt-controller", "daemonset/virt-handler"];
    host.kubectl(&[&["-n", NAMESPACE, "rollout", "restart"], &parts[..]].concat())?;
    for part in parts {
        host.kubectl(&["-n", NAMESPACE, "rollout", "status", part, "--timeout=180s"])?;
    }
    host.up()?;
    let after = host.wait_running("calm")?;
    ensure!(
        after["metadata"]["uid"] == before["metadata"]["uid"] && host.qemu("calm")? == qemu,
        "the VM was restarted"
    );
    let phases = |vmi: &Value| vmi["status"]["phaseTransitionTimestamps"].clone();
    ensure!(phases(&after) == phases(&before), "the VMI went through phases again: {:#}", phases(&after));
    Ok(())
}

/// Leases aside, which are how parts say that they live. The case before has echoes, so it begins when these are over.
fn nothing_is_written_when_nothing_happens(host: &Host) -> Result<()> {
    calm(host)?;
    wait::until("the echoes of what was before to end", wait::BOOT, || {
        let new = writes_within(host, 15)?;
        Ok(if new.is_empty() { Seen::Yes(()) } else { Seen::Not(format!("{new:?}")) })
    })?;
    let before = events(host)?;
    let new = writes_within(host, 60)?;
    println!("writes in a quiet minute: {new:?}");
    ensure!(new.iter().map(|(_, count)| count).sum::<u64>() < 10, "too much for a quiet minute: {new:?}");
    let list: Value = serde_json::from_str(&host.kubectl(&["get", "pods", "--all-namespaces", "-o", "json"])?)?;
    let pods: Vec<&Value> = list["items"].as_array().into_iter().flatten().collect();
    let of_now = |event: &Value| {
        let about = &event["involvedObject"];
        // Kubernetes' scheduler ends its events minutes after what they are about; those are about pods that are no more.
        let pod = pods.iter().find(|pod| pod["metadata"]["uid"] == about["uid"]);
        (about["kind"] != "Pod" || pod.is_some()) && !pod.is_some_and(|pod| says_that_an_image_is_there(event, pod))
    };
    let now = events(host)?;
    let told: Vec<&Value> =
        now.iter().filter(|(uid, event)| before.get(*uid) != Some(*event) && of_now(event)).map(|(_, e)| e).collect();
    ensure!(told.is_empty(), "events of a quiet minute: {told:#?}");
    Ok(())
}

/// Kubelets up to 1.36 say so once a minute of every image volume (kubernetes/kubernetes#138644), whatever uses it.
fn says_that_an_image_is_there(event: &Value, pod: &Value) -> bool {
    let message = event["message"].as_str().unwrap_or_default();
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let mut images = volumes.filter_map(|volume| volume["image"]["reference"].as_str());
    event["source"]["component"] == "kubelet"
        && event["reason"] == "Pulled"
        && message.contains("already present")
        // A reference without a tag is completed there.
        && images.any(|image| message.starts_with(&format!("Container image \"{image}")))
}

fn events(host: &Host) -> Result<BTreeMap<String, Value>> {
    let mut list: Value = serde_json::from_str(&host.kubectl(&["get", "events", "--all-namespaces", "-o", "json"])?)?;
    let all = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    Ok(all.into_iter().map(|event| (event["metadata"]["uid"].to_string(), event)).collect())
}

fn writes_within(host: &Host, seconds: u64) -> Result<Vec<(String, u64)>> {
    let (begin, before) = (Instant::now(), cluster::writes(host)?);
    let after = wait::until("time to pass", wait::BOOT, || match begin.elapsed().as_secs() {
        passed if passed < seconds => Ok(Seen::Not(String::new())),
        _ => Ok(Seen::Yes(cluster::writes(host)?)),
    })?;
    let new = after.into_iter().map(|(what, count)| {
        let old = before.get(&what).copied().unwrap_or(0);
        (what, count.saturating_sub(old))
    });
    Ok(new.filter(|(_, count)| *count > 0).collect())
}

fn quotas_hold_pods_and_vms_alike(host: &Host) -> Result<()> {
    let quota = "none-left";
    host.kubectl(&["create", "quota", quota, "--hard=pods=0"])?;
    let refused =
        host.try_kubectl(&["run", "native", "--image", TEST_IMAGE, "--image-pull-policy=Never"], "")?.failure()?;
    host.apply(&manifest::plain_vm("poor", "Always"))?;
    let told = wait::until("the VM to say why it has no pod", wait::SOON, || {
        let text = format!("{}{}", host.get("vm", "poor")?["status"], host.kubectl(&["get", "events", "-o", "json"])?);
        Ok(if text.contains(quota) { Seen::Yes(text) } else { Seen::Not("nothing names the quota".into()) })
    });
    host.kubectl(&["delete", "quota", quota])?;
    ensure!(refused.contains(quota), "a pod is refused for another reason: {refused}");
    told?;
    // With the quota gone it starts, without anybody's help.
    host.wait_running("poor")?;
    host.kubectl(&["delete", "vms", "--all", "--timeout=120s"])?;
    Ok(())
}

fn whoever_edits_pods_edits_vms(host: &Host) -> Result<()> {
    let binding = |role: &str, user: &str| {
        host.kubectl(&["create", "rolebinding", user, &format!("--clusterrole={role}"), &format!("--user={user}")])
    };
    binding("edit", "editor")?;
    binding("view", "viewer")?;
    let answers = [
        ("editor", "create", "", "pods", "", true),
        ("editor", "create", "kubevirt.io", "virtualmachines", "", true),
        ("editor", "update", "subresources.kubevirt.io", "virtualmachines", "start", true),
        ("viewer", "get", "kubevirt.io", "virtualmachines", "", true),
        ("viewer", "create", "kubevirt.io", "virtualmachines", "", false),
        ("viewer", "get", "subresources.kubevirt.io", "virtualmachineinstances", "console", false),
    ];
    let vm = manifest::plain_vm("edited", "Halted").to_string();
    let created = host.try_kubectl(&["--as=editor", "create", "-f", "-"], &vm)?;
    let refused = host.try_kubectl(&["--as=viewer", "delete", "vm", "edited"], "")?;
    let mut wrong = vec![];
    for (user, verb, group, resource, subresource, expected) in answers {
        let what = json!({
            "namespace": "default", "verb": verb, "group": group, "resource": resource, "subresource": subresource,
        });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": what },
        });
        let who = format!("--as={user}");
        let arguments = [&who, "create", "--validate=false", "-f", "-", "-o", "jsonpath={.status.allowed}"];
        let said = host.try_kubectl(&arguments, &review.to_string())?.success()?;
        if said != expected.to_string() {
            wrong.push(format!("{user} {verb} {resource}.{group} {subresource}: {said}"));
        }
    }
    host.kubectl(&["delete", "rolebinding", "editor", "viewer"])?;
    created.success()?;
    refused.failure()?;
    host.kubectl(&["delete", "vm", "edited"])?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn leader(host: &Host) -> Result<String> {
    host.kubectl(&["-n", NAMESPACE, "get", "lease", "virt-controller", "-o", "jsonpath={.spec.holderIdentity}"])
}

fn next_leader(host: &Host, old: &str) -> Result<String> {
    wait::until("another virt-controller to lead", wait::SOON, || {
        let now = leader(host)?;
        Ok(if now.is_empty() || now == old { Seen::Not(format!("the lease is {now:?}'s")) } else { Seen::Yes(now) })
    })
}
