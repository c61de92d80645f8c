//! Upstream's own virtctl, and ours under its name, against a host: the same arguments do the same and say the same.

use std::{fs, io::Read, net::TcpStream, os::unix::fs::PermissionsExt, process::ExitCode};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Case, Console, Host, Options, command, manifest, suite,
    tools::{Background, Virtctl, greeting},
};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("version_of_both_sides", version_of_both_sides),
    ("power", power),
    ("pause_and_unpause", pause_and_unpause),
    ("reboots_keep_the_instance", reboots_keep_the_instance),
    ("console_gives_a_shell", console_gives_a_shell),
    ("vnc_shakes_hands", vnc_shakes_hands),
    ("ports_are_forwarded", ports_are_forwarded),
    ("ssh_logs_in", ssh_logs_in),
    ("expose_makes_a_service", expose_makes_a_service),
    ("expand_prints_the_vm", expand_prints_the_vm),
    ("created_vms_are_accepted", created_vms_are_accepted),
    ("refusals_are_upstreams", refusals_are_upstreams),
    ("images_are_uploaded", images_are_uploaded),
    ("the_last_to_come_has_the_console", the_last_to_come_has_the_console),
    ("our_own_commands", our_own_commands),
    ("tables_have_what_people_ask_for", tables_have_what_people_ask_for),
    ("several_at_once", several_at_once),
    ("what_is_in_vain_ends_early", what_is_in_vain_ends_early),
    ("a_vm_gives_no_rights", a_vm_gives_no_rights),
    ("rights_are_the_callers", rights_are_the_callers),
];

const EMBEDDED_ONLY: &[(&str, &str)] =
    &[("images_are_uploaded", "it looks for the disk where a host keeps it; `uploads_fill_a_volume` is for both")];

fn main() -> ExitCode {
    suite(Options { embedded_only: EMBEDDED_ONLY, ..Options::default() }, CASES)
}

fn version_of_both_sides(host: &Host) -> Result<()> {
    for tool in Virtctl::both(host)? {
        let said = tool.say(host, &["version"])?;
        ensure!(said.contains("Client Version") && said.contains("Server Version"), "{}: {said}", tool.label);
    }
    Ok(())
}

fn power(host: &Host) -> Result<()> {
    let key = key(host)?;
    let mut vm = manifest::vm("box", "Manual");
    let data = &mut vm["spec"]["template"]["spec"]["volumes"][1]["cloudInitNoCloud"]["userData"];
    *data = format!("{}ssh_authorized_keys:\n  - {key}\n", data.as_str().unwrap_or_default()).into();
    host.apply(&vm)?;
    host.wait_status("box", "Stopped")?;
    for tool in Virtctl::both(host)? {
        let dry = tool.say(host, &["start", "box", "--dry-run"])?;
        ensure!(dry.contains("Dry Run execution"), "{}: {dry}", tool.label);
        ensure!(host.object("vmi", "box")?.is_none(), "{}: a dry run started the VM", tool.label);
        let said = tool.say(host, &["start", "box"])?;
        ensure!(said.trim() == "VM box was scheduled to start", "{}: {said}", tool.label);
        let first = host.wait_running("box")?;
        let said = tool.say(host, &["restart", "box", "--force", "--grace-period=0"])?;
        ensure!(said.trim() == "VM box was scheduled to restart", "{}: {said}", tool.label);
        another(host, &first)?;
        let said = tool.say(host, &["stop", "box", "--grace-period=0", "--force"])?;
        ensure!(said.trim() == "VM box was scheduled to stop", "{}: {said}", tool.label);
        host.wait_status("box", "Stopped")?;
        // A VM that is stopped may still have the instance that ended.
        host.wait_gone("vmi", "box")?;
    }
    Virtctl::stock()?.say(host, &["start", "box"])?;
    let first = host.wait_running("box")?;
    Virtctl::stock()?.say(host, &["restart", "box"])?;
    another(host, &first)?;
    Ok(())
}

/// Waits for the instance that comes after this one.
fn another(host: &Host, before: &Value) -> Result<Value> {
    let vmi = host.wait_for("vmi", "box", "to be a new one that runs", |vmi| {
        vmi["metadata"]["uid"] != before["metadata"]["uid"] && vmi["status"]["phase"] == "Running"
    })?;
    host.wait_running("box")?;
    Ok(vmi)
}

fn paused(vmi: &Value) -> bool {
    let mut conditions = vmi["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|c| c["type"] == "Paused" && c["status"] == "True")
}

fn pause_and_unpause(host: &Host) -> Result<()> {
    for tool in Virtctl::both(host)? {
        let said = tool.say(host, &["pause", "vm", "box"])?;
        ensure!(said.trim() == "VMI box was scheduled to pause", "{}: {said}", tool.label);
        host.wait_for("vmi", "box", "to be paused", paused)?;
        let again = tool.run(host, &["pause", "vmi", "box"], "")?.failure()?;
        ensure!(again.contains("VMI is already paused"), "{}: {again}", tool.label);
        let said = tool.say(host, &["unpause", "vmi", "box"])?;
        ensure!(said.trim() == "VMI box was scheduled to unpause", "{}: {said}", tool.label);
        host.wait_for("vmi", "box", "to go on", |vmi| !paused(vmi))?;
    }
    Ok(())
}

fn reboots_keep_the_instance(host: &Host) -> Result<()> {
    let before = host.wait_running("box")?;
    // A guest takes its time to boot: one way each.
    let [stock, ours] = Virtctl::both(host)?;
    for (tool, verb) in [(stock, "soft-reboot"), (ours, "reset")] {
        let mut console = host.console("box")?;
        console.login("box")?;
        let said = tool.say(host, &[verb, "box"])?;
        ensure!(said.trim() == format!("VMI box was scheduled to {verb}"), "{}: {said}", tool.label);
        console.expect(manifest::USER_SPACE, ferrovirt_e2e::wait::BOOT)?;
    }
    let after = host.get("vmi", "box")?;
    ensure!(before["metadata"]["uid"] == after["metadata"]["uid"], "a reboot made a new instance");
    Ok(())
}

fn console_gives_a_shell(host: &Host) -> Result<()> {
    // Upstream's needs a terminal; `script` gives it one.
    let tool = Virtctl::stock()?;
    let line = format!("{} console box", tool.command(host, &[]).get_program().to_string_lossy());
    let mut command = host.command("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let mut console = Console::start(&mut command)?;
    console.login("box")?;
    ensure!(console.shell("hostname")? == "box", "another guest answered");
    console.leave()?;
    Ok(())
}

fn vnc_shakes_hands(host: &Host) -> Result<()> {
    for tool in Virtctl::both(host)? {
        let proxy = Background::start(tool.command(host, &["vnc", "box", "--proxy-only"]))?;
        let line = proxy.line_with("port")?;
        let port: Value = serde_json::from_str(&line).with_context(|| format!("{}: {line}", tool.label))?;
        let address = format!("127.0.0.1:{}", port["port"]).parse()?;
        let said = greeting(address, 12)?;
        ensure!(said.starts_with("RFB 003."), "{}: the screen greets with {said:?}", tool.label);
        let file = host.work_dir().join("screen.png");
        let path = file.to_string_lossy().into_owned();
        tool.say(host, &["vnc", "screenshot", "box", "--file", &path])?;
        let picture = fs::read(&file)?;
        ensure!(picture.starts_with(b"\x89PNG"), "{}: the picture is no PNG", tool.label);
        fs::remove_file(file)?;
    }
    Ok(())
}

fn ports_are_forwarded(host: &Host) -> Result<()> {
    for (tool, target) in Virtctl::both(host)?.iter().zip(["vm/box", "vmi/box"]) {
        let port = free_port()?;
        let forward = format!("{port}:22");
        let _running = Background::start(tool.command(host, &["port-forward", target, &forward]))?;
        let said = greeting(format!("127.0.0.1:{port}").parse()?, 4)?;
        ensure!(said == "SSH-", "{}: the guest's port 22 greets with {said:?}", tool.label);
    }
    Ok(())
}

fn ssh_logs_in(host: &Host) -> Result<()> {
    let identity = host.work_dir().join("key").to_string_lossy().into_owned();
    let known = host.work_dir().join("known").to_string_lossy().into_owned();
    for tool in Virtctl::both(host)? {
        let said = tool.say(
            host,
            &[
                "ssh",
                "demo@vmi/box",
                "--identity-file",
                &identity,
                "--known-hosts",
                &known,
                "-t",
                "-o StrictHostKeyChecking=no",
                "-t",
                "-o BatchMode=yes",
                "--command",
                "hostname",
            ],
        )?;
        ensure!(said.trim() == "box", "{}: `hostname` in the guest says {said:?}", tool.label);
    }
    Ok(())
}

fn expose_makes_a_service(host: &Host) -> Result<()> {
    for (tool, name) in Virtctl::both(host)?.iter().zip(["stock-ssh", "our-ssh"]) {
        let said = tool.say(host, &["expose", "vm", "box", "--name", name, "--port", "2222", "--target-port", "22"])?;
        ensure!(said.trim() == format!("Service {name} successfully created for vm box"), "{}: {said}", tool.label);
        let service = host.get("service", name)?;
        let port = &service["spec"]["ports"][0];
        ensure!(port["port"] == 2222 && port["targetPort"] == 22, "{}: {port}", tool.label);
        let pod = host.pod_of(&host.get("vmi", "box")?)?;
        for (key, value) in service["spec"]["selector"].as_object().context("no selector")? {
            ensure!(pod["metadata"]["labels"][key] == *value, "{}: the pod lacks {key}={value}", tool.label);
        }
        ensure!(service["metadata"]["ownerReferences"][0]["name"] == "box", "{}: {service}", tool.label);
    }
    Ok(())
}

fn expand_prints_the_vm(host: &Host) -> Result<()> {
    for tool in Virtctl::both(host)? {
        let said = tool.say(host, &["expand", "--vm", "box", "--output", "json"])?;
        let vm: Value = serde_json::from_str(&said).with_context(|| format!("{}: {said}", tool.label))?;
        ensure!(vm["spec"]["template"]["spec"]["domain"]["memory"]["guest"] == "128Mi", "{}: {vm}", tool.label);
        let vm = manifest::plain_vm("sent", "Halted").to_string();
        let said = tool.run(host, &["expand", "--file", "-"], &vm)?.success()?;
        ensure!(said.contains("name: sent"), "{}: {said}", tool.label);
    }
    Ok(())
}

fn created_vms_are_accepted(host: &Host) -> Result<()> {
    let disk = format!("src:{}", manifest::IMAGE);
    for (tool, name) in Virtctl::both(host)?.iter().zip(["made-stock", "made-ours"]) {
        let made = tool.say(
            host,
            &[
                "create",
                "vm",
                "--name",
                name,
                "--memory",
                "96Mi",
                "--volume-containerdisk",
                &disk,
                "--user",
                "demo",
                "--termination-grace-period",
                "5",
                "--run-strategy",
                "Halted",
            ],
        )?;
        let said = host.try_kubectl(&["create", "-f", "-"], &made)?.success()?;
        ensure!(said.contains(&format!("{name} created")), "{}: {said}", tool.label);
    }
    // Volumes without disks become disks: the guest boots from one of them.
    Virtctl::stock()?.say(host, &["start", "made-stock"])?;
    let vmi = host.wait_running("made-stock")?;
    let disks = &vmi["spec"]["domain"]["devices"]["disks"];
    ensure!(disks.as_array().is_some_and(|disks| disks.len() == 2), "its disks are {disks}");
    host.ferrovirt(&["delete", "vm", "made-stock", "made-ours"])?;
    Ok(())
}

fn refusals_are_upstreams(host: &Host) -> Result<()> {
    for tool in Virtctl::both(host)? {
        for (arguments, part) in [
            (&["start", "box"][..], "VM is already running"),
            (&["start", "none-such"], "not found"),
            (&["guestosinfo", "box"], "VMI does not have guest agent connected"),
            (&["unpause", "vmi", "box"], "VMI is not paused"),
        ] {
            let said = tool.run(host, arguments, "")?.failure()?;
            ensure!(said.contains(part), "{} {arguments:?}: {said}", tool.label);
        }
    }
    Ok(())
}

fn images_are_uploaded(host: &Host) -> Result<()> {
    // Small, and not all the same: what arrives is what was sent.
    let image = host.work_dir().join("upload.img");
    let content: Vec<u8> = (0..4_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&image, &content)?;
    let path = image.to_string_lossy().into_owned();
    for (tool, name) in Virtctl::both(host)?.iter().zip(["sent-stock", "sent-ours"]) {
        let arguments = ["image-upload", "dv", name, "--image-path", &path, "--size", "16Mi", "--insecure"];
        let outcome = tool.run(host, &arguments, "")?;
        ensure!(outcome.succeeded(), "{}: {outcome}", tool.label);
        let volume = host.get("dv", name)?;
        ensure!(volume["status"]["phase"] == "Succeeded", "{}: {}", tool.label, volume["status"]);
        let claim = host.get("pvc", name)?;
        let volume = host.get("pv", claim["spec"]["volumeName"].as_str().context("the claim is not bound")?)?;
        let directory = volume.pointer("/spec/local/path").or_else(|| volume.pointer("/spec/hostPath/path"));
        let directory = directory.and_then(Value::as_str).with_context(|| format!("no path: {}", volume["spec"]))?;
        let disk = fs::read(format!("{directory}/disk.img"))?;
        ensure!(disk.starts_with(&content), "{}: the disk is not the image that was sent", tool.label);
        host.kubectl(&["delete", "dv", name])?;
    }
    Ok(())
}

fn the_last_to_come_has_the_console(host: &Host) -> Result<()> {
    let mut first = host.console("box")?;
    first.login("box")?;
    first.line("echo ke''pt-for-later")?;
    first.expect("kept-for-later", ferrovirt_e2e::wait::SOON)?;
    // The last lines are for those who ask.
    let mut second = Console::start(host.command("ferrovirt").args(["console", "box", "--scrollback"]))?;
    second.expect("kept-for-later", ferrovirt_e2e::wait::SOON)?;
    let told = first.expect("never written by any guest", ferrovirt_e2e::wait::SOON);
    let text = told.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(text.contains("another client has taken over this console"), "the first was not told: {text}");
    ensure!(text.contains("the console ended"), "the first goes on: {text}");
    ensure!(second.shell("hostname")? == "box", "the second has no shell");
    second.leave()
}

fn our_own_commands(host: &Host) -> Result<()> {
    let said = host.ferrovirt(&["why", "box"])?;
    ensure!(said.starts_with("vm/box runs."), "why says: {said}");
    let said = host.ferrovirt(&["top", "--once"])?;
    let row = said.lines().find(|line| line.starts_with("box ")).with_context(|| format!("top says: {said}"))?;
    ensure!(row.contains("Running") && row.contains('%') && row.contains("MiB"), "top says: {said}");
    let missing = host.try_ferrovirt(&["stop", "none-such"], "")?;
    ensure!(missing.code == Some(3), "no such VM: {missing}");
    host.apply(&manifest::plain_vm("off", "Manual"))?;
    host.wait_status("off", "Stopped")?;
    let said = host.ferrovirt(&["why", "off"])?;
    ensure!(said.contains("nobody has started it") && said.contains("ferrovirt start off"), "why says: {said}");
    let conflict = host.try_ferrovirt(&["stop", "off"], "")?;
    ensure!(conflict.code == Some(5) && conflict.stderr.contains("ferrovirt start"), "not running: {conflict}");
    let mut claimed = manifest::plain_vm("claims", "Always");
    claimed["spec"]["template"]["spec"]["volumes"][0] =
        json!({ "name": "root", "persistentVolumeClaim": { "claimName": "gone" } });
    host.apply(&claimed)?;
    host.wait_for("vm", "claims", "to be looked at", |vm| vm["status"]["printableStatus"].is_string())?;
    let said = host.ferrovirt(&["why", "claims"])?;
    ensure!(said.contains("pvc/gone: there is no such claim"), "why says: {said}");
    host.ferrovirt(&["delete", "vm", "off", "claims"])?;
    keys(host)?;
    for shell in ["bash", "zsh", "fish"] {
        ensure!(host.ferrovirt(&["completion", shell])?.contains("__complete"), "no completion for {shell}");
    }
    let said = host.ferrovirt(&["__complete", "--", "ferrovirt", "port-"])?;
    ensure!(said.starts_with("port-forward\t"), "commands are completed with: {said}");
    let said = host.ferrovirt(&["__complete", "--", "ferrovirt", "stop", "vm/bo"])?;
    ensure!(said.trim() == "vm/box\tvms", "names are completed with: {said}");
    let said = host.ferrovirt(&["adm", "log-verbosity", "--virt-api"])?;
    ensure!(said.trim() == "virt-api=2", "log-verbosity says: {said}");
    let said = host.ferrovirt(&["permitted-devices"])?;
    ensure!(said.contains("No devices"), "permitted-devices says: {said}");
    Ok(())
}

fn tables_have_what_people_ask_for(host: &Host) -> Result<()> {
    let address = host.get("vmi", "box")?["status"]["interfaces"][0]["ipAddress"].as_str().unwrap_or("none").to_owned();
    for arguments in [&["get", "vms"][..], &["get", "vm", "box"], &["get", "vm/box"], &["get", "vmi/box"]] {
        let said = host.ferrovirt(arguments)?;
        let row = said.lines().find(|line| line.starts_with("box ")).with_context(|| format!("get says: {said}"))?;
        ensure!(said.starts_with("NAME") && said.contains("ADDRESS") && said.contains("MEMORY"), "get says: {said}");
        ensure!(row.contains("Running") && row.contains(&address) && row.contains("MiB"), "get says: {said}");
    }
    let said = host.ferrovirt(&["get", "vms", "-o", "wide"])?;
    ensure!(said.contains("HYPERVISOR") && said.contains("qemu-kvm"), "wide says: {said}");
    let some = host.try_ferrovirt(&["get", "vm", "box", "none-such"], "")?;
    ensure!(some.code == Some(3) && some.stdout.contains("box") && some.stderr.contains("none-such"), "get: {some}");
    let mut command = host.command("ferrovirt");
    command.args(["get", "vms", "-w"]);
    Background::start(command)?.line_with("box ")?;
    Ok(())
}

fn several_at_once(host: &Host) -> Result<()> {
    for name in ["one", "two"] {
        host.apply(&manifest::plain_vm(name, "Manual"))?;
        host.wait_status(name, "Stopped")?;
    }
    let off = host.try_ferrovirt(&["console", "one"], "")?;
    ensure!(off.stderr.contains("vm/one is stopped: ferrovirt start one"), "console of a VM that is off: {off}");
    let off = host.try_ferrovirt(&["port-forward", "vm/one", "0:22"], "")?;
    ensure!(off.stderr.contains("vm/one is stopped"), "port-forward to a VM that is off: {off}");
    let none = host.try_ferrovirt(&["port-forward", "vm/none-such", "0:22"], "")?;
    ensure!(none.code == Some(3) && none.stderr.contains("none-such"), "port-forward to no VM: {none}");
    let said = host.ferrovirt(&["start", "one", "two"])?;
    ensure!(said.contains("vm/one is running") && said.contains("vm/two is running"), "start says: {said}");
    let said = host.try_ferrovirt(&["restart", "one"], "")?;
    ensure!(said.succeeded() && !said.stderr.lines().any(|line| line.trim_end().ends_with(':')), "restart: {said}");
    let some = host.try_ferrovirt(&["delete", "vm", "one", "two", "none-such", "--force"], "")?;
    ensure!(some.code == Some(3) && some.stderr.contains("none-such"), "delete: {some}");
    ensure!(
        some.stdout.contains("virtualmachine/one deleted") && some.stdout.contains("two deleted"),
        "delete: {some}"
    );
    for name in ["one", "two"] {
        ensure!(host.object("vm", name)?.is_none(), "{name} is still there");
    }
    Ok(())
}

/// Nobody waits for five minutes for what cannot be.
fn what_is_in_vain_ends_early(host: &Host) -> Result<()> {
    let soon = std::time::Duration::from_secs(60);
    let lost = "http://no-such-host.invalid/disk.qcow2";
    let started = std::time::Instant::now();
    let run = host.try_ferrovirt(&["run", lost, "--name", "lost"], "")?;
    ensure!(!run.succeeded() && run.stderr.contains("virtualmachine/lost does not start: dv/lost"), "run: {run}");
    ensure!(run.stderr.contains("delete vm lost") && started.elapsed() < soon, "run: {run} in {:?}", started.elapsed());
    let said = host.ferrovirt(&["why", "lost"])?;
    ensure!(said.contains("no-such-host.invalid") && !said.contains("wait for it"), "why says: {said}");
    let started = std::time::Instant::now();
    host.ferrovirt(&["run", lost, "--name", "lost-too", "--detach"])?;
    ensure!(started.elapsed() < soon / 3, "--detach waited for {:?}", started.elapsed());
    let mut huge = manifest::plain_vm("huge-vm", "Always");
    huge["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = json!("100Ti");
    host.apply(&huge)?;
    let started = std::time::Instant::now();
    host.wait_status("huge-vm", "ErrorUnschedulable")?;
    let said = host.ferrovirt(&["why", "huge-vm"])?;
    ensure!(said.contains("of memory; the largest node has"), "why says: {said}");
    ensure!(started.elapsed() < soon, "the scheduler took {:?}", started.elapsed());
    for (arguments, flag) in [
        (["run", "x", "--cpus", "0"], "--cpus"),
        (["run", "x", "--memory", "4GB"], "--memory"),
        (["run", "x", "--disk-size", "0"], "--disk-size"),
    ] {
        let refused = host.try_ferrovirt(&arguments, "")?;
        ensure!(refused.code == Some(2) && refused.stderr.contains(flag), "{arguments:?}: {refused}");
    }
    host.ferrovirt(&["delete", "vm", "lost", "lost-too", "huge-vm"])?;
    Ok(())
}

/// Keeps a key for a VM that is off, and takes it away again.
fn keys(host: &Host) -> Result<()> {
    let public = host.work_dir().join("key.pub").to_string_lossy().into_owned();
    host.apply(&manifest::plain_vm("keyed", "Halted"))?;
    let add = ["credentials", "add-ssh-key", "keyed", "--user", "demo", "--file", &public];
    let said = host.ferrovirt(&add)?;
    ensure!(said.starts_with("the key was put into the new secret/keyed-ssh-key-"), "add-ssh-key says: {said}");
    let said = host.ferrovirt(&add)?;
    ensure!(said.trim().ends_with("already has this key"), "add-ssh-key says: {said}");
    let said = host.ferrovirt(&["credentials", "remove-ssh-key", "keyed", "--user", "demo", "--file", &public])?;
    ensure!(said.starts_with("the key was removed from secret/keyed-ssh-key-"), "remove-ssh-key says: {said}");
    let password = ["credentials", "set-password", "keyed", "--user", "demo", "--password", "x"];
    let said = host.try_ferrovirt(&password, "")?.failure()?;
    ensure!(said.contains("accessCredentials"), "set-password says: {said}");
    host.ferrovirt(&["delete", "vm", "keyed"]).map(drop)
}

/// Someone who may write VMs and nothing else tries to reach through one what they could not reach with a pod.
fn a_vm_gives_no_rights(host: &Host) -> Result<()> {
    host.kubectl(&["create", "role", "vms", "--verb=*", "--resource=virtualmachines.kubevirt.io"])?;
    host.kubectl(&["create", "role", "vmis", "--verb=*", "--resource=virtualmachineinstances.kubevirt.io"])?;
    for role in ["vms", "vmis"] {
        host.kubectl(&["create", "rolebinding", role, &format!("--role={role}"), "--user=writer"])?;
    }
    host.kubectl(&["create", "secret", "generic", "treasure", "--from-literal=key=gold"])?;
    let config = host.work_dir().join("writer");
    fs::write(&config, host.kubeconfig_of("writer")?)?;
    let config = config.to_string_lossy().into_owned();
    let volume = |source: &str, value: Value| json!([{ "name": "root", source: value }]);
    let foreign = json!([{
        "metadata": { "name": "stolen" },
        "spec": { "source": { "pvc": { "namespace": "kubevirt", "name": "disk" } }, "storage": {} },
    }]);
    let rows = [
        (
            "/spec/template/spec/volumes",
            volume("hostDisk", json!({ "path": "/etc/shadow", "type": "Disk" })),
            "HostDisk",
        ),
        (
            "/spec/template/spec/domain/devices/hostDevices",
            json!([{ "name": "d", "deviceName": "x.org/d" }]),
            "hostDevices[0]",
        ),
        ("/spec/template/spec/domain/devices/gpus", json!([{ "name": "g", "deviceName": "x.org/g" }]), "gpus[0]"),
        ("/spec/template/metadata", json!({ "annotations": { "hooks.kubevirt.io/hookSidecars": "[{}]" } }), "sidecar"),
        (
            "/spec/template/spec/volumes",
            volume("serviceAccount", json!({ "serviceAccountName": "default" })),
            "serviceaccounts/token",
        ),
        ("/spec/template/spec/volumes", volume("secret", json!({ "secretName": "treasure" })), "secrets"),
        ("/spec/template/spec/volumes", volume("configMap", json!({ "name": "kube-root-ca.crt" })), "configmaps"),
        ("/spec/template/spec/hypervisor", json!("xen"), "qemu-kvm"),
        (
            "/spec/template/spec/networks",
            json!([{ "name": "n", "multus": { "networkName": "kubevirt/n" } }]),
            "network-att",
        ),
        ("/spec/dataVolumeTemplates", foreign, "datavolumes/source"),
    ];
    let mut problems = vec![];
    for (path, value, named) in rows {
        let mut vm = manifest::plain_vm("trial", "Halted");
        let (parent, name) = path.rsplit_once('/').context("no path")?;
        vm.pointer_mut(parent).with_context(|| format!("no {parent}"))?[name] = value;
        // The same as an instance, which nobody's VM stands behind.
        let mut vmi = vm["spec"]["template"].clone();
        vmi["apiVersion"] = "kubevirt.io/v1".into();
        vmi["kind"] = "VirtualMachineInstance".into();
        vmi["metadata"]["name"] = "trial".into();
        let only_of_vms = path == "/spec/dataVolumeTemplates";
        // A VM that asks for what we lack is kept; it is its instances that are refused.
        let only_of_instances = path.contains("/devices/");
        let objects = [Some(vm).filter(|_| !only_of_instances), Some(vmi).filter(|_| !only_of_vms)];
        for object in objects.into_iter().flatten() {
            let told = host.try_kubectl(&["create", "-f", "-", "--kubeconfig", &config], &object.to_string())?;
            if told.succeeded() || !told.stderr.contains(named) {
                problems.push(format!("{path} of a {}: {told}", object["kind"]));
            }
        }
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    // Without any of it the VM is theirs to make, and so is none of the pods.
    let plain = manifest::plain_vm("trial", "Halted").to_string();
    host.try_kubectl(&["create", "-f", "-", "--kubeconfig", &config], &plain)?.success()?;
    let said = host.try_kubectl(&["get", "pods", "--kubeconfig", &config], "")?.failure()?;
    ensure!(said.contains("forbidden"), "{said}");
    host.ferrovirt(&["delete", "vm", "trial"])?;
    Ok(())
}

/// What view, edit and no role at all may do, and what they are told.
fn rights_are_the_callers(host: &Host) -> Result<()> {
    host.kubectl(&["create", "namespace", "other"])?;
    for (user, role, namespace) in
        [("viewer", "view", "default"), ("editor", "edit", "default"), ("stranger", "edit", "other")]
    {
        host.kubectl(&[
            "create",
            "rolebinding",
            user,
            &format!("--clusterrole={role}"),
            &format!("--user={user}"),
            "-n",
            namespace,
        ])?;
        fs::write(host.work_dir().join(user), host.kubeconfig_of(user)?)?;
    }
    let run = |user: &str, arguments: &[&str]| {
        let file = host.work_dir().join(user);
        let mut command = host.command("ferrovirt");
        command.env_remove("FERROVIRT_DATA_DIR").args(arguments).arg("--kubeconfig").arg(file);
        command::run(&mut command, "")
    };
    run("viewer", &["get", "vm", "box"])?.success()?;
    for (arguments, missing) in [
        (&["console", "box"][..], "virtualmachineinstances/console"),
        (&["vnc", "box", "--proxy-only"], "virtualmachineinstances/vnc"),
        (&["vnc", "screenshot", "box", "-f", "-"], "virtualmachineinstances/vnc"),
        (&["stop", "box"], "virtualmachines/stop"),
        (&["pause", "box"], "virtualmachineinstances/pause"),
        (&["port-forward", "--stdio", "vm/box", "22"], "virtualmachines/portforward"),
    ] {
        let refused = run("viewer", arguments)?;
        ensure!(refused.code == Some(4), "view may {arguments:?}: {refused}");
        ensure!(refused.stderr.contains(missing), "the refusal of {arguments:?} names no {missing}: {refused}");
    }
    run("editor", &["pause", "box"])?.success()?;
    // As upstream's, the command returns when the guest was told, and the condition comes a moment later.
    host.wait_for("vmi", "box", "to be paused", paused)?;
    run("editor", &["unpause", "box"])?.success()?;
    let refused = run("stranger", &["get", "vms", "-n", "default"])?;
    ensure!(refused.code == Some(4), "edit elsewhere sees this namespace: {refused}");
    let refused = run("stranger", &["console", "box", "-n", "default"])?;
    ensure!(refused.code == Some(4), "edit elsewhere reaches a console: {refused}");

    // A stream that is open ends when the right to it is taken away.
    let file = host.work_dir().join("editor");
    let mut command = host.command("ferrovirt");
    command.env_remove("FERROVIRT_DATA_DIR").args(["console", "box", "--kubeconfig"]).arg(&file);
    let mut console = Console::start(&mut command)?;
    console.login("box")?;
    // So does one whose certificate expires. A cluster has certificates of its own, and how long they last.
    if host.cluster().is_none() {
        let short = host.work_dir().join("short");
        fs::write(&short, host.ferrovirt(&["kubeconfig", "--user", "editor", "--valid-for", "20s"])?)?;
        let mut command = host.command("ferrovirt");
        command.env_remove("FERROVIRT_DATA_DIR").args(["vnc", "box", "--proxy-only", "--kubeconfig"]).arg(&short);
        expires(command)?;
    }
    host.kubectl(&["delete", "rolebinding", "editor"])?;
    let ended = console.expect("never written by any guest", ferrovirt_e2e::wait::SOON);
    let text = ended.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(text.contains("the console ended"), "a console without a right goes on: {text}");
    host.ferrovirt(&["delete", "vm", "box"])?;
    host.kubectl(&["delete", "namespace", "other", "--wait=false"])?;
    Ok(())
}

/// A key pair of the suite's own; returns the public part.
fn key(host: &Host) -> Result<String> {
    let file = host.work_dir().join("key");
    let path = file.to_string_lossy().into_owned();
    command::run(host.command("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path]), "")?.success()?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    Ok(fs::read_to_string(file.with_extension("pub"))?.trim().to_owned())
}

/// A stream that began with a certificate ends with it.
fn expires(command: std::process::Command) -> Result<()> {
    let proxy = Background::start(command)?;
    let line = proxy.line_with("port")?;
    let port = serde_json::from_str::<Value>(&line)?["port"].as_u64().context("no port")?;
    let mut screen = TcpStream::connect(("127.0.0.1", u16::try_from(port)?))?;
    let mut greeting = [0; 12];
    screen.read_exact(&mut greeting)?;
    screen.set_read_timeout(Some(ferrovirt_e2e::wait::SOON))?;
    let rest = screen.read(&mut [0; 1]).context("the stream outlives its certificate")?;
    ensure!(rest == 0, "the screen said more than its greeting");
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
