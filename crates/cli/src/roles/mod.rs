//! The server roles of an installation on a cluster, one subcommand each. `ferrovirt install` makes the pods that run them.
//!
//! They compose the same parts as `ferrovirt up`, with a cluster's API server behind the client.

pub mod certificates;
pub mod copy_tree;
mod device_plugin;
mod hypervisors;
pub mod importer;
mod leader;
mod scrape;
#[cfg(test)]
mod stream_tests;
mod uploads;
pub mod virt_api;
pub mod virt_controller;
pub mod virt_handler;

use anyhow::{Context, Result};
use clap::Args;
use kube::{Client, Config};

use crate::logging;

/// What every role takes.
#[derive(Args, Clone)]
pub struct RoleArgs {
    /// Namespace of the installation
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubevirt")]
    pub namespace: String,
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: logging::LogFormat,
}

impl RoleArgs {
    /// Starts logging and connects as the pod's service account (or by a kubeconfig, when started by hand).
    async fn start(&self) -> Result<Client> {
        logging::init(self.log_format);
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = Config::infer().await.context("cannot find out which cluster to talk to")?;
        Ok(Client::try_from(config)?)
    }
}

/// Resolves when the process is asked to end.
async fn terminated() {
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
