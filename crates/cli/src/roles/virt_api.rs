//! `ferrovirt virt-api`: admission webhooks and the aggregated API of a cluster.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use ferrovirt_virt_api::{FrontProxy, Tls, VirtApi, remote::RemoteNodes};
use tokio::net::TcpListener;

use super::{
    RoleArgs,
    certificates::material::{self, Material},
    scrape::MetricsArgs,
    terminated, uploads,
};

const SECRET: &str = "virt-api-certificates";
/// How often to look whether the API server's front proxy has another CA.
pub const AGAIN: Duration = Duration::from_secs(60);

#[derive(Args)]
pub struct VirtApiArgs {
    #[command(flatten)]
    role: RoleArgs,
    #[arg(long, default_value = "[::]:8443")]
    listen: SocketAddr,
    /// Where images are uploaded to
    #[arg(long, default_value = "[::]:8444")]
    listen_uploads: SocketAddr,
    #[command(flatten)]
    metrics: MetricsArgs,
}

pub async fn run(arguments: VirtApiArgs) -> Result<()> {
    let client = arguments.role.start().await?;
    let node_name = format!("virt-handler.{}.svc", arguments.role.namespace);
    // Not before there are certificates: until then nobody could check who answers.
    let certificates = material::watch_secret(client.clone(), &arguments.role.namespace, SECRET);
    let calling =
        material::follow(certificates.clone(), AGAIN, |material: Material| std::future::ready(material.client()))
            .await?;
    let uploads = uploads::start(client.clone(), certificates.clone(), arguments.listen_uploads).await?;
    let serving = {
        let client = client.clone();
        material::follow(certificates, AGAIN, move |material| {
            let client = client.clone();
            async move {
                let front_proxy = FrontProxy::read(&client).await?;
                Ok(Tls::new(material.get("tls.crt")?, material.get("tls.key")?, front_proxy)?)
            }
        })
        .await?
    };
    let port = super::virt_handler::PORT;
    let nodes = RemoteNodes::new(client.clone(), &arguments.role.namespace, port, node_name.try_into()?, calling);
    let listener =
        TcpListener::bind(arguments.listen).await.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    arguments.metrics.serve(Arc::new(|| Box::pin(async { vec![ferrovirt_virt_api::ready_status()] }))).await?;
    tracing::info!(listen = %arguments.listen, "virt-api serves");
    let api = VirtApi::new(client, Arc::new(nodes)).with_uploads(uploads);
    ferrovirt_virt_api::serve(api, listener, serving, terminated()).await;
    Ok(())
}
