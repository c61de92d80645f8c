//! The server as a value: its parts, its start and its end.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ferrovirt_schema::structural::Pool;
use ferrovirt_serve::Limits;
use ferrovirt_store::{BackupError, OpenError, Options};
use futures::future::BoxFuture;
use http::{Request, Response};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::addresses::ExternalAddresses;
use crate::admission::{Policies, Webhooks};
use crate::aggregation::Aggregation;
use crate::attempts::Attempts;
use crate::audit::{Audit, Policy, Rotation};
use crate::authn::{StaticTokens, User};
use crate::authz::Rbac;
use crate::bootstrap;
use crate::controllers;
use crate::fairness::{Fairness, Shares};
use crate::front_proxy::FrontProxy;
use crate::http::body::Body;
use crate::http::serve::{self, TlsConfig};
use crate::openapi;
use crate::registry::Registry;
use crate::rest::{self, Begun};
use crate::revocation::Revocations;
use crate::service::{ApiService, ClientService};
use crate::storage::Store;
use crate::tokens::{KeyError, Tokens};
use crate::{crd, quota};

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
    /// Other objects that exist from the start on. Roles, webhooks and the like are brought up to date, and go when they are
    /// not listed any more; others are created if they are absent.
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
    /// Pods whose evictions were granted and that are not marked yet.
    pub evicting: rest::Evicting,
    /// False while the server sets itself up: neither webhooks nor policies are asked then.
    pub serving: AtomicBool,
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
            evicting: rest::Evicting::default(),
            serving: AtomicBool::new(false),
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
        bootstrap::run(&server, config).await?;
        server.serving.store(true, Ordering::Release);
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
