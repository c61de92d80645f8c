//! The node agent (virt-handler role): brings the instances of one node to life and reports what becomes of them.
//!
//! It finds each instance's launcher by its pod's directory, prepares the network of its pod, hands it a `MachineSpec`,
//! and mirrors the machine's state into the instance's status. It alone removes an instance's finalizer, and only after it
//! saw the launcher's process tree end. It does not know which mode it runs in: the kubelet's directory layout is the same.

mod architecture;
mod bare;
mod boot;
mod calls;
mod cgroup;
mod claims;
mod console;
mod cpus;
mod disks;
mod events;
mod forward;
mod ground;
mod guest;
mod host;
mod hypervisors;
mod instance;
mod kvm;
mod launcher;
mod metrics;
mod migratable;
mod network;
mod node_object;
mod pods;
mod process;
mod registry;
mod routers;
mod session;
mod status;
mod stream_server;
mod streams;
mod tun;

use std::{future::Future, path::PathBuf, sync::Arc};

use ferrovirt_api::{
    Folded, names,
    v1::{KubeVirt, VirtualMachineInstance},
};
use ferrovirt_machine::node_facts::NodeFacts;
use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, reflector, watcher},
};

use tokio::sync::watch;

pub use ground::Ground;
pub use host::{Host, Kvm};
pub use hypervisors::Hypervisors;
pub use launcher::{Launcher, LauncherError};
pub use process::{Process, ProcessError};
pub use registry::Agent;
pub use streams::{Duplex, Stream, StreamError, StreamKind};

/// What an agent must know before it starts.
#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// Below this directory are `pods/<uid>/volumes/…`.
    pub kubelet_root: PathBuf,
    /// Bound of QEMU's translation cache for emulated guests, in MiB.
    pub translation_cache_mib: u32,
    /// What the hypervisors of this node can do, as whoever tries them finds out.
    pub hypervisors: watch::Receiver<Hypervisors>,
    /// What the default of them can give to guests.
    pub facts: watch::Receiver<NodeFacts>,
}

impl Config {
    pub fn new(node_name: &str, kubelet_root: PathBuf) -> Self {
        Self {
            node_name: node_name.into(),
            kubelet_root,
            translation_cache_mib: 64,
            hypervisors: watch::channel(hypervisors::assumed()).1,
            facts: watch::channel(NodeFacts::assumed(Host::ARCH)).1,
        }
    }
}

/// Shared by all tasks of the agent.
pub(crate) struct Context {
    pub client: Client,
    pub config: Config,
    pub host: Host,
    pub kubevirts: reflector::Store<KubeVirt>,
    pub events: events::Events,
    pub ground: Arc<dyn Ground>,
    pub consoles: console::Consoles,
    pub screens: session::Screens,
}

impl Context {
    /// The cluster's own list of CPU models that nobody should have.
    pub(crate) fn obsolete_models(&self) -> std::collections::BTreeMap<String, bool> {
        let kubevirts = self.kubevirts.state();
        kubevirts.first().map(|kubevirt| kubevirt.spec.configuration.obsolete_cpu_models.clone()).unwrap_or_default()
    }

    /// Whether consoles of instances that say nothing are kept in a log.
    pub(crate) fn console_log_disabled(&self) -> bool {
        let kubevirts = self.kubevirts.state();
        let options =
            kubevirts.first().and_then(|kubevirt| kubevirt.spec.configuration.virtual_machine_options.as_ref());
        options.is_some_and(|options| options.disable_serial_console_log.is_some())
    }

    pub(crate) fn allow_emulation(&self) -> bool {
        let kubevirts = self.kubevirts.state();
        let developer = kubevirts.first().and_then(|kv| kv.spec.configuration.developer_configuration.clone());
        developer.is_some_and(|d| d.use_emulation)
    }
}

/// Makes an agent; [`Agent::run`] drives it.
pub fn agent(client: Client, config: Config) -> Agent {
    let ground = ground::Kubelet { root: config.kubelet_root.clone() };
    agent_on(client, config, Arc::new(ground))
}

/// The same for pods that are found in another way.
pub fn agent_on(client: Client, config: Config, ground: Arc<dyn Ground>) -> Agent {
    let (kubevirts, writer) = reflector::store();
    let stream = watcher(Api::<KubeVirt>::all(client.clone()), watcher::Config::default());
    tokio::spawn(reflector(writer, stream.default_backoff()).for_each(|_| async {}));
    let events = events::Events::new(client.clone(), &config.node_name);
    let host = Host::detect();
    let (consoles, screens) = Default::default();
    Agent::new(Arc::new(Context { client, config, host, kubevirts, events, ground, consoles, screens }))
}

impl Agent {
    /// Follows this node's instances until `shutdown` resolves. Guests go on running.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let context = self.context();
        let _ = context.kubevirts.wait_until_ready().await;
        let keep_node = node_object::keep(context.clone());
        let follow = self.follow();
        tokio::select! {
            () = shutdown => {}
            () = keep_node => {}
            () = follow => {}
        }
    }

    async fn follow(&self) {
        let context = self.context();
        let mine =
            watcher::Config::default().labels(&format!("{}={}", names::NODE_NAME_LABEL, context.config.node_name));
        let instances = Api::<Folded<VirtualMachineInstance>>::all(context.client.clone());
        let mut events = std::pin::pin!(watcher(instances, mine).default_backoff());
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::Apply(vmi) | watcher::Event::InitApply(vmi))) => self.observe(vmi),
                Ok(Some(watcher::Event::Delete(vmi))) => self.forget(&vmi),
                Ok(Some(watcher::Event::Init | watcher::Event::InitDone)) => {}
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "cannot watch instances; trying again"),
            }
        }
    }
}
