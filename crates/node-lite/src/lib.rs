//! Embedded mode's stand-in for kubelet, scheduler and container runtime.
//!
//! ```text
//! manager ── schedules waiting pods, gives each pod of the node to a
//!   └─ worker (one task a pod) ── sandbox: directory, cgroup, network, shim
//!                                             └─ pod-shim (root, tiny) ── pod-init ══ the launcher, uid 107, PID 1
//! ```
//!
//! It talks to the API through a [`kube::Client`] only, and does not know that the server is in the same process. Pods
//! outlive it: what it knows of them is in `<data-dir>/pods`, and [`run`] begins by reading that.
//!
//! **Invariant**: nothing of a VM runs as root but the shim and, where a pod is privileged, its launcher's driver; and nothing here decides that a pod's process is gone but
//! a pidfd, a boot id, or an exit record.

pub mod cgroup;
pub mod cni;
mod config;
mod cpus;
mod dns;
pub mod downward;
mod ends;
mod events;
mod exec;
pub mod host_path;
mod hugepages;
pub mod identity;
pub mod images;
mod init;
mod leftovers;
pub mod logs;
pub mod makers;
mod manager;
mod masquerade;
pub mod netns;
mod network;
mod networks;
pub mod node_object;
pub mod payload;
pub mod podspec;
mod policy;
mod privilege;
mod probes;
pub mod programs;
mod pull_secrets;
#[cfg(test)]
mod races;
pub mod records;
pub mod resources;
mod rootfs;
pub mod sandbox;
pub mod scheduler;
mod services;
mod shim;
mod shut_in;
pub mod sidecar;
pub mod status;
pub mod storage;
pub mod streams;
mod sub_path;
pub mod usage;
mod user_ids;
mod users;
mod volume_dirs;
pub mod volumes;
mod worker;

use std::future::Future;
use std::sync::Arc;

pub use config::{
    Config, Ipv4Net, Ipv6Networks, NotANetwork, default_cni_plugin_dirs, detect_devices, detect_ipv6, detect_node_ip,
};
pub use exec::{exec_main, session_main};
pub use images::{ImageError, Images, Wanted};
pub use init::init_main;
pub use logs::{LogOptions, LogReader, read_log};
pub use shim::shim_main;
pub use sidecar::sidecar_main;
pub use users::users_main;

use events::Events;
use sandbox::{SandboxError, Sandboxes};
use worker::Context;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot prepare this machine for pods")]
    Prepare(#[source] SandboxError),
    #[error("cannot remove what pods left on this machine")]
    Teardown(#[source] SandboxError),
}

/// Runs the node until `shutdown`. Pods go on after that.
pub async fn run(client: kube::Client, config: Config, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
    let sandboxes = Sandboxes::open(&config).map_err(Error::Prepare)?;
    sandboxes.prepare().map_err(Error::Prepare)?;
    let events = Events::new(client.clone(), &config.node_name);
    let claims = Arc::<storage::Claims>::default();
    let shared_user = sandboxes.shared_user().map(str::to_owned);
    let network = sandboxes.network();
    let cleaner = sandboxes.clone();
    let (policies, requests) = policy::Policies::new();
    let (names, name_server) = tokio::sync::watch::channel(None);
    let context = Context {
        client: client.clone(),
        config: config.clone(),
        sandboxes,
        events: events.clone(),
        makers: makers::Makers::new(&config.creators),
        policies,
    };
    tokio::select! {
        () = manager::run(Arc::new(context), claims.clone(), shutdown) => {}
        () = storage::run(client.clone(), &config, events.clone(), claims) => {}
        () = node_object::keep(client.clone(), &config, shared_user.as_deref()) => {}
        () = policy::run(client.clone(), &config.instance, network.group, requests, name_server) => {}
        () = serve_services(client, &config, network.clone(), names, events) => {}
        () = network.keep() => {}
        () = cleaner.clean_up() => {}
        () = masquerade::keep(&config) => {}
    }
    Ok(())
}

/// Leads connections and names to services. Guests run without it, so trouble here is reported and tried again.
async fn serve_services(
    client: kube::Client,
    config: &Config,
    network: Arc<network::Network>,
    names: tokio::sync::watch::Sender<Option<std::net::SocketAddr>>,
    events: Events,
) {
    let (views, seen) = tokio::sync::watch::channel(Arc::default());
    let proxy = services::proxy::Proxy::new(config, network);
    let known = names;
    let names = async {
        match dns::Server::bind(config.pod_cidr.host(1).into(), config.pod_networks(), seen) {
            Ok(server) => {
                let published = async {
                    let address = server.address().map_err(|error| error.to_string())?;
                    known.send_replace(Some(address));
                    let result = dns::publish(&client, config.cluster_dns().into(), address).await;
                    result.map_err(|error| error.to_string())
                };
                if let Err(error) = published.await {
                    tracing::error!(error, "pods do not find the name server");
                }
                server.run().await;
            }
            Err(error) => tracing::error!(%error, "there is no name server for pods"),
        }
        std::future::pending::<()>().await;
    };
    tokio::join!(services::run(client.clone(), proxy, events, views), names);
}

/// Ends every pod of this instance at once and removes bridge, namespaces, rules, mounts and cgroups. Stop VMs in order
/// before. Safe to repeat; the data directory keeps the records of how pods ended.
pub async fn teardown(config: &Config) -> Result<(), Error> {
    let sandboxes = Sandboxes::open(config).map_err(Error::Prepare)?;
    sandboxes.teardown().await.map_err(Error::Teardown)
}

/// Ends the processes of every pod below a data directory at once, and says how many there were. Who watches them sees it.
pub fn kill_all(data_dir: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(data_dir.join("pods")).into_iter().flatten().flatten();
    let states = entries.filter_map(|entry| {
        let state = records::PodDir::at(entry.path()).state();
        records::read::<records::StateRecord>(&state).ok().flatten()
    });
    let alive = states.filter_map(|state| match state.process.lookup() {
        Ok(identity::Lookup::Alive(process)) => Some(process),
        _ => None,
    });
    alive.filter(|process| process.kill().is_ok()).count()
}

/// What the targets of fuzz/ call: parsers that nothing else outside this crate has a use for.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads a question to the name server, and answers it.
    pub fn dns_question(bytes: &[u8]) {
        if let Ok(question) = crate::dns::message::Question::parse(bytes) {
            question.answer(0, &[], true);
        }
    }
}
