//! `ferrovirt preflight`, `install`, `upgrade` and `uninstall`: Ferrovirt on an existing cluster.

mod cluster;
mod hook;
mod manifests;
mod preflight;
mod template;
mod values;
mod version;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::client::ClientArgs;
use cluster::Cluster;
pub use hook::{HookArgs, hook};
use manifests::{Manifests, VERSION};
pub use preflight::{PreflightArgs, preflight};
use values::Chosen;

/// What an installation can choose.
#[derive(Args)]
struct Choices {
    /// File with values, as charts/ferrovirt/values.yaml has them
    #[arg(long)]
    values: Option<PathBuf>,
    /// Image of the components
    #[arg(long)]
    image: Option<String>,
    /// Image of the pods that run VMs
    #[arg(long)]
    launcher_image: Option<String>,
    /// When nodes pull the images
    #[arg(long, value_parser = ["Always", "IfNotPresent", "Never"])]
    image_pull_policy: Option<String>,
    /// Processes of virt-api and of virt-controller
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: Option<u32>,
    /// The kubelets' root directory
    #[arg(long)]
    kubelet_root: Option<String>,
    /// Emulate in software where there is no hardware virtualization
    #[arg(long)]
    use_emulation: bool,
}

impl Choices {
    fn read(self) -> Result<Chosen> {
        let mut chosen = self.values.as_deref().map(Chosen::read).transpose()?.unwrap_or_default();
        chosen.set("images.ferrovirt", self.image);
        chosen.set("images.launcher", self.launcher_image);
        chosen.set("images.pullPolicy", self.image_pull_policy);
        chosen.set("replicas", self.replicas);
        chosen.set("kubeletRoot", self.kubelet_root);
        chosen.set("configuration.developerConfiguration.useEmulation", self.use_emulation.then_some(true));
        Ok(chosen)
    }
}

#[derive(Args)]
pub struct InstallArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    choices: Choices,
    /// Write the manifests instead of applying them
    #[arg(long, num_args = 0..=1, default_missing_value = "all", value_name = "WHAT")]
    print: Option<Print>,
    /// Do not wait until everything runs
    #[arg(long)]
    no_wait: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Print {
    /// Everything; kubectl must know the definitions before it takes the rest
    All,
    /// The definitions of our kinds
    Crds,
}

#[derive(Args)]
pub struct UpgradeArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    choices: Choices,
    /// Do not wait until everything runs
    #[arg(long)]
    no_wait: bool,
}

#[derive(Args)]
pub struct UninstallArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Delete all VMs and the definitions of our kinds, too
    #[arg(long)]
    all: bool,
}

pub async fn install(arguments: InstallArgs) -> Result<()> {
    let chosen = arguments.choices.read()?;
    if let Some(what) = arguments.print {
        let manifests = Manifests::render(&chosen)?;
        let rest = manifests.components.iter().chain(&manifests.registration);
        let objects: Vec<&Value> = manifests.definitions.iter().chain(rest.filter(|_| what == Print::All)).collect();
        print!("{}", manifests::print(&objects)?);
        return Ok(());
    }
    let client = arguments.client.connect().await?;
    cluster::refuse_embedded(&client, "install").await?;
    preflight::require(&client).await?;
    let cluster = Cluster::new(client);
    if let Some(installed) = cluster.installed().await? {
        installed.allows(VERSION)?;
    }
    apply(&cluster, &chosen, !arguments.no_wait).await
}

/// Like `install`, with what was chosen then where nothing else is said now.
pub async fn upgrade(arguments: UpgradeArgs) -> Result<()> {
    let client = arguments.client.connect().await?;
    cluster::refuse_embedded(&client, "upgrade").await?;
    let cluster = Cluster::new(client.clone());
    let Some(installed) = cluster.installed().await? else {
        bail!("Ferrovirt is not installed on this cluster; `ferrovirt install` does that");
    };
    installed.allows(VERSION)?;
    preflight::require(&client).await?;
    let mut chosen = match cluster.choices().await? {
        Some(text) => Chosen::parse(&text).context("what was chosen at the installation cannot be read")?,
        None => Chosen::default(),
    };
    chosen.overlay(arguments.choices.read()?);
    eprintln!("upgrading from {} to {VERSION}; running VMs stay as they are", installed.version);
    apply(&cluster, &chosen, !arguments.no_wait).await
}

async fn apply(cluster: &Cluster, chosen: &Chosen, wait: bool) -> Result<()> {
    let manifests = Manifests::render(chosen)?;
    eprintln!("defining {} kinds", manifests.definitions.len());
    cluster.apply(&manifests.definitions).await?;
    cluster.wait_for_definitions(&manifests.definitions).await?;
    eprintln!("applying the components");
    cluster.apply(&manifests.components).await?;
    cluster.apply(&manifests.registration).await?;
    if wait {
        cluster.wait_for_components(&manifests.components, &manifests.registration).await?;
        println!("Ferrovirt {VERSION} is ready. Try: ferrovirt apply -f vm.yaml --wait");
    }
    Ok(())
}

pub async fn uninstall(arguments: UninstallArgs) -> Result<()> {
    let client = arguments.client.connect().await?;
    cluster::refuse_embedded(&client, "uninstall").await?;
    let cluster = Cluster::new(client);
    if let Some(installed) = cluster.installed().await? {
        installed.ours()?;
    }
    let manifests = Manifests::render(&Chosen::default())?;
    if arguments.all {
        // While the node agents are there: they alone say when a VM has ended.
        eprintln!("deleting all VMs");
        cluster.delete_machines().await?;
    }
    eprintln!("deleting the components");
    cluster.delete(&manifests.registration).await?;
    cluster.delete(&manifests.components).await?;
    cluster.forget_nodes().await?;
    if arguments.all {
        cluster.delete(&manifests.definitions).await?;
        println!("Ferrovirt is gone, with all VMs");
    } else {
        println!("Ferrovirt is gone; VMs and their definitions stay, and running guests run on");
    }
    Ok(())
}
