//! Two nodes, one of which is lost: its machines start elsewhere when an operator says so, and not before.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{Case, Host, Options, manifest, process::Process, suite};
use serde_json::{Value, json};

const CASES: &[Case] = &[("a_lost_node_waits_for_an_operators_word", a_lost_node_waits_for_an_operators_word)];

/// The first one is the machine itself, which cannot be cut off.
const LOST: &str = "node2";

fn main() -> ExitCode {
    suite(Options { cluster_only: true, ..Options::default() }, CASES)
}

fn a_lost_node_waits_for_an_operators_word(host: &Host) -> Result<()> {
    let cluster = host.cluster().context("this needs a cluster")?;
    let found = host.try_kubectl(&["get", "node", LOST], "")?;
    ensure!(found.succeeded(), "this needs two nodes: make kubernetes-up NODES=2\n{found}");
    let before = start(host, "strays", LOST)?;
    let pod = host.pod_of(&before)?;
    let qemu = host.qemu("strays")?;
    cluster.cut_off(LOST)?;
    host.wait_for("node", LOST, "to be missed", |node| condition(node, "Ready") != "True")?;
    let name = pod["metadata"]["name"].as_str().context("the pod has no name")?;
    host.wait_for("pod", name, "to be not ready", |pod| condition(pod, "Ready") == "False")?;
    // The guest may well run, and nobody can say so.
    let missed = host.wait_status("strays", "Unknown")?;
    ensure!(missed["status"]["ready"] != true, "{:#}", missed["status"]);
    let reason = &host.get("vmi", "strays")?["status"]["conditions"];
    ensure!(reason.to_string().contains("NodeNotReady"), "nothing says that the node is missed: {reason:#}");
    // What somebody in a hurry does. It removes an object and no process.
    host.kubectl(&["delete", "pod", name, "--force", "--grace-period=0"])?;
    // By the time that another machine was made and runs, the controllers have had every chance to react.
    start(host, "steady", "node1")?;
    ensure!(qemu.alive(), "the guest ended with the network of its node");
    ensure!(qemus(host, "strays") == [qemu], "the guest runs twice");
    let now = host.get("vmi", "strays")?;
    ensure!(now["metadata"]["uid"] == before["metadata"]["uid"], "another instance was made: {now:#}");
    ensure!(now["status"]["nodeName"] == LOST, "the instance moved: {now:#}");

    cluster.power_off(LOST)?;
    host.kubectl(&["taint", "node", LOST, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"])?;
    host.wait_for("vmi", "strays", "to be another one", |vmi| vmi["metadata"]["uid"] != before["metadata"]["uid"])?;
    let after = host.wait_running("strays")?;
    ensure!(after["status"]["nodeName"] == "node1", "it runs on {}", after["status"]["nodeName"]);
    let events = host.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"])?;
    ensure!(events.contains("NodeGone"), "no event says why: {events}");
    // With the node's object go its pods, which nobody is there to end.
    host.kubectl(&["delete", "node", LOST])?;
    host.kubectl(&["delete", "vms", "--all", "--timeout=120s"])?;
    Ok(())
}

/// A machine that would rather be on this node than on another.
fn start(host: &Host, name: &str, node: &str) -> Result<Value> {
    let mut vm = manifest::plain_vm(name, "Always");
    let term = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] });
    vm["spec"]["template"]["spec"]["affinity"] = json!({ "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution":
            [{ "weight": 100, "preference": { "matchExpressions": [term] } }],
    } });
    host.apply(&vm)?;
    let vmi = host.wait_running(name)?;
    ensure!(vmi["status"]["nodeName"] == node, "{name} is on {}", vmi["status"]["nodeName"]);
    Ok(vmi)
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let all = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().find(|condition| condition["type"] == kind).and_then(|c| c["status"].as_str()).unwrap_or_default()
}

fn qemus(host: &Host, name: &str) -> Vec<Process> {
    let guest = format!("guest=default_{name},");
    let ours = |process: &Process| {
        process.program().starts_with("qemu-system") && process.arguments.iter().any(|word| word.starts_with(&guest))
    };
    host.processes().into_iter().filter(ours).collect()
}
