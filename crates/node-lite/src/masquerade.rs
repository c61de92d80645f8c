//! Pods reach the world with the host's address: one nftables table for each instance, made once. The bridge plugin could
//! do it by running `iptables` several times for each pod, which costs more than the rest of the pod's network.

use std::{fs, io, time::Duration};

use ferrovirt_net::nft::{self, Family, Hook, Net, Program, Rule};

use crate::Config;

/// How often rules that somebody may have removed are looked for.
const REPAIR: Duration = Duration::from_secs(20);

pub fn table_name(instance: &str) -> String {
    format!("ferrovirt-{instance}")
}

/// Puts the rules in place, replacing those of an earlier call: from a pod to anything that is not a pod.
pub fn install(table: &str, pods: &[Net]) -> io::Result<()> {
    pods.iter().try_for_each(|pods| program(table, pods).replace())
}

/// Puts back the rules that somebody removed. Those that are there are left alone.
fn repair(table: &str, pods: &[Net]) -> io::Result<()> {
    for program in pods.iter().map(|pods| program(table, pods)) {
        if !program.is_there()? {
            program.replace()?;
        }
    }
    Ok(())
}

fn program(table: &str, pods: &Net) -> Program {
    let family = Family::of(pods.address);
    if family == Family::Ipv6 {
        keep_routes();
    }
    let mut program = Program::new(family, table);
    program.hook("postrouting", Hook::NatPostrouting);
    program.rule("postrouting", Rule::new().source(*pods).not_destination(*pods).masquerade());
    program
}

/// Somebody else may remove the rules, such as a firewall that is started anew. Puts them back until it is dropped.
pub(crate) async fn keep(config: &Config) {
    let (table, pods) = (table_name(&config.instance), config.pod_networks());
    // They were just written.
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + REPAIR, REPAIR);
    loop {
        ticks.tick().await;
        if let Err(error) = repair(&table, &pods) {
            tracing::warn!(%error, table, "pods may not reach the world");
        }
    }
}

/// Removes the tables. Missing is fine.
pub fn remove(table: &str) -> io::Result<()> {
    nft::remove(Family::Ipv4, table)?;
    nft::remove(Family::Ipv6, table)
}

/// A machine that forwards, as it must for pods, no longer listens to routers unless told so: it would lose the default
/// route that it has from one.
fn keep_routes() {
    let interfaces = fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten();
    for path in interfaces.map(|interface| interface.path().join("accept_ra")) {
        if fs::read_to_string(&path).is_ok_and(|value| value.trim() == "1")
            && let Err(error) = fs::write(&path, "2")
        {
            tracing::warn!(%error, path = %path.display(), "this machine may lose its IPv6 default route");
        }
    }
}
