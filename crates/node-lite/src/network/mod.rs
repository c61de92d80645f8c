//! The machine's side of the pod network. Every pod has a cable of its own that ends here: there is no segment that two
//! pods share, and all that they say to each other or to this machine is routed, so that rules of layer 3 see it.
//!
//! ```text
//!   pod eth0 ── veth (group of the instance) ── routes: one for each pod's address ── veth ── another pod
//!                         │ guard: only the pod's own addresses, and nothing of this machine but services
//! ```

mod guard;
mod port;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferrovirt_net::link;
use ferrovirt_net::nft::{Family, Net, Program, remove};

pub(crate) use port::Port;

use crate::Config;
use crate::cni::{self, Attached};

/// How often rules that somebody may have removed are looked for.
const REPAIR: Duration = Duration::from_secs(10);

/// The pod network of one instance.
#[derive(Debug)]
pub(crate) struct Network {
    instance: String,
    /// Holds the gateway's address, whether or not there are pods.
    anchor: String,
    /// The group of interfaces that the pods' cables are in.
    pub group: u32,
    pub pods: Vec<Net>,
    pub services: Vec<Net>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// By the uid of the pod.
    ports: BTreeMap<String, Port>,
    applied: Option<Vec<Program>>,
    /// Whether node ports answer on loopback.
    loopback: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("cannot prepare the pod network on {link}")]
    Prepare { link: String, source: io::Error },
    #[error("the CNI plugin does not say which interface of this machine leads to the pod")]
    NoInterface,
    #[error("cannot set up {link}, which leads to the pod")]
    Port { link: String, source: io::Error },
    #[error("cannot set the rules that keep pods apart")]
    Guard(#[source] io::Error),
}

impl Network {
    pub fn new(config: &Config) -> Self {
        Self {
            instance: config.instance.clone(),
            anchor: cni::bridge_name(&config.instance),
            group: group(&config.instance),
            pods: config.pod_networks(),
            services: config.service_networks(),
            state: Mutex::default(),
        }
    }

    /// Makes what all pods share, with the pods that there are. Those of an earlier release hang on a bridge, and are
    /// taken off it.
    pub fn prepare(&self, known: &[(String, Attached, std::path::PathBuf)]) -> Result<(), NetworkError> {
        self.anchor().map_err(|source| NetworkError::Prepare { link: self.anchor.clone(), source })?;
        let mut state = self.state();
        for (uid, attached, netns) in known {
            // A pod that ended has no interface any more.
            let Ok(port) = Port::of(attached) else { continue };
            match port.adopt(self, &state, netns) {
                Ok(()) => drop(state.ports.insert(uid.clone(), port)),
                // It is kept from the network, and nobody else is.
                Err(error) => tracing::error!(error = ferrovirt_api::chain(&error), uid, "the pod has no network"),
            }
        }
        state.applied = None;
        self.write(&mut state)
    }

    /// Lets a pod's cable in. Nothing of the pod may run before.
    pub fn attach(&self, uid: &str, attached: &Attached, netns: &Path) -> Result<(), NetworkError> {
        let port = Port::of(attached)?;
        let mut state = self.state();
        port.adopt(self, &state, netns)?;
        state.ports.insert(uid.to_owned(), port);
        self.write(&mut state)
    }

    /// Forgets a pod's cable.
    pub fn detach(&self, uid: &str) -> Result<(), NetworkError> {
        let mut state = self.state();
        match state.ports.remove(uid) {
            Some(_) if state.applied.is_some() => self.write(&mut state),
            _ => Ok(()),
        }
    }

    /// Lets connections from loopback leave towards pods, for node ports on `localhost`, or no longer. The guard drops
    /// what pods send to loopback in either case.
    pub fn set_loopback(&self, open: bool) {
        let mut state = self.state();
        if state.loopback != open {
            state.loopback = open;
            for port in state.ports.values() {
                port.set_loopback(open);
            }
        }
    }

    /// Somebody else may remove the rules, such as a firewall that is started anew. Puts them back until it is dropped.
    pub async fn keep(&self) {
        loop {
            tokio::time::sleep(REPAIR).await;
            let mut state = self.state();
            let there = state.applied.iter().flatten().all(|program| program.is_there().unwrap_or(false));
            if there {
                continue;
            }
            tracing::warn!("the rules that keep pods apart were removed and are written again");
            state.applied = None;
            if let Err(error) = self.write(&mut state) {
                tracing::error!(error = ferrovirt_api::chain(&error), "pods are not kept apart");
            }
        }
    }

    pub fn remove(&self) -> io::Result<()> {
        for family in [Family::Both, Family::Arp] {
            remove(family, &guard::table_name(&self.instance))?;
        }
        if link::exists(&self.anchor) {
            link::delete(&self.anchor)?;
        }
        Ok(())
    }

    /// The gateways of pods, one of each family.
    pub fn gateways(&self) -> Vec<(IpAddr, u8)> {
        self.pods.iter().map(|net| (gateway(net), net.prefix)).collect()
    }

    fn anchor(&self) -> io::Result<()> {
        link::add_bridge(&self.anchor)?;
        link::set_up(&self.anchor, None)?;
        for (address, prefix) in self.gateways() {
            link::add_address(&self.anchor, address, prefix)?;
        }
        port::forward(self.pods.iter().any(|net| net.address.is_ipv6()))
    }

    fn write(&self, state: &mut State) -> Result<(), NetworkError> {
        let wanted = guard::programs(self, &state.ports);
        let old = state.applied.take();
        for (number, program) in wanted.iter().enumerate() {
            let updated = match old.as_ref().and_then(|old| old.get(number)) {
                // It may not be what we think it is.
                Some(old) => program.update(old).or_else(|_| program.replace()),
                None => program.replace(),
            };
            updated.map_err(NetworkError::Guard)?;
        }
        state.applied = Some(wanted);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first address of a network.
fn gateway(net: &Net) -> IpAddr {
    match net.address {
        IpAddr::V4(v4) => IpAddr::V4((u32::from(v4) + 1).into()),
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) + 1).into()),
    }
}

/// Two instances have different groups, and none has group 0, which is everybody's.
fn group(instance: &str) -> u32 {
    let hash = instance.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash | 0x4000_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_nobody_elses() {
        assert_ne!(group("0a1b2c"), group("0a1b2d"));
        assert_ne!(group(""), 0);
    }

    #[test]
    fn the_gateway_is_the_first_address() {
        let net = |address: &str, prefix| Net { address: address.parse().unwrap(), prefix };
        assert_eq!(gateway(&net("10.42.7.0", 24)).to_string(), "10.42.7.1");
        assert_eq!(gateway(&net("fd00:1::", 64)).to_string(), "fd00:1::1");
    }
}
