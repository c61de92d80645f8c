//! A whole simulated cluster in this process.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use ferrovirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use ferrovirt_apiserver::{ApiServer, StaticTokens, User};
use ferrovirt_controller::{Metrics, Part, Settings};
use ferrovirt_machine::{
    node_call::NodeCall,
    protocol::{ErrorCode, ProtocolError},
};
use ferrovirt_node::Agent;
use ferrovirt_virt_api::{BoxError, BoxStream, Nodes, StreamKind, VirtApi};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt, api::PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    chaos::{Dice, Trouble, Troubled},
    kubelet::Kubelet,
    launcher::SimLauncher,
    ledger::Ledger,
    node::Pods,
    writes::{Counted, Writes},
};

const NAMESPACE: &str = "kubevirt";
const SERVICE: &str = "virt-api";

pub struct Options {
    pub nodes: usize,
    /// What happens to the writes of controllers and agents.
    pub trouble: Option<Trouble>,
    pub seed: u64,
    /// Custom resources beside our own.
    pub crds: Vec<Value>,
    /// Whom the API knows by a bearer token, when it is served.
    pub tokens: StaticTokens,
}

impl Default for Options {
    fn default() -> Self {
        Self { nodes: 1, trouble: None, seed: 1, crds: vec![], tokens: StaticTokens::default() }
    }
}

pub struct Cluster {
    pub api: ApiServer,
    pub client: Client,
    pub ledger: Ledger,
    pub dice: Dice,
    /// What controllers and agents wrote.
    pub writes: Writes,
    pub metrics: Metrics,
    pub nodes: BTreeMap<String, SimNode>,
    trouble: Option<Trouble>,
    stop: CancellationToken,
    directory: tempfile::TempDir,
}

/// A node, with an agent that can be killed.
pub struct SimNode {
    pub pods: Pods,
    agent: Mutex<Option<Running>>,
}

/// An agent in a runtime of its own, so that killing it leaves no task of it behind.
struct Running {
    agent: Agent,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // What is killed does nothing more: its threads have ended when this returns. Only a thread may wait for them.
            let _ = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(10))).join();
        }
    }
}

impl Cluster {
    pub async fn start(options: Options) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let api = start_api(directory.path(), options.crds, options.tokens).await?;
        let dice = Dice::new(options.seed);
        let client = connect(&api, "test");
        let ledger = Ledger::default();
        let writes = Writes::default();
        let stop = CancellationToken::new();
        let mut nodes = BTreeMap::new();
        for index in 0..options.nodes {
            let name = format!("sim-{index}");
            create_node(&client, &name).await?;
            nodes.insert(name, SimNode { pods: Pods::default(), agent: Mutex::new(None) });
        }
        let places = nodes.iter().map(|(name, node)| (name.clone(), node.pods.clone())).collect();
        let kubelet = Kubelet::new(connect(&api, "kubelet"), places, ledger.clone());
        let stopped = stop.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(kubelet.run()).await });
        let cluster = Self {
            api,
            client,
            ledger,
            dice,
            writes,
            metrics: Metrics::default(),
            nodes,
            trouble: options.trouble,
            stop,
            directory,
        };
        for name in cluster.nodes.keys() {
            cluster.start_agent(name)?;
        }
        register(&cluster);
        cluster.start_controllers();
        Ok(cluster)
    }

    /// A client for one of ours: troubled, and counted.
    fn counted(&self, name: &str) -> Client {
        let service = Troubled::new(self.api.client_service(user(name)), self.trouble, self.dice.clone());
        Client::new(Counted::new(service, self.writes.clone()), "default")
    }

    fn start_controllers(&self) {
        let settings = Settings { launcher_image: "sim".into(), component_image: None };
        for part in Part::ALL {
            let client = self.counted("virt-controller");
            let stop = self.stop.clone();
            let stopped = async move { stop.cancelled().await };
            tokio::spawn(ferrovirt_controller::run(client, settings.clone(), part, self.metrics.clone(), stopped));
        }
    }

    /// Starts the agent of a node that has none.
    pub fn start_agent(&self, node: &str) -> Result<()> {
        let place = self.nodes.get(node).context("no such node")?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build()?;
        let client = self.counted(node);
        let agent = {
            let _inside = runtime.enter();
            let config = ferrovirt_node::Config::new(node, self.kubelet_root());
            let agent = ferrovirt_node::agent_on(client, config, Arc::new(place.pods.clone()));
            let (running, stop) = (agent.clone(), self.stop.clone());
            runtime.spawn(async move { running.run(stop.cancelled()).await });
            agent
        };
        let running = Running { agent, runtime: Some(runtime) };
        *place.agent.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        Ok(())
    }

    /// Where the agents of all nodes look for the sockets of guests. There are none, unless a test puts them there.
    pub fn kubelet_root(&self) -> PathBuf {
        self.directory.path().join("kubelet")
    }

    /// SIGKILL of a node's agent. Its launchers go on.
    pub fn kill_agent(&self, node: &str) {
        if let Some(place) = self.nodes.get(node) {
            place.agent.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// All launchers that run.
    pub fn launchers(&self) -> Vec<(String, SimLauncher)> {
        let all = self.nodes.values().flat_map(|node| node.pods.all());
        all.filter(|(_, launcher)| !launcher.has_ended()).collect()
    }

    pub fn vms(&self) -> Api<VirtualMachine> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub fn vmis(&self) -> Api<VirtualMachineInstance> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// The launcher of an instance.
    pub async fn launcher(&self, vmi: &str) -> Result<SimLauncher> {
        let vmi = self.vmis().get(vmi).await?;
        let pod = vmi.status.active_pods.keys().next().context("the instance has no pod")?;
        let found = self.nodes.values().find_map(|node| node.pods.get(pod));
        found.context("the pod is not on any node")
    }

    pub async fn stop(self) {
        for name in self.nodes.keys() {
            self.kill_agent(name);
        }
        self.stop.cancel();
        self.api.shutdown().await;
    }
}

/// Asks again and again until `look` answers, and says what was seen last if it never does.
pub async fn eventually<T, F>(what: &str, deadline: Duration, mut look: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let until = Instant::now() + deadline;
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() > until => bail!("{what}: not after {deadline:?}: {error:#}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn start_api(directory: &Path, more: Vec<Value>, static_tokens: StaticTokens) -> Result<ApiServer> {
    let mut crds = ferrovirt_api::crds();
    crds.extend(more);
    let config = ferrovirt_apiserver::Config {
        data_dir: directory.to_owned(),
        crds,
        bootstrap: bootstrap(),
        static_tokens,
        ..Default::default()
    };
    ApiServer::start(config).await.context("cannot start the API")
}

fn connect(api: &ApiServer, name: &str) -> Client {
    Client::new(api.client_service(user(name)), "default")
}

fn user(name: &str) -> User {
    User {
        name: format!("system:ferrovirt:{name}"),
        uid: None,
        groups: vec!["system:masters".into(), "system:authenticated".into()],
        extra: Default::default(),
    }
}

async fn create_node(client: &Client, name: &str) -> Result<()> {
    let node: Node = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await?;
    Ok(())
}

/// The objects of an installation: configuration and webhooks.
fn bootstrap() -> Vec<Value> {
    let hook = |name: &str, path: &str, resource: &str, operations: &[&str]| {
        json!({
            "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "clientConfig": { "service": { "namespace": NAMESPACE, "name": SERVICE, "path": path, "port": 443 } },
            "rules": [{ "apiGroups": ["kubevirt.io"], "apiVersions": ["v1", "v1alpha3"], "operations": operations,
                "resources": [resource], "scope": "*" }],
        })
    };
    let mut interceptor =
        hook("virt-launcher-eviction-interceptor.kubevirt.io", "/pod-eviction-validate", "pods/eviction", &["*"]);
    interceptor["rules"][0]["apiGroups"] = json!([""]);
    vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
            "metadata": { "name": "kubevirt", "namespace": NAMESPACE },
            "spec": { "configuration": { "developerConfiguration": { "useEmulation": true } } },
        }),
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": "v1.subresources.kubevirt.io" },
            "spec": {
                "group": "subresources.kubevirt.io", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
                "service": { "namespace": NAMESPACE, "name": SERVICE, "port": 443 },
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": "virt-api-mutator" },
            "webhooks": [
                hook("vmi-mutator.kubevirt.io", "/virtualmachineinstances-mutate", "virtualmachineinstances", &["CREATE"]),
                hook("vm-mutator.kubevirt.io", "/virtualmachines-mutate", "virtualmachines", &["CREATE", "UPDATE"]),
                hook("migration-mutator.kubevirt.io", "/migration-mutate-create", "virtualmachineinstancemigrations",
                    &["CREATE"]),
            ],
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": "virt-api-validator" },
            "webhooks": [
                hook("vm-validator.kubevirt.io", "/virtualmachines-validate", "virtualmachines", &["CREATE", "UPDATE"]),
                hook("vmi-validator.kubevirt.io", "/virtualmachineinstances-validate-create",
                    "virtualmachineinstances", &["CREATE"]),
                interceptor,
                hook("preset-validator.kubevirt.io", "/vmipreset-validate", "virtualmachineinstancepresets", &["CREATE"]),
                hook("migration-validator.kubevirt.io", "/migration-validate-create", "virtualmachineinstancemigrations",
                    &["CREATE"]),
                hook("kubevirt-create-validator.kubevirt.io", "/kubevirt-validate-create", "kubevirts", &["CREATE"]),
                hook("kubevirt-validator.kubevirt.io", "/kubevirt-validate-update", "kubevirts", &["UPDATE"]),
            ],
        }),
    ]
}

fn register(cluster: &Cluster) {
    let agents = cluster.nodes.iter().filter_map(|(name, node)| {
        let running = node.agent.lock().unwrap_or_else(PoisonError::into_inner);
        Some((name.clone(), running.as_ref()?.agent.clone()))
    });
    let nodes = Arc::new(Agents(agents.collect()));
    let virt_api = VirtApi::new(connect(&cluster.api, "virt-api"), nodes);
    let handler = Arc::new(move |mut request: http::Request<_>| {
        let virt_api = virt_api.clone();
        name_caller(&mut request);
        Box::pin(async move { virt_api.handle(request).await }) as BoxFuture<'static, _>
    });
    cluster.api.register_in_process(NAMESPACE, SERVICE, handler);
}

/// Puts the caller where a front proxy would.
fn name_caller<B>(request: &mut http::Request<B>) {
    let Some(user) = request.extensions().get::<User>().cloned() else { return };
    ferrovirt_apiserver::identify(request.headers_mut(), &user);
}

struct Agents(BTreeMap<String, Agent>);

impl Nodes for Agents {
    fn open(&self, vmi: VirtualMachineInstance, kind: StreamKind) -> BoxFuture<'static, Result<BoxStream, BoxError>> {
        let (name, agent) = (vmi.name_any(), self.0.get(&vmi.status.node_name).cloned());
        Box::pin(async move {
            let (Some(agent), StreamKind::Serial { replay }) = (agent, kind) else {
                return Err(format!("the simulated guest {name} has a serial console only").into());
            };
            let stream = agent.open(&vmi, ferrovirt_node::StreamKind::Serial { replay }).await?;
            Ok(Box::pin(stream) as BoxStream)
        })
    }

    fn call(&self, vmi: VirtualMachineInstance, call: NodeCall) -> BoxFuture<'static, Result<Bytes, ProtocolError>> {
        let agent = self.0.get(&vmi.status.node_name).cloned();
        Box::pin(async move {
            match agent {
                Some(agent) => agent.call(&vmi, &call).await,
                None => Err(ProtocolError { code: ErrorCode::NotHere, message: "no such node".into() }),
            }
        })
    }
}
