//! The certificates of an embedded installation: one CA, a serving certificate, client certificates; and a CA of its own
//! for the front proxy.
//!
//! Everything lives in `<data-dir>/pki`, mode 0600. The CA is made once and kept; see `certificates` for the others.

use std::{
    fs,
    io::Write,
    net::IpAddr,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ferrovirt_apiserver::FrontProxy;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use super::client_certificate;

/// A certificate with its key, both PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

pub struct Pki {
    directory: PathBuf,
    ca: Identity,
}

const CA_DAYS: i64 = 3650;

impl Pki {
    /// Opens the CA of a data directory, making it on first use.
    pub fn open(data_dir: &Path) -> Result<Self> {
        let directory = data_dir.join("pki");
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
        let ca = authority(&directory, "ca", "ferrovirt-ca")?;
        Ok(Self { directory, ca })
    }

    pub fn ca_certificate(&self) -> &str {
        &self.ca.certificate
    }

    /// What tokens for uploads are signed with: the same after a restart, so that uploads go on.
    pub fn upload_key(&self) -> Result<ferrovirt_cdi::upload::Key> {
        ferrovirt_cdi::upload::Key::of(self.ca.key.as_bytes()).context("cannot make the key of uploads")
    }

    /// A serving certificate for these names and addresses.
    pub fn serving(&self, names: &[&str], addresses: &[IpAddr], lasts: time::Duration) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("ferrovirt-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in names {
            params.subject_alt_names.push(SanType::DnsName((*name).try_into()?));
        }
        params.subject_alt_names.extend(addresses.iter().map(|a| SanType::IpAddress(*a)));
        sign(&self.ca, params, lasts)
    }

    /// A client certificate: the common name is the user, the organisations are the groups.
    pub fn client_for(&self, user: &str, groups: &[String], lasts: time::Duration) -> Result<Identity> {
        self.client_from(user, groups, lasts, None)
    }

    /// One that is not valid before this moment, in seconds since 1970.
    pub fn client_from(
        &self,
        user: &str,
        groups: &[String],
        lasts: time::Duration,
        earliest: Option<i64>,
    ) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let (mut not_before, not_after) = validity(lasts);
        if let Some(earliest) = earliest {
            not_before = not_before.max(time::OffsetDateTime::from_unix_timestamp(earliest)?);
        }
        let ca_key = KeyPair::from_pem(&self.ca.key).context("the CA key is damaged")?;
        let (_, ca) = x509_parser::pem::parse_x509_pem(self.ca.certificate.as_bytes()).context("the CA is damaged")?;
        let request = client_certificate::Request { user, groups, not_before, not_after };
        let certificate = client_certificate::sign(&request, &key, &ca.contents, &ca_key)?;
        Ok(Identity { certificate: pem("CERTIFICATE", &certificate), key: key.serialize_pem() })
    }

    /// The key that signs service account tokens, made on first use.
    pub fn service_account_key(&self) -> Result<String> {
        let path = self.directory.join("service-account.key");
        if !path.exists() {
            write_private(&path, KeyPair::generate()?.serialize_pem().as_bytes())?;
        }
        Ok(fs::read_to_string(path)?)
    }

    /// What extension API servers believe this one by. The authority is of its own, as whoever holds a certificate of it
    /// may claim to be anyone.
    pub fn front_proxy(&self) -> Result<FrontProxy> {
        let authority = authority(&self.directory, "front-proxy-ca", "ferrovirt-front-proxy-ca")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("front-proxy-client");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let client = sign(&authority, params, time::Duration::days(CA_DAYS))?;
        Ok(FrontProxy {
            certificate_pem: client.certificate,
            key_pem: client.key,
            authority_pem: authority.certificate,
            client_authority_pem: self.ca.certificate.clone(),
        })
    }
}

fn sign(authority: &Identity, mut params: CertificateParams, lasts: time::Duration) -> Result<Identity> {
    let key = KeyPair::generate()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    let (from, until) = validity(lasts);
    params.not_before = from;
    params.not_after = until;
    let issuer_key = KeyPair::from_pem(&authority.key).context("the CA key is damaged")?;
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, issuer_key).context("the CA is damaged")?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// When each of these certificates ends, for those who watch over it.
pub fn expiry_metric(certificates: &[(&str, &str)]) -> ferrovirt_metrics::Family {
    let mut family = ferrovirt_metrics::Family::gauge(
        "ferrovirt_certificate_expiration_timestamp_seconds",
        "When a certificate of this host expires, in seconds since 1970.",
    );
    for (name, pem) in certificates {
        let parsed = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok();
        let until = parsed.and_then(|(_, pem)| Some(pem.parse_x509().ok()?.validity().not_after.timestamp()));
        if let Some(until) = until {
            family = family.with([("certificate", (*name).to_owned())], until as f64);
        }
    }
    family
}

/// A CA in two files of a directory, made on first use.
fn authority(directory: &Path, file: &str, common_name: &str) -> Result<Identity> {
    let (certificate_path, key_path) = (directory.join(format!("{file}.crt")), directory.join(format!("{file}.key")));
    if certificate_path.exists() && key_path.exists() {
        return Ok(Identity {
            certificate: fs::read_to_string(&certificate_path)?,
            key: fs::read_to_string(&key_path)?,
        });
    }
    let ca = make_ca(common_name)?;
    // The key first: a certificate without its key would be taken for a whole CA.
    write_private(&key_path, ca.key.as_bytes())?;
    write_private(&certificate_path, ca.certificate.as_bytes())?;
    Ok(ca)
}

fn make_ca(common_name: &str) -> Result<Identity> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(common_name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let (from, until) = validity(time::Duration::days(CA_DAYS));
    params.not_before = from;
    params.not_after = until;
    let certificate = params.self_signed(&key)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn subject(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

/// Valid from an hour ago, so that a clock that is a little behind does not lock anybody out.
fn validity(lasts: time::Duration) -> (time::OffsetDateTime, time::OffsetDateTime) {
    let now = time::OffsetDateTime::now_utc();
    (now - time::Duration::hours(1), now + lasts)
}

/// Writes a file that only root reads, in one step.
pub fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    let temporary = path.with_extension("new");
    let mut file = fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .with_context(|| format!("cannot write {}", temporary.display()))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_certificate_names_the_user_and_every_group() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path()).unwrap();
        let groups = ["dev".to_owned(), "ops".to_owned(), "system:masters".to_owned()];
        let identity = pki.client_for("bob", &groups, time::Duration::days(1)).unwrap();
        let (_, parsed) = x509_parser::pem::parse_x509_pem(identity.certificate.as_bytes()).unwrap();
        let certificate = parsed.parse_x509().unwrap();
        let organisations: Vec<_> =
            certificate.subject().iter_organization().map(|name| name.as_str().unwrap()).collect();
        assert_eq!(organisations, groups);
        let (_, ca) = x509_parser::pem::parse_x509_pem(pki.ca_certificate().as_bytes()).unwrap();
        let ca = ca.parse_x509().unwrap();
        assert_eq!(certificate.issuer(), ca.subject());
        assert!(certificate.validity().is_valid());
        let family = expiry_metric(&[("admin", &identity.certificate), ("none", "")]);
        let until = certificate.validity().not_after.timestamp();
        let text = ferrovirt_metrics::to_text(&[family]);
        assert!(text.contains(&format!("{{certificate=\"admin\"}} {until}")), "{text}");
        assert!(!text.contains("none"), "{text}");
    }
}
