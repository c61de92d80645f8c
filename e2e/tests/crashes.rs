//! Things die: the host, a launcher, a guest while nobody looks.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    process::{ExitCode, Stdio},
};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Case, Host, Options, console, leftovers, manifest, suite,
    wait::{self, Seen},
};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("guest_outlives_a_killed_host", guest_outlives_a_killed_host),
    ("killed_launcher_takes_qemu_along_and_vm_returns", killed_launcher_takes_qemu_along_and_vm_returns),
    ("poweroff_without_host_is_seen_afterwards", poweroff_without_host_is_seen_afterwards),
    ("launcher_killed_without_host_is_seen_afterwards", launcher_killed_without_host_is_seen_afterwards),
    ("down_takes_over_what_a_killed_host_left", down_takes_over_what_a_killed_host_left),
];

/// How often the first case kills the host; `make nightly` asks for more.
const ROUNDS: usize = 3;
const LONG_ROUNDS: usize = 50;
/// How many objects are written in a round; the kill comes after a quarter of them.
const WRITES: usize = 200;

fn main() -> ExitCode {
    let embedded_only =
        &[("down_takes_over_what_a_killed_host_left", "nothing that is down would be asked to take over")];
    suite(Options { embedded_only, ..Options::default() }, CASES)
}

fn guest_outlives_a_killed_host(host: &Host) -> Result<()> {
    host.apply(&manifest::vm("stays", "Always"))?;
    let before = host.wait_running("stays")?;
    let qemu = host.qemu("stays")?;
    let mut acknowledged = vec![];
    let rounds = match (std::env::var_os("FERROVIRT_LONG").is_some(), host.cluster().is_some()) {
        (true, _) => LONG_ROUNDS,
        // A whole cluster takes long to come back.
        (false, true) => 1,
        (false, false) => ROUNDS,
    };
    for round in 0..rounds {
        acknowledged.extend(kill_while_writing(host, round)?);
        ensure!(qemu.alive(), "QEMU ended with the host");
        host.up()?;
        let after = host.wait_running("stays")?;
        ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "the VMI was made anew");
        ensure!(host.qemu("stays")? == qemu, "another QEMU runs");
        let phases = |vmi: &Value| vmi["status"]["phaseTransitionTimestamps"].clone();
        ensure!(phases(&after) == phases(&before), "the VMI went through phases again: {:#}", phases(&after));
        let restarts = &host.pod_of(&after)?["status"]["containerStatuses"][0]["restartCount"];
        ensure!(*restarts == 0, "the launcher was started {restarts} times again");
    }
    let list: Value = serde_json::from_str(&host.kubectl(&["get", "configmaps", "-o", "json"])?)?;
    let list = list["items"].as_array().context("no list of configmaps")?;
    for name in acknowledged {
        let found =
            list.iter().find(|map| map["metadata"]["name"] == *name).with_context(|| format!("{name} was lost"))?;
        ensure!(found["data"]["name"] == *name, "{name} lost its content: {found}");
    }
    // The guest itself did not notice either: its console is where it was, and reachable again.
    let mut console = host.console("stays")?;
    console.login("stays")?;
    console.line("exit")?;
    console.leave()
}

/// Kills the host in the middle of many writes. Returns the names of those that it had acknowledged.
fn kill_while_writing(host: &Host, round: usize) -> Result<Vec<String>> {
    let documents: Vec<String> = (0..WRITES)
        .map(|number| format!("kept-{round}-{number}"))
        .map(|name| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "name": name } }))
        .map(|document| document.to_string())
        .collect();
    let file = host.work_dir().join("writes.json");
    fs::write(&file, documents.join("\n"))?;
    let mut command = host.command("kubectl");
    command.args(["create", "--filename", &file.to_string_lossy()]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let lines = BufReader::new(child.stdout.take().context("kubectl has no output")?).lines();
    let mut names = vec![];
    for line in lines {
        // `configmap/NAME created`, once the API has answered.
        let line = line?;
        let name = line.strip_prefix("configmap/").and_then(|rest| rest.strip_suffix(" created"));
        names.push(name.with_context(|| format!("kubectl says {line:?}"))?.to_owned());
        if names.len() == WRITES / 4 {
            host.kill_up()?;
        }
    }
    let said = io::read_to_string(child.stderr.take().context("kubectl has no error output")?)?;
    child.wait()?;
    ensure!(names.len() < WRITES, "the host was killed too late to show anything");
    ensure!(names.len() >= WRITES / 4, "{} writes were acknowledged before the host was killed: {said}", names.len());
    Ok(names)
}

fn killed_launcher_takes_qemu_along_and_vm_returns(host: &Host) -> Result<()> {
    let before = host.wait_running("stays")?;
    let qemu = host.qemu("stays")?;
    let pod = host.pod_of(&before)?;
    host.launcher_of(&qemu)?.kill()?;
    wait::until("QEMU to end with its launcher", wait::SOON, || {
        Ok(if qemu.alive() { Seen::Not(format!("pid {} runs", qemu.pid)) } else { Seen::Yes(()) })
    })?;
    let old = &before["metadata"]["uid"];
    host.wait_for("vmi", "stays", "to be a new one that runs", |vmi| {
        vmi["metadata"]["uid"] != *old && vmi["status"]["phase"] == "Running"
    })?;
    host.wait_running("stays")?;
    ensure!(host.qemu("stays")? != qemu, "a process that was gone is back");
    let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?;
    wait::until("the dead pod to leave nothing", wait::SOON, || {
        let left = leftovers::of_pod(&host.data_dir(), host.instance(), uid)?;
        Ok(if left.is_empty() { Seen::Yes(()) } else { Seen::Not(left.join("\n")) })
    })?;
    host.ferrovirt(&["delete", "vm", "stays"])?;
    Ok(())
}

fn poweroff_without_host_is_seen_afterwards(host: &Host) -> Result<()> {
    host.apply(&manifest::vm("leaves", "Once"))?;
    let before = host.wait_running("leaves")?;
    let mut console = host.console("leaves")?;
    console.login("leaves")?;
    console.leave()?;
    let (qemu, pod) = (host.qemu("leaves")?, host.pod_of(&before)?);
    host.kill_up()?;
    // The shell is still there; only the way to it through the host is gone.
    let mut serial = console::serial_socket(&host.data_dir(), &pod, &before)?;
    serial.write_all(b"sudo poweroff\n")?;
    wait::until("the guest to power off", wait::BOOT, || {
        Ok(if qemu.alive() { Seen::Not(format!("pid {} runs", qemu.pid)) } else { Seen::Yes(()) })
    })?;
    host.up()?;
    let after = host.wait_for("vmi", "leaves", "to have Succeeded", |vmi| vmi["status"]["phase"] == "Succeeded")?;
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "the VMI was made anew");
    host.wait_status("leaves", "Stopped")?;
    host.ferrovirt(&["delete", "vm", "leaves"])?;
    Ok(())
}

fn launcher_killed_without_host_is_seen_afterwards(host: &Host) -> Result<()> {
    host.apply(&manifest::plain_vm("crashes", "Once"))?;
    let vmi = host.wait_running("crashes")?;
    let qemu = host.qemu("crashes")?;
    let launcher = host.launcher_of(&qemu)?;
    host.kill_up()?;
    launcher.kill()?;
    wait::until("QEMU to end with its launcher", wait::SOON, || {
        Ok(if qemu.alive() { Seen::Not(format!("pid {} runs", qemu.pid)) } else { Seen::Yes(()) })
    })?;
    host.up()?;
    let after = host.wait_for("vmi", "crashes", "to have Failed", |vmi| vmi["status"]["phase"] == "Failed")?;
    ensure!(after["metadata"]["uid"] == vmi["metadata"]["uid"], "the VMI was made anew");
    host.ferrovirt(&["delete", "vm", "crashes"])?;
    Ok(())
}

fn down_takes_over_what_a_killed_host_left(_: &Host) -> Result<()> {
    let host = Host::start()?;
    host.apply(&manifest::plain_vm("left", "Always"))?;
    host.wait_running("left")?;
    let qemu = host.qemu("left")?;
    host.kill_up()?;
    ensure!(qemu.alive(), "QEMU ended with the host");
    host.down()?;
    ensure!(!qemu.alive(), "QEMU outlived `ferrovirt down`");
    Ok(())
}
