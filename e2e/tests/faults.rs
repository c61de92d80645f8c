//! Real processes die in any order, and no disk is ever held by two of them. The simulated form, with far more faults and with
//! trouble on the way to the API, is in `crates/sim/tests/it/faults.rs`.

use std::{
    collections::BTreeMap,
    fs,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Case, Host, Options, manifest, process, suite,
    wait::{self, Seen},
};
use serde_json::{Value, json};

const CASES: &[Case] = &[("no_disk_is_held_twice_whatever_dies", no_disk_is_held_twice_whatever_dies)];

const MACHINES: [&str; 2] = ["torn-a", "torn-b"];
/// `make nightly` asks for these, unless `FERROVIRT_FAULTS` says how many.
const LONG_ROUNDS: usize = 500;
/// A machine that failed before it ran waits before it is tried again, up to five minutes and half as much.
const RETURN: Duration = Duration::from_secs(600);
/// Between two looks at who holds which disk.
const LOOK: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    let embedded_only = &[(
        "no_disk_is_held_twice_whatever_dies",
        "`make e2e-kubernetes` kills the parts of a cluster in its own suite",
    )];
    suite(Options { embedded_only, ..Options::default() }, CASES)
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Launcher,
    Shim,
    Qemu,
    /// API, controllers and node agent at once.
    Host,
    PodByForce,
    Instance,
    Restart,
}

const FAULTS: [Fault; 7] =
    [Fault::Launcher, Fault::Shim, Fault::Qemu, Fault::Host, Fault::PodByForce, Fault::Instance, Fault::Restart];

fn no_disk_is_held_twice_whatever_dies(host: &Host) -> Result<()> {
    for name in MACHINES {
        host.apply(&claim(name))?;
        host.apply(&machine(name))?;
    }
    for name in MACHINES {
        settled(host, name)?;
    }
    let guard = Guard::start(host.instance());
    let done = hurt(host, &guard);
    let held = guard.stop();
    done?;
    ensure!(held.is_empty(), "held twice: {held:?}");
    for name in MACHINES {
        host.ferrovirt(&["delete", "vm", name])?;
        host.wait_gone("vmi", name)?;
        host.kubectl(&["delete", "pvc", name])?;
    }
    Ok(())
}

/// One fault of each kind, or hundreds at random.
fn hurt(host: &Host, guard: &Guard) -> Result<()> {
    let asked = match std::env::var("FERROVIRT_FAULTS") {
        Ok(faults) => Some(faults.parse().context("FERROVIRT_FAULTS is no number")?),
        Err(_) => None,
    };
    let long = asked.is_some() || std::env::var_os("FERROVIRT_LONG").is_some();
    let seed = match std::env::var("FERROVIRT_SEED") {
        Ok(seed) => seed.parse().context("FERROVIRT_SEED is no number")?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    let mut dice = Dice(seed);
    let mut order = FAULTS.to_vec();
    for last in (1..order.len()).rev() {
        order.swap(last, dice.below(last + 1));
    }
    let rounds = asked.unwrap_or(if long { LONG_ROUNDS } else { order.len() });
    println!("{rounds} faults, FERROVIRT_SEED={seed}");
    let mut struck = 0;
    for round in 0..rounds {
        let fault = match order.get(round) {
            Some(fault) => *fault,
            None => FAULTS.get(dice.below(FAULTS.len())).copied().unwrap_or(Fault::Launcher),
        };
        let name = MACHINES.get(dice.below(MACHINES.len())).copied().unwrap_or_default();
        if long && round % 25 == 0 {
            println!("round {round}");
        }
        let hurt = inflict(host, fault, name).with_context(|| format!("round {round}: {fault:?} of {name}"))?;
        struck += usize::from(hurt);
        ensure!(guard.held().is_empty(), "after round {round}, {fault:?} of {name}: {:?}", guard.held());
        // Every other time the next fault comes while things are still on their way.
        if !long || dice.below(2) == 0 {
            settled(host, name).with_context(|| format!("after round {round}, {fault:?} of {name}"))?;
        }
    }
    for name in MACHINES {
        settled(host, name)?;
    }
    println!("{struck} of {rounds} faults found something to hurt");
    Ok(())
}

/// Does the harm. What is not there cannot be hurt; then nothing happens, and the answer is false.
fn inflict(host: &Host, fault: Fault, name: &str) -> Result<bool> {
    let qemu = host.qemu(name).ok();
    let launcher = qemu.as_ref().and_then(|qemu| host.launcher_of(qemu).ok());
    match fault {
        Fault::Qemu => kill(qemu),
        Fault::Launcher => kill(launcher),
        Fault::Shim => {
            let shim = launcher.and_then(|launcher| process::Process::read(launcher.parent));
            kill(shim.filter(|shim| shim.program().contains("shim")))
        }
        Fault::Host => {
            host.kill_up()?;
            host.up().map(|_| true)
        }
        Fault::PodByForce => {
            let Some(vmi) = host.object("vmi", name)? else { return Ok(false) };
            let Ok(pod) = host.pod_of(&vmi) else { return Ok(false) };
            let pod = pod["metadata"]["name"].as_str().context("a pod without a name")?.to_owned();
            let force = ["delete", "pod", &pod, "--force", "--grace-period=0", "--wait=false"];
            Ok(host.try_kubectl(&force, "")?.succeeded())
        }
        Fault::Instance => Ok(host.try_kubectl(&["delete", "vmi", name, "--wait=false"], "")?.succeeded()),
        // Refused while it does not run.
        Fault::Restart => Ok(host.try_ferrovirt(&["restart", "--wait=false", name], "")?.succeeded()),
    }
}

fn kill(process: Option<process::Process>) -> Result<bool> {
    match process {
        Some(process) => process.kill().map(|()| true),
        None => Ok(false),
    }
}

/// Waits until the machine is up for good: the API says so, and the process that it means is there.
fn settled(host: &Host, name: &str) -> Result<()> {
    wait::until(&format!("{name} to be up again"), RETURN, || {
        let (vm, vmi) = (host.object("vm", name)?, host.object("vmi", name)?);
        let (Some(vm), Some(vmi)) = (vm, vmi) else { return Ok(Seen::Not("no instance".into())) };
        let up = vm["status"]["printableStatus"] == "Paused"
            && vmi["status"]["phase"] == "Running"
            && vmi["metadata"]["deletionTimestamp"].is_null();
        let qemu = host.qemu(name);
        Ok(match (up, qemu) {
            (true, Ok(_)) => Seen::Yes(()),
            (_, qemu) => Seen::Not(format!("{} {}; QEMU: {}", vm["status"], vmi["status"], qemu.is_ok())),
        })
    })
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "16Mi" } } },
    })
}

/// A machine that holds a disk of its own and costs no time: its guest never runs.
fn machine(name: &str) -> Value {
    let mut vm = manifest::plain_vm(name, "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["startStrategy"] = json!("Paused");
    spec["domain"]["memory"]["guest"] = json!("64Mi");
    spec["domain"]["devices"]["disks"] = json!([{ "name": "own", "disk": { "bus": "virtio" } }]);
    spec["volumes"] = json!([{ "name": "own", "persistentVolumeClaim": { "claimName": name } }]);
    vm
}

/// Looks all the time which machines have more than one QEMU.
struct Guard {
    found: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Guard {
    fn start(instance: &str) -> Self {
        let (found, stop) = (Arc::new(Mutex::new(vec![])), Arc::new(AtomicBool::new(false)));
        let (seen, ended, group) = (found.clone(), stop.clone(), format!("ferrovirt-{instance}"));
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let twice = held_twice(&group);
                seen.lock().unwrap_or_else(PoisonError::into_inner).extend(twice);
                thread::sleep(LOOK);
            }
        });
        Self { found, stop, thread }
    }

    fn held(&self) -> Vec<String> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let held = self.held();
        match self.thread.join() {
            Ok(()) => held,
            Err(_) => vec!["nobody looked".into()],
        }
    }
}

/// The machines of a host that have two QEMUs with the disk open at this moment.
fn held_twice(group: &str) -> Vec<String> {
    let mut holders: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if !comm.starts_with("qemu-system") {
            continue;
        }
        let ours = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default().contains(group);
        if let (true, Ok(Some(disk))) = (ours, open_disk(pid)) {
            holders.entry(disk).or_default().push(pid);
        }
    }
    holders.into_iter().filter(|(_, pids)| pids.len() > 1).map(|(disk, pids)| format!("{disk} by {pids:?}")).collect()
}

/// Device and inode of the machine's own disk, if the process has it open.
fn open_disk(pid: i32) -> Result<Option<String>> {
    use std::os::unix::fs::MetadataExt;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        let Ok(target) = fs::read_link(&path) else { continue };
        if target.ends_with("disk.img") {
            let Ok(file) = fs::metadata(&path) else { continue };
            return Ok(Some(format!("inode {}:{}", file.dev(), file.ino())));
        }
    }
    Ok(None)
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % (bound.max(1) as u64)).unwrap_or(0)
    }
}
