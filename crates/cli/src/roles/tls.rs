//! Certificates from a mounted secret, read again as the kubelet renews the files.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use rustls::{ClientConfig, RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::sync::watch;

/// The kubelet itself takes about a minute to write a changed secret.
const RELOAD: Duration = Duration::from_secs(60);

/// A directory with `tls.crt`, `tls.key`, `ca.crt` and, for those who call others, `client.crt` and `client.key`.
#[derive(Debug, Clone)]
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn read(&self, name: &str) -> Result<String> {
        read(&self.0.join(name))
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
        for ca in CertificateDer::pem_slice_iter(self.read("ca.crt")?.as_bytes()) {
            roots.add(ca?)?;
        }
        Ok(roots)
    }

    fn identity(&self, name: &str) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let chain = self.read(&format!("{name}.crt"))?;
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(self.read(&format!("{name}.key"))?.as_bytes())?;
        Ok((chain, key))
    }
}

/// Makes a value now, and again every minute. A failure later keeps the last good value.
pub async fn follow<T, F>(make: impl Fn() -> F + Send + 'static) -> Result<watch::Receiver<T>>
where
    T: Send + Sync + 'static,
    F: Future<Output = Result<T>> + Send,
{
    let (sender, receiver) = watch::channel(make().await?);
    tokio::spawn(async move {
        while !sender.is_closed() {
            tokio::time::sleep(RELOAD).await;
            match make().await {
                Ok(value) => drop(sender.send_replace(value)),
                Err(error) => tracing::warn!(error = format!("{error:#}"), "keeping the present certificates"),
            }
        }
    });
    Ok(receiver)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
