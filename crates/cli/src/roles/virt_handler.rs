//! `ferrovirt virt-handler`: the agent of one node of a cluster.

use std::{
    net::{Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{
    RoleArgs,
    certificates::material::{self, Material},
    device_plugin,
    hypervisors::offered,
    scrape::MetricsArgs,
    terminated,
};

/// Where virt-api reaches an agent.
pub const PORT: u16 = 8186;
const SECRET: &str = "virt-handler-certificates";
const AGAIN: Duration = Duration::from_secs(600);
/// Below it is the node's own `/dev`: the one of a container has only what was there when it started.
const NODE_ROOT: &str = "/node";

#[derive(Args)]
pub struct VirtHandlerArgs {
    #[command(flatten)]
    role: RoleArgs,
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// The kubelet's root directory
    #[arg(long, default_value = "/var/lib/kubelet")]
    kubelet_root: PathBuf,
    #[arg(long, default_value_t = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)))]
    listen: SocketAddr,
    #[command(flatten)]
    metrics: MetricsArgs,
}

pub async fn run(arguments: VirtHandlerArgs) -> Result<()> {
    let client = arguments.role.start().await?;
    let certificates = material::watch_secret(client.clone(), &arguments.role.namespace, SECRET);
    let serving =
        material::follow(certificates, AGAIN, |material: Material| std::future::ready(material.server())).await?;
    let listener =
        TcpListener::bind(arguments.listen).await.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    let mut config = ferrovirt_node::Config::new(&arguments.node_name, arguments.kubelet_root);
    let kvm = ferrovirt_node::Host::detect().kvm_usable();
    let assumed = config.facts.borrow().clone();
    let namespace = &arguments.role.namespace;
    (config.hypervisors, config.facts) = offered::follow(client.clone(), namespace, &arguments.node_name, kvm, assumed);
    let plugins = device_plugin::run(device_plugin::devices(kvm), NODE_ROOT.into(), device_plugin::DIRECTORY.into());
    let agent = ferrovirt_node::agent(client, config);
    let told = agent.clone();
    let collect = move || -> BoxFuture<'static, _> {
        let agent = told.clone();
        Box::pin(async move { agent.metrics().await })
    };
    arguments.metrics.serve(Arc::new(collect)).await?;
    tracing::info!(node = arguments.node_name, listen = %arguments.listen, "virt-handler cares for this node's VMs");
    let stop = CancellationToken::new();
    let streams = {
        let (agent, stop) = (agent.clone(), stop.clone());
        tokio::spawn(async move { agent.serve_streams(listener, serving, stop.cancelled()).await })
    };
    // Guests go on running: the next agent takes them over.
    tokio::select! {
        () = agent.run(terminated()) => {}
        () = plugins => {}
    }
    stop.cancel();
    let _ = streams.await;
    Ok(())
}
