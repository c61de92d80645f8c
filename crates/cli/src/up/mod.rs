//! `ferrovirt up`: one process that is the Kubernetes API, the controllers and the node agent.
//!
//! This is the only place where the embedded mode exists: everything else gets a client and does not ask what is behind it.

mod audit;
mod certificates;
mod client_certificate;
pub mod control;
mod draining;
mod identities;
mod image_access;
mod image_gc;
pub(crate) mod images;
mod logs;
pub mod objects;
mod parts;
pub mod paths;
pub mod pki;
pub mod probe;
mod program_files;
mod programs;
mod resource_metrics;
pub mod revocations;
mod services;
mod streams;
#[cfg(test)]
mod upgrade_tests;
mod uploads;
mod volume_metrics;

use std::{
    fs::{self, File},
    net::{IpAddr, SocketAddr},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use ferrovirt_apiserver::{ApiServer, Revocations, StaticTokens, TlsConfig};
use ferrovirt_controller::Part;
use futures::future::BoxFuture;
use kube::Client;
use tokio::sync::{mpsc, watch};

use crate::{HostArgs, kubeconfig, logging};
use certificates::Certificates;
use identities::Part as Identity;
use parts::{Parts, Patience};
use paths::Paths;
use pki::Pki;

#[derive(Args, Clone)]
pub struct UpArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Where the API listens
    #[arg(long, env = "FERROVIRT_LISTEN", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Go to the background once the host is ready
    #[arg(long)]
    detach: bool,
    /// Refuse VMs on a machine without hardware virtualization instead of emulating it
    #[arg(long)]
    no_emulation: bool,
    /// Hypervisors to admit beside the default, such as lxc [default: as the KubeVirt object says]
    #[arg(long, value_delimiter = ',')]
    hypervisors: Vec<String>,
    /// Name of this machine's node [default: the host name]
    #[arg(long)]
    node_name: Option<String>,
    #[command(flatten)]
    audit: audit::AuditArgs,
    /// Bearer tokens for users, one a line: token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// How the host writes its log
    #[arg(long, value_enum, default_value = "text")]
    log_format: logging::LogFormat,
    /// How long the certificates of this host hold, such as 8760h; they are renewed in time, without a restart
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = kubeconfig::lifetime)]
    certificate_lifetime: time::Duration,
    /// Networks that Services may take externalIPs from, such as 192.0.2.0/24 [default: none]
    #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
    external_ips: Vec<ferrovirt_apiserver::Network>,
    /// Addresses for Services of type LoadBalancer, such as 192.0.2.16/28 or one of this machine [default: none]
    #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
    load_balancer_ips: Vec<ferrovirt_apiserver::Network>,
    /// A file that says which registries have mirrors or are insecure
    #[arg(long, value_name = "FILE")]
    registries: Option<std::path::PathBuf>,
    /// Remove unused images of registries when the disk is full to this percentage
    #[arg(long, value_name = "PERCENT", default_value = "85", value_parser = clap::value_parser!(u8).range(1..=100))]
    image_gc_high_threshold: u8,
    /// Remove them until the disk is full to no more than this percentage
    #[arg(long, value_name = "PERCENT", default_value = "80", value_parser = clap::value_parser!(u8).range(0..=100))]
    image_gc_low_threshold: u8,
}

/// How long readiness waits for the node to take VMs.
const NODE_DEADLINE: Duration = Duration::from_secs(10);
/// How long `--detach` waits for the host to become ready.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// What must happen before there are threads: checks, and `--detach`. `Some` if nothing else is to be done.
pub fn before_runtime(arguments: &UpArgs) -> Result<Option<Result<()>>> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "ferrovirt up needs root: it makes namespaces, taps and cgroups for VMs (nothing of a VM runs as root). Try: sudo ferrovirt up"
        );
    }
    let paths = Paths::new(&arguments.host.data_dir)?;
    paths.create()?;
    if !arguments.detach {
        return Ok(None);
    }
    Ok(Some(detach(&paths)))
}

/// Starts the same command in the background and waits until it is ready or has failed.
fn detach(paths: &Paths) -> Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).filter(|argument| argument != "--detach").collect();
    println!("{}", start_in_background(paths, &arguments)?);
    println!("kubeconfig: {}", paths.kubeconfig().display());
    Ok(())
}

/// Starts a host in the background and waits until it is ready. Says what happened.
pub fn start_in_background(paths: &Paths, arguments: &[std::ffi::OsString]) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some(status) = runtime.block_on(control::status(&paths.control_socket()))
        && status.ready
    {
        return Ok(format!("ferrovirt is already up (pid {}) at {}", status.pid, status.server));
    }
    let log = File::options().create(true).append(true).open(paths.log())?;
    let from = log.metadata()?.len();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
    let mut child = command.spawn().context("cannot start the host")?;
    let deadline = Instant::now() + READY_DEADLINE;
    loop {
        if let Some(status) = runtime.block_on(control::status(&paths.control_socket()))
            && status.ready
            && status.pid == child.id()
        {
            return Ok(format!("ferrovirt is up (pid {}) at {}", status.pid, status.server));
        }
        if let Some(status) = child.try_wait()? {
            let text = fs::read_to_string(paths.log()).unwrap_or_default();
            let tail = text.get(usize::try_from(from)?..).unwrap_or(&text).trim();
            bail!("the host ended with {status}:\n{tail}");
        }
        if Instant::now() > deadline {
            bail!("the host is not ready after {} s; see {}", READY_DEADLINE.as_secs(), paths.log().display());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn static_tokens(path: Option<&Path>) -> Result<StaticTokens> {
    let Some(path) = path else { return Ok(StaticTokens::default()) };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the token file {}", path.display()))?;
    StaticTokens::parse(&text).with_context(|| format!("cannot use the token file {}", path.display()))
}

/// All objects that an embedded host begins with.
fn shipped(allow_emulation: bool, node: &str) -> Result<Vec<serde_json::Value>> {
    let mut objects = objects::bootstrap(allow_emulation);
    objects.extend(ferrovirt_node_lite::storage::classes());
    objects.extend(identities::roles(node)?);
    objects.extend(resource_metrics::objects());
    Ok(objects)
}

pub async fn run(arguments: UpArgs) -> Result<()> {
    let started = Instant::now();
    logging::init(arguments.log_format);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let paths = Paths::new(&arguments.host.data_dir)?;
    let _lock = lock(&paths).await?;
    let pki = Pki::open(&paths.data_dir)?;
    let upload_key = pki.upload_key()?;
    // Beside the start of the API: the first time, files are copied and read.
    let installing = {
        let paths = paths.clone();
        tokio::task::spawn_blocking(move || programs::install(&paths))
    };
    // What it says counts when an image is pulled; that it says something wrong is told now.
    images::read_registries(arguments.registries.as_deref())?;
    let image_cache = images::make_cache(&paths.images())?;

    let node_name = match &arguments.node_name {
        Some(name) => name.clone(),
        None => rustix::system::uname().nodename().to_string_lossy().to_lowercase(),
    };
    let listener = tokio::net::TcpListener::bind(arguments.listen).await.with_context(|| {
        format!(
            "cannot listen on {}: another program, or another host with the same --listen, is there",
            arguments.listen
        )
    })?;
    let address = listener.local_addr()?;
    let server_url = kubeconfig::local_url(address);

    let revocations = Revocations::new(revocations::read(&paths)?);
    let api = ApiServer::start(ferrovirt_apiserver::Config {
        revocations: revocations.clone(),
        data_dir: paths.data_dir.clone(),
        service_account_key_pem: Some(pki.service_account_key()?),
        crds: objects::definitions(),
        bootstrap: shipped(!arguments.no_emulation, &node_name)?,
        audit_log: arguments.audit.log.clone(),
        audit_rotation: arguments.audit.rotation(),
        audit_policy: arguments.audit.policy()?,
        root_ca_pem: Some(pki.ca_certificate().to_owned()),
        front_proxy: Some(pki.front_proxy()?),
        static_tokens: static_tokens(arguments.token_file.as_deref())?,
        service_network: paths.service_network(),
        pod_makers: objects::pod_makers(),
        external_addresses: ferrovirt_apiserver::ExternalAddresses {
            allowed: arguments.external_ips.clone(),
            reserved: paths.pod_networks()?,
        },
        ..Default::default()
    })
    .await
    .context("cannot start the API")?;

    let (stop, stopped) = watch::channel(false);
    let (parts, mut failures) = Parts::new(stopped.clone());
    let client = |part: Identity| Client::new(api.client_service(part.user(&node_name)), "default");

    let mut agent_config = ferrovirt_node::Config::new(&node_name, paths.data_dir.clone());
    let (hypervisors, found) = watch::channel(agent_config.hypervisors.borrow().clone());
    agent_config.hypervisors = found;
    let (facts, found) = watch::channel(agent_config.facts.borrow().clone());
    agent_config.facts = found;
    let agent = ferrovirt_node::agent(client(Identity::Handler), agent_config);
    services::register(&api, client(Identity::Api), agent.clone());
    logs::register(&api, client(Identity::NodeLite), paths.data_dir.clone());
    resource_metrics::register(&api, client(Identity::NodeLite), &paths.instance, &node_name);
    objects::apply_settings(&client(Identity::Up), !arguments.no_emulation, &arguments.hypervisors).await?;

    let client_ca_pem = pki.ca_certificate().to_owned();
    let lifetime = arguments.certificate_lifetime;
    let certificates = Arc::new(Certificates::make(pki, address, paths.kubeconfig(), lifetime)?);
    let certificate = certificates.serving().clone();
    let clients = uploads::Clients { proxy: client(Identity::Api), up: client(Identity::Up), key: upload_key.clone() };
    uploads::start(&api, clients, address.ip(), &certificate, wait(stopped.clone())).await?;
    let serving = {
        let tls = TlsConfig { certificate, client_ca_pem };
        let (api, mut stopped) = (api.clone(), stopped.clone());
        tokio::spawn(async move {
            api.serve(listener, tls, async move { drop(stopped.wait_for(|stop| *stop).await) }).await
        })
    };
    let serving = serving_part(&parts, serving);
    let keeper = certificates.clone();
    parts.keep("the renewal of certificates", Patience::Always, move || {
        let keeper = keeper.clone();
        async move {
            keeper.keep().await;
            Ok(())
        }
    });

    let programs = Arc::new(installing.await??);
    let settings =
        ferrovirt_controller::Settings { launcher_image: programs.launcher_image.clone(), component_image: None };
    let metrics = ferrovirt_controller::Metrics::default();
    services::register_metrics(&api, metrics.clone(), agent.clone(), certificates, client(Identity::NodeLite));
    // Those that make instances can be stopped before the others.
    let (makers, others): (Vec<Part>, Vec<Part>) = Part::ALL.into_iter().partition(|part| *part != Part::Instances);
    let run = |part: Part| {
        let (client, settings) = (client(Identity::Controller), settings.clone());
        let (metrics, stopped) = (metrics.clone(), stopped.clone());
        parts.keep("a controller", Patience::Always, move || {
            let (client, settings, metrics) = (client.clone(), settings.clone(), metrics.clone());
            let stopped = wait(stopped.clone());
            async move {
                ferrovirt_controller::run(client, settings, part, metrics, stopped).await;
                Ok(())
            }
        })
    };
    others.into_iter().for_each(|part| drop(run(part)));
    let makers: Vec<_> = makers.into_iter().map(run).collect();
    let cdi = ferrovirt_cdi::Settings {
        image: programs.tools_image.clone(),
        pull_policy: "IfNotPresent".into(),
        cache: Some(ferrovirt_cdi::cache::CachePaths { directory: image_cache, pods: paths.data_dir.join("pods") }),
    };
    let public = tokio::sync::watch::channel(upload_key.public()).1;
    {
        let (client, stopped) = (client(Identity::Controller), stopped.clone());
        parts.keep("the controller of DataVolumes", Patience::Always, move || {
            let (client, cdi, public) = (client.clone(), cdi.clone(), public.clone());
            let stopped = wait(stopped.clone());
            async move {
                ferrovirt_cdi::run(client, cdi, public, stopped).await;
                Ok(())
            }
        });
    }
    let registries = arguments.registries.as_deref().map(std::path::absolute).transpose()?;
    let image_settings = images::Settings {
        directory: &paths.images(),
        registries,
        thresholds: image_gc::Thresholds {
            high: arguments.image_gc_high_threshold,
            low: arguments.image_gc_low_threshold.min(arguments.image_gc_high_threshold),
        },
        instance: &paths.instance,
    };
    let node_images = images::NodeImages::open(image_settings, client(Identity::NodeLite))?;
    let mut node_config = programs::node_config(&paths, &programs, &node_name, node_images)?;
    node_config.load_balancer_ips = arguments.load_balancer_ips.iter().map(|network| network.parts().into()).collect();
    node_config.external_ips = arguments.external_ips.iter().map(|network| network.parts().into()).collect();
    streams::register(&api, ferrovirt_node_lite::streams::Streams::new(client(Identity::NodeLite), &node_config));
    let node_lite = {
        let (client, config, stopped) = (client(Identity::NodeLite), node_config.clone(), stopped.clone());
        parts.keep("the part that runs pods", Patience::OnceStarted, move || {
            let ran = ferrovirt_node_lite::run(client.clone(), config.clone(), wait(stopped.clone()));
            async move { ran.await.map_err(|error| ferrovirt_api::chain(&error)) }
        })
    };
    let agent_task = {
        let (agent, stopped) = (agent.clone(), stopped.clone());
        parts.keep("the node agent", Patience::Always, move || {
            let (agent, stopped) = (agent.clone(), wait(stopped.clone()));
            async move {
                agent.run(stopped).await;
                Ok(())
            }
        })
    };

    let kvm = agent.host().kvm_usable();
    {
        let (client, paths, image) = (client(Identity::Up), paths.clone(), programs.launcher_image.clone());
        let told = probe::Told { hypervisors, facts };
        parts.keep("the trial of hypervisors", Patience::Always, move || {
            let (client, paths, image, told) = (client.clone(), paths.clone(), image.clone(), told.clone());
            async move {
                probe::run(client, paths, image, kvm, told).await;
                Ok(())
            }
        });
    }

    let ready = Arc::new(AtomicBool::new(false));
    let (down_sender, mut downs) = mpsc::channel(1);
    let status = {
        let (ready, server, virtualization) =
            (ready.clone(), server_url.clone(), describe(agent.host(), arguments.no_emulation));
        Arc::new(move || control::Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            server: server.clone(),
            ready: ready.load(Ordering::Acquire),
            virtualization: virtualization.clone(),
        })
    };
    let backup = {
        let api = api.clone();
        Arc::new(move |directory: PathBuf| -> BoxFuture<'static, Result<()>> {
            let api = api.clone();
            Box::pin(async move { Ok(api.backup(&directory).await?) })
        })
    };
    let reload: control::Reload = {
        let paths = paths.clone();
        Arc::new(move || {
            revocations.replace(revocations::read(&paths)?);
            Ok(())
        })
    };
    control::listen(&paths.control_socket(), control::Answers { status, downs: down_sender, backup, reload })?;
    let begin = async {
        if tokio::time::timeout(NODE_DEADLINE, schedulable(client(Identity::Up), &node_name)).await.is_err() {
            tracing::warn!(node = node_name, "the node is not schedulable yet; VMs wait for it");
        }
        ready.store(true, Ordering::Release);
        tokio::spawn(programs.clone().collect(client(Identity::Up), paths.clone()));
        tracing::info!(api = %server_url, data_dir = %paths.data_dir.display(), "ready after {} ms", started.elapsed().as_millis());
        std::future::pending::<()>().await;
    };
    let (down, failure) = tokio::select! {
        down = downs.recv() => (down, None),
        () = signalled() => (None, None),
        failure = failures.recv() => (None, failure),
        () = begin => (None, None),
    };
    if let Some(control::DownRequest { haste, progress }) = &down {
        let say = |text: String| async move { drop(progress.send(text).await) };
        say("stopping VMs".into()).await;
        // First nothing new is started, then everything is stopped.
        makers.iter().for_each(|maker| maker.abort());
        let pods = paths.data_dir.clone();
        draining::drain(&agent, client(Identity::Handler), *haste, progress, move || {
            ferrovirt_node_lite::kill_all(&pods)
        })
        .await;
        say("VMs are stopped".into()).await;
    }
    stop.send_replace(true);
    let _ = tokio::time::timeout(Duration::from_secs(5), async {
        let _ = agent_task.await;
        let _ = node_lite.await;
        let _ = serving.await;
    })
    .await;
    api.shutdown().await;
    if let Some(why) = failure {
        bail!("{why}. VMs go on running; the next `ferrovirt up` takes them over");
    }
    if let Some(control::DownRequest { progress, .. }) = down {
        ferrovirt_node_lite::teardown(&node_config).await?;
        let _ = fs::remove_dir_all(&paths.run_dir);
        let _ = progress.send(control::DONE.into()).await;
        // Let the answer reach the client before the process, and with it the socket, is gone.
        progress.closed().await;
    } else {
        tracing::info!("stopped; VMs go on running and are taken over by the next `ferrovirt up`");
    }
    Ok(())
}

/// Without the API there is no host.
fn serving_part(parts: &Parts, serving: tokio::task::JoinHandle<std::io::Result<()>>) -> tokio::task::JoinHandle<()> {
    let once = std::sync::Mutex::new(Some(serving));
    parts.keep("the API", Patience::None, move || {
        let serving = once.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        async move {
            let Some(serving) = serving else { return Err("it was started once".to_owned()) };
            serving.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
        }
    })
}

/// Resolves when this machine's node takes VMs: a host that says it is ready must not answer the first one with a refusal.
async fn schedulable(client: Client, node: &str) {
    let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(client);
    let condition = |node: Option<&k8s_openapi::api::core::v1::Node>| {
        let labels = node.and_then(|node| node.metadata.labels.as_ref());
        labels
            .and_then(|labels| labels.get(ferrovirt_api::names::NODE_SCHEDULABLE))
            .is_some_and(|value| value == "true")
    };
    // An error means that the watch broke, and then the deadline decides.
    if kube::runtime::wait::await_condition(nodes, node, condition).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Resolves when a watch turns true.
async fn wait(mut flag: watch::Receiver<bool>) {
    let _ = flag.wait_for(|stop| *stop).await;
}

async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// One host per data directory.
async fn lock(paths: &Paths) -> Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(paths.lock())?;
    if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        match control::status(&paths.control_socket()).await {
            Some(status) => bail!(
                "a host with the data directory {} is already running (pid {}) at {}",
                paths.data_dir.display(),
                status.pid,
                status.server
            ),
            None => {
                bail!("a host with the data directory {} is already starting or stopping", paths.data_dir.display())
            }
        }
    }
    Ok(file)
}

fn addresses(listen: SocketAddr) -> Vec<IpAddr> {
    let mut addresses = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1])];
    if !listen.ip().is_unspecified() && !addresses.contains(&listen.ip()) {
        addresses.push(listen.ip());
    }
    let node = ferrovirt_node_lite::detect_node_ip();
    if !addresses.contains(&node) {
        addresses.push(node);
    }
    addresses
}

fn describe(host: &ferrovirt_node::Host, no_emulation: bool) -> String {
    match (&host.kvm, no_emulation) {
        (ferrovirt_node::Kvm::Usable, _) => "hardware (KVM)".into(),
        (ferrovirt_node::Kvm::Unusable(why), false) => format!("software emulation: {why}"),
        (ferrovirt_node::Kvm::Unusable(why), true) => format!("none, and emulation is off: {why}"),
    }
}
