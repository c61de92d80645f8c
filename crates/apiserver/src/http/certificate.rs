//! The certificate that a listener shows. It can be exchanged while the listener runs.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Clones show the same certificate, also after it is replaced. Connections that are open stay as they are.
#[derive(Clone, Debug)]
pub struct ServingCertificate(Arc<RwLock<Arc<CertifiedKey>>>);

impl ServingCertificate {
    /// From the PEM texts of a certificate chain and of its key.
    pub fn new(chain_pem: &str, key_pem: &str) -> io::Result<Self> {
        Ok(Self(Arc::new(RwLock::new(certified(chain_pem, key_pem)?))))
    }

    pub fn replace(&self, chain_pem: &str, key_pem: &str) -> io::Result<()> {
        let new = certified(chain_pem, key_pem)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

fn certified(chain_pem: &str, key_pem: &str) -> io::Result<Arc<CertifiedKey>> {
    let invalid = |what: &str, error: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{what}: {error}"))
    };
    let chain = CertificateDer::pem_slice_iter(chain_pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| invalid("serving certificate", &e))?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|e| invalid("serving key", &e))?;
    let provider = rustls::crypto::ring::default_provider();
    let certified = CertifiedKey::from_der(chain, key, &provider).map_err(|e| invalid("serving certificate", &e))?;
    Ok(Arc::new(certified))
}
