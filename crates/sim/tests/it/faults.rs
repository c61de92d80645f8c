//! Faults at random, with writes that come late, twice and out of order. Never two processes on one disk, no VM lost, no VM
//! stuck. The long form (`FERROVIRT_LONG=1`) has 500 faults.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferrovirt_sim::{Cluster, Options, chaos::Trouble, cluster::eventually};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::support::*;

const VMS: usize = 12;
const NODES: usize = 3;
/// Longer than the back-off after a few failed starts.
const RECOVERY: Duration = Duration::from_secs(400);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_break_nothing() {
    let long = std::env::var_os("FERROVIRT_LONG").is_some();
    let faults = if long { 500 } else { 40 };
    let seed = match std::env::var("FERROVIRT_SEED") {
        Ok(seed) => seed.parse().expect("FERROVIRT_SEED is a number"),
        Err(_) => u64::from(std::process::id()),
    };
    println!("{faults} faults, FERROVIRT_SEED={seed}");
    let trouble = Trouble { late: 30, twice: 20, longest: Duration::from_millis(40) };
    let options = Options { nodes: NODES, trouble: Some(trouble), seed, ..Options::default() };
    let cluster = Cluster::start(options).await.expect("the cluster starts");
    let outcome = run(&cluster, faults).await;
    let violations = cluster.ledger.violations();
    println!("{} machines were started", cluster.ledger.starts());
    assert!(violations.is_empty(), "seed {seed}: {}", violations.join("\n"));
    if let Err(error) = outcome {
        panic!("seed {seed}: {error:#}");
    }
    cluster.stop().await;
}

async fn run(cluster: &Cluster, faults: usize) -> Result<()> {
    for index in 0..VMS {
        create(cluster, vm(&name(index), "Always")).await?;
    }
    all_run(cluster).await.context("before any fault")?;
    for number in 0..faults {
        let fault = fault(cluster).await.with_context(|| format!("fault {number}"))?;
        tracing::debug!(number, fault);
        let pause = cluster.dice.below(60);
        tokio::time::sleep(Duration::from_millis(pause as u64)).await;
        ensure!(cluster.ledger.violations().is_empty(), "after fault {number} ({fault})");
    }
    all_run(cluster).await.with_context(|| format!("after {faults} faults"))
}

fn name(index: usize) -> String {
    format!("vm-{index}")
}

async fn all_run(cluster: &Cluster) -> Result<()> {
    eventually("all VMs run", RECOVERY, || async {
        let vms = cluster.vms().list(&ListParams::default()).await?.items;
        ensure!(vms.len() == VMS, "{} VMs are left", vms.len());
        let stuck = vms.iter().filter(|vm| vm.status.printable_status != "Running");
        let stuck: Vec<String> = stuck.map(|vm| format!("{}: {}", vm.name_any(), vm.status.printable_status)).collect();
        ensure!(stuck.is_empty(), "{}", stuck.join(", "));
        // A status may be older than the last fault.
        ensure!(cluster.ledger.running() == VMS, "{} machines run", cluster.ledger.running());
        Ok(())
    })
    .await
}

async fn fault(cluster: &Cluster) -> Result<&'static str> {
    let dice = &cluster.dice;
    let vm = name(dice.below(VMS));
    let node = format!("sim-{}", dice.below(NODES));
    let launchers = cluster.launchers();
    let launcher = launchers.get(dice.below(launchers.len())).map(|(_, launcher)| launcher);
    Ok(match dice.below(9) {
        0 => {
            launcher.into_iter().for_each(|launcher| launcher.kill());
            "launcher killed"
        }
        1 => {
            launcher.into_iter().for_each(|launcher| launcher.crash());
            "guest crashed"
        }
        2 => {
            launcher.into_iter().for_each(|launcher| launcher.power_off());
            "guest powered off"
        }
        3 | 4 => {
            cluster.kill_agent(&node);
            tokio::time::sleep(Duration::from_millis(dice.below(100) as u64)).await;
            cluster.start_agent(&node)?;
            "node agent killed"
        }
        5 => {
            remove_pod(cluster, &vm, DeleteParams::default().grace_period(0)).await?;
            "pod removed by force"
        }
        6 => {
            remove_pod(cluster, &vm, DeleteParams::default()).await?;
            "pod deleted"
        }
        7 => {
            for _ in 0..3 {
                ignore(cluster.vmis().delete(&vm, &DeleteParams::default()).await)?;
                tokio::time::sleep(Duration::from_millis(dice.below(20) as u64)).await;
            }
            "instance deleted in a loop"
        }
        _ => {
            let uid = cluster.vmis().get_opt(&vm).await?.and_then(|vmi| vmi.uid());
            let requests = json!([{ "action": "Stop", "uid": uid }, { "action": "Start" }]);
            let patch = Patch::Merge(json!({ "status": { "stateChangeRequests": requests } }));
            ignore(cluster.vms().patch_status(&vm, &PatchParams::default(), &patch).await)?;
            "restart asked for"
        }
    })
}

async fn remove_pod(cluster: &Cluster, vm: &str, params: DeleteParams) -> Result<()> {
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), "default");
    let all = pods.list(&ListParams::default().labels(&format!("app={vm}"))).await?;
    for pod in all {
        ignore(pods.delete(&pod.name_any(), &params).await)?;
    }
    Ok(())
}

/// What is gone already needs no fault.
fn ignore<T>(result: Result<T, kube::Error>) -> Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
