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
pub mod downward;
mod events;
mod exec;
pub mod identity;
pub mod images;
mod init;
pub mod logs;
mod manager;
mod masquerade;
pub mod netns;
pub mod node_object;
pub mod payload;
pub mod podspec;
mod privilege;
mod probes;
mod pull_secrets;
pub mod records;
pub mod resources;
mod rootfs;
pub mod sandbox;
pub mod scheduler;
mod shim;
pub mod status;
pub mod storage;
pub mod volumes;
mod worker;

use std::future::Future;
use std::sync::Arc;

pub use config::{Config, Ipv4Net, NotANetwork, default_cni_plugin_dirs, detect_devices, detect_node_ip};
pub use exec::exec_main;
pub use images::{ImageError, Images, Wanted};
pub use init::init_main;
pub use logs::{LogOptions, read_log};
pub use shim::shim_main;

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
    let context = Context { client: client.clone(), config: config.clone(), sandboxes, events: events.clone() };
    tokio::select! {
        () = manager::run(Arc::new(context), claims.clone(), shutdown) => {}
        () = storage::run(client.clone(), &config, events, claims) => {}
        () = node_object::keep(client, &config) => {}
    }
    Ok(())
}

/// Ends every pod of this instance at once and removes bridge, namespaces, rules, mounts and cgroups. Stop VMs in order
/// before. Safe to repeat; the data directory keeps the records of how pods ended.
pub async fn teardown(config: &Config) -> Result<(), Error> {
    let sandboxes = Sandboxes::open(config).map_err(Error::Prepare)?;
    sandboxes.teardown().await.map_err(Error::Teardown)
}
