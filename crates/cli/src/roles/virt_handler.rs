//! `ferrovirt virt-handler`: the agent of one node of a cluster.

use std::{
    net::{Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use anyhow::{Context, Result};
use clap::Args;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{RoleArgs, terminated, tls};

/// Where virt-api reaches an agent.
pub const PORT: u16 = 8186;
/// A container may use a device only if the kubelet gave it, and the kubelet gives what a device plugin offers.
const NO_DEVICE_PLUGIN: &str = "this version of Ferrovirt has no device plugin that would give pods /dev/kvm";

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
    /// Directory with tls.crt, tls.key and ca.crt
    #[arg(long, default_value = "/etc/ferrovirt/certificates")]
    certificates: PathBuf,
}

pub async fn run(arguments: VirtHandlerArgs) -> Result<()> {
    let client = arguments.role.start().await?;
    let directory = tls::Directory(arguments.certificates);
    let serving = tls::follow(move || std::future::ready(directory.server())).await?;
    let listener =
        TcpListener::bind(arguments.listen).await.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    let mut config = ferrovirt_node::Config::new(&arguments.node_name, arguments.kubelet_root);
    config.kvm_withheld = Some(NO_DEVICE_PLUGIN);
    let agent = ferrovirt_node::agent(client, config);
    tracing::info!(node = arguments.node_name, listen = %arguments.listen, "virt-handler cares for this node's VMs");
    let stop = CancellationToken::new();
    let streams = {
        let (agent, stop) = (agent.clone(), stop.clone());
        tokio::spawn(async move { agent.serve_streams(listener, serving, stop.cancelled()).await })
    };
    // Guests go on running: the next agent takes them over.
    agent.run(terminated()).await;
    stop.cancel();
    let _ = streams.await;
    Ok(())
}
