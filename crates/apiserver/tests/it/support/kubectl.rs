//! The stock kubectl against a TLS server on loopback.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use ferrovirt_apiserver::{ServingCertificate, TlsConfig};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Server;

pub struct Kubectl {
    pub server: Server,
    pub address: SocketAddr,
    config: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<std::io::Result<()>>,
}

fn params(name: &str, groups: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params
}

impl Kubectl {
    pub async fn start(server: Server) -> Self {
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = params("test-ca", &[]);
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
        let issuer = Issuer::new(ca, ca_key);
        let sign = |name: &str, groups: &[&str]| {
            let key = KeyPair::generate().unwrap();
            let cert = params(name, groups).signed_by(&key, &issuer).unwrap();
            (cert.pem(), key.serialize_pem())
        };
        let (chain_pem, key_pem) = sign("apiserver", &[]);
        let (client_cert, client_key) = sign("admin", &["system:masters"]);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = TlsConfig {
            certificate: ServingCertificate::new(&chain_pem, &key_pem).unwrap(),
            client_ca_pem: ca_pem.clone(),
        };
        let (stop, stopped) = oneshot::channel();
        let api = server.api.clone();
        let serving = tokio::spawn(async move {
            api.serve(listener, tls, async {
                let _ = stopped.await;
            })
            .await
        });
        let dir = server.dir.path();
        for (file, content) in [("ca.crt", &ca_pem), ("client.crt", &client_cert), ("client.key", &client_key)] {
            std::fs::write(dir.join(file), content).unwrap();
        }
        let config = dir.join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: t\ncontexts: [{{name: t, context: {{cluster: t, user: t}}}}]\nclusters: [{{name: t, cluster: {{server: 'https://{address}', certificate-authority: {0}/ca.crt}}}}]\nusers: [{{name: t, user: {{client-certificate: {0}/client.crt, client-key: {0}/client.key}}}}]\n",
            dir.display()
        );
        std::fs::write(&config, text).unwrap();
        Self { server, address, config, stop: Some(stop), serving }
    }

    /// Runs kubectl and returns its exit status and both outputs together.
    pub async fn try_run(&self, args: &str, stdin: &str) -> (bool, String) {
        let mut command = tokio::process::Command::new("kubectl");
        command
            .args(split(args))
            .env("KUBECONFIG", &self.config)
            .env("HOME", self.server.dir.path())
            .env("KUBE_EDITOR", "sed -i s/edited:.*/edited:\\ done/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("kubectl is installed");
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(stdin.as_bytes()).await.unwrap();
        drop(pipe);
        let output = child.wait_with_output().await.unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.success(), text)
    }

    /// As [`Self::try_run`], for what has to work.
    pub async fn run(&self, args: &str, stdin: &str) -> String {
        let (success, text) = self.try_run(args, stdin).await;
        assert!(success, "kubectl {args}\n{text}");
        text
    }

    /// A TLS connection as the admin, without HTTP.
    pub async fn connect(&self) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
        connect(self.address, self.server.dir.path()).await
    }

    /// Ends the listener and waits for it.
    pub async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.server.api.shutdown().await;
        self.serving.await.unwrap().unwrap();
    }
}

/// A TLS connection as the admin whose files are in a directory.
pub async fn connect(address: SocketAddr, dir: &Path) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
    let certificate = CertificateDer::from_pem_slice(&read("client.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(&read("client.key")).unwrap();
    connect_with(address, dir, Some((certificate, key))).await.unwrap()
}

/// A TLS connection with a certificate, or with none.
pub async fn connect_with(
    address: SocketAddr,
    dir: &Path,
    certificate: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
) -> std::io::Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    let ca = std::fs::read(dir.join("ca.crt")).unwrap();
    roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match certificate {
        Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let tcp = tokio::net::TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    connector.connect(name, tcp).await
}

/// Words, with single quotes for those with spaces.
fn split(args: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut quoted = false;
    let mut word = String::new();
    for c in args.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.extend(Some(std::mem::take(&mut word)).filter(|w| !w.is_empty())),
            c => word.push(c),
        }
    }
    words.extend(Some(word).filter(|w| !w.is_empty()));
    words
}
