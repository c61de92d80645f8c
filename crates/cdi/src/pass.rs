//! What lets one importer fetch a claim from another namespace, and nobody else: the certificate that the far end shows, and a
//! token that the near end has. And the certificate by which the proxy of uploads knows the importer that an upload is for.
//!
//! Who may look at pods reads all that stands in them, so neither stands there. Each end gets its half in a secret that
//! belongs to its pod and goes with it. Whoever makes the pods keeps the rest in memory: when it forgets, both ends begin anew.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use ferrovirt_fetch::http::KeyHolder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ServerConfig};

use crate::controller::uuid_like;

const CERTIFICATE: &str = "certificate";
const KEY: &str = "key";
const TOKEN: &str = "token";

#[derive(Debug, thiserror::Error)]
pub(crate) enum PassError {
    #[error("cannot make a key")]
    Make(#[from] rcgen::Error),
    #[error("cannot read {name} of the pod's secret")]
    Read { name: &'static str, source: io::Error },
    #[error("the certificate or key of an importer is not one")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// Made for one pair of pods, or for one pod that takes an upload.
#[derive(Clone)]
pub(crate) struct Pass {
    certificate: String,
    key: String,
    token: String,
}

impl Pass {
    pub fn make() -> Result<Self, PassError> {
        let made = rcgen::generate_simple_self_signed(vec!["importer".to_owned()])?;
        Ok(Self { certificate: made.cert.pem(), key: made.signing_key.serialize_pem(), token: uuid_like() })
    }

    /// What is no secret.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// For the pod that takes an upload.
    pub fn of_receiver(&self, name: &str, pod: &Pod) -> Secret {
        secret(name, pod, &[(CERTIFICATE, &self.certificate), (KEY, &self.key)])
    }

    /// For the pod that shows the claim.
    pub fn of_server(&self, name: &str, pod: &Pod) -> Secret {
        secret(name, pod, &[(CERTIFICATE, &self.certificate), (KEY, &self.key), (TOKEN, &self.token)])
    }

    /// For the importer.
    pub fn of_importer(&self, name: &str, pod: &Pod) -> Secret {
        secret(name, pod, &[(CERTIFICATE, &self.certificate), (TOKEN, &self.token)])
    }
}

fn secret(name: &str, pod: &Pod, content: &[(&str, &String)]) -> Secret {
    let content = content.iter().map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())));
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: pod.metadata.namespace.clone(),
            labels: Some(BTreeMap::from([("app".to_owned(), "containerized-data-importer".to_owned())])),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(content.collect()),
        immutable: Some(true),
        ..Secret::default()
    }
}

fn read(directory: &Path, name: &'static str) -> Result<Vec<u8>, PassError> {
    fs::read(directory.join(name)).map_err(|source| PassError::Read { name, source })
}

pub(crate) fn token(directory: &Path) -> Result<String, PassError> {
    let wrap = |error| PassError::Read { name: TOKEN, source: io::Error::other(error) };
    String::from_utf8(read(directory, TOKEN)?).map_err(wrap)
}

pub(crate) fn server(directory: &Path) -> Result<Arc<ServerConfig>, PassError> {
    let certificate = CertificateDer::from_pem_slice(&read(directory, CERTIFICATE)?)?;
    let key = PrivateKeyDer::from_pem_slice(&read(directory, KEY)?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

pub(crate) fn client(directory: &Path) -> Result<Arc<ClientConfig>, PassError> {
    client_of(&read(directory, CERTIFICATE)?)
}

/// Speaks to whoever has the key of this certificate, and to nobody else.
pub(crate) fn client_of(certificate: &[u8]) -> Result<Arc<ClientConfig>, PassError> {
    let certificate = CertificateDer::from_pem_slice(certificate)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    // A pod has its address after its certificate, so no name in it could be asked for.
    let only = Arc::new(KeyHolder::only(certificate, provider));
    let mut config = builder.dangerous().with_custom_certificate_verifier(only).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
pub(crate) mod tests {
    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// As a pod finds it.
    fn mounted(secret: &Secret) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in secret.data.iter().flatten() {
            fs::write(directory.path().join(name), &content.0).unwrap();
        }
        directory
    }

    /// An importer of an upload: what it mounts, and what the proxy knows of it.
    pub(crate) struct Receiver {
        pub directory: tempfile::TempDir,
        pub certificate: String,
    }

    pub(crate) fn receiver() -> Receiver {
        let pass = Pass::make().unwrap();
        Receiver { directory: mounted(&pass.of_receiver("s", &pod())), certificate: pass.certificate().to_owned() }
    }

    fn pod() -> Pod {
        let metadata = ObjectMeta {
            name: Some("p".into()),
            namespace: Some("a".into()),
            uid: Some("u".into()),
            ..ObjectMeta::default()
        };
        Pod { metadata, ..Pod::default() }
    }

    async fn meet(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> io::Result<[u8; 2]> {
        let (near, far) = duplex(4096);
        tokio::spawn(async move {
            if let Ok(mut stream) = tokio_rustls::TlsAcceptor::from(server).accept(far).await {
                let _ = stream.write_all(b"ok").await;
                let _ = stream.flush().await;
            }
        });
        let name = ServerName::try_from("192.0.2.7").unwrap();
        let mut stream = tokio_rustls::TlsConnector::from(client).connect(name, near).await?;
        let mut said = [0; 2];
        stream.read_exact(&mut said).await?;
        Ok(said)
    }

    #[tokio::test]
    async fn a_disk_is_fetched_from_the_one_pod_that_was_named_and_from_no_other() {
        let (pass, other) = (Pass::make().unwrap(), Pass::make().unwrap());
        let there = mounted(&pass.of_server("s", &pod()));
        let impostor = mounted(&other.of_server("s", &pod()));
        let here = mounted(&pass.of_importer("s", &pod()));
        let said = meet(server(there.path()).unwrap(), client(here.path()).unwrap()).await.unwrap();
        assert_eq!(&said, b"ok");
        let refused = meet(server(impostor.path()).unwrap(), client(here.path()).unwrap()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{refused}");
        assert_eq!(token(there.path()).unwrap(), token(here.path()).unwrap());
    }

    #[test]
    fn the_importer_cannot_pass_for_its_source_and_secrets_go_with_their_pods() {
        let pass = Pass::make().unwrap();
        let (server, importer) = (pass.of_server("s", &pod()), pass.of_importer("s", &pod()));
        assert!(!importer.data.as_ref().unwrap().contains_key(KEY));
        for secret in [server, importer] {
            let owner = &secret.metadata.owner_references.as_ref().unwrap()[0];
            assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Pod", "u"));
        }
    }
}
