//! `make bench-kubernetes`: what many VMs cost on a cluster, beside the same embedded and what KubeVirt publishes.
//!
//! ```text
//! density [--vms 20] [--json FILE] [--beside FILE]
//! ```
//!
//! The target is the one of the tests: embedded, or a cluster with `FERROVIRT_TARGET=kubernetes`.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Instant};

use anyhow::{Context, Result, bail};
use ferrovirt_e2e::{Host, cluster, manifest, process::Process};
use serde_json::{Value, json};

/// What KubeVirt's own measurements say: 100 VMs with a tiny guest on real hardware, two replicas of each component.
const KUBEVIRT: &[(&str, &str)] = &[
    ("control plane, no VM", "2450 MiB requested, and 325 MiB per node"),
    ("control plane, all VMs", "260 MiB used by one of each (100 VMs)"),
    ("creation to Running, P50", "16 s (100 VMs)"),
    ("creation to Running, P95", "26 s (100 VMs)"),
    ("API writes per VM", "18 or more (VMIs, pods, events)"),
    ("request above the guest's memory", "258 MiB (headless)"),
];

struct Arguments {
    vms: usize,
    json: Option<PathBuf>,
    beside: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = arguments()?;
    let host = Host::start()?;
    let mut figures = BTreeMap::new();
    figures.insert("control plane, no VM", (resident(&host.up_processes()?)?, "MiB"));
    measure(&host, arguments.vms, &mut figures)?;
    host.down()?;

    if let Some(file) = &arguments.json {
        let all: BTreeMap<&str, f64> = figures.iter().map(|(what, (value, _))| (*what, *value)).collect();
        fs::write(file, json!(all).to_string())?;
    }
    let beside: Value = match &arguments.beside {
        Some(file) => serde_json::from_str(&fs::read_to_string(file)?)?,
        None => Value::Null,
    };
    println!(
        "{} VMs of 64 MiB\n{:34}{:>14}{:>14}  KubeVirt's published figures",
        arguments.vms, "", "here", "embedded"
    );
    for (what, published) in KUBEVIRT {
        let show =
            |value: Option<f64>, unit: &str| value.map_or("–".to_owned(), |value| format!("{value:.1} {unit}"));
        let (here, unit) = figures.get(what).map_or((None, ""), |(value, unit)| (Some(*value), *unit));
        println!("{what:34}{:>14}{:>14}  {published}", show(here, unit), show(beside[what].as_f64(), unit));
    }
    Ok(())
}

fn measure(host: &Host, vms: usize, figures: &mut BTreeMap<&'static str, (f64, &'static str)>) -> Result<()> {
    let names: Vec<String> = (0..vms).map(|number| format!("many-{number}")).collect();
    let mut documents = vec![];
    for name in &names {
        let mut vm = manifest::plain_vm(name, "Always");
        vm["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = json!("64Mi");
        documents.push(vm.to_string());
    }
    let before = host.cluster().is_some().then(|| cluster::writes(host)).transpose()?;
    let started = Instant::now();
    host.try_kubectl(&["create", "-f", "-"], &documents.join("\n"))?.success()?;
    for name in &names {
        host.wait_running(name)?;
    }
    eprintln!("all run after {:.1} s", started.elapsed().as_secs_f32());
    if let Some(before) = before {
        let after = cluster::writes(host)?;
        let new: BTreeMap<&String, u64> = after
            .iter()
            .map(|(what, n)| (what, n - before.get(what).copied().unwrap_or(0)))
            .filter(|(_, n)| *n > 0)
            .collect();
        let total: u64 = new.values().sum();
        eprintln!("writes: {new:?}");
        figures.insert("API writes per VM", (total as f64 / vms as f64, ""));
    }
    figures.insert("control plane, all VMs", (resident(&host.up_processes()?)?, "MiB"));
    let mut times = names.iter().map(|name| time_to_running(&host.get("vmi", name)?)).collect::<Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times.get((times.len() * share / 100).min(times.len() - 1)).copied().unwrap_or_default();
    figures.insert("creation to Running, P50", (at(50), "s"));
    figures.insert("creation to Running, P95", (at(95), "s"));
    let first = names.first().context("no VMs were asked for")?;
    let pod = host.pod_of(&host.get("vmi", first)?)?;
    figures.insert("request above the guest's memory", (requested(&pod)? - 64.0, "MiB"));
    Ok(())
}

fn resident(processes: &[Process]) -> Result<f64> {
    let sizes = processes.iter().map(|process| Ok(process.memory()?.rss)).collect::<Result<Vec<u64>>>()?;
    Ok(sizes.iter().sum::<u64>() as f64 / 1024.0)
}

/// From the object's creation to its phase Running, in whole seconds, as the API keeps times.
fn time_to_running(vmi: &Value) -> Result<f64> {
    let phases = vmi["status"]["phaseTransitionTimestamps"].as_array().context("no phase timestamps")?;
    let running = phases.iter().find(|phase| phase["phase"] == "Running").context("it never ran")?;
    let seconds = |time: &Value| -> Result<f64> {
        let text = time.as_str().context("no time")?;
        // Within one day: hours, minutes and seconds are enough.
        let clock = text.split('T').nth(1).and_then(|rest| rest.get(..8)).context("not a time")?;
        let parts: Vec<f64> = clock.split(':').map(str::parse).collect::<Result<_, _>>()?;
        Ok(parts.iter().fold(0.0, |sum, part| sum * 60.0 + part))
    };
    let took = seconds(&running["phaseTransitionTimestamp"])? - seconds(&vmi["metadata"]["creationTimestamp"])?;
    Ok(if took < 0.0 { took + 86_400.0 } else { took })
}

/// What the pod asks for, in MiB.
fn requested(pod: &Value) -> Result<f64> {
    let containers = pod["spec"]["containers"].as_array().context("a pod without containers")?;
    let mut total = 0.0;
    for container in containers {
        let text = container["resources"]["requests"]["memory"].as_str().unwrap_or("0");
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number: f64 = digits.parse().with_context(|| format!("not a quantity: {text}"))?;
        total += match text.get(digits.len()..) {
            Some("") => number / 1024.0 / 1024.0,
            Some("Ki") => number / 1024.0,
            Some("Mi") => number,
            Some("Gi") => number * 1024.0,
            Some("M") => number * 1e6 / 1024.0 / 1024.0,
            _ => bail!("unexpected quantity {text}"),
        };
    }
    Ok(total)
}

fn arguments() -> Result<Arguments> {
    let mut found = Arguments { vms: 20, json: None, beside: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--vms" => found.vms = value.parse()?,
            "--json" => found.json = Some(value.into()),
            "--beside" => found.beside = Some(value.into()),
            _ => bail!("usage: density [--vms N] [--json FILE] [--beside FILE]"),
        }
    }
    Ok(found)
}
