//! Uploads into DataVolumes on a cluster: virt-api gives out the tokens, and takes the uploads on a port of their own.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use ferrovirt_cdi::upload::{Key, Uploads};
use ferrovirt_virt_api::UploadGroup;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use rustls::ServerConfig;
use tokio::{net::TcpListener, sync::watch};

use super::{
    certificates::{
        self,
        material::{self, Material},
    },
    terminated,
};

const CERTIFICATES: &str = "virt-api-certificates";
/// How soon a new key is known.
const PAUSE: Duration = Duration::from_secs(10);
const HURRY: Duration = Duration::from_secs(1);

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
    Ok((material.open_server()?, key(material)?))
}

/// All that have the certificates of virt-api have the key of uploads.
fn key(material: &Material) -> Result<Key> {
    Key::of(material.get("tls.key")?.as_bytes()).context("cannot make the key of uploads")
}

/// Follows the public part of that key, for those who make importers. It reads: who makes the certificates may not watch them.
pub fn public_key(client: Client, namespace: &str) -> watch::Receiver<String> {
    let (sender, receiver) = watch::channel(String::new());
    let secrets = Api::<Secret>::namespaced(client, namespace);
    tokio::spawn(async move {
        while !sender.is_closed() {
            let pause = match secrets.get(CERTIFICATES).await.map_err(Into::into).and_then(|secret| public(&secret)) {
                Ok(public) => {
                    sender.send_if_modified(|held| public != std::mem::replace(held, public.clone()));
                    PAUSE
                }
                Err(error) => {
                    tracing::debug!(error = format!("{error:#}"), "the key of uploads is not there yet");
                    HURRY
                }
            };
            tokio::time::sleep(pause).await;
        }
    });
    receiver
}

fn public(secret: &Secret) -> Result<String> {
    Ok(key(&Material(certificates::data(secret)))?.public())
}
