//! The one task that knows all pods: it hands each pod of this node to a worker and each waiting pod to the scheduler.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ferrovirt_api::names;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, Namespace, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::events::Severity;
use crate::resources::{self, Amounts};
use crate::scheduler::{self, DEFAULT_SCHEDULER, Decision};
use crate::status::set_condition;
use crate::storage::{Claims, Readiness};
use crate::worker::{self, Context};

/// How often pods that fit nowhere are looked at again when nothing else happens.
const RETRY: Duration = Duration::from_secs(10);

type Uid = String;

struct Manager {
    context: Arc<Context>,
    claims: Arc<Claims>,
    pods: HashMap<Uid, Arc<Pod>>,
    nodes: BTreeMap<String, Node>,
    workers: HashMap<Uid, watch::Sender<Option<Arc<Pod>>>>,
    tasks: JoinSet<Uid>,
    /// Pods whose binding is under way, and where to.
    assumed: HashMap<Uid, String>,
    failed_bindings: mpsc::UnboundedSender<Uid>,
    /// Pods seen since the list began, while it is not complete.
    listing: Option<HashSet<Uid>>,
    node_listing: Option<HashSet<String>>,
    synced: bool,
}

pub(crate) async fn run(context: Arc<Context>, claims: Arc<Claims>, shutdown: impl Future<Output = ()>) {
    let (failed_bindings, mut failures) = mpsc::unbounded_channel();
    let client = context.client.clone();
    let mut manager = Manager {
        context,
        claims: claims.clone(),
        pods: HashMap::new(),
        nodes: BTreeMap::new(),
        workers: HashMap::new(),
        tasks: JoinSet::new(),
        assumed: HashMap::new(),
        failed_bindings,
        listing: None,
        node_listing: None,
        synced: false,
    };
    let mut pods = pin!(watcher(Api::<Pod>::all(client.clone()), watcher::Config::default()).default_backoff());
    let mut nodes = pin!(watcher(Api::<Node>::all(client.clone()), watcher::Config::default()).default_backoff());
    let open = watcher::Config::default().labels(&format!("{}=true", names::RUN_PODS_LABEL));
    let mut open = pin!(watcher(Api::<Namespace>::all(client), open).default_backoff());
    let mut tick = tokio::time::interval(RETRY);
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            event = pods.next() => match event {
                Some(Ok(event)) => manager.pod_event(event),
                Some(Err(error)) => tracing::warn!(%error, "the watch of pods was interrupted"),
                None => break,
            },
            event = nodes.next() => match event {
                Some(Ok(event)) => manager.node_event(event),
                Some(Err(error)) => tracing::warn!(%error, "the watch of nodes was interrupted"),
                None => break,
            },
            event = open.next() => match event {
                Some(Ok(event)) => manager.context.makers.namespace_event(event),
                Some(Err(error)) => tracing::warn!(%error, "the watch of namespaces was interrupted"),
                None => break,
            },
            Some(uid) = failures.recv() => {
                manager.assumed.remove(&uid);
                // The next tick tries again; at once could become a busy loop.
                continue;
            }
            Some(done) = manager.tasks.join_next() => {
                match done {
                    Ok(uid) => drop(manager.workers.remove(&uid)),
                    Err(error) => {
                        tracing::error!(%error, "the worker of a pod broke off");
                        manager.restart();
                    }
                }
                continue;
            }
            () = claims.changed() => {}
            _ = tick.tick() => {}
        }
        manager.schedule();
    }
    // Dropping the workers ends tasks of ours only; the pods themselves go on.
}

impl Manager {
    fn pod_event(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.listing = Some(HashSet::new()),
            Event::InitApply(pod) | Event::Apply(pod) => self.apply(Arc::new(pod)),
            Event::Delete(pod) => self.forget(pod.metadata.uid.as_deref().unwrap_or_default()),
            Event::InitDone => {
                let seen = self.listing.take().unwrap_or_default();
                let gone: Vec<Uid> = self.pods.keys().filter(|uid| !seen.contains(*uid)).cloned().collect();
                for uid in gone {
                    self.forget(&uid);
                }
                if !std::mem::replace(&mut self.synced, true) {
                    self.adopt();
                }
            }
        }
    }

    fn node_event(&mut self, event: Event<Node>) {
        match event {
            Event::Init => self.node_listing = Some(HashSet::new()),
            Event::InitApply(node) | Event::Apply(node) => {
                let name = node.metadata.name.clone().unwrap_or_default();
                if let Some(listing) = &mut self.node_listing {
                    listing.insert(name.clone());
                }
                self.nodes.insert(name, node);
            }
            Event::Delete(node) => {
                self.nodes.remove(node.metadata.name.as_deref().unwrap_or_default());
            }
            Event::InitDone => {
                let seen = self.node_listing.take().unwrap_or_default();
                self.nodes.retain(|name, _| seen.contains(name));
            }
        }
    }

    fn apply(&mut self, pod: Arc<Pod>) {
        let Some(uid) = pod.metadata.uid.clone() else {
            return;
        };
        if let Some(listing) = &mut self.listing {
            listing.insert(uid.clone());
        }
        self.pods.insert(uid.clone(), pod.clone());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        match phase {
            Some("Succeeded" | "Failed") => self.claims.released_by(&uid),
            _ => self.claims.used_by(&uid, &pod),
        }
        let node = node_of(&pod);
        if !node.is_empty() {
            self.assumed.remove(&uid);
        }
        if node == self.context.config.node_name {
            self.hand_over(uid, Some(pod));
        }
    }

    fn forget(&mut self, uid: &str) {
        self.assumed.remove(uid);
        self.claims.released_by(uid);
        self.pods.remove(uid);
        if self.workers.contains_key(uid) {
            self.hand_over(uid.to_owned(), None);
        }
    }

    /// Pods on this machine whose objects vanished while nobody looked. Only safe once the list is complete.
    fn adopt(&mut self) {
        match self.context.sandboxes.list() {
            Ok(uids) => {
                let orphans: Vec<Uid> = uids.into_iter().filter(|uid| !self.pods.contains_key(uid)).collect();
                for uid in orphans {
                    tracing::info!(uid, "a pod of this machine has no object any more");
                    self.hand_over(uid, None);
                }
            }
            Err(error) => tracing::error!(%error, "cannot look for pods that were left behind"),
        }
    }

    /// Gives pods whose worker broke off to another one. It begins with what files and kernel say.
    fn restart(&mut self) {
        let broken: Vec<Uid> =
            self.workers.iter().filter(|(_, worker)| worker.is_closed()).map(|(uid, _)| uid.clone()).collect();
        for uid in broken {
            let pod = self.pods.get(&uid).cloned();
            self.hand_over(uid, pod);
        }
    }

    fn hand_over(&mut self, uid: Uid, pod: Option<Arc<Pod>>) {
        if let Some(worker) = self.workers.get(&uid)
            && worker.send(pod.clone()).is_ok()
        {
            return;
        }
        let (sender, receiver) = watch::channel(pod);
        self.workers.insert(uid.clone(), sender);
        let context = self.context.clone();
        self.tasks.spawn(async move {
            worker::run(context, uid.clone(), receiver).await;
            uid
        });
    }

    fn schedule(&mut self) {
        if !self.synced || self.nodes.is_empty() {
            return;
        }
        let waiting = |(uid, pod): &(&Uid, &Arc<Pod>)| scheduler::is_waiting(pod) && !self.assumed.contains_key(*uid);
        let mut waiting: Vec<Arc<Pod>> = self.pods.iter().filter(waiting).map(|(_, pod)| pod.clone()).collect();
        if waiting.is_empty() {
            return;
        }
        // First come, first served.
        waiting.sort_by_key(|pod| (pod.metadata.creation_timestamp.as_ref().map(|at| at.0), pod.metadata.name.clone()));
        for pod in waiting {
            // It holds nothing of the node, and no volume is made for it, before it may run.
            if let Err(why) = self.context.makers.trust(&pod) {
                let (context, message) = (self.context.clone(), why.to_string());
                if !is_told(&pod, &message) {
                    tokio::spawn(async move { refuse(&context, &pod, message).await });
                }
                continue;
            }
            match self.claims.readiness(&pod) {
                Readiness::Ready => {}
                Readiness::Later => continue,
                Readiness::Never(why) => {
                    let (context, total) = (self.context.clone(), self.nodes.len());
                    let message = format!("0/{total} nodes are available: {why}.");
                    tokio::spawn(async move { refuse(&context, &pod, message).await });
                    continue;
                }
            }
            let used = self.used();
            let nodes: Vec<&Node> = self.nodes.values().collect();
            match scheduler::decide(&pod, &nodes, &used) {
                Decision::Bind { node } => {
                    self.assumed.insert(pod.metadata.uid.clone().unwrap_or_default(), node.clone());
                    let (context, failed) = (self.context.clone(), self.failed_bindings.clone());
                    tokio::spawn(async move { bind(&context, &pod, &node, &failed).await });
                }
                Decision::Unschedulable { message } => {
                    let context = self.context.clone();
                    tokio::spawn(async move { refuse(&context, &pod, message).await });
                }
            }
        }
    }

    fn used(&self) -> BTreeMap<String, Amounts> {
        let mut out = BTreeMap::new();
        for node in self.nodes.keys() {
            let here = self.pods.iter().filter(|(uid, pod)| {
                (node_of(pod) == node || self.assumed.get(*uid) == Some(node)) && self.context.makers.counts(pod)
            });
            out.insert(node.clone(), resources::used(here.map(|(_, pod)| &**pod)));
        }
        out
    }
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

async fn bind(context: &Context, pod: &Pod, node: &str, failed: &mpsc::UnboundedSender<Uid>) {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let binding = Binding {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            uid: pod.metadata.uid.clone(),
            ..Default::default()
        },
        target: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            ..Default::default()
        },
    };
    let posted: Result<Value, kube::Error> =
        api.create_subresource("binding", &name, &PostParams::default(), &binding).await;
    let result = match posted {
        // An API without the subresource; the uid keeps a namesake from being hit.
        Err(kube::Error::Api(answer)) if answer.code == 405 => {
            let patch = json!({ "metadata": { "uid": pod.metadata.uid }, "spec": { "nodeName": node } });
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
        }
        result => result.map(drop),
    };
    match result {
        Ok(()) => {
            let message = format!("Successfully assigned {namespace}/{name} to {node}");
            context.events.publish(DEFAULT_SCHEDULER, pod, Severity::Normal, "Scheduled", &message);
        }
        Err(error) => {
            tracing::warn!(%error, pod = name, "cannot bind the pod");
            let _ = failed.send(pod.metadata.uid.clone().unwrap_or_default());
        }
    }
}

fn is_told(pod: &Pod, message: &str) -> bool {
    pod.status.iter().flat_map(|status| status.conditions.iter().flatten()).any(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.message.as_deref() == Some(message)
    })
}

/// Says on the pod why it waits, once for each reason.
async fn refuse(context: &Context, pod: &Pod, message: String) {
    if is_told(pod, &message) {
        return;
    }
    let mut status = pod.status.clone().unwrap_or_default();
    let mut conditions = status.conditions.take().unwrap_or_default();
    context.events.publish(DEFAULT_SCHEDULER, pod, Severity::Warning, "FailedScheduling", &message);
    set_condition(&mut conditions, "PodScheduled", false, Some("Unschedulable"), Some(message), Timestamp::now());
    status.conditions = Some(conditions);
    status.phase = status.phase.or_else(|| Some("Pending".to_owned()));
    let changed = Pod { status: Some(status), ..pod.clone() };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    // A conflict means that the pod changed; then it is looked at again anyway.
    if let Err(error) = api.replace_status(name, &PostParams::default(), &changed).await {
        tracing::debug!(%error, pod = name, "cannot say why the pod waits");
    }
}
