//! `ferrovirt virt-api`: admission webhooks and the aggregated API of a cluster.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use clap::Args;
use ferrovirt_virt_api::{FrontProxy, Tls, VirtApi, remote::RemoteNodes};
use tokio::net::TcpListener;

use super::{RoleArgs, terminated, tls};

#[derive(Args)]
pub struct VirtApiArgs {
    #[command(flatten)]
    role: RoleArgs,
    #[arg(long, default_value = "[::]:8443")]
    listen: SocketAddr,
    /// Directory with tls.crt, tls.key, client.crt, client.key and ca.crt
    #[arg(long, default_value = "/etc/ferrovirt/certificates")]
    certificates: PathBuf,
}

pub async fn run(arguments: VirtApiArgs) -> Result<()> {
    let client = arguments.role.start().await?;
    let directory = tls::Directory(arguments.certificates);
    let node_name = format!("virt-handler.{}.svc", arguments.role.namespace);

    let calling = {
        let directory = directory.clone();
        tls::follow(move || std::future::ready(directory.client())).await?
    };
    let serving = {
        let client = client.clone();
        tls::follow(move || {
            let (client, directory) = (client.clone(), directory.clone());
            async move {
                let front_proxy = FrontProxy::read(&client).await?;
                Ok(Tls::new(&directory.read("tls.crt")?, &directory.read("tls.key")?, front_proxy)?)
            }
        })
        .await?
    };
    let port = super::virt_handler::PORT;
    let nodes = RemoteNodes::new(client.clone(), &arguments.role.namespace, port, node_name.try_into()?, calling);
    let listener =
        TcpListener::bind(arguments.listen).await.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    tracing::info!(listen = %arguments.listen, "virt-api serves");
    ferrovirt_virt_api::serve(VirtApi::new(client, Arc::new(nodes)), listener, serving, terminated()).await;
    Ok(())
}
