//! `ferrovirt kubeconfig`: credentials for someone.

use std::path::PathBuf;

use anyhow::{Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    HostArgs,
    roles::certificates,
    up::{
        paths::Paths,
        pki::{Identity, Pki, write_private},
        revocations,
    },
};

#[derive(Args)]
pub struct KubeconfigArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Name of the user
    #[arg(long, required_unless_present = "revoke")]
    user: Option<String>,
    /// Believe no certificate any more that this user was given so far, or the one with this serial number (serial:HEX)
    #[arg(long, value_name = "USER|serial:HEX", conflicts_with_all = ["user", "groups", "output"])]
    revoke: Option<String>,
    /// Group of the user; may be given several times
    #[arg(long = "group")]
    groups: Vec<String>,
    /// How long the credentials hold, such as 8h or 30m; what is open with them ends then
    #[arg(long, default_value = "8760h", value_parser = lifetime)]
    valid_for: time::Duration,
    /// Write to this file (mode 0600) instead of standard output
    #[arg(short, long)]
    output: Option<PathBuf>,
}

pub fn lifetime(text: &str) -> Result<time::Duration, String> {
    let lifetime = certificates::duration(text).filter(|lifetime| *lifetime >= time::Duration::SECOND);
    lifetime.ok_or_else(|| "give a number and h, m or s, such as 8h or 1h30m".into())
}

pub async fn run(arguments: &KubeconfigArgs) -> Result<()> {
    let paths = Paths::new(&arguments.host.data_dir)?;
    if !paths.kubeconfig().exists() {
        bail!("there is no host in {}: start one with `ferrovirt up`", paths.data_dir.display());
    }
    if let Some(whom) = &arguments.revoke {
        println!("{}", revocations::revoke(&paths, whom).await?);
        return Ok(());
    }
    let user = arguments.user.as_deref().unwrap_or_default();
    if user.starts_with("system:") {
        bail!("--user {user}: names that begin with system: are Kubernetes' own");
    }
    let admin: Value = serde_saphyr::from_str(&std::fs::read_to_string(paths.kubeconfig())?)?;
    let Some(server) = admin["clusters"][0]["cluster"]["server"].as_str() else {
        bail!("{} names no server", paths.kubeconfig().display());
    };
    let pki = Pki::open(&paths.data_dir)?;
    // Certificates up to the moment of a revocation are revoked, so this one begins after it.
    let not_before = revocations::read(&paths)?.users.iter().find(|revoked| revoked.name == user).map(|r| r.until + 1);
    let early = not_before.map_or(0, |begin| begin - time::OffsetDateTime::now_utc().unix_timestamp());
    if let Ok(seconds @ 1..) = u64::try_from(early) {
        tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
    }
    let identity = pki.client_from(user, &arguments.groups, arguments.valid_for, not_before)?;
    let text = render(server, pki.ca_certificate(), user, &identity);
    match &arguments.output {
        Some(file) => write_private(file, text.as_bytes()),
        None => {
            println!("{text}");
            Ok(())
        }
    }
}

/// A kubeconfig with everything inside. JSON is YAML, and every client reads it.
pub fn render(server: &str, ca: &str, user: &str, identity: &Identity) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "ferrovirt", "cluster": { "server": server, "certificate-authority-data": BASE64.encode(ca) } }],
        "users": [{ "name": user, "user": {
            "client-certificate-data": BASE64.encode(&identity.certificate),
            "client-key-data": BASE64.encode(&identity.key),
        } }],
        "contexts": [{ "name": "ferrovirt", "context": { "cluster": "ferrovirt", "user": user, "namespace": "default" } }],
        "current-context": "ferrovirt",
    });
    format!("{config:#}")
}
