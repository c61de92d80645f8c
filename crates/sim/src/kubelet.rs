//! Scheduler and kubelet of all simulated nodes: binds launcher pods, pretends to run them and reports on them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ferrovirt_api::names;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};

use crate::{
    launcher::{Behaviour, SimLauncher},
    ledger::Ledger,
    node::Pods,
};

/// Annotation of an instance (and so of its pod): the pod waits with this reason instead of running.
pub const WAITING: &str = "sim.ferrovirt.io/waiting";
/// Annotation: no node takes the pod.
pub const UNSCHEDULABLE: &str = "sim.ferrovirt.io/unschedulable";

/// Annotation: when the pod is removed by force, its launcher goes on until somebody else ends it.
pub const LINGERS: &str = "sim.ferrovirt.io/lingers";

/// How long a launcher outlives a pod object that was removed by force.
const NOTICE: Duration = Duration::from_millis(150);

#[derive(Clone)]
pub struct Kubelet(Arc<Inner>);

struct Inner {
    client: Client,
    nodes: BTreeMap<String, Pods>,
    names: Vec<String>,
    ledger: Ledger,
    next: AtomicUsize,
    /// Pods that a task cares for.
    seen: Mutex<HashMap<String, ()>>,
    stopping: Mutex<HashSet<String>>,
}

impl Kubelet {
    pub fn new(client: Client, nodes: BTreeMap<String, Pods>, ledger: Ledger) -> Self {
        let names = nodes.keys().cloned().collect();
        let (seen, stopping) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { client, nodes, names, ledger, next: AtomicUsize::new(0), seen, stopping }))
    }

    /// Follows all launcher pods. Never returns while the API serves.
    pub async fn run(&self) {
        let launchers = watcher::Config::default().labels(&format!("{}={}", names::APP_LABEL, names::LAUNCHER_APP));
        let pods = Api::<Pod>::all(self.0.client.clone());
        let mut events = std::pin::pin!(watcher(pods, launchers).default_backoff());
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod))) => self.observe(pod),
                Ok(Some(watcher::Event::Delete(pod))) => self.vanished(&pod),
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "the simulated kubelet cannot watch pods"),
            }
        }
    }

    fn observe(&self, mut pod: Pod) {
        let Some(uid) = pod.uid() else { return };
        pod.metadata.managed_fields = None;
        if pod.metadata.deletion_timestamp.is_some() {
            let first = self.0.stopping.lock().unwrap_or_else(PoisonError::into_inner).insert(uid);
            if first {
                tokio::spawn(self.clone().stop(pod));
            }
            return;
        }
        let known = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(uid, ());
        if known.is_none() {
            tokio::spawn(self.clone().run_pod(Box::new(pod)));
        }
    }

    fn launcher_of(&self, uid: &str) -> Option<SimLauncher> {
        self.0.nodes.values().find_map(|pods| pods.get(uid))
    }

    /// One pod, from its start to its end. What lives as long as the pod holds little.
    async fn run_pod(self, pod: Box<Pod>) {
        let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
        let Some(launcher) = Box::pin(self.start(*pod)).await else { return };
        let mut exit = launcher.exit();
        let Ok(code) = exit.wait_for(Option::is_some).await.map(|code| code.unwrap_or(1)) else { return };
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let state = json!({ "terminated": { "exitCode": code } });
        let pods = Api::<Pod>::namespaced(self.0.client.clone(), &namespace);
        let status = json!({ "phase": phase, "containerStatuses": [container(&state)] });
        Box::pin(self.report(&pods, &name, status)).await;
    }

    /// Binds a pod and starts its launcher, if it is to have one.
    async fn start(&self, pod: Pod) -> Option<SimLauncher> {
        let (uid, namespace) = (pod.uid()?, pod.namespace()?);
        let pods = Api::<Pod>::namespaced(self.0.client.clone(), &namespace);
        let name = pod.name_any();
        let annotations = pod.annotations().clone();
        if annotations.contains_key(UNSCHEDULABLE) {
            let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient memory." });
            self.report(&pods, &name, json!({ "phase": "Pending", "conditions": [condition] })).await;
            return None;
        }
        let index = self.0.next.fetch_add(1, Ordering::Relaxed) % self.0.names.len().max(1);
        let node = self.0.names.get(index)?;
        let place = self.0.nodes.get(node)?;
        let disk = format!("{namespace}/{}", annotations.get(names::DOMAIN_ANNOTATION).cloned().unwrap_or_default());
        let launcher = SimLauncher::new(&uid, &disk, Behaviour::read(&annotations), self.0.ledger.clone());
        // Before the API knows, so that nobody finds a bound pod without its place on the node. A pod that waits has no
        // launcher to be found.
        if !annotations.contains_key(WAITING) {
            place.add(&uid, launcher.clone());
        }
        let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node } });
        let bound: Result<Value, _> = pods.create_subresource("binding", &name, &PostParams::default(), &binding).await;
        if let Err(error) = bound {
            // Deleted before it was bound: then it never runs.
            tracing::debug!(%error, pod = name, "not bound");
            launcher.kill();
            place.remove(&uid);
            return None;
        }
        if let Some(reason) = annotations.get(WAITING) {
            let state = json!({ "waiting": { "reason": reason, "message": "simulated" } });
            self.report(&pods, &name, json!({ "phase": "Pending", "containerStatuses": [container(&state)] })).await;
            return None;
        }
        let status = json!({ "phase": "Running", "podIP": "10.1.0.1", "qosClass": "Burstable",
            "containerStatuses": [container(&json!({ "running": {} }))] });
        self.report(&pods, &name, status).await;
        Some(launcher)
    }

    async fn report(&self, pods: &Api<Pod>, name: &str, status: Value) {
        let patch = json!({ "status": status });
        if let Err(error) = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            tracing::debug!(%error, pod = name, "no status");
        }
    }

    /// A graceful deletion: ask, wait, kill, and only then let the object go.
    async fn stop(self, pod: Pod) {
        let (Some(uid), Some(namespace)) = (pod.uid(), pod.namespace()) else { return };
        if let Some(launcher) = self.launcher_of(&uid) {
            launcher.terminate();
            let grace = Duration::from_secs(
                u64::try_from(pod.metadata.deletion_grace_period_seconds.unwrap_or(0)).unwrap_or(0),
            );
            let mut ended = launcher.ended();
            if tokio::time::timeout(grace, ended.wait_for(|ended| *ended)).await.is_err() {
                launcher.kill();
            }
        }
        let pods = Api::<Pod>::namespaced(self.0.client.clone(), &namespace);
        let _ = pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
        self.forget(&uid);
    }

    /// The object is gone, perhaps by force: a kubelet then ends what still runs, but not at once.
    fn vanished(&self, pod: &Pod) {
        let Some(uid) = pod.uid() else { return };
        let (this, lingers) = (self.clone(), pod.annotations().contains_key(LINGERS));
        tokio::spawn(async move {
            if let Some(launcher) = this.launcher_of(&uid).filter(|launcher| !launcher.has_ended()) {
                if lingers {
                    drop(launcher.ended().wait_for(|ended| *ended).await);
                } else {
                    tokio::time::sleep(NOTICE).await;
                    launcher.kill();
                }
            }
            this.forget(&uid);
        });
    }

    fn forget(&self, uid: &str) {
        for pods in self.0.nodes.values() {
            pods.remove(uid);
        }
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        self.0.stopping.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

fn container(state: &Value) -> Value {
    let ready = state.get("running").is_some();
    json!({ "name": names::COMPUTE_CONTAINER, "image": "sim", "imageID": "", "ready": ready, "restartCount": 0, "state": state })
}
