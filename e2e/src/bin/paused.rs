//! The real part of `make bench-scale`: many real machines that start paused, so that guests cost nothing and what is
//! measured is ours.
//!
//! ```text
//! paused [--vms 30]
//! ```

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ferrovirt_e2e::{Host, manifest};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(600);

fn main() -> Result<()> {
    let vms = match std::env::args().nth(1).as_deref() {
        None => 30,
        Some("--vms") => std::env::args().nth(2).context("--vms needs a number")?.parse()?,
        Some(word) => bail!("unknown argument {word}; there is --vms N"),
    };
    ensure!(vms > 0, "there must be at least one VM");
    let host = Host::start()?;
    let before = host.up_process()?.memory()?.rss;
    let mut seconds = start_all(&host, vms)?;
    seconds.sort_by(f64::total_cmp);
    let at = |share: f64| seconds.get(((vms - 1) as f64 * share) as usize).copied().unwrap_or(f64::NAN);

    let up = host.up_process()?;
    let (mut qemu, mut beside) = (0, 0);
    for process in host.processes().iter().filter(|process| process.pid != up.pid) {
        // Gone meanwhile: not part of a machine that stays.
        let Ok(memory) = process.memory() else { continue };
        let sum = if process.program().starts_with("qemu-system") { &mut qemu } else { &mut beside };
        *sum += memory.pss;
    }
    let mebibytes = |kibibytes: u64| kibibytes as f64 / 1024.0;
    println!("{vms} real machines that start paused, made one right after the other");
    for (what, value, unit) in [
        ("creation to Running, P50", at(0.5), "s"),
        ("creation to Running, P95", at(0.95), "s"),
        ("PSS per VM, QEMU", mebibytes(qemu) / vms as f64, "MiB"),
        ("PSS per VM, launcher and the like", mebibytes(beside) / vms as f64, "MiB"),
        ("RSS of up, no VM", mebibytes(before), "MiB"),
        ("RSS of up, all VMs", mebibytes(up.memory()?.rss), "MiB"),
    ] {
        println!("{what:<36}{value:>10.2} {unit}");
    }
    host.down()
}

/// Makes all machines and answers how long each took from its request until a watch said Running.
fn start_all(host: &Host, vms: usize) -> Result<Vec<f64>> {
    let mut watch =
        follow(host, &["get", "vmi", "--watch", "-o", "jsonpath={.metadata.name} {.status.phase}{\"\\n\"}"])?;
    let (sender, events) = mpsc::channel();
    let lines = output(&mut watch)?;
    thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            if sender.send((Instant::now(), line)).is_err() {
                return;
            }
        }
    });
    let file = host.work_dir().join("paused.json");
    fs::write(
        &file,
        json!({ "apiVersion": "v1", "kind": "List", "items": (0..vms).map(instance).collect::<Vec<_>>() }).to_string(),
    )?;
    let mut requested = Instant::now();
    let mut create = follow(host, &["create", "-f", &file.to_string_lossy()])?;
    let mut started = HashMap::new();
    for line in output(&mut create)?.lines() {
        let line = line?;
        let name = line.split(['/', ' ']).nth(1).context("kubectl says nothing")?.to_owned();
        // The next request was sent when this answer came.
        started.insert(name, std::mem::replace(&mut requested, Instant::now()));
    }
    ensure!(create.wait()?.success(), "`kubectl create` failed");
    let mut seconds = HashMap::new();
    let end = Instant::now() + PATIENCE;
    while seconds.len() < vms {
        let (when, line) = events
            .recv_timeout(end.saturating_duration_since(Instant::now()))
            .with_context(|| format!("{} of {vms} run", seconds.len()))?;
        if let Some((name, "Running")) = line.split_once(' ')
            && let Some(start) = started.get(name)
        {
            seconds.entry(name.to_owned()).or_insert(when.saturating_duration_since(*start).as_secs_f64());
        }
    }
    watch.kill()?;
    watch.wait()?;
    Ok(seconds.into_values().collect())
}

fn instance(number: usize) -> Value {
    let mut vm = manifest::plain_vm(&format!("paused-{number}"), "Always");
    let mut spec = vm["spec"]["template"]["spec"].take();
    spec["startStrategy"] = json!("Paused");
    spec["domain"]["memory"]["guest"] = json!("64Mi");
    // Otherwise two cores take 20 of them.
    spec["domain"]["resources"]["requests"]["cpu"] = json!("10m");
    json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": format!("paused-{number}"), "namespace": "default" }, "spec": spec })
}

fn follow(host: &Host, arguments: &[&str]) -> Result<Child> {
    Ok(host.command("kubectl").args(arguments).stdout(Stdio::piped()).spawn()?)
}

fn output(child: &mut Child) -> Result<BufReader<ChildStdout>> {
    Ok(BufReader::new(child.stdout.take().context("no output")?))
}
