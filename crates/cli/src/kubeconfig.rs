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
    },
};

#[derive(Args)]
pub struct KubeconfigArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Name of the user
    #[arg(long)]
    user: String,
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

pub fn run(arguments: &KubeconfigArgs) -> Result<()> {
    let paths = Paths::new(&arguments.host.data_dir)?;
    if !paths.kubeconfig().exists() {
        bail!("there is no host in {}: start one with `ferrovirt up`", paths.data_dir.display());
    }
    if arguments.user.starts_with("system:") {
        bail!("--user {}: names that begin with system: are Kubernetes' own", arguments.user);
    }
    let admin: Value = serde_saphyr::from_str(&std::fs::read_to_string(paths.kubeconfig())?)?;
    let Some(server) = admin["clusters"][0]["cluster"]["server"].as_str() else {
        bail!("{} names no server", paths.kubeconfig().display());
    };
    let pki = Pki::open(&paths.data_dir)?;
    let identity = pki.client_for(&arguments.user, &arguments.groups, arguments.valid_for)?;
    let text = render(server, pki.ca_certificate(), &arguments.user, &identity);
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
