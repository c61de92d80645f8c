//! A stock kubectl against a host with a VM.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::PermissionsExt,
    process::{ExitCode, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use ferrovirt_e2e::{Case, Host, Options, command, manifest, suite};

const CASES: &[Case] = &[
    ("apply_is_three_way", apply_is_three_way),
    ("get_in_every_form", get_in_every_form),
    ("describe_tells_the_story", describe_tells_the_story),
    ("commands_run_in_launcher_pods", commands_run_in_launcher_pods),
    ("explain_knows_the_fields", explain_knows_the_fields),
    ("edit_changes_the_object", edit_changes_the_object),
    ("top_without_a_metrics_server", top_without_a_metrics_server),
    ("lists_are_taken_apart", lists_are_taken_apart),
    ("server_side_apply_names_owners", server_side_apply_names_owners),
    ("defaults_are_in_the_objects", defaults_are_in_the_objects),
    ("the_installation_is_available", the_installation_is_available),
    ("a_migration_says_that_it_is_none", a_migration_says_that_it_is_none),
    ("wait_and_delete", wait_and_delete),
];

const EMBEDDED_ONLY: &[(&str, &str)] = &[
    ("top_without_a_metrics_server", "a cluster brings its own metrics server, and the test cluster has none"),
    ("commands_run_in_launcher_pods", "a cluster's kubelet runs commands, and the launcher's image has few to run"),
];

fn main() -> ExitCode {
    suite(Options { embedded_only: EMBEDDED_ONLY, ..Options::default() }, CASES)
}

fn top_without_a_metrics_server(host: &Host) -> Result<()> {
    let vmi = host.wait_running("web")?;
    let pod = host.pod_of(&vmi)?;
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let said = host.kubectl(&["top", "nodes"])?;
    ensure!(said.lines().nth(1).is_some_and(|row| row.contains('%') && row.contains("Mi")), "top nodes says: {said}");
    let said = host.kubectl(&["top", "pods", "--containers"])?;
    let row = said.lines().find(|line| line.contains(name));
    ensure!(row.is_some_and(|row| row.contains("compute") && row.contains("Mi")), "top pods says: {said}");
    let said = host.kubectl(&["top", "pods", "-l", "no=such"])?;
    ensure!(!said.contains(name), "a selector that fits nothing found {said}");
    Ok(())
}

fn apply_is_three_way(host: &Host) -> Result<()> {
    let mut vm = manifest::plain_vm("web", "Always");
    vm["metadata"]["labels"] = serde_json::json!({ "tier": "front", "old": "yes" });
    let said = host.try_kubectl(&["apply", "-f", "-"], &vm.to_string())?.success()?;
    ensure!(said.contains("virtualmachine.kubevirt.io/web created"), "apply said: {said}");
    host.kubectl(&["label", "vm", "web", "by-hand=yes"])?;
    vm["metadata"]["labels"] = serde_json::json!({ "tier": "back" });
    let said = host.try_kubectl(&["apply", "-f", "-"], &vm.to_string())?.success()?;
    ensure!(said.contains("configured"), "the second apply said: {said}");
    let labels = &host.get("vm", "web")?["metadata"]["labels"];
    ensure!(*labels == serde_json::json!({ "tier": "back", "by-hand": "yes" }), "labels after apply: {labels}");
    let said = host.try_kubectl(&["apply", "-f", "-"], &vm.to_string())?.success()?;
    ensure!(said.contains("unchanged"), "the third apply said: {said}");
    ensure!(
        host.try_kubectl(&["diff", "-f", "-"], &vm.to_string())?.success()?.is_empty(),
        "kubectl diff sees a difference"
    );
    Ok(())
}

/// What nobody wrote and what runs all the same stands in the VM and in its instance.
fn defaults_are_in_the_objects(host: &Host) -> Result<()> {
    let vm = &host.get("vm", "web")?["spec"]["template"]["spec"];
    let vmi = &host.get("vmi", "web")?["spec"];
    ensure!(vm["domain"]["firmware"]["uuid"] == vmi["domain"]["firmware"]["uuid"], "two uuids: {vm} {vmi}");
    for (pointer, value) in
        [("/domain/machine/type", "q35"), ("/domain/cpu/model", "host-model"), ("/evictionStrategy", "None")]
    {
        ensure!(vmi.pointer(pointer).is_some_and(|seen| seen == value), "{pointer}: {vmi}");
    }
    ensure!(vm["architecture"].is_string() && vm["architecture"] == vmi["architecture"], "{vm}");
    Ok(())
}

fn the_installation_is_available(host: &Host) -> Result<()> {
    host.kubectl(&["-n", "kubevirt", "wait", "kv", "kubevirt", "--for=condition=Available", "--timeout=60s"])?;
    let phase = host.kubectl(&["-n", "kubevirt", "get", "kv", "kubevirt", "-o", "jsonpath={.status.phase}"])?;
    ensure!(phase == "Deployed", "the phase is {phase}");
    Ok(())
}

fn a_migration_says_that_it_is_none(host: &Host) -> Result<()> {
    let migration = serde_json::json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": { "name": "away", "namespace": "default" }, "spec": { "vmiName": "web" },
    });
    let told = host.try_kubectl(&["create", "-f", "-"], &migration.to_string())?;
    ensure!(told.stderr.contains("Warning: live migration is not implemented yet"), "kubectl said {}", told.stderr);
    told.success()?;
    host.kubectl(&["wait", "vmim/away", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s"])?;
    host.kubectl(&["delete", "vmim", "away", "--timeout=60s"])?;
    ensure!(host.get("vmi", "web")?["status"]["phase"] == "Running", "the instance does not run any more");
    Ok(())
}

fn get_in_every_form(host: &Host) -> Result<()> {
    host.kubectl(&["wait", "vm/web", "--for=condition=Ready", "--timeout=120s"])?;
    for (arguments, part) in [
        (&["get", "vm", "web", "-o", "yaml"][..], "kind: VirtualMachine"),
        (&["get", "vm", "web", "-o", "jsonpath={.status.printableStatus}"], "Running"),
        (&["get", "vms", "-l", "tier=back", "-o", "name"], "virtualmachine.kubevirt.io/web"),
        (&["get", "vmi", "web", "-o", "wide"], "LIVE-MIGRATABLE"),
        (&["get", "vms", "-A"], "NAMESPACE"),
        (&["get", "vms,vmis,pods"], "virt-launcher-web-"),
        (&["get", "nodes"], "Ready"),
        (&["api-resources", "--api-group=kubevirt.io"], "virtualmachineinstances"),
    ] {
        let said = host.kubectl(arguments)?;
        ensure!(said.contains(part), "no {part:?} from kubectl {arguments:?}:\n{said}");
    }
    let said = host.kubectl(&["get", "vms", "-l", "tier=front", "-o", "name"])?;
    ensure!(said.is_empty(), "a selector that fits nothing found {said}");
    Ok(())
}

fn describe_tells_the_story(host: &Host) -> Result<()> {
    for (kind, parts) in [("vm", ["Printable Status:", "Running"]), ("vmi", ["Phase:", "SuccessfulCreate"])] {
        let said = host.kubectl(&["describe", kind, "web"])?;
        for part in parts {
            ensure!(said.contains(part), "no {part:?} in the description of the {kind}:\n{said}");
        }
    }
    Ok(())
}

/// Over websockets, and over SPDY as older clients do.
fn commands_run_in_launcher_pods(host: &Host) -> Result<()> {
    let pod = host.pod_of(&host.get("vmi", "web")?)?;
    let pod = pod["metadata"]["name"].as_str().context("the pod has no name")?;
    for websockets in ["true", "false"] {
        let run = |arguments: &[&str], input: &str| {
            let mut kubectl = host.command("kubectl");
            kubectl.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets);
            kubectl.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets);
            command::run(kubectl.args(arguments), input)
        };
        let said = run(&["exec", pod, "-c", "compute", "--", "id", "-u"], "")?.success()?;
        ensure!(said.trim() == "107", "websockets {websockets}: the command is {said}");
        let said = run(&["exec", "-i", pod, "-c", "compute", "--", "cat"], "through and back")?.success()?;
        ensure!(said == "through and back", "websockets {websockets}: {said:?}");
        run(&["exec", pod, "-c", "compute", "--", "sh", "-c", "exit 3"], "")?.failure()?;
        run(&["exec", pod, "-c", "nobody", "--", "true"], "")?.failure()?;
    }
    Ok(())
}

fn explain_knows_the_fields(host: &Host) -> Result<()> {
    for (path, part) in [
        ("vm", "VirtualMachine"),
        ("vm.spec.runStrategy", "FIELD: runStrategy <string>"),
        ("vm.spec.template.spec.domain.devices.disks", "FIELD: disks <[]Object>"),
        ("vmi.spec.domain.cpu.cores", "FIELD: cores <integer>"),
        ("pod.spec.containers.image", "FIELD: image <string>"),
    ] {
        let said = host.kubectl(&["explain", path])?;
        ensure!(said.contains(part), "no {part:?} in the explanation of {path}:\n{said}");
    }
    host.try_kubectl(&["explain", "vm.spec.nonsense"], "")?.failure()?;
    Ok(())
}

fn edit_changes_the_object(host: &Host) -> Result<()> {
    let editor = host.work_dir().join("editor.sh");
    fs::write(&editor, "#!/bin/sh\nexec sed -i 's/tier: back/tier: middle/' \"$1\"\n")?;
    fs::set_permissions(&editor, fs::Permissions::from_mode(0o755))?;
    let said =
        command::run(host.command("kubectl").env("KUBE_EDITOR", &editor).args(["edit", "vm", "web"]), "")?.success()?;
    ensure!(said.contains("edited"), "edit said: {said}");
    ensure!(host.get("vm", "web")?["metadata"]["labels"]["tier"] == "middle", "the edit is not there");
    Ok(())
}

fn lists_are_taken_apart(host: &Host) -> Result<()> {
    let map = |name: &str| serde_json::json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } });
    let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": [map("first"), map("second")] });
    let said = host.try_kubectl(&["apply", "-f", "-"], &list.to_string())?.success()?;
    ensure!(said == "configmap/first created\nconfigmap/second created\n", "apply said: {said}");
    Ok(())
}

fn server_side_apply_names_owners(host: &Host) -> Result<()> {
    let map = |value: &str| {
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"shared"}},"data":{{"key":"{value}"}}}}"#)
    };
    let apply = |manager: &str, value: &str| {
        host.try_kubectl(&["apply", "--server-side", &format!("--field-manager={manager}"), "-f", "-"], &map(value))
    };
    apply("one", "a")?.success()?;
    let said = apply("two", "b")?.failure()?;
    ensure!(said.contains("conflict") && said.contains("\"one\""), "the conflict says: {said}");
    ensure!(host.get("configmap", "shared")?["data"]["key"] == "a", "a refused apply was made");
    Ok(())
}

fn wait_and_delete(host: &Host) -> Result<()> {
    let pod = host.pod_of(&host.get("vmi", "web")?)?;
    let pod = pod["metadata"]["name"].as_str().context("the launcher's pod has no name")?;
    let said = host.kubectl(&["logs", pod, "--tail=1"])?;
    ensure!(said.lines().count() == 1, "the last line of the log is: {said}");
    // One who reads along hears the rest, and that it is the rest.
    let mut follower =
        host.command("timeout").args(["120", "kubectl", "logs", "--follow", pod]).stdout(Stdio::piped()).spawn()?;
    let mut log = BufReader::new(follower.stdout.take().context("no output to read")?);
    let mut first = String::new();
    log.read_line(&mut first)?;
    let said = host.kubectl(&["delete", "vm", "web", "--timeout=120s"])?;
    ensure!(said.contains("deleted"), "delete said: {said}");
    host.try_kubectl(&["wait", "vmi/web", "--for=delete", "--timeout=120s"], "")?.success()?;
    ensure!(
        host.object("vm", "web")?.is_none() && host.object("vmi", "web")?.is_none(),
        "something outlived its deletion"
    );
    let mut rest = String::new();
    log.read_to_string(&mut rest)?;
    ensure!(follower.wait()?.success(), "the reader of the log did not end by itself, after {first}{rest}");
    ensure!(rest.contains("Stopped"), "the log does not tell of the end: {first}{rest}");
    let said = host.try_kubectl(&["get", "vm", "web"], "")?.failure()?;
    ensure!(said.contains("NotFound"), "a deleted VM is answered with: {said}");
    Ok(())
}
