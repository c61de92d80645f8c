//! Uploads into DataVolumes on a cluster: virt-api gives out the tokens, and takes the uploads on a port of their own.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use ferrovirt_cdi::upload::{Key, Uploads};
use ferrovirt_virt_api::UploadGroup;
use kube::Client;
use rustls::ServerConfig;
use tokio::{net::TcpListener, sync::watch};

use super::{
    certificates::material::{self, Material},
    terminated,
};

/// Takes uploads in the background, and returns what answers for the API group of their tokens.
pub async fn start(
    client: Client,
    certificates: watch::Receiver<Option<Material>>,
    listen: SocketAddr,
) -> Result<UploadGroup> {
    // All replicas have the same certificate, so each knows the tokens of the others.
    let made = material::follow(certificates, super::virt_api::AGAIN, |material: Material| {
        std::future::ready(both(&material))
    })
    .await?;
    let (sender, key) = watch::channel(made.borrow().1.clone());
    let mut changes = made.clone();
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            let now = changes.borrow_and_update().1.clone();
            sender.send_replace(now);
        }
    });
    let uploads = Arc::new(Uploads::with_key(client, key));
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen} for uploads"))?;
    tokio::spawn(uploads.clone().serve(listener, Uploads::limits(), move || made.borrow().0.clone(), terminated()));
    Ok(Arc::new(move |method, path, body| {
        let uploads = uploads.clone();
        Box::pin(async move { uploads.api(&method, &path, &body).await })
    }))
}

fn both(material: &Material) -> Result<(Arc<ServerConfig>, Key)> {
    Ok((material.open_server()?, Key::of(material.get("tls.key")?.as_bytes())))
}
