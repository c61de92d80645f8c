//! Second half of `make bench`: the memory of every process of a machine, per hypervisor, idle and under load.
//!
//! The constants of pods' requests (`Hypervisor::overheads`) come from this table, rounded up. Guest memory is left out: of
//! QEMU the mapping that is the guest's RAM, of a container its processes.

use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Host, Options, container_archive, manifest,
    process::{self, Process},
    wait,
};
use serde_json::{Value, json};

const HYPERVISORS: [(&str, &str); 2] = [("qemu-kvm", manifest::IMAGE), ("lxc", manifest::CONTAINER_IMAGE)];
const GUEST_MIB: u64 = 1024;
/// What KubeVirt adds to a pod's request for the same machine.
const UPSTREAM_MIB: u64 = 290;
/// Larger than any mapping of QEMU's own, smaller than the guest's RAM.
const RAM_KIB: u64 = 256 << 10;
const LOAD: &str = "for i in 1 2 3; do find / -xdev -type f 2>/dev/null | head -n 3000 | xargs cat >/dev/null 2>&1; \
                    dd if=/dev/zero of=/tmp/load bs=1M count=64 2>/dev/null; rm /tmp/load; done";

/// Which part of `Overheads` a program belongs to.
fn role(process: &Process) -> Option<&'static str> {
    let program = process.program();
    let program = program.rsplit('/').next().unwrap_or(program);
    match program {
        // In a container of its own, with a request of its own.
        _ if process.arguments.get(1).is_some_and(|argument| argument == "console-log") => Some("console log"),
        _ if program.starts_with("ferrovirt-shim") => Some("monitor"),
        _ if program.starts_with("ferrovirt-launcher") => Some("launcher"),
        "libvirtd" | "virtqemud" | "virtlxcd" => Some("daemon"),
        "virtlogd" => Some("log daemon"),
        _ if program.starts_with("qemu-system") || program.starts_with("libvirt_lxc") => Some("hypervisor"),
        _ => None,
    }
}

fn main() -> Result<()> {
    let arguments = vec!["--hypervisors".to_owned(), HYPERVISORS.map(|(name, _)| name).join(",")];
    let host = Host::start_with(Options { arguments, ..Options::default() })?;
    host.ferrovirt(&["image", "import", &container_archive()?.to_string_lossy()])?;
    println!(
        "PSS in MiB of a VM with {GUEST_MIB} MiB, without the guest's own memory; no KVM here, so QEMU is emulating"
    );
    println!("{:<12}{:<14}{:>8}{:>10}", "hypervisor", "process", "idle", "stressed");
    for (hypervisor, image) in HYPERVISORS {
        measure(&host, hypervisor, image)?;
    }
    host.down()
}

type Sizes = BTreeMap<&'static str, u64>;

fn measure(host: &Host, hypervisor: &str, image: &str) -> Result<()> {
    let name = format!("on-{hypervisor}");
    let mut vm = manifest::vm(&name, "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["hypervisor"] = json!(hypervisor);
    spec["domain"]["memory"]["guest"] = json!(format!("{GUEST_MIB}Mi"));
    spec["volumes"][0]["containerDisk"]["image"] = json!(image);
    host.apply(&vm)?;
    let vmi = host.wait_running(&name)?;
    let pod = host.pod_of(&vmi)?;
    let mut console = host.console(&name)?;
    console.login(&name)?;
    // The watcher's own thread cannot have the host.
    let (data_dir, instance) = (host.data_dir(), host.instance().to_owned());
    let look = || sizes(process::of_host(&data_dir, &instance));
    let idle = look();
    ensure!(idle.contains_key("hypervisor"), "no process of {hypervisor} among {idle:?}");

    let done = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = idle.clone();
            while !done.load(Ordering::Relaxed) {
                for (role, size) in look() {
                    let known = most.entry(role).or_default();
                    *known = size.max(*known);
                }
                // Reading the maps of a process holds it up.
                thread::sleep(Duration::from_millis(300));
            }
            most
        });
        let loaded = load(host, &name, &mut console);
        done.store(true, Ordering::Relaxed);
        let most = watch.join().map_err(|_| anyhow::anyhow!("the watcher failed"));
        loaded.and(most)
    })?;
    console.leave()?;
    for (role, stressed) in &most {
        let mebibytes = |kibibytes: u64| kibibytes as f64 / 1024.0;
        let idle = idle.get(role).copied().unwrap_or_default();
        println!("{hypervisor:<12}{role:<14}{:>8.1}{:>10.1}", mebibytes(idle), mebibytes(*stressed));
    }
    let total = |sizes: &Sizes| sizes.values().sum::<u64>() as f64 / 1024.0;
    let asked = requested(&pod)?.saturating_sub(GUEST_MIB);
    println!("{hypervisor:<12}{:<14}{:>8.1}{:>10.1}", "all", total(&idle), total(&most));
    println!(
        "{hypervisor:<12}the pod asks for {asked} MiB beside the guest's; KubeVirt for {UPSTREAM_MIB} ({:.0} %)",
        asked as f64 * 100.0 / UPSTREAM_MIB as f64
    );
    host.ferrovirt(&["delete", "vm", &name])?;
    host.wait_gone("vmi", &name)
}

/// The guest reads and writes, and the world asks about it.
fn load(host: &Host, name: &str, console: &mut ferrovirt_e2e::Console) -> Result<()> {
    console.line(&format!("{LOAD}; echo DO''NE"))?;
    for _ in 0..10 {
        host.ferrovirt(&["top", "--once"])?;
        // A container has no screen.
        host.try_ferrovirt(&["vnc", "screenshot", name, "--file", "/dev/null"], "")?;
    }
    console.expect("DONE\r\n", wait::BOOT).map(drop)
}

/// KiB by role, of all processes of the host's machines; there is one machine at a time.
fn sizes(processes: Vec<Process>) -> Sizes {
    let mut sizes = Sizes::new();
    for process in processes {
        if let Some(role) = role(&process) {
            *sizes.entry(role).or_default() += own_memory(&process).unwrap_or_default();
        }
    }
    sizes
}

/// Proportional memory in KiB without the mapping that is a guest's RAM.
fn own_memory(process: &Process) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{}/smaps", process.pid))?;
    let (mut total, mut counts) = (0, true);
    for line in text.lines() {
        let value = |rest: &str| -> Result<u64> { Ok(rest.trim().trim_end_matches(" kB").parse()?) };
        if let Some(size) = line.strip_prefix("Size:") {
            counts = value(size)? < RAM_KIB;
        } else if let Some(pss) = line.strip_prefix("Pss:").filter(|_| counts) {
            total += value(pss)?;
        }
    }
    Ok(total)
}

/// What the pod's containers ask for, in MiB.
fn requested(pod: &Value) -> Result<u64> {
    let containers = pod["spec"]["containers"].as_array().context("the pod has no containers")?;
    let mut total = 0;
    for container in containers {
        let text = container["resources"]["requests"]["memory"].as_str().unwrap_or("0");
        total += match text.trim_end_matches(|c: char| c.is_ascii_alphabetic()) {
            number if text.ends_with("Mi") => number.parse::<u64>()? << 20,
            number if text.ends_with("Ki") => number.parse::<u64>()? << 10,
            number if text.ends_with("Gi") => number.parse::<u64>()? << 30,
            number => number.parse()?,
        };
    }
    Ok(total >> 20)
}
