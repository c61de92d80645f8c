//! Puts the rules of services in place whenever they change.

use std::{fs, io, path::Path};

use ferrovirt_net::nft::{Family, Net, Table};

use super::View;
use super::rules::{Network, Target, table, targets};
use crate::cni;

/// The rules of one instance.
pub(crate) struct Proxy {
    table: String,
    /// One for each family of addresses.
    networks: Vec<Network>,
    applied: Option<Vec<Target>>,
}

impl Proxy {
    pub fn new(instance: &str, services: &[Net]) -> Self {
        let bridged_packets_seen = see_bridged_packets();
        if !bridged_packets_seen {
            tracing::info!(
                "the kernel does not show bridged packets to nftables (br_netfilter): services see this machine's \
                 address instead of the client's"
            );
        }
        let network =
            |services: &Net| Network { bridge: cni::bridge_name(instance), services: *services, bridged_packets_seen };
        Self { table: table_name(instance), networks: services.iter().map(network).collect(), applied: None }
    }

    /// Brings the kernel's rules in line with the view. Somebody else may have removed them: `force` writes them anyway.
    pub fn sync(&mut self, view: &View, force: bool) -> io::Result<()> {
        let wanted = targets(view);
        if !force && self.applied.as_ref() == Some(&wanted) {
            return Ok(());
        }
        self.applied = None;
        for network in &self.networks {
            table(&self.table, network, &wanted).apply()?;
            if wanted.iter().any(|target| target.node_port.is_some()) {
                open_loopback(&network.bridge);
            }
        }
        self.applied = Some(wanted);
        Ok(())
    }
}

/// Removes the rules. Missing is fine.
pub(crate) fn remove(instance: &str) -> io::Result<()> {
    Table::remove(Family::Ipv4, &table_name(instance))?;
    Table::remove(Family::Ipv6, &table_name(instance))
}

pub(crate) fn table_name(instance: &str) -> String {
    format!("ferrovirt-{instance}-services")
}

/// Lets connections from loopback leave by the bridge, for node ports on `localhost`. The rules drop what comes back in for
/// loopback from pods. There is no bridge before the first pod; then there is no endpoint either.
fn open_loopback(bridge: &str) {
    let path = format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet");
    if Path::new(&path).exists()
        && let Err(error) = fs::write(&path, "1")
    {
        tracing::warn!(%error, path, "node ports do not answer on localhost");
    }
}

/// Asks the kernel to show packets between two pods of a bridge to nftables, as kubelets ask for.
fn see_bridged_packets() -> bool {
    const SETTINGS: [&str; 2] =
        ["/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"];
    if !Path::new(SETTINGS[0]).exists() {
        let _ = std::process::Command::new("modprobe").arg("br_netfilter").status();
    }
    SETTINGS.iter().all(|setting| match fs::read_to_string(setting) {
        Ok(value) if value.trim() == "1" => true,
        Ok(_) => fs::write(setting, "1").is_ok(),
        Err(_) => false,
    })
}
