//! The certificates that a host uses while it runs: made at every start, so that they name the current addresses, and made anew
//! before they end. Nobody notices: the listeners show the new one to the next client, and the admin's kubeconfig is rewritten.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use ferrovirt_apiserver::ServingCertificate;
use ferrovirt_metrics::Family;
use time::OffsetDateTime;

use super::{
    addresses,
    pki::{Identity, Pki, expiry_metric, write_private},
};
use crate::kubeconfig;

const NAMES: [&str; 4] = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
/// A machine that slept does not notice that time has passed, so it looks at the clock now and then.
const LOOK: Duration = Duration::from_secs(3600);
/// After a renewal that failed.
const AGAIN: Duration = Duration::from_secs(30);

pub struct Certificates {
    pki: Pki,
    address: SocketAddr,
    kubeconfig: PathBuf,
    lifetime: time::Duration,
    serving: ServingCertificate,
    current: Mutex<Current>,
}

struct Current {
    made: OffsetDateTime,
    serving: String,
    admin: String,
}

impl Certificates {
    /// Makes them for a host that listens at this address, and writes the admin's kubeconfig.
    pub fn make(pki: Pki, address: SocketAddr, kubeconfig: PathBuf, lifetime: time::Duration) -> Result<Self> {
        let serving = pki.serving(&NAMES, &addresses(address), lifetime)?;
        let current =
            Current { made: OffsetDateTime::now_utc(), serving: serving.certificate.clone(), admin: String::new() };
        let serving = ServingCertificate::new(&serving.certificate, &serving.key)?;
        let certificates = Self { pki, address, kubeconfig, lifetime, serving, current: Mutex::new(current) };
        let admin = certificates.write_kubeconfig()?;
        certificates.current.lock().unwrap_or_else(PoisonError::into_inner).admin = admin.certificate;
        Ok(certificates)
    }

    pub fn serving(&self) -> &ServingCertificate {
        &self.serving
    }

    pub fn metric(&self) -> Family {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        expiry_metric(&[("ca", self.pki.ca_certificate()), ("serving", &current.serving), ("admin", &current.admin)])
    }

    /// Renews them whenever two thirds of their time are over. Does not end.
    pub async fn keep(&self) {
        loop {
            let wait = match self.left(OffsetDateTime::now_utc()) {
                Some(left) => left.min(LOOK),
                None => match self.renew() {
                    Ok(()) => {
                        tracing::info!("the certificates of this host were renewed");
                        continue;
                    }
                    Err(error) => {
                        tracing::error!("cannot renew the certificates of this host: {error:#}");
                        AGAIN
                    }
                },
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// The time until they have to be renewed.
    fn left(&self, now: OffsetDateTime) -> Option<Duration> {
        let made = self.current.lock().unwrap_or_else(PoisonError::into_inner).made;
        Duration::try_from(made + self.lifetime * 2 / 3 - now).ok().filter(|left| !left.is_zero())
    }

    fn renew(&self) -> Result<()> {
        let made = OffsetDateTime::now_utc();
        let serving = self.pki.serving(&NAMES, &addresses(self.address), self.lifetime)?;
        let admin = self.write_kubeconfig()?;
        self.serving.replace(&serving.certificate, &serving.key)?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) =
            Current { made, serving: serving.certificate, admin: admin.certificate };
        Ok(())
    }

    fn write_kubeconfig(&self) -> Result<Identity> {
        let admin = self.pki.client_for("admin", &["system:masters".into()], self.lifetime)?;
        let text =
            kubeconfig::render(&kubeconfig::local_url(self.address), None, self.pki.ca_certificate(), "admin", &admin);
        write_private(&self.kubeconfig, text.as_bytes()).context("cannot write the kubeconfig")?;
        Ok(admin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_renewed_before_they_end() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path()).unwrap();
        let file = directory.path().join("kubeconfig");
        let address = SocketAddr::from(([127, 0, 0, 1], 6443));
        let lifetime = time::Duration::days(300);
        let certificates = Certificates::make(pki, address, file.clone(), lifetime).unwrap();
        let now = OffsetDateTime::now_utc();
        let days = |days: i64| now + time::Duration::days(days);
        assert!(certificates.left(days(199)).is_some_and(|left| left < Duration::from_secs(86_400)));
        assert_eq!(certificates.left(days(201)), None);
        let (before, metric) = (std::fs::read_to_string(&file).unwrap(), certificates.metric());
        certificates.renew().unwrap();
        assert_ne!(std::fs::read_to_string(&file).unwrap(), before);
        assert!(certificates.left(days(199)).is_some());
        let text = ferrovirt_metrics::to_text(&[metric]);
        assert_eq!(text.lines().filter(|line| line.contains("{certificate=")).count(), 3, "{text}");
    }
}
