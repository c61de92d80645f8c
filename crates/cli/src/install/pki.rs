//! The certificates of an installation on a cluster: a CA of its own, kept in a secret, and what it signs.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use time::{Duration, OffsetDateTime};

use crate::up::pki::Identity;

const CA_DAYS: i64 = 3650;
/// `ferrovirt install`, run again, makes new ones, and running pods take them over.
const LEAF_DAYS: i64 = 730;

/// Everything that the secrets hold.
pub struct Certificates {
    pub ca: Identity,
    pub api: Identity,
    pub handler: Identity,
    /// With which virt-api calls node agents.
    pub client: Identity,
}

impl Certificates {
    /// Signed by `ca`, or by a new one.
    pub fn make(namespace: &str, ca: Option<Identity>) -> Result<Self> {
        let ca = match ca {
            Some(ca) => ca,
            None => make_ca()?,
        };
        let api = format!("virt-api.{namespace}.svc");
        let api_names = [api.clone(), format!("{api}.cluster.local"), format!("virt-api.{namespace}")];
        let handler = [format!("virt-handler.{namespace}.svc")];
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        Ok(Self {
            api: sign(&ca, "virt-api", &api_names, ServerAuth)?,
            handler: sign(&ca, "virt-handler", &handler, ServerAuth)?,
            client: sign(&ca, "kubevirt.io:system:client:virt-api", &[], ClientAuth)?,
            ca,
        })
    }
}

fn make_ca() -> Result<Identity> {
    let key = KeyPair::generate()?;
    let mut params = lasting(CA_DAYS);
    params.distinguished_name.push(DnType::CommonName, "ferrovirt");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn sign(ca: &Identity, name: &str, hosts: &[String], purpose: ExtendedKeyUsagePurpose) -> Result<Identity> {
    let key = KeyPair::generate()?;
    let mut params = lasting(LEAF_DAYS);
    params.distinguished_name.push(DnType::CommonName, name);
    for host in hosts {
        params.subject_alt_names.push(SanType::DnsName(host.as_str().try_into()?));
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    let ca_key = KeyPair::from_pem(&ca.key).context("the CA key is damaged")?;
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, ca_key).context("the CA is damaged")?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// From an hour ago on: clocks of nodes differ.
fn lasting(days: i64) -> CertificateParams {
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = now - Duration::hours(1);
    params.not_after = now + Duration::days(days);
    params
}
