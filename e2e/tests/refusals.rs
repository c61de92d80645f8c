//! What is refused, and what it says: manifests that cannot be right, and machines that cannot run here.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use ferrovirt_e2e::{Case, Host, Options, manifest, suite};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("wrong_manifests_are_refused", wrong_manifests_are_refused),
    ("wrong_changes_leave_the_object_alone", wrong_changes_leave_the_object_alone),
    ("too_much_memory_is_unschedulable", too_much_memory_is_unschedulable),
    ("a_guest_of_another_architecture_waits_for_its_node", a_guest_of_another_architecture_waits_for_its_node),
    ("missing_image_is_named", missing_image_is_named),
];

const DOMAIN: &str = "/spec/template/spec/domain";

/// Where in the manifest, what is put there, and a part of the message that says so.
const WRONG: &[(&str, &str, &str)] = &[
    ("/spec/template/spec/domain/memory", r#"{ "guset": "128Mi" }"#, "guset"),
    ("/spec/template/spec/domian", r"{}", "domian"),
    ("/spec/runStrategie", r#""Always""#, "runStrategie"),
    ("/spec/runStrategy", r#""Sometimes""#, "runStrategy"),
    ("/spec/runStrategy", r"true", "runStrategy"),
    ("/spec/template/spec/domain/cpu", r#"{ "cores": "two" }"#, "cores"),
    ("/spec/template/spec/domain/devices/disks", r#""root""#, "disks"),
    ("/spec/template/spec/domain/memory", r#"{ "guest": "-1Gi" }"#, "memory"),
    ("/spec/template/spec/domain/memory", r#"{ "guest": "0" }"#, "memory"),
    ("/spec/template/spec/domain/memory", r#"{ "guest": "abc" }"#, "memory"),
    ("/spec/template/spec/volumes", "[]", "root"),
    ("/spec/template", "null", "template"),
];

fn main() -> ExitCode {
    suite(Options::default(), CASES)
}

fn wrong_manifests_are_refused(host: &Host) -> Result<()> {
    let mut problems = vec![];
    for (path, value, named) in WRONG {
        let wrong = with(manifest::vm("wrong", "Halted"), path, serde_json::from_str(value)?);
        let text = wrong.to_string();
        let told = [
            ("kubectl", host.try_kubectl(&["apply", "-f", "-"], &text)?),
            ("ferrovirt", host.try_ferrovirt(&["apply", "-f", "-"], &text)?),
        ];
        for (program, outcome) in told {
            if outcome.succeeded() || !outcome.stderr.contains(named) {
                problems.push(format!("{path} = {value} with {program}: {outcome}"));
            }
        }
        if host.object("vm", "wrong")?.is_some() {
            problems.push(format!("{path} = {value} was created"));
            host.kubectl(&["delete", "vm", "wrong"])?;
        }
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

fn wrong_changes_leave_the_object_alone(host: &Host) -> Result<()> {
    host.apply(&manifest::vm("right", "Halted"))?;
    let before = host.wait_status("right", "Stopped")?;
    let wrong = with(manifest::vm("right", "Always"), &format!("{DOMAIN}/memory/guest"), json!("-1Gi")).to_string();
    for refused in [
        host.try_kubectl(&["apply", "-f", "-"], &wrong)?,
        host.try_kubectl(&["replace", "-f", "-"], &wrong)?,
        host.try_ferrovirt(&["apply", "-f", "-"], &wrong)?,
    ] {
        let said = refused.failure()?;
        ensure!(said.contains("memory"), "the refusal does not name the field: {said}");
    }
    ensure!(host.get("vm", "right")?["spec"] == before["spec"], "a refused change was made in part");
    host.ferrovirt(&["delete", "vm", "right"])?;
    Ok(())
}

fn too_much_memory_is_unschedulable(host: &Host) -> Result<()> {
    let huge = with(manifest::vm("huge", "Always"), &format!("{DOMAIN}/memory/guest"), json!("4Ti"));
    host.apply(&huge)?;
    let vm = host.wait_status("huge", "ErrorUnschedulable")?;
    let why = format!("{}{}", vm["status"]["conditions"], host.get("vmi", "huge")?["status"]["conditions"]);
    ensure!(why.contains("memory"), "nothing says that memory is short: {why}");
    let change = ["patch", "vmi", "huge", "--type", "merge", "-p", r#"{"spec":{"hypervisor":"lxc"}}"#];
    let said = host.try_kubectl(&change, "")?.failure()?;
    ensure!(said.contains("hypervisor of an instance cannot be changed"), "{said}");
    host.ferrovirt(&["delete", "vm", "huge"])?;
    host.wait_gone("vmi", "huge")
}

fn a_guest_of_another_architecture_waits_for_its_node(host: &Host) -> Result<()> {
    let other = if cfg!(target_arch = "aarch64") { "amd64" } else { "arm64" };
    host.apply(&with(manifest::plain_vm("foreign", "Always"), "/spec/template/spec/architecture", json!(other)))?;
    host.wait_status("foreign", "ErrorUnschedulable")?;
    let vmi = host.get("vmi", "foreign")?;
    let why = vmi["status"]["conditions"].to_string();
    ensure!(why.contains(&format!("no node has the architecture {other}")), "nothing names the architecture: {why}");
    ensure!(vmi["status"]["nodeName"].is_null(), "it is on a node: {}", vmi["status"]);
    let pod = host.pod_of(&vmi)?;
    ensure!(pod["spec"]["nodeSelector"]["kubernetes.io/arch"] == other, "{}", pod["spec"]["nodeSelector"]);
    host.ferrovirt(&["delete", "vm", "foreign"])?;
    host.wait_gone("vmi", "foreign")
}

fn missing_image_is_named(host: &Host) -> Result<()> {
    let image = "ferrovirt/no-such-guest:latest";
    let vm = with(manifest::vm("bare", "Always"), "/spec/template/spec/volumes/0/containerDisk/image", json!(image));
    host.apply(&vm)?;
    let pulls =
        |vm: &Value| matches!(vm["status"]["printableStatus"].as_str(), Some("ErrImagePull" | "ImagePullBackOff"));
    host.wait_for("vm", "bare", "to miss its image", pulls)?;
    let events = host.kubectl(&["get", "events", "--field-selector", "involvedObject.kind=Pod"])?;
    ensure!(events.contains("no-such-guest"), "no event names the image:\n{events}");
    host.ferrovirt(&["delete", "vm", "bare"])?;
    host.wait_gone("vmi", "bare")
}

/// The manifest with another value at a JSON pointer; its last part may be new.
fn with(mut manifest: Value, path: &str, value: Value) -> Value {
    if let Some((parent, name)) = path.rsplit_once('/') {
        match manifest.pointer_mut(parent) {
            Some(Value::Object(fields)) => drop(fields.insert(name.to_owned(), value)),
            other => unreachable!("{parent} is {other:?}"),
        }
    }
    manifest
}
