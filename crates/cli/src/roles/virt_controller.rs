//! `ferrovirt virt-controller`: the controllers of a cluster, in one of the processes that could run them.

use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use ferrovirt_controller::{Part, Settings};
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{
    RoleArgs, certificates,
    hypervisors::probes,
    leader::{Elector, LEASE},
    scrape::MetricsArgs,
    terminated,
};

#[derive(Args)]
pub struct VirtControllerArgs {
    #[command(flatten)]
    role: RoleArgs,
    /// Image of the pods that run VMs
    #[arg(long)]
    launcher_image: String,
    /// Image of the pods that fill DataVolumes; without it, DataVolumes are left to others
    #[arg(long)]
    importer_image: Option<String>,
    /// Name of this process among those that could lead
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    #[command(flatten)]
    metrics: MetricsArgs,
}

pub async fn run(arguments: VirtControllerArgs) -> Result<()> {
    let client = arguments.role.start().await?;
    let identity = match arguments.identity {
        Some(identity) => identity,
        None => format!("{}-{}", rustix::system::uname().nodename().to_string_lossy(), std::process::id()),
    };
    // Those that do not lead tell that they do not.
    let metrics = ferrovirt_controller::Metrics::default();
    let told = metrics.clone();
    let collect = move || -> BoxFuture<'static, _> { Box::pin(std::future::ready(told.collect())) };
    arguments.metrics.serve(Arc::new(collect)).await?;
    let mut elector = Elector::new(client.clone(), &arguments.role.namespace, LEASE, &identity);
    tokio::select! {
        () = terminated() => return Ok(()),
        () = elector.acquire() => {}
    }
    tracing::info!(identity, "this virt-controller leads");
    let stop = CancellationToken::new();
    let probes = probes::keep(client.clone(), arguments.role.namespace.clone(), arguments.launcher_image.clone());
    let settings =
        Settings { launcher_image: arguments.launcher_image, component_image: arguments.importer_image.clone() };
    let parts = Part::ALL.map(|part| {
        let stop = stop.clone();
        tokio::spawn(ferrovirt_controller::run(client.clone(), settings.clone(), part, metrics.clone(), async move {
            stop.cancelled().await;
        }))
    });
    if let Some(image) = arguments.importer_image {
        let (client, stop) = (client.clone(), stop.clone());
        let settings = ferrovirt_cdi::Settings { image, pull_policy: "IfNotPresent".into(), cache: None };
        let upload_key = super::uploads::public_key(client.clone(), &arguments.role.namespace);
        tokio::spawn(ferrovirt_cdi::run(client, settings, upload_key, async move { stop.cancelled().await }));
    }
    let lost = tokio::select! {
        () = certificates::keep(client.clone(), arguments.role.namespace.clone()) => false,
        () = probes => false,
        () = terminated() => false,
        () = elector.keep() => true,
    };
    if lost {
        // Another may lead already. Nothing more may be written, so there is nothing to end in order.
        bail!("the lease {LEASE} was lost");
    }
    stop.cancel();
    for part in parts {
        let _ = part.await;
    }
    elector.release().await;
    Ok(())
}
