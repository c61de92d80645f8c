//! The same cases once per hypervisor, on one node at the same time. What a hypervisor is spared comes from the feature
//! table alone: a case says what its machine asks for, and the table says whether the hypervisor has it.

use std::{
    io::Read,
    net::{IpAddr, TcpStream},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use ferrovirt_api::v1::VirtualMachineInstanceSpec;
use ferrovirt_e2e::{
    Case, Host, Options,
    cluster::Cluster,
    container_archive, leftovers, manifest,
    process::{self, Process},
    suite, wait,
};
use ferrovirt_machine::{
    features,
    hypervisor::{DEFAULT, Guest, Hypervisor, KNOWN},
};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("runs_beside_the_others", runs_beside_the_others),
    ("each_is_seen_by_top", each_is_seen_by_top),
    ("pods_differ_where_the_table_says", pods_differ_where_the_table_says),
    ("console_reaches_a_login", console_reaches_a_login),
    ("network_reaches_the_guest", network_reaches_the_guest),
    ("pause_and_resume", pause_and_resume),
    ("root_of_a_container_is_nobody_on_the_node", root_of_a_container_is_nobody_on_the_node),
    ("no_guest_calls_the_node_unfiltered", no_guest_calls_the_node_unfiltered),
    ("owners_do_not_reach_a_privileged_launcher", owners_do_not_reach_a_privileged_launcher),
    ("guest_outlives_the_host_process", guest_outlives_the_host_process),
    ("reboots_in_its_pod", reboots_in_its_pod),
    ("secure_boot_and_a_tpm", secure_boot_and_a_tpm),
    ("guest_outlives_its_daemon", guest_outlives_its_daemon),
    ("stops_gracefully", stops_gracefully),
    ("ends_with_its_launcher", ends_with_its_launcher),
    ("refusals_say_what_to_do", refusals_say_what_to_do),
    ("privileged_pods_are_not_for_owners", privileged_pods_are_not_for_owners),
    ("broken_nodes_say_what_to_do", broken_nodes_say_what_to_do),
];

const EMBEDDED_ONLY: &[(&str, &str)] = &[
    ("privileged_pods_are_not_for_owners", "what owners may run is Kubernetes' own Pod Security Standards there"),
    ("broken_nodes_say_what_to_do", "breaks libvirt on a host of its own"),
];

fn main() -> ExitCode {
    let names: Vec<&str> = drivers().map(|driver| driver.name()).collect();
    // A cluster's installation lists them: see the values in scripts/kubernetes/e2e.sh.
    let arguments = match Cluster::wanted() {
        Ok(true) => vec![],
        _ => vec!["--hypervisors".to_owned(), names.join(",")],
    };
    suite(Options { arguments, embedded_only: EMBEDDED_ONLY, ..Options::default() }, CASES)
}

/// The drivers that this machine can run: a device that one cannot do without has to be there.
fn drivers() -> impl Iterator<Item = &'static dyn Hypervisor> {
    let drivers = KNOWN.iter().filter_map(|known| known.driver.ok());
    drivers.filter(|driver| driver.device().is_none() || driver.can_emulate())
}

/// Runs a case for every hypervisor that has what its machine asks for.
fn each(case: &str, asks: &Value, run: impl Fn(&'static dyn Hypervisor) -> Result<()>) -> Result<()> {
    for driver in drivers() {
        let mut spec = machine(driver)["spec"]["template"]["spec"].clone();
        merge(&mut spec, asks);
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(spec)?;
        let gaps = features::unsupported_in(&spec, "spec");
        if let Some(gap) = gaps.first() {
            println!("    {case}: {} is spared: {}", driver.name(), gap.message);
            continue;
        }
        run(driver).with_context(|| format!("with {}", driver.name()))?;
    }
    Ok(())
}

fn merge(into: &mut Value, from: &Value) {
    if let (Some(target), Some(source)) = (into.as_object_mut(), from.as_object()) {
        for (key, value) in source {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    } else if !from.is_null() {
        *into = from.clone();
    }
}

fn name(driver: &dyn Hypervisor) -> String {
    format!("on-{}", driver.name())
}

/// One manifest for all; only the hypervisor, the image and the name differ.
fn machine(driver: &dyn Hypervisor) -> Value {
    let mut vm = manifest::vm(&name(driver), "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["hypervisor"] = json!(driver.name());
    if driver.guest() == Guest::Container {
        spec["volumes"][0]["containerDisk"]["image"] = json!(manifest::CONTAINER_IMAGE);
    }
    vm
}

/// The process that is the guest to its launcher: QEMU, or what holds a container.
fn hypervisor_process(host: &Host, driver: &dyn Hypervisor) -> Result<Process> {
    if driver.guest() == Guest::Machine {
        return host.qemu(&name(driver));
    }
    let domain = format!("default_{}", name(driver));
    let ours = host.pod_of(&host.get("vmi", &name(driver))?)?;
    let uid = ours["metadata"]["uid"].as_str().context("the pod has no uid")?.to_owned();
    let mut all = process::all().into_iter();
    all.find(|process| {
        process.program().ends_with("libvirt_lxc")
            && process.arguments.contains(&domain)
            && process.cgroups().contains(&uid)
    })
    .with_context(|| format!("no container {domain}"))
}

/// The first process of a container.
fn container_init(controller: &Process) -> Result<Process> {
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", controller.pid))?;
    let pid = children.split_whitespace().next().context("the container is empty")?.parse()?;
    Process::read(pid).context("the container ended")
}

fn runs_beside_the_others(host: &Host) -> Result<()> {
    if host.cluster().is_none() {
        host.ferrovirt(&["image", "import", &container_archive()?.to_string_lossy()])?;
    }
    for driver in drivers() {
        wait_offered(host, driver)?;
    }
    for driver in drivers() {
        host.apply(&machine(driver))?;
    }
    for driver in drivers() {
        host.wait_running(&name(driver))?;
    }
    Ok(())
}

/// What a guest uses is told whatever runs it; a container has no disks that anybody counts.
fn each_is_seen_by_top(host: &Host) -> Result<()> {
    let said = host.ferrovirt(&["top", "--once"])?;
    for driver in drivers() {
        let row = said.lines().find(|line| line.starts_with(&format!("{} ", name(driver))));
        let row = row.with_context(|| format!("{} is not in top: {said}", driver.name()))?;
        ensure!(row.contains("Running") && row.contains('%') && row.contains("MiB"), "top says: {row}");
    }
    if host.cluster().is_none() {
        let said = host.kubectl(&["top", "pods"])?;
        for driver in drivers() {
            ensure!(said.contains(&format!("virt-launcher-{}", name(driver))), "top pods says: {said}");
        }
    }
    Ok(())
}

fn wait_offered(host: &Host, driver: &dyn Hypervisor) -> Result<()> {
    let label = format!("hypervisor.node.kubevirt.io/{}", driver.name());
    wait::until("the node to offer the hypervisor", wait::SOON, || {
        let nodes: Value = serde_json::from_str(&host.kubectl(&["get", "nodes", "-o", "json"])?)?;
        let metadata = &nodes["items"][0]["metadata"];
        Ok(match metadata["labels"][&label].as_str() {
            Some("true") => wait::Seen::Yes(()),
            _ => wait::Seen::Not(metadata["annotations"].to_string()),
        })
    })
}

fn pods_differ_where_the_table_says(host: &Host) -> Result<()> {
    let pod = |driver: &dyn Hypervisor| host.pod_of(&host.get("vmi", &name(driver))?);
    for driver in drivers() {
        let pod = pod(driver)?;
        let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
        let image = container["image"].as_str().unwrap_or_default();
        // Its name, and then the tag on a cluster or the digest of the program embedded.
        let version = image.strip_prefix(&format!("ferrovirt-launcher{}", driver.image_suffix()));
        let known = |version: &str| version.starts_with(':') || version.starts_with("@sha256:");
        ensure!(version.is_some_and(known), "image {image}");
        let privileged = container["securityContext"]["privileged"] == true;
        ensure!(privileged == driver.runs_privileged(), "privileged: {}", container["securityContext"]);
        let user = if driver.runs_privileged() { 0 } else { 107 };
        ensure!(spec["securityContext"]["runAsUser"] == user, "user: {}", spec["securityContext"]);
        let wanted = format!("hypervisor.node.kubevirt.io/{}", driver.name());
        ensure!(spec["nodeSelector"][&wanted] == "true", "node selector: {}", spec["nodeSelector"]);
        let memory = container["resources"]["requests"]["memory"].as_str().unwrap_or_default();
        let overhead = memory.parse::<u64>()?.saturating_sub(128 << 20);
        ensure!(overhead > 0 && overhead < 300 << 20, "overhead: {overhead}");
        if driver.device().is_none() {
            let asked = container["resources"]["limits"].as_object().map(|limits| limits.len());
            ensure!(asked.unwrap_or(0) == 0, "asks for {}", container["resources"]);
        }
    }
    // And nowhere else.
    let mut rest: Vec<Value> = vec![];
    for driver in drivers() {
        let mut spec = pod(driver)?["spec"].clone();
        for pointer in [
            "/containers/0/image",
            "/containers/0/securityContext",
            "/containers/0/resources",
            "/containers/0/env",
            "/securityContext",
            "/nodeSelector",
            // Who can show a console as a log has a container for it.
            "/initContainers",
            "/hostname",
        ] {
            if let Some(field) = spec.pointer_mut(pointer) {
                *field = Value::Null;
            }
        }
        for volume in spec["volumes"].as_array_mut().into_iter().flatten().filter(|v| v["image"].is_object()) {
            volume["image"] = Value::Null;
        }
        rest.push(spec);
    }
    ensure!(rest.windows(2).all(|pair| pair[0] == pair[1]), "other differences: {rest:#?}");
    Ok(())
}

fn console_reaches_a_login(host: &Host) -> Result<()> {
    each("console", &json!({}), |driver| {
        let name = name(driver);
        let mut console = host.console_on_terminal(&name)?;
        console.login(&name)?;
        ensure!(console.shell("hostname")? == name, "cloud-init did not set the host name");
        let made = console.shell("cat /etc/made-by-runcmd")?;
        ensure!(made.contains("made by runcmd"), "runcmd wrote {made:?}");
        ensure!(console.shell("sudo id -u")? == "0", "no set-uid program works");
        let memory: u64 =
            console.shell("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo")?.trim().parse()?;
        ensure!((90 << 10..=128 << 10).contains(&memory), "the guest sees {memory} KiB of memory");
        console.line("exit")?;
        console.expect(&format!("{name} login: "), wait::SOON)?;
        console.leave()
    })
}

fn network_reaches_the_guest(host: &Host) -> Result<()> {
    each("network", &json!({}), |driver| {
        let vmi = host.get("vmi", &name(driver))?;
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
    })
}

fn pause_and_resume(host: &Host) -> Result<()> {
    each("pause", &json!({}), |driver| {
        let name = name(driver);
        let call = |verb: &str| {
            let path =
                format!("/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/{name}/{verb}");
            host.try_kubectl(&["replace", "--raw", &path, "-f", "-"], "{}")?.success()
        };
        let paused = |vmi: &Value| {
            let conditions = vmi["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Paused" && c["status"] == "True"))
        };
        call("pause")?;
        host.wait_for("vmi", &name, "to be paused", paused)?;
        call("unpause")?;
        host.wait_for("vmi", &name, "to go on", |vmi| !paused(vmi))?;
        Ok(())
    })
}

/// From inside, as root: what would be a way out must be closed.
fn root_of_a_container_is_nobody_on_the_node(host: &Host) -> Result<()> {
    for driver in drivers().filter(|driver| driver.guest() == Guest::Container) {
        let name = name(driver);
        let init = container_init(&hypervisor_process(host, driver)?)?;
        ensure!(init.uid >= 0x2000_0000, "the guest's root is uid {} of the node", init.uid);
        let own = Process::read(std::process::id().cast_signed()).context("this process is not in /proc")?;
        for kind in ["pid", "mnt", "net", "user", "ipc", "uts"] {
            ensure!(init.namespace(kind)? != own.namespace(kind)?, "the guest shares the node's {kind} namespace");
        }
        let mut console = host.console_on_terminal(&name)?;
        console.login(&name)?;
        for (attempt, what) in [
            ("mknod /tmp/disk b 8 0", "made a disk's device node"),
            ("mount -t ext4 /dev/vda /mnt", "mounted the node's disk"),
            ("ls /proc/1/root/.oldroot/usr", "saw the launcher's root"),
            ("sh -c 'echo -1 > /sys/fs/cgroup/memory/memory.limit_in_bytes'", "changed a memory limit"),
            (
                "sh -c 'for f in $(find /sys/fs/cgroup -name memory.limit_in_bytes); do echo -1 > $f && exit 0; done; exit 1'",
                "changed its memory limit",
            ),
            ("sh -c 'echo a > /sys/fs/cgroup/devices/devices.allow'", "allowed itself devices"),
            ("sh -c 'echo h > /proc/sysrq-trigger'", "reached the node's keyboard"),
            ("sh -c 'echo 1 > /proc/sys/kernel/panic'", "changed the node's kernel"),
            ("insmod /dev/null", "loaded a module"),
            ("dmesg", "read the node's log"),
            ("chown 4000000 /etc/hostname", "gave a file to a user outside its range"),
        ] {
            let said = console.shell(&format!("sudo {attempt} >/dev/null 2>&1 && echo got''in || echo kept''out"))?;
            ensure!(said.contains("keptout"), "the guest {what}: {said}");
        }
        let seen: usize = console.shell("ls -d /proc/[0-9]* | wc -l")?.trim().parse()?;
        ensure!(seen < 40, "the guest sees {seen} processes");
        console.line("exit")?;
        console.leave()?;
    }
    Ok(())
}

/// A launcher that was broken out of, and root in a container, reach no more of the node's kernel than they need.
fn no_guest_calls_the_node_unfiltered(host: &Host) -> Result<()> {
    for driver in drivers() {
        let hypervisor = hypervisor_process(host, driver)?;
        let mut held = vec![hypervisor.clone(), host.launcher_of(&hypervisor)?];
        if driver.guest() == Guest::Container {
            held.push(container_init(&hypervisor)?);
        }
        for process in held {
            let (filter, forbidden) = (process.status("Seccomp")?, process.status("NoNewPrivs")?);
            ensure!(filter == "2", "{} has no filter of system calls: {filter}", process.program());
            // A container's users have set-uid programs of their own.
            let expected = if driver.runs_privileged() { "0" } else { "1" };
            ensure!(forbidden == expected, "{}: NoNewPrivs is {forbidden}", process.program());
        }
    }
    Ok(())
}

/// Who may do everything with the pods of a namespace may still not run programs as root of its node.
fn owners_do_not_reach_a_privileged_launcher(host: &Host) -> Result<()> {
    for driver in drivers().filter(|driver| driver.runs_privileged()) {
        let pod = host.pod_of(&host.get("vmi", &name(driver))?)?;
        let pod = pod["metadata"]["name"].as_str().context("the pod has no name")?;
        let attempts: [&[&str]; 3] = [
            &["exec", pod, "--", "/usr/bin/ferrovirt-launcher", "--version"],
            &["attach", pod],
            &["debug", pod, "--image=any", "--target=compute"],
        ];
        host.kubectl(&["create", "rolebinding", "owner", "--clusterrole=admin", "--user=owner"])?;
        // Kubernetes' own role has no debug containers; whoever binds it may well add them.
        host.kubectl(&["create", "role", "debug", "--verb=patch", "--resource=pods/ephemeralcontainers"])?;
        host.kubectl(&["create", "rolebinding", "debug", "--role=debug", "--user=owner"])?;
        let mut said = vec![];
        for attempt in attempts {
            said.push(host.try_kubectl(&[&["--as=owner"], attempt].concat(), "")?);
        }
        host.kubectl(&["delete", "rolebinding/owner", "rolebinding/debug", "role/debug"])?;
        for answer in said {
            let refusal = answer.failure()?;
            ensure!(host.cluster().is_none() || refusal.contains("pods/privileged"), "it said {refusal}");
        }
        // Not because nobody could.
        if host.cluster().is_some() {
            host.kubectl(attempts[0])?;
        }
    }
    Ok(())
}

fn guest_outlives_the_host_process(host: &Host) -> Result<()> {
    let before: Vec<i32> = drivers().map(|driver| Ok(hypervisor_process(host, driver)?.pid)).collect::<Result<_>>()?;
    host.kill_up()?;
    host.up()?;
    for (driver, pid) in drivers().zip(before) {
        host.wait_running(&name(driver))?;
        ensure!(hypervisor_process(host, driver)?.pid == pid, "{} was started again", driver.name());
    }
    Ok(())
}

fn reboots_in_its_pod(host: &Host) -> Result<()> {
    each("reboot", &json!({}), |driver| {
        let name = name(driver);
        let pod = host.pod_of(&host.get("vmi", &name)?)?;
        let mut console = host.console_on_terminal(&name)?;
        console.login(&name)?;
        console.line("sudo reboot")?;
        let launcher = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        console.expect(manifest::USER_SPACE, wait::BOOT).with_context(|| {
            let log = host.try_kubectl(&["logs", &launcher, "--tail=40"], "");
            format!("the launcher's log: {}", log.map_or_else(|error| error.to_string(), |log| log.to_string()))
        })?;
        console.expect(&format!("{name} login: "), wait::BOOT)?;
        console.leave()?;
        let after = host.pod_of(&host.get("vmi", &name)?)?;
        ensure!(pod["metadata"]["uid"] == after["metadata"]["uid"], "a reboot of the guest made a new pod");
        Ok(())
    })
}

/// Firmware that insists on signatures and keeps its keys, and a chip of the guest's own.
fn secure_boot_and_a_tpm(host: &Host) -> Result<()> {
    let asks = json!({ "domain": {
        "firmware": { "bootloader": { "efi": {} } }, "features": { "smm": {} }, "devices": { "tpm": {} },
    } });
    each("secure_boot_and_a_tpm", &asks, |driver| {
        let mut vm = manifest::plain_vm("trusted", "Always");
        vm["spec"]["template"]["spec"]["hypervisor"] = json!(driver.name());
        merge(&mut vm["spec"]["template"]["spec"], &asks);
        host.apply(&vm)?;
        let vmi = host.wait_running("trusted")?;
        let machine = host.qemu("trusted")?.arguments.join(" ");
        ensure!(machine.contains("secboot.fd") && machine.contains("smm=on"), "no secure boot: {machine}");
        ensure!(machine.contains("tpm-tis"), "no TPM: {machine}");
        let pod = host.pod_of(&vmi)?;
        let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?;
        let chips: Vec<Process> = process::all()
            .into_iter()
            .filter(|process| process.program().ends_with("swtpm") && process.cgroups().contains(uid))
            .collect();
        ensure!(chips.len() == 1, "{} TPMs run in the pod", chips.len());
        host.ferrovirt(&["delete", "vm", "trusted"])?;
        host.wait_gone("vmi", "trusted")
    })
}

/// Killed three times, the daemon is started anew each time, and somebody is told.
fn guest_outlives_its_daemon(host: &Host) -> Result<()> {
    each("daemon", &json!({}), |driver| {
        let name = name(driver);
        let guest = hypervisor_process(host, driver)?;
        let launcher = host.launcher_of(&guest)?;
        let daemon = || process::all().into_iter().find(|p| p.parent == launcher.pid && p.program() == "libvirtd");
        let mut last = 0;
        for _ in 0..3 {
            let found = wait::until("a new libvirt daemon", wait::SOON, || {
                Ok(match daemon().filter(|found| found.pid != last) {
                    Some(found) => wait::Seen::Yes(found),
                    None => wait::Seen::Not("none".into()),
                })
            })?;
            last = found.pid;
            found.kill()?;
        }
        let told = |vmi: &Value| {
            let conditions = vmi["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|c| c["reason"] == "LibvirtUnstable"))
        };
        host.wait_for("vmi", &name, "a condition about the daemon", told)?;
        let events = host.kubectl(&["get", "events"])?;
        ensure!(events.contains("libvirt's daemon ended"), "no event says so: {events}");
        ensure!(guest.alive(), "the guest ended with its daemon");
        Ok(())
    })
}

fn stops_gracefully(host: &Host) -> Result<()> {
    each("stop", &json!({}), |driver| {
        let name = name(driver);
        let vmi = host.get("vmi", &name)?;
        let pod = host.pod_of(&vmi)?;
        let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?.to_owned();
        let mut console = host.console(&name)?;
        // Only who is connected hears what the guest says.
        console.login(&name)?;
        host.ferrovirt(&["stop", &name])?;
        // busybox says so in both, and only on an orderly way down.
        console.expect("The system is going down", wait::SOON)?;
        host.wait_gone("vmi", &name)?;
        wait::until("the pod to leave nothing", wait::SOON, || {
            let left = leftovers::of_pod(&host.data_dir(), host.instance(), &uid)?;
            Ok(if left.is_empty() { wait::Seen::Yes(()) } else { wait::Seen::Not(left.join("\n")) })
        })
    })
}

fn ends_with_its_launcher(host: &Host) -> Result<()> {
    let containers = || drivers().filter(|driver| driver.guest() == Guest::Container);
    for driver in containers() {
        let name = name(driver);
        host.ferrovirt(&["start", &name])?;
        host.wait_running(&name)?;
        let controller = hypervisor_process(host, driver)?;
        let init = container_init(&controller)?;
        host.launcher_of(&controller)?.kill()?;
        wait::until("the container to end with its launcher", wait::SOON, || {
            Ok(match controller.alive() || init.alive() {
                false => wait::Seen::Yes(()),
                true => wait::Seen::Not("it runs".into()),
            })
        })?;
        host.ferrovirt(&["delete", "vm", &name])?;
        host.wait_gone("vmi", &name)?;
    }
    Ok(())
}

fn refusals_say_what_to_do(host: &Host) -> Result<()> {
    let container = drivers().find(|driver| driver.guest() == Guest::Container).context("no container driver")?;
    let change = |what: &dyn Fn(&mut Value)| {
        // An instance, because a VM that asks for too much is only warned about it.
        let mut spec = machine(container)["spec"]["template"]["spec"].clone();
        what(&mut spec);
        let vmi = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": { "name": "refused", "namespace": "default" }, "spec": spec,
        });
        host.try_kubectl(&["create", "-f", "-"], &vmi.to_string())?.failure()
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let cases: [(Change<'_>, &str); 4] = [
        (&|spec| spec["hypervisor"] = json!("xen"), "available: qemu-kvm, lxc"),
        (&|spec| spec["hypervisor"] = json!("acrn"), "there is no hypervisor"),
        (
            &|spec| {
                spec["volumes"][0] =
                    json!({ "name": "root", "hostDisk": { "path": "/etc/shadow", "type": "Disk", "capacity": "1Mi" } })
            },
            "files of the node are not given to containers",
        ),
        (
            &|spec| spec["domain"]["devices"]["gpus"] = json!([{ "name": "g", "deviceName": "d" }]),
            "devices of the node",
        ),
    ];
    for (what, expected) in cases {
        let said = change(what)?;
        ensure!(said.contains(expected), "expected {expected:?} in: {said}");
    }
    // An administrator takes the driver back.
    let set = |names: &[&str]| {
        let names: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        let patch = json!({ "spec": { "configuration": { "hypervisors": names } } }).to_string();
        host.kubectl(&["-n", "kubevirt", "patch", "kubevirt", "kubevirt", "--type", "merge", "-p", &patch])
    };
    set(&["qemu-kvm"])?;
    let said = change(&|_| {});
    set(&["qemu-kvm", container.name()])?;
    let said = said?;
    ensure!(said.contains("not admitted") && said.contains("spec.configuration.hypervisors"), "it said {said}");
    Ok(())
}

/// libvirt without a driver, and a daemon that does not start although it did when the node was probed.
fn broken_nodes_say_what_to_do(_: &Host) -> Result<()> {
    let container = drivers().find(|driver| driver.guest() == Guest::Container).context("no container driver")?;
    let options = Options {
        arguments: vec!["--hypervisors".into(), container.name().into()],
        usr: Some("rm /usr/lib/*/libvirt/connection-driver/libvirt_driver_lxc.so"),
        ..Options::default()
    };
    let host = Host::start_with(options)?;
    host.ferrovirt(&["image", "import", &container_archive()?.to_string_lossy()])?;
    let expected = "libvirt's LXC driver (libvirt-daemon-driver-lxc) is not installed";
    let name = name(container);
    host.apply(&machine(container))?;
    host.wait_status(&name, "ErrorUnschedulable")?;
    told(&host, &name, ["HypervisorNotAvailable"; 2], expected)?;

    let machine = drivers().find(|driver| driver.name() == DEFAULT).context("no default driver")?;
    wait_offered(&host, machine)?;
    host.change_usr("cp /bin/false /usr/sbin/new && mv /usr/sbin/new /usr/sbin/libvirtd")?;
    let name = self::name(machine);
    host.apply(&self::machine(machine))?;
    host.wait_status(&name, "CrashLoopBackOff")?;
    let reasons = ["Synchronizing with the Domain failed.", "SyncFailed"];
    told(&host, &name, reasons, "the libvirt daemon ended at once")?;
    host.ferrovirt(&["delete", "vm", &name, &self::name(container)])?;
    host.down()
}

/// A condition of the VM, an event, each with its reason, and `ferrovirt why` say the same.
fn told(host: &Host, name: &str, [condition, event]: [&str; 2], message: &str) -> Result<()> {
    let says = |found: &Value, reason: &str| {
        found["reason"] == reason && found["message"].as_str().is_some_and(|text| text.contains(message))
    };
    host.wait_for("vm", name, "a condition that says why", |vm| {
        vm["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(|one| says(one, condition)))
    })?;
    wait::until("an event that says why", wait::SOON, || {
        let events: Value = serde_json::from_str(&host.kubectl(&["get", "events", "-o", "json"])?)?;
        let told = events["items"].as_array().context("no events")?.iter().any(|one| says(one, event));
        Ok(if told { wait::Seen::Yes(()) } else { wait::Seen::Not(events.to_string()) })
    })?;
    let why = host.try_ferrovirt(&["why", name], "")?;
    ensure!(why.stdout.contains(message), "`ferrovirt why` says {}", why.stdout);
    Ok(())
}

fn privileged_pods_are_not_for_owners(host: &Host) -> Result<()> {
    host.kubectl(&["create", "rolebinding", "owner", "--clusterrole=admin", "--user=owner"])?;
    let pod = |privileged: bool| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "owners", "namespace": "default" },
            "spec": { "containers": [{
                "name": "compute", "image": "ferrovirt-launcher-lxc:any", "securityContext": { "privileged": privileged },
            }] },
        })
    };
    let as_owner = ["create", "--dry-run=server", "--as=owner", "-f", "-"];
    host.try_kubectl(&as_owner, &pod(false).to_string())?.success()?;
    let said = host.try_kubectl(&as_owner, &pod(true).to_string())?.failure()?;
    ensure!(said.contains("pods/privileged"), "it said {said}");
    host.kubectl(&["delete", "rolebinding", "owner"])?;
    Ok(())
}
