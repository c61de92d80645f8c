//! Turning machines on and off: run strategies, `start`, `stop`, `restart`, and what stays the same over it.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use ferrovirt_e2e::{Case, Host, Options, manifest, suite};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("halted_vm_is_created_stopped", halted_vm_is_created_stopped),
    ("start_and_stop_keep_identity", start_and_stop_keep_identity),
    ("run_strategy_is_obeyed_when_changed", run_strategy_is_obeyed_when_changed),
    ("running_is_the_older_word_for_it", running_is_the_older_word_for_it),
    ("always_vm_returns_after_poweroff", always_vm_returns_after_poweroff),
    ("restart_makes_a_new_instance", restart_makes_a_new_instance),
    ("a_protected_vm_is_not_evicted", a_protected_vm_is_not_evicted),
    ("a_pod_that_was_removed_by_force_takes_its_guest_along", a_pod_that_was_removed_by_force_takes_its_guest_along),
];

fn main() -> ExitCode {
    suite(Options::default(), CASES)
}

fn halted_vm_is_created_stopped(host: &Host) -> Result<()> {
    host.apply(&manifest::vm("box", "Halted"))?;
    let vm = host.wait_status("box", "Stopped")?;
    ensure!(
        vm["status"]["ready"] != true && vm["status"]["created"] != true,
        "a halted VM has the status {}",
        vm["status"]
    );
    ensure!(host.object("vmi", "box")?.is_none(), "a halted VM has an instance");
    Ok(())
}

fn start_and_stop_keep_identity(host: &Host) -> Result<()> {
    host.ferrovirt(&["start", "box"])?;
    let first = host.wait_running("box")?;
    host.ferrovirt(&["stop", "box"])?;
    host.wait_status("box", "Stopped")?;
    host.wait_gone("vmi", "box")?;
    ensure!(host.qemu("box").is_err(), "a stopped VM has a QEMU");
    host.ferrovirt(&["start", "vm", "box"])?;
    let second = host.wait_running("box")?;
    ensure!(first["metadata"]["uid"] != second["metadata"]["uid"], "the instance was not made anew");
    for path in ["/spec/domain/devices/interfaces/0/macAddress", "/spec/domain/firmware/uuid"] {
        let (before, after) = (first.pointer(path), second.pointer(path));
        ensure!(before.is_some_and(Value::is_string) && before == after, "{path} was {before:?}, is {after:?}");
    }
    Ok(())
}

fn run_strategy_is_obeyed_when_changed(host: &Host) -> Result<()> {
    host.wait_running("box")?;
    patch(host, &json!({ "spec": { "runStrategy": "Halted" } }))?;
    host.wait_status("box", "Stopped")?;
    host.wait_gone("vmi", "box")?;
    patch(host, &json!({ "spec": { "runStrategy": "Always" } }))?;
    host.wait_running("box")?;
    Ok(())
}

fn running_is_the_older_word_for_it(host: &Host) -> Result<()> {
    patch(host, &json!({ "spec": { "runStrategy": null, "running": false } }))?;
    host.wait_status("box", "Stopped")?;
    patch(host, &json!({ "spec": { "running": true } }))?;
    host.wait_running("box")?;
    let both = host
        .try_kubectl(&["patch", "vm", "box", "--type=merge", "-p", r#"{"spec":{"runStrategy":"Always"}}"#], "")?
        .failure()?;
    ensure!(both.contains("spec.running") && both.contains("RunStrategy"), "the refusal of both words says: {both}");
    patch(host, &json!({ "spec": { "runStrategy": "Always", "running": null } }))?;
    Ok(())
}

fn always_vm_returns_after_poweroff(host: &Host) -> Result<()> {
    let before = host.wait_running("box")?;
    let mut console = host.console("box")?;
    console.login("box")?;
    console.line("sudo poweroff")?;
    host.wait_for("vmi", "box", "to be a new one that runs", |vmi| {
        vmi["metadata"]["uid"] != before["metadata"]["uid"] && vmi["status"]["phase"] == "Running"
    })?;
    Ok(())
}

fn restart_makes_a_new_instance(host: &Host) -> Result<()> {
    let before = host.wait_running("box")?;
    host.ferrovirt(&["restart", "box"])?;
    let after = host.wait_running("box")?;
    ensure!(
        before["metadata"]["uid"] != after["metadata"]["uid"],
        "`restart` came back before the instance was made anew"
    );
    host.ferrovirt(&["delete", "vm", "box"])?;
    Ok(())
}

fn a_protected_vm_is_not_evicted(host: &Host) -> Result<()> {
    let mut kept = manifest::vm("kept", "Always");
    kept["spec"]["template"]["spec"]["evictionStrategy"] = json!("External");
    // The next case does not want to wait for a guest.
    kept["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(600);
    host.apply(&kept)?;
    let vmi = host.wait_running("kept")?;
    let pod = host.pod_of(&vmi)?;
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name } }).to_string();
    let path = format!("/api/v1/namespaces/default/pods/{name}/eviction");
    let said = host.try_kubectl(&["create", "--raw", &path, "-f", "-"], &eviction)?.failure()?;
    ensure!(said.contains("Eviction triggered evacuation of VMI \"default/kept\""), "the refusal says: {said}");
    host.wait_for("vmi", "kept", "to be marked", |vmi| {
        vmi["status"]["phase"] == "Running" && vmi["status"]["evacuationNodeName"] == vmi["status"]["nodeName"]
    })?;
    let pod = host.get("pod", name)?;
    ensure!(pod["metadata"]["deletionTimestamp"].is_null(), "the pod was deleted: {}", pod["metadata"]);
    Ok(())
}

/// The guest would have ten minutes to shut down.
fn a_pod_that_was_removed_by_force_takes_its_guest_along(host: &Host) -> Result<()> {
    let before = host.wait_running("kept")?;
    let pod = host.pod_of(&before)?;
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let qemu = host.qemu("kept")?;
    host.kubectl(&["delete", "pod", name, "--force", "--grace-period=0"])?;
    host.wait_for("vmi", "kept", "to be a new one that runs", |vmi| {
        vmi["metadata"]["uid"] != before["metadata"]["uid"] && vmi["status"]["phase"] == "Running"
    })?;
    ensure!(host.qemu("kept")?.pid != qemu.pid, "the first guest goes on");
    host.ferrovirt(&["delete", "vm", "kept"])?;
    Ok(())
}

fn patch(host: &Host, change: &Value) -> Result<()> {
    host.kubectl(&["patch", "vm", "box", "--type=merge", "-p", &change.to_string()])?;
    Ok(())
}
