//! The first VM: from a manifest to a login, and away again without a trace.

use std::{
    fs,
    io::Read,
    net::{IpAddr, TcpStream},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{Case, Host, Options, leftovers, manifest, process::Process, suite, wait};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("boots_from_a_manifest", boots_from_a_manifest),
    ("console_reaches_a_login", console_reaches_a_login),
    ("the_boot_log_is_kept", the_boot_log_is_kept),
    ("network_reaches_the_guest", network_reaches_the_guest),
    ("says_how_it_came_alive", says_how_it_came_alive),
    ("runs_apart_and_without_root", runs_apart_and_without_root),
    ("delete_removes_every_trace", delete_removes_every_trace),
    ("limits_reach_the_cgroup", limits_reach_the_cgroup),
];

fn main() -> ExitCode {
    suite(Options::default(), CASES)
}

fn boots_from_a_manifest(host: &Host) -> Result<()> {
    let said = host.ferrovirt(&["apply", "--wait", "-f", "../examples/demo.yaml"])?;
    ensure!(said.contains("virtualmachine/demo created"), "apply said: {said}");
    let row = |table: String| -> Result<Vec<String>> {
        let row =
            table.lines().find(|line| line.starts_with("demo ")).with_context(|| format!("no demo in {table}"))?;
        Ok(row.split_whitespace().map(Into::into).collect())
    };
    let cells = row(host.kubectl(&["get", "vms"])?)?;
    ensure!(cells.get(2..) == Some(&["Running".to_owned(), "True".to_owned()]), "unexpected row: {cells:?}");
    let cells = row(host.ferrovirt(&["get", "vms"])?)?;
    ensure!(cells.get(1).is_some_and(|status| status == "Running"), "unexpected row: {cells:?}");
    ensure!(cells.get(2).is_some_and(|address| address.starts_with("10.")), "no address: {cells:?}");
    Ok(())
}

fn console_reaches_a_login(host: &Host) -> Result<()> {
    let mut console = host.console_on_terminal("demo")?;
    console.login("demo")?;
    ensure!(console.shell("hostname")? == "demo", "cloud-init did not set the host name");
    let made = console.shell("cat /etc/motd")?;
    ensure!(made.contains("Hello from demo"), "runcmd wrote {made:?}");
    ensure!(console.shell("id -un")? == "demo", "logged in as somebody else");
    console.leave()?;
    // The console is free again, and the shell on it is the same one.
    let mut console = host.console("demo")?;
    console.line("")?;
    console.expect("$ ", wait::SOON)?;
    console.line("exit")?;
    console.expect("demo login: ", wait::SOON)?;
    console.leave()
}

/// By kubectl and by our own command, from the beginning, and for one who looks long after it was written.
fn the_boot_log_is_kept(host: &Host) -> Result<()> {
    let pod = host.pod_of(&host.get("vmi", "demo")?)?;
    let pod_name = pod["metadata"]["name"].as_str().context("the pod has no name")?;
    let beside = &pod["status"]["initContainerStatuses"][0];
    ensure!(beside["name"] == "guest-console-log" && beside["state"]["running"].is_object(), "{beside}");
    wait::until("the boot log", wait::SOON, || {
        let logs = [
            host.kubectl(&["logs", pod_name, "-c", "guest-console-log"])?,
            host.ferrovirt(&["console", "--log", "demo"])?,
        ];
        let whole = logs.iter().all(|log| log.contains(manifest::USER_SPACE) && log.contains(manifest::READY));
        Ok(match whole {
            true => wait::Seen::Yes(()),
            false => wait::Seen::Not(logs.join("\n---\n")),
        })
    })
}

/// From the host to the pod's address, through its NAT, to the guest's ssh server.
fn network_reaches_the_guest(host: &Host) -> Result<()> {
    let vmi = host.get("vmi", "demo")?;
    let address: IpAddr =
        vmi["status"]["interfaces"][0]["ipAddress"].as_str().context("the VMI has no address")?.parse()?;
    let greeting = wait::until("the guest's ssh server", wait::SOON, || {
        let mut greeting = [0; 4];
        let answer =
            TcpStream::connect_timeout(&(address, 22).into(), Duration::from_secs(2)).and_then(|mut stream| {
                stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                stream.read_exact(&mut greeting)
            });
        Ok(answer.map_or_else(|error| wait::Seen::Not(error.to_string()), |()| wait::Seen::Yes(greeting)))
    })?;
    ensure!(&greeting == b"SSH-", "something else answers at {address}: {greeting:?}");
    Ok(())
}

fn says_how_it_came_alive(host: &Host) -> Result<()> {
    let (vm, vmi) = (host.get("vm", "demo")?, host.get("vmi", "demo")?);
    ensure!(vm["status"]["created"] == true && vm["status"]["ready"] == true, "status of the VM: {}", vm["status"]);
    ensure!(condition(&vmi, "Ready")["status"] == "True", "status of the VMI: {:#}", vmi["status"]);
    if !hardware_virtualization() {
        let emulation = condition(&vmi, "SoftwareEmulation");
        ensure!(
            emulation["status"] == "True" && emulation["message"].is_string(),
            "nothing says that it is emulated: {emulation}"
        );
    }
    let times = vmi["status"]["phaseTransitionTimestamps"].as_array().context("no phase timestamps")?;
    let phases: Vec<&str> = times.iter().filter_map(|time| time["phase"].as_str()).collect();
    ensure!(phases == ["Pending", "Scheduling", "Scheduled", "Running"], "phases: {phases:?}");
    ensure!(
        times.iter().all(|time| time["phaseTransitionTimestamp"].is_string()),
        "a phase without its time: {times:?}"
    );
    let events: Value = serde_json::from_str(&host.kubectl(&["get", "events", "-o", "json"])?)?;
    let events = events["items"].as_array().context("no list of events")?;
    for (kind, reason) in [
        ("VirtualMachine", "SuccessfulCreate"),
        ("VirtualMachineInstance", "SuccessfulCreate"),
        ("VirtualMachineInstance", "Created"),
        ("VirtualMachineInstance", "Started"),
        ("Pod", "Scheduled"),
        ("Pod", "Started"),
    ] {
        let found = events.iter().any(|event| event["involvedObject"]["kind"] == kind && event["reason"] == reason);
        let there: Vec<String> =
            events.iter().map(|e| format!("{} {}", e["involvedObject"]["kind"], e["reason"])).collect();
        ensure!(found, "no event {reason} of a {kind}, only {there:?}");
    }
    Ok(())
}

fn runs_apart_and_without_root(host: &Host) -> Result<()> {
    let qemu = host.qemu("demo")?;
    let launcher = host.launcher_of(&qemu)?;
    let pod = host.pod_of(&host.get("vmi", "demo")?)?;
    let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?;
    let up = host.up_processes()?;
    let of_pod = host.processes().into_iter().filter(|process| process.cgroups().contains(uid));
    // A cluster gives every pod a sandbox of its own, which is not ours to choose.
    let ours: Vec<Process> = of_pod.filter(|process| process.program() != "testpod").collect();
    ensure!(ours.contains(&qemu) && ours.contains(&launcher), "the pod has other processes: {ours:?}");
    for process in &ours {
        // Embedded, a tiny shim waits for the pod.
        let shim = process.program().starts_with("ferrovirt-shim");
        ensure!((process.uid == 0) == shim, "{} runs as uid {}", process.arguments.join(" "), process.uid);
        if !shim {
            let held = (process.status("Seccomp")?, process.status("NoNewPrivs")?);
            ensure!(held == ("2".to_owned(), "1".to_owned()), "{} is held by {held:?}", process.arguments.join(" "));
            ensure!(process.user_inside()? == 107, "{} is somebody else inside", process.arguments.join(" "));
        }
    }
    ensure!(launcher.pids()?.last() == Some(&1), "the launcher's pids are {:?}", launcher.pids()?);
    let own = Process::read(std::process::id().cast_signed()).context("this process is not in /proc")?;
    if host.cluster().is_none() {
        ensure!(qemu.uid >= 0x7000_0000, "QEMU is uid {} of the host, as others may be", qemu.uid);
        ensure!(launcher.namespace("user")? != own.namespace("user")?, "the launcher's users are the host's");
    }
    for kind in ["pid", "mnt", "net"] {
        ensure!(launcher.namespace(kind)? != own.namespace(kind)?, "the launcher has no {kind} namespace of its own");
        ensure!(
            launcher.namespace(kind)? == qemu.namespace(kind)?,
            "QEMU is in another {kind} namespace than its launcher"
        );
    }
    for process in [&launcher, &qemu] {
        let groups = process.cgroups();
        ensure!(
            groups.lines().any(|group| group.contains(uid)),
            "{} is in no cgroup of its pod: {groups}",
            process.program()
        );
    }
    ensure!(!up.is_empty() && up.iter().all(|up| !up.cgroups().contains(uid)), "the host is in the pod's cgroup");
    Ok(())
}

fn delete_removes_every_trace(host: &Host) -> Result<()> {
    let (vmi, qemu) = (host.get("vmi", "demo")?, host.qemu("demo")?);
    let launcher = host.launcher_of(&qemu)?;
    let pod = host.pod_of(&vmi)?;
    let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?;
    ensure!(
        !leftovers::of_pod(&host.data_dir(), host.instance(), uid)?.is_empty(),
        "this case does not know what a pod leaves"
    );
    host.ferrovirt(&["delete", "vm", "demo"])?;
    ensure!(host.object("vm", "demo")?.is_none(), "the VM is still there after `delete` has waited for it");
    ensure!(!qemu.alive() && !launcher.alive(), "processes outlived the VM");
    host.wait_gone("vmi", "demo")?;
    host.wait_gone("pod", pod["metadata"]["name"].as_str().unwrap_or_default())?;
    wait::until("the pod to leave nothing", wait::SOON, || {
        let left = leftovers::of_pod(&host.data_dir(), host.instance(), uid)?;
        Ok(if left.is_empty() { wait::Seen::Yes(()) } else { wait::Seen::Not(left.join("\n")) })
    })
}

fn limits_reach_the_cgroup(host: &Host) -> Result<()> {
    let mut vm = manifest::plain_vm("bounded", "Always");
    vm["spec"]["template"]["spec"]["domain"]["resources"] = json!({ "limits": { "memory": "256Mi", "cpu": "1" } });
    host.apply(&vm)?;
    host.wait_running("bounded")?;
    let groups = host.qemu("bounded")?.cgroups();
    let limit = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let path = match (fields.next()?, fields.next()?.trim_start_matches('/')) {
            ("", path) => format!("/sys/fs/cgroup/{path}/memory.max"),
            ("memory", path) => format!("/sys/fs/cgroup/memory/{path}/memory.limit_in_bytes"),
            _ => return None,
        };
        fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    });
    // The guest's own 256 MiB, and something for the processes around it.
    let limit = limit.with_context(|| format!("no memory limit in {groups}"))? >> 20;
    ensure!((257..1024).contains(&limit), "the pod may use {limit} MiB");
    host.ferrovirt(&["delete", "vm", "bounded"])?;
    Ok(())
}

fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.and_then(|all| all.iter().find(|one| one["type"] == kind)).cloned().unwrap_or_default()
}

/// As the node agent judges it on x86: the device alone does not count.
fn hardware_virtualization() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    std::path::Path::new("/dev/kvm").exists() && flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
}
