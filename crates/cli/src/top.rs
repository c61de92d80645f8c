//! `ferrovirt top`: one live table of VMs with what they use.

use std::{
    collections::HashMap,
    io::IsTerminal,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Args;
use ferrovirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use futures::future::join_all;
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::Value;

use crate::{client::ClientArgs, guest::size, socket, table, target::Kind};

#[derive(Args)]
pub struct TopArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// All namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Print one table and end [default: only where the output is no terminal]
    #[arg(long)]
    once: bool,
    /// Seconds between two tables
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

/// What a machine had used by some moment. Counters only grow.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    at: Instant,
    cpu_nanos: u64,
    memory: u64,
    /// Not every hypervisor counts these.
    disk_bytes: Option<u64>,
    net_bytes: Option<u64>,
}

/// More devices than a machine can have: a launcher says how many there are.
const MOST_DEVICES: u64 = 256;

pub async fn run(arguments: TopArgs) -> Result<()> {
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let live = !arguments.once && std::io::stdout().is_terminal();
    let mut before: HashMap<String, Sample> = HashMap::new();
    loop {
        let (machines, instances) = match arguments.all_namespaces {
            true => list(&Api::all(client.clone()), &Api::all(client.clone())).await?,
            false => {
                let (vms, vmis) = (client.clone(), client.clone());
                list(&Api::namespaced(vms, &namespace), &Api::namespaced(vmis, &namespace)).await?
            }
        };
        let samples = sample(&client, &instances).await;
        // Rates need two samples; where there will be no next table, take the second one now.
        let first = before.is_empty();
        if !live && first && !samples.is_empty() {
            before = samples;
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        }
        let rows = rows(&machines, &instances, &before, &samples, arguments.all_namespaces);
        if live {
            print!("\x1b[H\x1b[2J");
        }
        let mut header = vec!["NAME", "STATUS", "NODE", "ADDRESS", "CPU", "MEMORY", "DISK/S", "NET/S"];
        if arguments.all_namespaces {
            header.insert(0, "NAMESPACE");
        }
        table::print(&header.into_iter().map(Into::into).collect::<Vec<String>>(), &rows);
        if !live {
            return Ok(());
        }
        before = samples;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(arguments.interval)) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

async fn list(
    vms: &Api<VirtualMachine>,
    vmis: &Api<VirtualMachineInstance>,
) -> Result<(Vec<VirtualMachine>, Vec<VirtualMachineInstance>)> {
    let params = ListParams::default();
    let (vms, vmis) = tokio::try_join!(vms.list(&params), vmis.list(&params))?;
    Ok((vms.items, vmis.items))
}

fn key(namespace: Option<String>, name: &str) -> String {
    format!("{}/{name}", namespace.unwrap_or_default())
}

async fn sample(client: &Client, instances: &[VirtualMachineInstance]) -> HashMap<String, Sample> {
    let running = instances.iter().filter(|vmi| vmi.status.phase == "Running");
    let samples = running.map(|vmi| async move {
        let namespace = vmi.namespace().unwrap_or_default();
        let path = socket::path(&namespace, Kind::Instance.resource(), &vmi.name_any(), "stats");
        let request = http::Request::get(path).body(vec![]).ok()?;
        // A machine that does not answer has no numbers, and the others do.
        let stats: Value = client.request(request).await.ok()?;
        Some((key(vmi.namespace(), &vmi.name_any()), read(&stats, Instant::now())))
    });
    join_all(samples).await.into_iter().flatten().collect()
}

/// From libvirt's names.
fn read(stats: &Value, at: Instant) -> Sample {
    let number = |name: &str| stats[name].as_u64().unwrap_or(0);
    let sum = |device: &str, fields: &[&str]| -> Option<u64> {
        let count = stats[format!("{device}.count")].as_u64()?.min(MOST_DEVICES);
        let all = (0..count).flat_map(|index| fields.iter().map(move |field| format!("{device}.{index}.{field}")));
        Some(all.map(|name| number(&name)).fold(0, u64::saturating_add))
    };
    let memory = ["balloon.rss", "balloon.current"].iter().map(|name| number(name)).find(|kib| *kib > 0).unwrap_or(0);
    Sample {
        at,
        cpu_nanos: number("cpu.time"),
        memory: memory.saturating_mul(1024),
        disk_bytes: sum("block", &["rd.bytes", "wr.bytes"]),
        net_bytes: sum("net", &["rx.bytes", "tx.bytes"]),
    }
}

fn rows(
    machines: &[VirtualMachine],
    instances: &[VirtualMachineInstance],
    before: &HashMap<String, Sample>,
    now: &HashMap<String, Sample>,
    with_namespace: bool,
) -> Vec<Vec<String>> {
    let by_name: HashMap<String, &VirtualMachineInstance> =
        instances.iter().map(|vmi| (key(vmi.namespace(), &vmi.name_any()), vmi)).collect();
    let mut names: Vec<(String, String, String)> = machines
        .iter()
        .map(|vm| (key(vm.namespace(), &vm.name_any()), vm.name_any(), vm.status.printable_status.clone()))
        .collect();
    // Instances of their own, such as those of a replica set.
    let known: Vec<String> = names.iter().map(|(key, _, _)| key.clone()).collect();
    names.extend(
        instances
            .iter()
            .map(|vmi| (key(vmi.namespace(), &vmi.name_any()), vmi.name_any(), vmi.status.phase.clone()))
            .filter(|(key, _, _)| !known.contains(key)),
    );
    names.sort();
    names
        .into_iter()
        .map(|(key, name, status)| {
            let vmi = by_name.get(&key);
            let node = vmi.map(|vmi| vmi.status.node_name.clone()).unwrap_or_default();
            let address = vmi.and_then(|vmi| vmi.status.interfaces.first()).map(|i| i.ip_address.clone());
            let used = usage(before.get(&key), now.get(&key));
            let mut row = vec![name, status, node, address.unwrap_or_default()];
            row.extend(used);
            if with_namespace {
                row.insert(0, key.split('/').next().unwrap_or_default().to_owned());
            }
            row
        })
        .collect()
}

/// CPU in percent of one core, memory, and bytes a second of disks and networks.
fn usage(before: Option<&Sample>, now: Option<&Sample>) -> [String; 4] {
    let Some(now) = now else { return Default::default() };
    let memory = size(now.memory);
    let elapsed = before.map(|before| now.at.duration_since(before.at)).filter(|elapsed| !elapsed.is_zero());
    let (Some(before), Some(elapsed)) = (before, elapsed) else {
        return [String::new(), memory, String::new(), String::new()];
    };
    // A counter that is smaller than before belongs to a machine that was started anew.
    let nanos = elapsed.as_nanos().max(1);
    let rate = |now: Option<u64>, before: Option<u64>| {
        let (Some(now), Some(before)) = (now, before) else { return String::new() };
        size(u64::try_from(u128::from(now.saturating_sub(before)) * 1_000_000_000 / nanos).unwrap_or(0))
    };
    let cpu = u128::from(now.cpu_nanos.saturating_sub(before.cpu_nanos)) * 100 / nanos;
    [format!("{cpu}%"), memory, rate(now.disk_bytes, before.disk_bytes), rate(now.net_bytes, before.net_bytes)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rates_are_differences_over_time() {
        let at = Instant::now();
        let stats = |cpu: u64, disk: u64| {
            json!({
                "cpu.time": cpu, "balloon.current": 2048, "balloon.rss": 1024,
                "block.count": 2, "block.0.rd.bytes": disk, "block.1.wr.bytes": disk,
                "net.count": 1, "net.0.rx.bytes": 10, "net.0.tx.bytes": 20,
            })
        };
        let first = read(&stats(1_000_000_000, 0), at);
        let second = read(&stats(2_000_000_000, 2048), at + Duration::from_secs(2));
        assert_eq!((first.memory, first.net_bytes), (1024 * 1024, Some(30)));
        assert_eq!(usage(Some(&first), Some(&second)), ["50%", "1.0 MiB", "2.0 KiB", "0 B"].map(str::to_owned));
        assert_eq!(usage(None, Some(&first)), ["", "1.0 MiB", "", ""].map(str::to_owned));
        assert_eq!(usage(Some(&second), Some(&Sample { at: second.at + Duration::from_secs(1), ..first }))[0], "0%");
    }

    #[test]
    fn a_container_has_no_disks_to_count() {
        let at = Instant::now();
        let stats = |cpu: u64, net: u64| {
            json!({
                "cpu.time": cpu, "balloon.current": 2048, "balloon.maximum": 131_072, "vcpu.current": 1,
                "net.count": 1, "net.0.name": "eth0", "net.0.rx.bytes": net, "net.0.tx.bytes": 0,
            })
        };
        let (first, second) = (read(&stats(0, 0), at), read(&stats(500_000_000, 4096), at + Duration::from_secs(2)));
        assert_eq!(usage(Some(&first), Some(&second)), ["25%", "2.0 MiB", "", "2.0 KiB"].map(str::to_owned));
        let many = json!({ "net.count": u64::MAX, "net.0.rx.bytes": u64::MAX, "net.1.rx.bytes": 1 });
        assert_eq!(read(&many, at).net_bytes, Some(u64::MAX), "what a launcher claims is bounded");
    }
}
