//! The server as a value: its parts, its start and its end.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use ferrovirt_schema::structural::Pool;
use ferrovirt_serve::Limits;
use ferrovirt_store::{BackupError, OpenError, Options};
use futures::future::BoxFuture;
use http::{Request, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::addresses::ExternalAddresses;
use crate::admission::{Policies, Webhooks};
use crate::aggregation::Aggregation;
use crate::attempts::Attempts;
use crate::audit::{Audit, Policy, Rotation};
use crate::authn::{StaticTokens, User};
use crate::authz::{self, Rbac};
use crate::controllers::{self, Client};
use crate::fairness::{Fairness, Shares};
use crate::front_proxy::FrontProxy;
use crate::http::body::Body;
use crate::http::serve::{self, TlsConfig};
use crate::openapi;
use crate::registry::Registry;
use crate::rest::{self, Begun};
use crate::revocation::Revocations;
use crate::service::{ApiService, ClientService};
use crate::status::ApiError;
use crate::storage::Store;
use crate::tokens::{KeyError, Tokens};
use crate::{crd, object, quota};

/// The Kubernetes version whose behaviour is followed.
pub const VERSION: &str = "v1.36.0+ferrovirt";

/// Where in the data directory the store lives.
pub const STORE_DIR: &str = "store";

/// More text for `/metrics`, in Prometheus' format.
pub type MoreMetrics = Arc<dyn Fn() -> BoxFuture<'static, String> + Send + Sync>;

/// Serves requests in this process: a webhook, an aggregated API, a subresource.
pub type Handler = Arc<dyn Fn(Request<Body>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The store lives in [`STORE_DIR`] of it.
    pub data_dir: PathBuf,
    /// Signs service account tokens (PKCS#8 PEM, P-256). Without it none are issued or known.
    pub service_account_key_pem: Option<String>,
    /// The authority of the serving certificate, published to every namespace as `kube-root-ca.crt`.
    pub root_ca_pem: Option<String>,
    /// Who this server is to extension API servers. Without it they learn nothing about who asks.
    pub front_proxy: Option<FrontProxy>,
    /// Bearer tokens that do not change, and whom they speak for.
    pub static_tokens: StaticTokens,
    /// CustomResourceDefinitions that are created or updated at start.
    pub crds: Vec<Value>,
    /// Other objects that are created at start if they are absent.
    pub bootstrap: Vec<Value>,
    /// Requests are appended to this file, as `audit.k8s.io/v1` events.
    pub audit_log: Option<PathBuf>,
    pub audit_rotation: Rotation,
    /// Which of them; all at the Metadata level unless it says otherwise.
    pub audit_policy: Policy,
    /// Where services get their addresses from.
    pub service_network: rest::ServiceNetwork,
    /// What the listener takes on, if not the usual.
    pub limits: Option<Limits>,
    /// Client certificates that are not believed any more.
    pub revocations: Revocations,
    /// What each user has of the server.
    pub shares: Shares,
    /// Users whose pods are the system's own: nobody else changes them.
    pub pod_makers: Vec<String>,
    /// What `externalIPs` of services may be.
    pub external_addresses: ExternalAddresses,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot open the store")]
    Store(#[source] OpenError),
    #[error("cannot create the directory of the store")]
    Directory(#[source] io::Error),
    #[error("cannot set up {what}: {message}")]
    Bootstrap { what: String, message: String },
    #[error("service account tokens cannot be signed")]
    Key(#[source] KeyError),
    #[error("cannot open the audit log")]
    Audit(#[source] io::Error),
    #[error("the start was interrupted")]
    Interrupted,
}

/// A running API server. Clones share it.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) server: Arc<Server>,
}

/// Everything requests and controllers share.
pub struct Server {
    pub store: Store,
    pub registry: Registry,
    pub rbac: Rbac,
    pub webhooks: Webhooks,
    pub policies: Policies,
    pub aggregation: Aggregation,
    /// Lists that were sent in part.
    pub begun: Begun,
    pub tokens: Tokens,
    /// Of strangers to be somebody.
    pub attempts: Attempts,
    pub static_tokens: StaticTokens,
    pub root_ca_pem: Option<String>,
    pub front_proxy: Option<FrontProxy>,
    pub audit: Audit,
    pub quotas: quota::Ledger,
    pub openapi: openapi::Cache,
    /// Shares equal parts of CRD schemas; its lock also puts registry changes in order.
    pub crd_pool: tokio::sync::Mutex<Pool>,
    /// What services have of addresses and ports.
    pub service_numbers: rest::ServiceNumbers,
    pub service_network: rest::ServiceNetwork,
    pub pod_makers: Vec<String>,
    pub external_addresses: ExternalAddresses,
    /// Puts evictions in order.
    pub eviction_turn: tokio::sync::Mutex<()>,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
    in_process: RwLock<HashMap<(String, String), Handler>>,
    subresources: RwLock<HashMap<(String, String, String), Handler>>,
    pub more_metrics: RwLock<Vec<MoreMetrics>>,
    pub limits: Option<Limits>,
    pub revocations: Revocations,
    pub fairness: Arc<Fairness>,
}

impl Server {
    /// The in-process handler of a Service.
    pub fn in_process(&self, namespace: &str, service: &str) -> Option<Handler> {
        let handlers = self.in_process.read().unwrap_or_else(PoisonError::into_inner);
        handlers.get(&(namespace.to_owned(), service.to_owned())).cloned()
    }

    /// The in-process handler of a subresource.
    pub fn subresource(&self, group: &str, plural: &str, subresource: &str) -> Option<Handler> {
        let handlers = self.subresources.read().unwrap_or_else(PoisonError::into_inner);
        if handlers.is_empty() {
            return None;
        }
        handlers.get(&(group.to_owned(), plural.to_owned(), subresource.to_owned())).cloned()
    }
}

impl ApiServer {
    /// Opens the store and brings it to a state in which requests can be served.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let tokens = Tokens::new(config.service_account_key_pem.as_deref()).map_err(StartError::Key)?;
        let audit = Audit::open(config.audit_log.as_deref(), config.audit_rotation, config.audit_policy.clone())
            .await
            .map_err(StartError::Audit)?;
        let dir = config.data_dir.join(STORE_DIR);
        let opened = tokio::task::spawn_blocking(move || {
            std::fs::create_dir_all(&dir).map_err(StartError::Directory)?;
            Store::open(&dir, Options::default()).map_err(StartError::Store)
        });
        let (store, report) = opened.await.map_err(|_| StartError::Interrupted)??;
        tracing::info!(objects = report.objects, torn = report.torn_bytes, took = ?report.took, "store is open");
        let server = Arc::new(Server {
            store,
            registry: Registry::new(),
            rbac: Rbac::default(),
            webhooks: Webhooks::default(),
            policies: Policies::default(),
            aggregation: Aggregation::default(),
            begun: Begun::default(),
            tokens,
            attempts: Attempts::default(),
            static_tokens: config.static_tokens.clone(),
            root_ca_pem: config.root_ca_pem.clone(),
            front_proxy: config.front_proxy.clone(),
            audit,
            quotas: quota::Ledger::default(),
            openapi: openapi::Cache::default(),
            crd_pool: tokio::sync::Mutex::default(),
            service_numbers: rest::ServiceNumbers::default(),
            service_network: config.service_network,
            pod_makers: config.pod_makers.clone(),
            external_addresses: config.external_addresses.clone(),
            eviction_turn: tokio::sync::Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            in_process: RwLock::default(),
            subresources: RwLock::default(),
            more_metrics: RwLock::default(),
            limits: config.limits,
            revocations: config.revocations.clone(),
            fairness: Arc::new(Fairness::new(config.shares)),
        });
        crd::load(&server).await;
        bootstrap(&server, config).await?;
        controllers::spawn(&server);
        Ok(Self { server })
    }

    /// The whole pipeline for one request. In-process callers say who they are with a [`User`] extension.
    pub fn service(&self) -> ApiService {
        ApiService::new(self.server.clone())
    }

    /// A service that acts as `user`, for `kube::Client::new`.
    pub fn client_service(&self, user: User) -> ClientService {
        ClientService::new(self.service(), user)
    }

    /// Serves TLS with HTTP/1.1 and HTTP/2 until `shutdown` resolves, then lets open requests end.
    pub async fn serve(
        &self,
        listener: TcpListener,
        tls: TlsConfig,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        controllers::advertise(&self.server, listener.local_addr()?).await;
        serve::serve(self.service(), listener, tls, self.server.limits.unwrap_or_else(serve::limits), shutdown).await
    }

    /// Serves a Service that webhook configurations and APIServices name.
    ///
    /// The handler gets the original request (upgrades still possible) with the [`User`] as an extension.
    pub fn register_in_process(&self, namespace: &str, service: &str, handler: Handler) {
        let key = (namespace.to_owned(), service.to_owned());
        self.server.in_process.write().unwrap_or_else(PoisonError::into_inner).insert(key, handler);
        controllers::refresh_api_services(&self.server);
    }

    /// Serves a subresource of a resource (such as `log` of pods) after the usual authorization.
    pub fn register_subresource(&self, group: &str, plural: &str, subresource: &str, handler: Handler) {
        let key = (group.to_owned(), plural.to_owned(), subresource.to_owned());
        self.server.subresources.write().unwrap_or_else(PoisonError::into_inner).insert(key, handler);
    }

    /// Adds to what `/metrics` answers.
    pub fn register_metrics(&self, more: MoreMetrics) {
        self.server.more_metrics.write().unwrap_or_else(PoisonError::into_inner).push(more);
    }

    /// Writes every object as it is at this moment into an empty or new directory. Requests go on meanwhile.
    pub async fn backup(&self, directory: &Path) -> Result<(), BackupError> {
        self.server.store.backup(directory).await
    }

    pub fn store_stats(&self) -> ferrovirt_store::Stats {
        self.server.store.stats()
    }

    /// Ends watches and controllers, then closes the store.
    pub async fn shutdown(&self) {
        self.server.stop.cancel();
        self.server.tasks.close();
        self.server.tasks.wait().await;
        self.server.store.close().await;
    }
}

/// Namespaces, roles, CRDs and what the caller wants to exist.
async fn bootstrap(server: &Arc<Server>, config: Config) -> Result<(), StartError> {
    let client = Client::new(server, "apiserver");
    let namespaces = ["default", "kube-system", "kube-public", "kube-node-lease"]
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    create_absent(&client, &namespaces).await?;
    // Together, so that they share syncs of the store.
    let policy = authz::bootstrap_policy();
    let (roles, crds) = futures::join!(create_absent(&client, &policy), apply_crds(&client, &config.crds));
    roles.and(crds)?;
    // Namespaces before what is in them; webhooks last, since their handlers are registered after the start.
    let rank = |object: &Value| match object::text(object, &["kind"]) {
        "Namespace" => 0,
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => 2,
        _ => 1,
    };
    create_absent(&client, &[api_service(config.service_network), service_range(config.service_network)]).await?;
    create_absent(&client, &priority_classes()).await?;
    if let Some(front_proxy) = &config.front_proxy {
        let wanted = front_proxy.config_map();
        publish(&client, &wanted).await.map_err(|error| failed(&wanted, &error))?;
    }
    for phase in 0..=2 {
        let objects: Vec<Value> = config.bootstrap.iter().filter(|o| rank(o) == phase).cloned().collect();
        create_absent(&client, &objects).await?;
    }
    Ok(())
}

/// The service by which programs inside find this server.
fn api_service(network: rest::ServiceNetwork) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": network.api_address().to_string(),
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
    })
}

/// The addresses that services get, as an object.
fn service_range(network: rest::ServiceNetwork) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": [network.to_string()]},
    })
}

/// The two classes that Kubernetes itself has.
fn priority_classes() -> [Value; 2] {
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)].map(|(name, value)| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value,
            "description": "Used for system critical pods that must not be moved or stopped for others.",
        })
    })
}

async fn create_absent(client: &Client, objects: &[Value]) -> Result<(), StartError> {
    let creations = objects.iter().map(|object| async move {
        let current = client.create_if_absent(object).await.map_err(|error| failed(object, &error))?;
        match current.and_then(|current| with_rules_of(current, object)) {
            Some(changed) => client.update(&changed).await.map(drop).map_err(|error| failed(object, &error)),
            None => Ok(()),
        }
    });
    futures::future::try_join_all(creations).await.map(|_| ())
}

/// A role of an earlier version with the rules and a binding with the subjects that it has not got yet, unless somebody
/// said that they want neither. What others added stays.
fn with_rules_of(mut current: Value, wanted: &Value) -> Option<Value> {
    let kept = object::at(&current, &["metadata", "annotations", "rbac.authorization.kubernetes.io/autoupdate"]);
    let bound = current.get("roleRef").is_some_and(|role| role["name"] != wanted["roleRef"]["name"]);
    let aggregated = wanted.get("aggregationRule").is_some();
    if !object::text(wanted, &["apiVersion"]).starts_with("rbac.")
        || kept == Some(&json!("false"))
        || bound
        || aggregated
    {
        return None;
    }
    let key = if wanted.get("roleRef").is_some() { "subjects" } else { "rules" };
    let had = current[key].as_array().cloned().unwrap_or_default();
    let has = |item: &Value| had.iter().any(|known| contains(known, item));
    let missing: Vec<Value> = wanted[key].as_array().into_iter().flatten().filter(|item| !has(item)).cloned().collect();
    if missing.is_empty() {
        return None;
    }
    current[key] = had.into_iter().chain(missing).collect();
    Some(current)
}

/// Creates a config map, or brings its data up to date.
async fn publish(client: &Client, wanted: &Value) -> Result<(), ApiError> {
    let Some(mut current) = client.create_if_absent(wanted).await? else {
        return Ok(());
    };
    if current["data"] != wanted["data"] {
        current["data"] = wanted["data"].clone();
        client.update(&current).await?;
    }
    Ok(())
}

async fn apply_crds(client: &Client, crds: &[Value]) -> Result<(), StartError> {
    let writes = crds.iter().map(|crd| async move {
        let result = async {
            let Some(mut current) = client.create_if_absent(crd).await? else {
                return Ok(());
            };
            if !contains(&current["spec"], &crd["spec"]) {
                current["spec"] = crd["spec"].clone();
                client.update(&current).await?;
            }
            Ok(())
        };
        result.await.map_err(|error| failed(crd, &error))
    });
    futures::future::try_join_all(writes).await.map(|_| ())
}

/// True if everything in `wanted` is in `current` already; defaults may have been added there.
fn contains(current: &Value, wanted: &Value) -> bool {
    match (current, wanted) {
        (Value::Object(current), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| value.is_null() || current.get(key).is_some_and(|c| contains(c, value)))
        }
        (Value::Array(current), Value::Array(wanted)) => {
            current.len() == wanted.len() && current.iter().zip(wanted).all(|(c, w)| contains(c, w))
        }
        (current, wanted) => current == wanted,
    }
}

fn failed(object: &Value, error: &ApiError) -> StartError {
    StartError::Bootstrap {
        what: format!("{} {}", object::text(object, &["kind"]), object::name(object)),
        message: error.message().to_owned(),
    }
}
