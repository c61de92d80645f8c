//! Which certificates an installation needs, and when each is made anew. Knows the time only from its caller.
//!
//! ```text
//! CA:    current ── renewBefore left ──> next is made and trusted ── a day ──> next signs, current is trusted until it ends
//! leaf:  made anew when it is missing, when renewBefore is left, or when another CA signs
//! ```
//!
//! A new CA is trusted by everyone before it signs anything, so nobody meets a certificate that he cannot check.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::up::{objects, pki::Identity};

/// What a secret holds, as text.
pub type Data = BTreeMap<String, String>;

/// Every part of the installation takes a new bundle over within this time.
const SPREAD: Duration = Duration::days(1);
/// Clocks of nodes differ.
const SKEW: Duration = Duration::hours(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    pub lasts: Duration,
    pub renew_before: Duration,
}

/// The KubeVirt object may say otherwise (`spec.certificateRotateStrategy.selfSigned`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    pub ca: Lifetime,
    pub leaf: Lifetime,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            ca: Lifetime { lasts: Duration::days(730), renew_before: Duration::days(180) },
            leaf: Lifetime { lasts: Duration::days(30), renew_before: Duration::days(10) },
        }
    }
}

/// The installation's own CA, as a secret keeps it.
#[derive(Clone)]
pub struct Authority {
    current: Identity,
    next: Option<Identity>,
    /// Certificates of earlier ones that have not expired yet.
    previous: Vec<String>,
}

impl Authority {
    /// The CA that should be in force now, from what the secret holds.
    pub fn advance(stored: &Data, now: OffsetDateTime, lifetime: Lifetime) -> Result<Self> {
        let identity = |name: &str| identity(stored, name).filter(|found| validity(&found.certificate).is_some());
        let Some(current) = identity("tls").filter(|ca| ends(ca) > now) else {
            return Ok(Self { current: make_ca(now, lifetime)?, next: None, previous: vec![] });
        };
        let previous = stored.get("previous.crt").map(|text| split(text)).unwrap_or_default();
        let mut this = Self { current, next: identity("next"), previous };
        if this.next.is_none() && ends(&this.current) - lifetime.renew_before <= now {
            this.next = Some(make_ca(now, lifetime)?);
        }
        if let Some(next) = this.next.take_if(|next| begins(next) + SKEW + SPREAD.min(lifetime.renew_before / 2) <= now)
        {
            let old = std::mem::replace(&mut this.current, next);
            this.previous.push(old.certificate);
        }
        this.previous.retain(|certificate| validity(certificate).is_some_and(|(_, end)| end > now));
        Ok(this)
    }

    pub fn data(&self) -> Data {
        let mut data = Data::new();
        let all = [("tls", Some(&self.current)), ("next", self.next.as_ref())];
        for (name, identity) in all.into_iter().filter_map(|(name, identity)| Some((name, identity?))) {
            data.insert(format!("{name}.crt"), identity.certificate.clone());
            data.insert(format!("{name}.key"), identity.key.clone());
        }
        if !self.previous.is_empty() {
            data.insert("previous.crt".into(), self.previous.concat());
        }
        data
    }

    /// Everything that is to be trusted, the CA that signs first.
    pub fn bundle(&self) -> String {
        let next = self.next.iter().map(|next| next.certificate.as_str());
        std::iter::once(self.current.certificate.as_str())
            .chain(next)
            .chain(self.previous.iter().map(String::as_str))
            .collect()
    }
}

/// A secret with certificates for one component.
pub struct Holder {
    pub secret: &'static str,
    leaves: Vec<Leaf>,
}

struct Leaf {
    /// `<file>.crt` and `<file>.key`.
    file: &'static str,
    name: &'static str,
    hosts: Vec<String>,
    purpose: ExtendedKeyUsagePurpose,
}

pub fn holders(namespace: &str) -> [Holder; 2] {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let api = format!("virt-api.{namespace}.svc");
    let mut api_hosts = vec![api.clone(), format!("{api}.cluster.local"), format!("virt-api.{namespace}")];
    // It also gives out the tokens for uploads, and takes these.
    api_hosts.extend([objects::UPLOAD_SERVICE, "cdi-uploadproxy"].map(|name| format!("{name}.{namespace}.svc")));
    let handler_hosts = vec![format!("virt-handler.{namespace}.svc")];
    let leaf = |file, name, hosts, purpose| Leaf { file, name, hosts, purpose };
    [
        Holder {
            secret: "virt-api-certificates",
            leaves: vec![
                leaf("tls", "virt-api", api_hosts, ServerAuth),
                // With which virt-api calls node agents.
                leaf("client", "kubevirt.io:system:client:virt-api", vec![], ClientAuth),
            ],
        },
        Holder {
            secret: "virt-handler-certificates",
            leaves: vec![leaf("tls", "virt-handler", handler_hosts, ServerAuth)],
        },
    ]
}

impl Holder {
    /// What the secret should hold now. What is still good stays as it is.
    pub fn renew(&self, stored: &Data, ca: &Authority, now: OffsetDateTime, lifetime: Lifetime) -> Result<Data> {
        let mut data = Data::from([("ca.crt".into(), ca.bundle())]);
        for leaf in &self.leaves {
            let kept = identity(stored, leaf.file).filter(|kept| {
                ends(kept) - lifetime.renew_before > now
                    && issuer(&kept.certificate) == subject(&ca.current.certificate)
                    && leaf.hosts.iter().all(|host| names(&kept.certificate).contains(host))
            });
            let identity = match kept {
                Some(kept) => kept,
                None => sign(&ca.current, leaf, now, lifetime)?,
            };
            data.insert(format!("{}.crt", leaf.file), identity.certificate);
            data.insert(format!("{}.key", leaf.file), identity.key);
        }
        Ok(data)
    }
}

fn identity(data: &Data, name: &str) -> Option<Identity> {
    let certificate = data.get(&format!("{name}.crt"))?.clone();
    Some(Identity { certificate, key: data.get(&format!("{name}.key"))?.clone() })
}

fn make_ca(now: OffsetDateTime, lifetime: Lifetime) -> Result<Identity> {
    let key = KeyPair::generate()?;
    let mut params = lasting(now, lifetime);
    // The time tells it from the one before and the one after.
    params.distinguished_name.push(DnType::CommonName, format!("ferrovirt@{}", now.unix_timestamp()));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn sign(ca: &Identity, leaf: &Leaf, now: OffsetDateTime, lifetime: Lifetime) -> Result<Identity> {
    let key = KeyPair::generate()?;
    let mut params = lasting(now, lifetime);
    params.distinguished_name.push(DnType::CommonName, leaf.name);
    for host in &leaf.hosts {
        params.subject_alt_names.push(SanType::DnsName(host.as_str().try_into()?));
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![leaf.purpose.clone()];
    let ca_key = KeyPair::from_pem(&ca.key).context("the CA's key is damaged")?;
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, ca_key).context("the CA is damaged")?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn lasting(now: OffsetDateTime, lifetime: Lifetime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = now - SKEW;
    params.not_after = now + lifetime.lasts;
    params
}

/// First and last moment of a certificate; `None` if it is none.
fn validity(pem: &str) -> Option<(OffsetDateTime, OffsetDateTime)> {
    parsed(pem, |certificate| {
        let validity = certificate.validity();
        let time = |seconds| OffsetDateTime::from_unix_timestamp(seconds).ok();
        Some((time(validity.not_before.timestamp())?, time(validity.not_after.timestamp())?))
    })
}

fn begins(identity: &Identity) -> OffsetDateTime {
    validity(&identity.certificate).map_or(OffsetDateTime::UNIX_EPOCH, |(begin, _)| begin)
}

/// The past, for what cannot be read.
fn ends(identity: &Identity) -> OffsetDateTime {
    validity(&identity.certificate).map_or(OffsetDateTime::UNIX_EPOCH, |(_, end)| end)
}

fn issuer(pem: &str) -> Option<String> {
    parsed(pem, |certificate| Some(certificate.issuer().to_string()))
}

fn subject(pem: &str) -> Option<String> {
    parsed(pem, |certificate| Some(certificate.subject().to_string()))
}

/// The hosts that a certificate is for.
fn names(pem: &str) -> Vec<String> {
    let found = parsed(pem, |certificate| {
        let names = &certificate.subject_alternative_name().ok()??.value.general_names;
        let hosts = names.iter().filter_map(|name| match name {
            GeneralName::DNSName(host) => Some((*host).to_owned()),
            _ => None,
        });
        Some(hosts.collect())
    });
    found.unwrap_or_default()
}

fn parsed<T>(pem: &str, read: impl FnOnce(&X509Certificate<'_>) -> Option<T>) -> Option<T> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    read(&certificate)
}

/// The certificates of a PEM text, one each.
fn split(text: &str) -> Vec<String> {
    text.split_inclusive("-----END CERTIFICATE-----\n").map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetimes() -> Lifetimes {
        Lifetimes::default()
    }

    fn start() -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
    }

    fn advance(data: &Data, now: OffsetDateTime) -> Authority {
        Authority::advance(data, now, lifetimes().ca).unwrap()
    }

    #[test]
    fn nothing_changes_until_it_has_to() {
        let authority = advance(&Data::new(), start());
        let later = start() + Duration::days(19);
        assert_eq!(advance(&authority.data(), later).data(), authority.data());
        for holder in holders("kubevirt") {
            let first = holder.renew(&Data::new(), &authority, start(), lifetimes().leaf).unwrap();
            assert_eq!(holder.renew(&first, &authority, later, lifetimes().leaf).unwrap(), first, "{}", holder.secret);
            let last = holder.renew(&first, &authority, start() + Duration::days(21), lifetimes().leaf).unwrap();
            assert_ne!(last["tls.crt"], first["tls.crt"], "{}", holder.secret);
            assert_eq!(last["ca.crt"], first["ca.crt"]);
        }
    }

    #[test]
    fn a_new_ca_is_trusted_before_it_signs_and_the_old_one_until_it_ends() {
        let first = advance(&Data::new(), start());
        let [holder, _] = holders("kubevirt");
        let leaves = holder.renew(&Data::new(), &first, start(), lifetimes().leaf).unwrap();

        let announced = start() + Duration::days(730 - 180);
        let second = advance(&first.data(), announced);
        assert_eq!(second.current.certificate, first.current.certificate);
        assert!(second.bundle().contains(&second.next.as_ref().unwrap().certificate));

        let third = advance(&second.data(), announced + Duration::hours(25));
        assert_eq!(third.current.certificate, second.next.unwrap().certificate);
        assert!(third.bundle().contains(&first.current.certificate));
        let renewed = holder.renew(&leaves, &third, announced + Duration::hours(25), lifetimes().leaf).unwrap();
        assert_eq!(issuer(&renewed["tls.crt"]), subject(&third.current.certificate));

        let fourth = advance(&third.data(), start() + Duration::days(731));
        assert!(!fourth.bundle().contains(&first.current.certificate));
        assert_eq!(fourth.current.certificate, third.current.certificate);
    }

    #[test]
    fn what_cannot_be_read_or_has_ended_is_made_anew() {
        let first = advance(&Data::new(), start());
        for (file, text) in [("tls.crt", "rubbish"), ("tls.key", "")] {
            let mut data = first.data();
            if text.is_empty() {
                data.remove(file);
            } else {
                data.insert(file.into(), text.into());
            }
            assert_ne!(advance(&data, start()).bundle(), first.bundle(), "{file}");
        }
        assert_ne!(advance(&first.data(), start() + Duration::days(800)).bundle(), first.bundle());
    }
}
