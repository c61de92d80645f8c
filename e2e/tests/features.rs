//! What a machine can ask of its node beyond plain memory and CPUs, each with a guest that has it.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{Case, Host, Options, manifest, process::Process, suite, wait};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("huge_pages_hold_the_guest", huge_pages_hold_the_guest),
    ("cpus_are_the_guests_alone", cpus_are_the_guests_alone),
    ("firmware_and_tpm_keep_their_state", firmware_and_tpm_keep_their_state),
    ("guests_read_metrics_of_their_host", guests_read_metrics_of_their_host),
    ("directories_are_shared_with_guests", directories_are_shared_with_guests),
];

const EMBEDDED_ONLY: &[(&str, &str)] = &[
    ("huge_pages_hold_the_guest", "kubelets count the pages of their node only when they start"),
    ("cpus_are_the_guests_alone", "the kubelets of the test cluster have no static CPU manager"),
];

fn main() -> ExitCode {
    suite(Options { embedded_only: EMBEDDED_ONLY, ..Options::default() }, CASES)
}

/// More pages in the machine's pool, taken back when dropped.
struct Pages {
    before: u64,
}

impl Pages {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";

    fn reserve(more: u64) -> Result<Self> {
        let reserved = Self { before: Self::count()? };
        fs::write(Self::FILE, (reserved.before + more).to_string())?;
        let now = Self::count()?;
        ensure!(now >= reserved.before + more, "the machine reserves {now} pages of {}", reserved.before + more);
        Ok(reserved)
    }

    fn count() -> Result<u64> {
        Ok(fs::read_to_string(Self::FILE)?.trim().parse()?)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = fs::write(Self::FILE, self.before.to_string());
    }
}

fn remove(host: &Host, name: &str) -> Result<()> {
    host.kubectl(&["delete", "vm", name, "--wait=false"])?;
    host.wait_gone("vmi", name)
}

/// Waits until an instance says this in one of its conditions.
fn wait_told(host: &Host, name: &str, text: &str) -> Result<()> {
    let told = |condition: &Value| condition["message"].as_str().unwrap_or_default().contains(text);
    host.wait_for("vmi", name, &format!("to say {text:?}"), |vmi| {
        vmi["status"]["conditions"].as_array().is_some_and(|conditions| conditions.iter().any(told))
    })?;
    Ok(())
}

fn huge_pages_hold_the_guest(host: &Host) -> Result<()> {
    const NAME: &str = "huge";
    // More than any pool has: its pod waits, and says for what.
    let mut vm = manifest::plain_vm(NAME, "Always");
    vm["spec"]["template"]["spec"]["domain"]["memory"] =
        json!({ "guest": "900Gi", "hugepages": { "pageSize": "2Mi" } });
    host.apply(&vm)?;
    wait_told(host, NAME, "Insufficient hugepages-2Mi")?;
    remove(host, NAME)?;
    host.wait_gone("vm", NAME)?;

    const MIB: u64 = 128;
    let _pages = Pages::reserve(MIB / 2)?;
    vm["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = json!(format!("{MIB}Mi"));
    host.apply(&vm)?;
    host.wait_running(NAME)?;
    let qemu = host.qemu(NAME)?;
    let path = format!("/proc/{}/smaps_rollup", qemu.pid);
    wait::until("the guest's memory to be in huge pages", wait::SOON, || {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let kilobytes = |name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let huge = kilobytes("Private_Hugetlb:") + kilobytes("Shared_Hugetlb:");
        Ok(if huge == MIB * 1024 { wait::Seen::Yes(()) } else { wait::Seen::Not(format!("{huge} kB are")) })
    })?;
    remove(host, NAME)
}

fn cpus_are_the_guests_alone(host: &Host) -> Result<()> {
    const OWN: &str = "own-cpus";
    const OTHER: &str = "shares-cpus";
    let all = cpus_of(std::process::id().try_into()?)?;
    ensure!(all.len() > 1, "a machine with one CPU has none to give away");
    host.apply(&manifest::plain_vm(OTHER, "Always"))?;
    host.wait_running(OTHER)?;
    let other = host.qemu(OTHER)?;
    ensure!(cpus_of(other.pid)? == all);

    // More than there are to give away: one is always shared.
    let mut vm = manifest::plain_vm(OWN, "Always");
    vm["spec"]["template"]["spec"]["domain"]["cpu"] = json!({ "cores": all.len(), "dedicatedCpuPlacement": true });
    host.apply(&vm)?;
    wait_told(host, OWN, "exclusive cpu")?;
    remove(host, OWN)?;
    host.wait_gone("vm", OWN)?;

    // Its memory is where its CPU is.
    const MIB: u64 = 128;
    let _pages = Pages::reserve(MIB / 2)?;
    let domain = &mut vm["spec"]["template"]["spec"]["domain"];
    domain["cpu"] = json!({ "cores": 1, "dedicatedCpuPlacement": true, "numa": { "guestMappingPassthrough": {} } });
    domain["memory"] = json!({ "guest": format!("{MIB}Mi"), "hugepages": { "pageSize": "2Mi" } });
    host.apply(&vm)?;
    host.wait_running(OWN)?;
    let qemu = host.qemu(OWN)?;
    let arguments = qemu.arguments.join(" ");
    ensure!(arguments.contains(r#""host-nodes":[0],"policy":"bind""#), "the memory is bound to no node: {arguments}");
    let own = cpus_of(qemu.pid)?;
    ensure!(own.len() == 1, "{own:?}");
    let rest: Vec<u32> = all.iter().copied().filter(|cpu| !own.contains(cpu)).collect();
    ensure!(cpus_of(other.pid)? == rest, "the other guest runs on {:?}", cpus_of(other.pid)?);

    // It stays so when the host begins again, also for who comes later.
    host.kill_up()?;
    host.up()?;
    host.kubectl(&["delete", "vm", OTHER, "--wait=false"])?;
    host.wait_gone("vm", OTHER)?;
    host.apply(&manifest::plain_vm(OTHER, "Always"))?;
    host.wait_running(OTHER)?;
    let other = host.qemu(OTHER)?;
    ensure!(cpus_of(other.pid)? == rest && cpus_of(qemu.pid)? == own);

    remove(host, OWN)?;
    wait::until("the CPU to be everybody's again", wait::SOON, || {
        let now = cpus_of(other.pid)?;
        Ok(if now == all { wait::Seen::Yes(()) } else { wait::Seen::Not(format!("{now:?}")) })
    })?;
    remove(host, OTHER)
}

fn firmware_and_tpm_keep_their_state(host: &Host) -> Result<()> {
    const NAME: &str = "keeps";
    const CLAIM: &str = "persistent-state-for-keeps";
    let mut vm = manifest::plain_vm(NAME, "Always");
    let domain = &mut vm["spec"]["template"]["spec"]["domain"];
    domain["features"] = json!({ "smm": {} });
    domain["firmware"] = json!({ "bootloader": { "efi": { "persistent": true } } });
    domain["devices"]["tpm"] = json!({ "persistent": true });
    host.apply(&vm)?;
    host.wait_running(NAME)?;
    let claim = host.get("pvc", CLAIM)?;
    ensure!(claim["metadata"]["ownerReferences"][0]["kind"] == "VirtualMachine", "{claim:#}");
    let volume = host.get("pv", claim["spec"]["volumeName"].as_str().context("the claim has no volume")?)?;
    let directory = PathBuf::from(volume["spec"]["local"]["path"].as_str().context("the volume is not local")?);

    // The variables are the same file, and no second TPM was made: each one takes the next serial number for its certificates.
    let kept = || -> Result<(u64, String)> {
        let variables = fs::metadata(directory.join("nvram").join(format!("{NAME}_VARS.fd")))?.ino();
        Ok((variables, fs::read_to_string(directory.join("swtpm-localca/certserial"))?))
    };
    let first = kept()?;
    host.ferrovirt(&["stop", NAME])?;
    host.wait_gone("vmi", NAME)?;
    ensure!(kept()? == first);
    host.ferrovirt(&["start", NAME])?;
    host.wait_running(NAME)?;
    let qemu = host.qemu(NAME)?.arguments.join(" ");
    ensure!(qemu.contains("tpm-crb"), "no TPM: {qemu}");
    ensure!(kept()? == first, "{:?} became {:?}", first, kept()?);

    remove(host, NAME)?;
    host.wait_gone("pvc", CLAIM)
}

/// The disk form is read inside the guest. The channel needs a driver that the demo guest lacks: here only its device is looked for.
fn guests_read_metrics_of_their_host(host: &Host) -> Result<()> {
    const NAME: &str = "told";
    let _gate = Gate::open(host, "DownwardMetrics")?;
    let mut vm = manifest::vm(NAME, "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["domain"]["devices"]["downwardMetrics"] = json!({});
    let disks = spec["domain"]["devices"]["disks"].as_array_mut().context("no disks")?;
    disks.push(json!({ "name": "metrics", "disk": { "bus": "virtio" } }));
    spec["volumes"].as_array_mut().context("no volumes")?.push(json!({ "name": "metrics", "downwardMetrics": {} }));
    apply_gated(host, &vm)?;
    let vmi = host.wait_running(NAME)?;
    let node = vmi["status"]["nodeName"].as_str().context("the VMI has no node")?;
    let mut console = host.console(NAME)?;
    console.login(NAME)?;
    let told = console.shell("sudo head -c 4096 /dev/vdc | tr -d '\\000'")?;
    ensure!(told.starts_with("mvbd"), "no disk of metrics: {told:?}");
    ensure!(told.contains(&format!("<value>{node}</value>")), "the host's name is not {node}: {told:?}");
    ensure!(told.contains("ResourceMemoryLimit") && told.contains("FreePhysicalMemory"), "{told:?}");
    console.leave()?;
    let qemu = host.qemu(NAME)?.arguments.join(" ");
    ensure!(qemu.contains("org.github.vhostmd.1"), "no channel: {qemu}");
    remove(host, NAME)
}

/// A configMap is read and a claim written to; the next life of the machine finds what the first one wrote.
fn directories_are_shared_with_guests(host: &Host) -> Result<()> {
    const NAME: &str = "shares";
    const MOUNT: &str = "sudo mkdir -p /mnt/settings /mnt/data && sudo mount -t virtiofs settings /mnt/settings && \
                         sudo mount -t virtiofs data /mnt/data && echo mounted";
    let _gate = Gate::open(host, "EnableVirtioFsStorageVolumes")?;
    host.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": NAME, "namespace": "default" },
        "data": { "colour": "green" },
    }))?;
    host.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": NAME, "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "64Mi" } } },
    }))?;
    let mut vm = manifest::vm(NAME, "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["domain"]["devices"]["filesystems"] =
        json!([{ "name": "settings", "virtiofs": {} }, { "name": "data", "virtiofs": {} }]);
    // What was written is on the host at once, and a guest that misses a file system does not power off.
    spec["terminationGracePeriodSeconds"] = json!(0);
    let volumes = spec["volumes"].as_array_mut().context("no volumes")?;
    volumes.push(json!({ "name": "settings", "configMap": { "name": NAME } }));
    volumes.push(json!({ "name": "data", "persistentVolumeClaim": { "claimName": NAME } }));
    apply_gated(host, &vm)?;

    host.wait_running(NAME)?;
    let mut console = host.console(NAME)?;
    console.login(NAME)?;
    let said = console.shell(MOUNT)?;
    ensure!(said.contains("mounted"), "{said:?}");
    ensure!(console.shell("cat /mnt/settings/colour")?.trim() == "green");
    // Nothing was put there as a disk.
    let there = console.shell("sudo ls /mnt/data")?;
    ensure!(there.trim().is_empty(), "{there:?}");
    let said = console.shell("sudo touch /mnt/settings/colour || echo no; echo kept | sudo tee /mnt/data/note")?;
    ensure!(said.contains("no") && said.contains("kept"), "{said:?}");
    console.leave()?;
    let daemons = daemons_of(host, NAME)?;
    ensure!(daemons.len() == 2, "{daemons:?}");
    host.ferrovirt(&["stop", NAME])?;
    host.wait_gone("vmi", NAME)?;
    ensure!(daemons.iter().all(|daemon| !daemon.alive()), "a daemon outlives its machine");

    host.ferrovirt(&["start", NAME])?;
    host.wait_running(NAME)?;
    let mut console = host.console(NAME)?;
    console.login(NAME)?;
    let said = console.shell(&format!("{MOUNT} && sudo cat /mnt/data/note"))?;
    ensure!(said.contains("kept"), "{said:?}");
    console.leave()?;

    // A daemon that is lost is told of. The guest goes on.
    for daemon in daemons_of(host, NAME)? {
        if daemon.arguments.iter().any(|argument| argument.ends_with("/settings.sock")) {
            daemon.kill()?;
        }
    }
    wait_told(host, NAME, "the virtiofs daemon of settings (signal 9) ended")?;
    ensure!(host.get("vmi", NAME)?["status"]["phase"] == "Running");
    remove(host, NAME)?;
    host.kubectl(&["delete", "pvc,configmap", NAME, "--wait=false"])?;
    host.wait_gone("pvc", NAME)
}

/// The daemons of a machine's shared directories. None of them is root.
fn daemons_of(host: &Host, name: &str) -> Result<Vec<Process>> {
    let launcher = host.launcher_of(&host.qemu(name)?)?;
    let here = launcher.namespace("pid")?;
    let mut found = vec![];
    for process in host.processes() {
        if process.program().contains("virtiofsd") && process.namespace("pid").is_ok_and(|other| other == here) {
            ensure!(process.user_inside()? == 107, "{process:?}");
            found.push(process);
        }
    }
    Ok(found)
}

/// A feature gate that is open for everybody, until this is dropped.
struct Gate<'a> {
    host: &'a Host,
    before: Value,
}

impl<'a> Gate<'a> {
    fn open(host: &'a Host, gate: &str) -> Result<Self> {
        let kubevirt = host.kubectl(&["-n", "kubevirt", "get", "kubevirt", "kubevirt", "-o", "json"])?;
        let kubevirt: Value = serde_json::from_str(&kubevirt)?;
        let before = kubevirt["spec"]["configuration"]["developerConfiguration"]["featureGates"].clone();
        let mut gates = before.as_array().cloned().unwrap_or_default();
        gates.push(gate.into());
        set_gates(host, &gates.into())?;
        Ok(Self { host, before })
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        let _ = set_gates(self.host, &self.before);
    }
}

fn set_gates(host: &Host, gates: &Value) -> Result<()> {
    let patch = json!({ "spec": { "configuration": { "developerConfiguration": { "featureGates": gates } } } });
    let patch = patch.to_string();
    host.kubectl(&["-n", "kubevirt", "patch", "kubevirt", "kubevirt", "--type", "merge", "-p", &patch])?;
    Ok(())
}

/// Applies what needs a gate that was opened a moment ago.
fn apply_gated(host: &Host, vm: &Value) -> Result<()> {
    wait::until("the gate to be open", wait::SOON, || {
        let outcome = host.try_kubectl(&["apply", "-f", "-"], &vm.to_string())?;
        Ok(if outcome.succeeded() { wait::Seen::Yes(()) } else { wait::Seen::Not(format!("{outcome:?}")) })
    })
}

/// The CPUs on which any thread of a process may run.
fn cpus_of(pid: i32) -> Result<Vec<u32>> {
    let mut found = BTreeSet::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while we look.
        let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
        for part in list.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            found.extend(first.parse::<u32>()?..=last.parse()?);
        }
    }
    Ok(found.into_iter().collect())
}
