//! Pods reach the world with the host's address: one nftables table for each instance, made once. The bridge plugin could
//! do it by running `iptables` several times for each pod, which costs more than the rest of the pod's network.

use std::io;

use ferrovirt_net::nft::{Family, Hook, Net, Rule, Table};

use crate::Ipv4Net;

pub fn table_name(instance: &str) -> String {
    format!("ferrovirt-{instance}")
}

/// Puts the rule in place, replacing that of an earlier call: from a pod to anything that is not a pod.
pub fn install(table: &str, pods: Ipv4Net) -> io::Result<()> {
    let pods: Net = pods.into();
    let mut table = Table::replace(Family::Ipv4, table);
    table.hook("postrouting", Hook::NatPostrouting);
    table.rule("postrouting", Rule::new().source(pods).not_destination(pods).masquerade());
    table.apply()
}

/// Removes the table. Missing is fine.
pub fn remove(table: &str) -> io::Result<()> {
    Table::remove(Family::Ipv4, table)
}
