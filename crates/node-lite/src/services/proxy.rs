//! Puts the rules of services in place whenever they change.

use std::io;
use std::sync::Arc;

use ferrovirt_net::link;
use ferrovirt_net::nft::{Family, Net, Program, remove as remove_table};

use super::View;
use super::rules::{self, Limits, Target, program, targets};
use crate::Config;
use crate::network::Network;

/// The rules of one instance.
pub(crate) struct Proxy {
    table: String,
    network: Arc<Network>,
    external: Vec<Net>,
    balancer: Vec<Net>,
    applied: Option<(Vec<Target>, Vec<Program>)>,
}

impl Proxy {
    pub fn new(config: &Config, network: Arc<Network>) -> Self {
        Self {
            table: table_name(&config.instance),
            network,
            external: config.external_ips.clone(),
            balancer: config.load_balancer_ips.clone(),
            applied: None,
        }
    }

    /// Brings the kernel's rules in line with the view. Somebody else may have removed them: with `check`, that is looked at.
    pub fn sync(&mut self, view: &View, check: bool) -> io::Result<()> {
        if check && let Some((_, programs)) = &self.applied {
            let there =
                programs.iter().try_fold(true, |there, program| Ok::<_, io::Error>(there && program.is_there()?));
            if !there? {
                self.applied = None;
            }
        }
        let wanted = targets(view, &self.limits()?);
        if self.applied.as_ref().is_some_and(|(applied, _)| *applied == wanted) {
            return Ok(());
        }
        let old = self.applied.take();
        let mut programs = vec![];
        for (number, services) in self.network.services.iter().enumerate() {
            let network = rules::Network { pods: self.network.group, services: *services };
            let program = program(&self.table, &network, &wanted);
            match old.as_ref().and_then(|(_, programs)| programs.get(number)) {
                // It may not be what we think it is.
                Some(old) => program.update(old).or_else(|_| program.replace())?,
                None => program.replace()?,
            }
            programs.push(program);
        }
        self.network
            .set_loopback(wanted.iter().any(|target| target.node_port.is_some() && !target.endpoints.is_empty()));
        self.applied = Some((wanted, programs));
        Ok(())
    }

    pub fn limits(&self) -> io::Result<Limits> {
        Ok(Limits {
            own: self.network.pods.iter().chain(&self.network.services).copied().collect(),
            external: self.external.clone(),
            balancer: self.balancer.clone(),
            machine: link::all_addresses()?.into_iter().map(|(_, address, _)| address).collect(),
        })
    }
}

/// Removes the rules. Missing is fine.
pub(crate) fn remove(instance: &str) -> io::Result<()> {
    remove_table(Family::Ipv4, &table_name(instance))?;
    remove_table(Family::Ipv6, &table_name(instance))
}

pub(crate) fn table_name(instance: &str) -> String {
    format!("ferrovirt-{instance}-services")
}
