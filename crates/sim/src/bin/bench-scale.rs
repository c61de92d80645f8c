//! `make bench-scale`: many simulated VMs on the embedded control plane, created at a steady rate.
//!
//! Everything but the guests is real: API server, store on disk, webhooks, controllers, node agents. Simulated are kubelet,
//! scheduler and launchers. Times are taken by a client, from the request to the event that says Running: timestamps in
//! objects only have whole seconds.

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use ferrovirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use ferrovirt_sim::{Cluster, Options, cluster::eventually};
use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;

const NODES: usize = 10;
const SETTLE: Duration = Duration::from_secs(300);

/// KubeVirt's public figures for 8,000 VMs on fake nodes (its KWOK job, bigger machines).
const PEER: Figures = Figures { p50: 0.61, p95: 1.4, vm_writes: 11.4, vmi_writes: 5.4, memory: 2200.0 };
const GOAL: Figures = Figures { p50: 0.3, p95: 0.8, vm_writes: 3.0, vmi_writes: 5.0, memory: 600.0 };

#[derive(Clone, Copy)]
struct Figures {
    p50: f64,
    p95: f64,
    vm_writes: f64,
    vmi_writes: f64,
    /// MiB. Of the peer, its controller alone.
    memory: f64,
}

type Times = Arc<Mutex<HashMap<String, (Instant, Option<Duration>)>>>;

fn main() -> ExitCode {
    ferrovirt_store::heap::share();
    let count = argument("--vms", 8000);
    let rate = argument("--rate", 50);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(count, rate))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn argument(name: &str, default: u32) -> u32 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1).and_then(|value| value.parse().ok()).unwrap_or(default)
}

async fn run(count: u32, rate: u32) -> Result<bool> {
    let cluster = Cluster::start(Options { nodes: NODES, ..Options::default() }).await?;
    let times = Times::default();
    let follower = tokio::spawn(follow(cluster.vmis(), times.clone()));
    let started = Instant::now();
    create_all(&cluster, count, rate, &times).await?;
    let created = started.elapsed();
    eventually("all VMs run", SETTLE, || async {
        let times = times.lock().unwrap_or_else(PoisonError::into_inner);
        let running = times.values().filter(|(_, time)| time.is_some()).count();
        anyhow::ensure!(running == count as usize, "{running} of {count} run");
        Ok(())
    })
    .await?;
    // Until the last status is written.
    eventually("all VMs say so", SETTLE, || async {
        let all = count_vms(&cluster).await?;
        anyhow::ensure!(all == count as usize, "{all} VMs");
        let sample = cluster.vms().get(&name(count - 1)).await?;
        anyhow::ensure!(sample.status.printable_status == "Running", "{}", sample.status.printable_status);
        Ok(())
    })
    .await?;
    follower.abort();
    let figures = measure(&cluster, count, &times)?;
    println!(
        "{count} simulated VMs on {NODES} simulated nodes, created in {:.1} s ({rate} a second asked for)",
        created.as_secs_f64()
    );
    let met = print(&figures);
    for (write, times) in cluster.writes.counts() {
        println!("  {write:<48}{:>8.2} per VM", times as f64 / f64::from(count));
    }
    anyhow::ensure!(cluster.ledger.violations().is_empty(), "{:?}", cluster.ledger.violations());
    cluster.stop().await;
    Ok(met)
}

/// Page by page: what is measured is the process, and it would hold a whole list of them.
async fn count_vms(cluster: &Cluster) -> Result<usize> {
    let mut page = ListParams::default().limit(200);
    let mut count = 0;
    loop {
        let list = cluster.vms().list_metadata(&page).await?;
        count += list.items.len();
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(count),
        }
    }
}

fn name(index: u32) -> String {
    format!("vm-{index:05}")
}

async fn create_all(cluster: &Cluster, count: u32, rate: u32, times: &Times) -> Result<()> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate.max(1));
    let mut requests = tokio::task::JoinSet::new();
    for index in 0..count {
        ticks.tick().await;
        let vm = vm(&name(index))?;
        let vms = cluster.vms();
        let now = Instant::now();
        times.lock().unwrap_or_else(PoisonError::into_inner).insert(name(index), (now, None));
        requests.spawn(async move { vms.create(&PostParams::default(), &vm).await });
        while let Some(done) = requests.try_join_next() {
            done??;
        }
    }
    while let Some(done) = requests.join_next().await {
        done??;
    }
    Ok(())
}

fn vm(name: &str) -> Result<VirtualMachine> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "runStrategy": "Always", "template": {
            "metadata": { "labels": { "app": "bench" } },
            "spec": {
                "domain": {
                    "resources": { "requests": { "memory": "90Mi", "cpu": "100m" } },
                    "devices": { "disks": [{ "name": "root", "disk": { "bus": "virtio" } }] },
                },
                "volumes": [{ "name": "root", "containerDisk": { "image": "cirros" } }],
            },
        } },
    }))?)
}

/// Notes when each instance is first seen running.
async fn follow(vmis: Api<VirtualMachineInstance>, times: Times) {
    let mut events = std::pin::pin!(watcher(vmis, watcher::Config::default()).default_backoff().boxed());
    while let Ok(Some(event)) = events.try_next().await {
        if let watcher::Event::Apply(vmi) | watcher::Event::InitApply(vmi) = event
            && vmi.status.phase == "Running"
            && let Some((start, time)) = times.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&vmi.name_any())
        {
            time.get_or_insert(start.elapsed());
        }
    }
}

fn measure(cluster: &Cluster, count: u32, times: &Times) -> Result<Figures> {
    let times = times.lock().unwrap_or_else(PoisonError::into_inner);
    let mut seconds: Vec<f64> = times.values().filter_map(|(_, time)| time.map(|t| t.as_secs_f64())).collect();
    seconds.sort_by(f64::total_cmp);
    let at = |share: f64| seconds.get(((seconds.len() - 1) as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM:")).context("no VmHWM")?;
    let kib: f64 = peak.split_whitespace().nth(1).context("no number")?.parse()?;
    Ok(Figures {
        p50: at(0.5),
        p95: at(0.95),
        vm_writes: cluster.writes.of("virtualmachines") as f64 / f64::from(count),
        vmi_writes: cluster.writes.of("virtualmachineinstances") as f64 / f64::from(count),
        memory: kib / 1024.0,
    })
}

/// Prints the table; true if every goal is met.
fn print(figures: &Figures) -> bool {
    println!("{:<32}{:>12}{:>12}{:>12}", "", "ferrovirt", "goal", "KubeVirt");
    let mut met = true;
    for (what, unit, value) in [
        ("creation to Running, P50", "s", (figures.p50, GOAL.p50, PEER.p50)),
        ("creation to Running, P95", "s", (figures.p95, GOAL.p95, PEER.p95)),
        ("writes of the VM, per VM", "", (figures.vm_writes, GOAL.vm_writes, PEER.vm_writes)),
        ("writes of the VMI, per VM", "", (figures.vmi_writes, GOAL.vmi_writes, PEER.vmi_writes)),
        ("memory of the process, peak", "MiB", (figures.memory, GOAL.memory, PEER.memory)),
    ] {
        let (ours, goal, peer) = value;
        met &= ours <= goal;
        let verdict = if ours <= goal { "met" } else { "MISSED" };
        println!("{what:<32}{ours:>12.2}{:>12}{peer:>12.2} {unit:<4}{verdict}", format!("≤ {goal}"));
    }
    println!("KubeVirt's memory is that of its controller alone; its API server and etcd come on top.");
    met
}
