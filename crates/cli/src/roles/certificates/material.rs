//! A component's certificates, taken over from its secret as soon as they change.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use rustls::{ClientConfig, RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::sync::watch;

use super::authority::Data;

/// `tls.crt`, `tls.key`, `ca.crt` and, for those who call others, `client.crt` and `client.key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Material(pub Data);

impl Material {
    pub fn get(&self, name: &str) -> Result<&str> {
        self.0.get(name).map(String::as_str).with_context(|| format!("the secret has no {name} yet"))
    }

    /// For a server that talks only to holders of a client certificate of our CA.
    pub fn server(&self) -> Result<Arc<ServerConfig>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), provider.clone()).build()?;
        let (chain, key) = self.identity("tls")?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        Ok(Arc::new(config))
    }

    /// For a server that talks to everybody, in HTTP of the old kind.
    pub fn open_server(&self) -> Result<Arc<ServerConfig>> {
        let (chain, key) = self.identity("tls")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// For a client of such servers.
    pub fn client(&self) -> Result<Arc<ClientConfig>> {
        let (chain, key) = self.identity("client")?;
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(chain, key)?;
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(self.get("ca.crt")?.as_bytes()) {
            roots.add(ca?)?;
        }
        Ok(roots)
    }

    fn identity(&self, name: &str) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let chain = self.get(&format!("{name}.crt"))?;
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(self.get(&format!("{name}.key"))?.as_bytes())?;
        Ok((chain, key))
    }
}

/// Watches a secret. Nothing at all until it holds something.
pub fn watch_secret(client: Client, namespace: &str, name: &str) -> watch::Receiver<Option<Material>> {
    let (sender, receiver) = watch::channel(None);
    let secrets = Api::<Secret>::namespaced(client, namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let name = name.to_owned();
    tokio::spawn(async move {
        let mut stream = watcher(secrets, config).default_backoff().applied_objects().boxed();
        loop {
            match stream.try_next().await {
                Ok(Some(secret)) => {
                    let material = Material(super::data(&secret));
                    let fresh = !material.0.is_empty();
                    sender.send_if_modified(|held| {
                        let change = fresh && held.as_ref() != Some(&material);
                        if change {
                            *held = Some(material);
                        }
                        change
                    });
                }
                Ok(None) => return,
                Err(error) => tracing::warn!(secret = name, error = format!("{:#}", anyhow!(error)), "cannot watch it"),
            }
        }
    });
    receiver
}

/// Makes a value of the certificates: at once, whenever they change, and every `again`. Waits for the first good one; later a
/// failure keeps the last good value.
pub async fn follow<T, F>(
    mut certificates: watch::Receiver<Option<Material>>,
    again: Duration,
    make: impl Fn(Material) -> F + Send + 'static,
) -> Result<watch::Receiver<T>>
where
    T: Send + Sync + 'static,
    F: Future<Output = Result<T>> + Send,
{
    let first = loop {
        let held = certificates.borrow_and_update().clone();
        if let Some(material) = held {
            match make(material).await {
                Ok(value) => break value,
                Err(error) => tracing::warn!(error = format!("{error:#}"), "the certificates are of no use yet"),
            }
        }
        changed(&mut certificates, again).await;
    };
    let (sender, receiver) = watch::channel(first);
    tokio::spawn(async move {
        while !sender.is_closed() {
            changed(&mut certificates, again).await;
            let held = certificates.borrow_and_update().clone();
            let Some(material) = held else { continue };
            match make(material).await {
                Ok(value) => drop(sender.send_replace(value)),
                Err(error) => tracing::warn!(error = format!("{error:#}"), "keeping the present certificates"),
            }
        }
    });
    Ok(receiver)
}

/// Waits for a change, but not for ever.
async fn changed(certificates: &mut watch::Receiver<Option<Material>>, again: Duration) {
    if let Ok(Err(_)) = tokio::time::timeout(again, certificates.changed()).await {
        // Nobody watches the secret any more; what is there stays.
        tokio::time::sleep(again).await;
    }
}
