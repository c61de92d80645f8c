//! Which cluster a command talks to, and how its errors read.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use kube::{
    Api, Client, Config,
    api::DynamicObject,
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, GroupVersionKind},
    discovery::{ApiCapabilities, Discovery, Scope},
};

use crate::{
    next, root,
    up::paths::{DEFAULT_DATA_DIR, Paths},
};

/// Which cluster is meant is the same question for every command; what the command is about comes first.
const HEADING: &str = "Which cluster";

#[derive(Args, Clone, Default)]
pub struct ClientArgs {
    /// Kubeconfig file [default: $KUBECONFIG, then the pod's service account, then the host's own, then ~/.kube/config]
    #[arg(long, help_heading = HEADING)]
    pub kubeconfig: Option<PathBuf>,
    /// Use the host with this data directory
    #[arg(long, env = "FERROVIRT_DATA_DIR", hide_env_values = true, help_heading = HEADING)]
    pub data_dir: Option<PathBuf>,
    /// Context of the kubeconfig [default: the current one]
    #[arg(long, help_heading = HEADING)]
    pub context: Option<String>,
    /// Namespace [default: the one of the kubeconfig]
    #[arg(short, long, help_heading = HEADING)]
    pub namespace: Option<String>,
}

impl ClientArgs {
    pub async fn config(&self) -> Result<Config> {
        if let (None, None) = (&self.kubeconfig, &self.data_dir)
            && std::env::var_os("KUBECONFIG").is_none()
            && let Ok(config) = Config::incluster()
        {
            return Ok(config);
        }
        let (kubeconfig, source) = self.read()?;
        let options = KubeConfigOptions { context: self.context.clone(), ..Default::default() };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .with_context(|| format!("cannot use the kubeconfig {source}"))?;
        Ok(config)
    }

    pub async fn connect(&self) -> Result<Client> {
        let mut config = self.config().await?;
        // The library would ask a server that says "unavailable", such as for a closed port of a guest, again and again in silence.
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    pub fn namespace<'a>(&'a self, client: &'a Client) -> &'a str {
        self.namespace.as_deref().unwrap_or_else(|| client.default_namespace())
    }

    fn read(&self) -> Result<(Kubeconfig, String)> {
        let own = |data_dir: &Path| Paths::new(data_dir).map(|paths| paths.kubeconfig());
        let chosen = match (&self.kubeconfig, &self.data_dir) {
            (Some(file), _) => Some(file.clone()),
            (None, Some(data_dir)) => Some(own(data_dir)?),
            (None, None) => None,
        };
        if let Some(file) = chosen {
            if self.kubeconfig.is_none() {
                root::needed_for(&file)?;
            }
            let kubeconfig = Kubeconfig::read_from(&file).with_context(|| format!("cannot read {}", file.display()))?;
            return Ok((kubeconfig, file.display().to_string()));
        }
        let local = own(Path::new(DEFAULT_DATA_DIR))?;
        if std::env::var_os("KUBECONFIG").is_none() && local.exists() {
            return Ok((Kubeconfig::read_from(&local)?, local.display().to_string()));
        }
        match Kubeconfig::read() {
            Ok(kubeconfig) => Ok((kubeconfig, "of the environment".into())),
            // There may be a host that only root sees.
            Err(_) if root::is_closed(&local) => bail!("{}", root::advice(&local)),
            Err(_) => bail!(
                "there is no cluster to talk to: start one with `ferrovirt up --detach`, or name a kubeconfig with --kubeconfig"
            ),
        }
    }
}

/// Finds a kind by anything people call it: `vm`, `vms`, `virtualmachine`, `virtualmachines.kubevirt.io`.
pub async fn find_kind(client: &Client, name: &str) -> Result<(ApiResource, ApiCapabilities)> {
    let wanted = name.to_lowercase();
    let (wanted, group) = match wanted.split_once('.') {
        Some((plural, group)) => (plural.to_owned(), Some(group.to_owned())),
        None => (wanted, None),
    };
    // One request, unless an aggregated API made the answer one that cannot be read; then one request per group.
    let discovery = match Discovery::new(client.clone()).run_aggregated().await {
        Ok(discovery) => discovery,
        Err(kube::Error::SerdeError(_)) => Discovery::new(client.clone()).run().await.context(ASK)?,
        Err(error) => return Err(error).context(ASK),
    };
    // The core group first: metrics servers call their figures nodes and pods, too.
    let mut groups: Vec<_> = discovery.groups().collect();
    groups.sort_by_key(|group| (!group.name().is_empty(), group.name().to_owned()));
    for api_group in groups {
        if group.as_deref().is_some_and(|group| group != api_group.name()) {
            continue;
        }
        for (resource, capabilities) in api_group.recommended_resources() {
            // Aggregated groups repeat the names of kinds for actions on them.
            if !capabilities.supports_operation(kube::discovery::verbs::LIST) {
                continue;
            }
            let short = SHORT_NAMES.iter().any(|(short, plural)| *short == wanted && *plural == resource.plural);
            if short || resource.plural == wanted || resource.kind.to_lowercase() == wanted {
                return Ok((resource, capabilities));
            }
        }
    }
    bail!("the cluster has no kind {name:?}. Try vms, vmis, pods, nodes or events")
}

const ASK: &str = "cannot ask what the cluster serves";

/// Short names that people type all day. Discovery does not hand the served ones through.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("vm", "virtualmachines"),
    ("vms", "virtualmachines"),
    ("vmi", "virtualmachineinstances"),
    ("vmis", "virtualmachineinstances"),
    ("vmirs", "virtualmachineinstancereplicasets"),
    ("po", "pods"),
    ("no", "nodes"),
    ("ns", "namespaces"),
    ("ev", "events"),
    ("cm", "configmaps"),
    ("svc", "services"),
    ("dv", "datavolumes"),
    ("dvs", "datavolumes"),
    ("net-attach-def", "network-attachment-definitions"),
    ("pvc", "persistentvolumeclaims"),
    ("pv", "persistentvolumes"),
    ("sc", "storageclasses"),
    ("crd", "customresourcedefinitions"),
    ("crds", "customresourcedefinitions"),
];

pub async fn find_gvk(client: &Client, gvk: &GroupVersionKind) -> Result<(ApiResource, ApiCapabilities)> {
    kube::discovery::pinned_kind(client, gvk)
        .await
        .with_context(|| format!("the cluster does not serve {} {}", gvk.api_version(), gvk.kind))
}

pub fn dynamic(client: &Client, resource: &ApiResource, scope: &Scope, namespace: &str) -> Api<DynamicObject> {
    match scope {
        Scope::Cluster => Api::all_with(client.clone(), resource),
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, resource),
    }
}

/// An error for people: the API's own words where there are some, the chain of causes otherwise.
pub fn explain(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = vec![];
    for cause in error.chain() {
        let text = match cause.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) => status.message.clone(),
            Some(kube::Error::Service(_) | kube::Error::HyperError(_)) => {
                let (status, up) = (next::ferrovirt("status"), next::ferrovirt("up --detach"));
                format!("cannot reach the API server: is it running? (`{status}`, `{up}`)")
            }
            _ => cause.to_string(),
        };
        if parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
        if matches!(cause.downcast_ref::<kube::Error>(), Some(kube::Error::Api(_))) {
            break;
        }
    }
    parts.join(": ")
}
