//! `ferrovirt install` and `uninstall`: Ferrovirt on an existing cluster.

mod cluster;
mod manifests;
pub mod pki;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::{client::ClientArgs, up::objects::NAMESPACE};
use cluster::Cluster;
use manifests::{Manifests, Values};
use pki::Certificates;

#[derive(Args)]
pub struct InstallArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Write the manifests instead of applying them, with new certificates
    #[arg(long, num_args = 0..=1, default_missing_value = "all", value_name = "WHAT")]
    print: Option<Print>,
    /// Image of the components
    #[arg(long, default_value = concat!("ferrovirt:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// Image of the pods that run VMs
    #[arg(long, default_value = concat!("ferrovirt-launcher:", env!("CARGO_PKG_VERSION")))]
    launcher_image: String,
    #[arg(long, default_value = "IfNotPresent", value_parser = ["Always", "IfNotPresent", "Never"])]
    image_pull_policy: String,
    /// Processes of virt-api and of virt-controller
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,
    /// The kubelets' root directory
    #[arg(long, default_value = "/var/lib/kubelet")]
    kubelet_root: String,
    /// Emulate in software where there is no hardware virtualization
    #[arg(long)]
    use_emulation: bool,
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
pub struct UninstallArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Delete all VMs and the definitions of our kinds, too
    #[arg(long)]
    all: bool,
}

pub async fn install(arguments: InstallArgs) -> Result<()> {
    let values = Values {
        image: arguments.image,
        launcher_image: arguments.launcher_image,
        pull_policy: arguments.image_pull_policy,
        replicas: arguments.replicas,
        kubelet_root: arguments.kubelet_root,
        use_emulation: arguments.use_emulation,
    };
    if let Some(what) = arguments.print {
        let manifests = Manifests::render(&values, &Certificates::make(NAMESPACE, None)?)?;
        let rest = manifests.components.iter().chain(&manifests.registration);
        let objects: Vec<&Value> = manifests.definitions.iter().chain(rest.filter(|_| what == Print::All)).collect();
        print!("{}", manifests::print(&objects)?);
        return Ok(());
    }
    let cluster = Cluster::new(arguments.client.connect().await?);
    let ca = cluster.certificate_authority().await?;
    let manifests = Manifests::render(&values, &Certificates::make(NAMESPACE, ca)?)?;
    eprintln!("defining {} kinds", manifests.definitions.len());
    cluster.apply(&manifests.definitions).await?;
    cluster.wait_for_definitions(&manifests.definitions).await?;
    eprintln!("applying the components");
    cluster.apply(&manifests.components).await?;
    cluster.apply(&manifests.registration).await?;
    if !arguments.no_wait {
        cluster.wait_for_components(&manifests.components, &manifests.registration).await?;
        println!("Ferrovirt {} is ready. Try: ferrovirt apply -f vm.yaml --wait", env!("CARGO_PKG_VERSION"));
    }
    Ok(())
}

pub async fn uninstall(arguments: UninstallArgs) -> Result<()> {
    let cluster = Cluster::new(arguments.client.connect().await?);
    let values = Values {
        image: String::new(),
        launcher_image: String::new(),
        pull_policy: String::new(),
        // All that any number of replicas would have brought.
        replicas: 2,
        kubelet_root: "/".into(),
        use_emulation: false,
    };
    let manifests = Manifests::render(&values, &Certificates::make(NAMESPACE, None)?)?;
    if arguments.all {
        // While the node agents are there: they alone say when a VM has ended.
        eprintln!("deleting all VMs");
        cluster.delete_machines().await?;
    }
    eprintln!("deleting the components");
    cluster.delete(&manifests.registration).await?;
    cluster.delete(&manifests.components).await?;
    if arguments.all {
        cluster.delete(&manifests.definitions).await?;
        println!("Ferrovirt is gone, with all VMs");
    } else {
        println!("Ferrovirt is gone; VMs and their definitions stay, and running guests run on");
    }
    Ok(())
}
