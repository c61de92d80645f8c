//! `ferrovirt status`: what runs, where, and how to connect.

use anyhow::{Result, bail};
use ferrovirt_api::v1::VirtualMachine;
use kube::{Api, api::ListParams};

use crate::{
    HostArgs,
    client::ClientArgs,
    up::{control, paths::Paths},
};

pub async fn run(arguments: HostArgs) -> Result<()> {
    let paths = Paths::new(&arguments.data_dir)?;
    let Some(status) = control::status(&paths.control_socket()).await else {
        bail!("no host runs in {}: start one with `ferrovirt up --detach`", paths.data_dir.display());
    };
    let client = ClientArgs { kubeconfig: Some(paths.kubeconfig()), ..Default::default() }.connect().await?;
    let vms = Api::<VirtualMachine>::all(client).list(&ListParams::default()).await?;
    let running = vms.items.iter().filter(|vm| vm.status.printable_status == "Running").count();
    println!("ferrovirt {} is {} (pid {})", status.version, if status.ready { "up" } else { "starting" }, status.pid);
    println!("  API:             {}", status.server);
    println!("  data directory:  {}", paths.data_dir.display());
    println!("  virtualization:  {}", status.virtualization);
    println!("  VMs:             {running} running of {}", vms.items.len());
    println!("connect with:");
    println!("  export KUBECONFIG={}", paths.kubeconfig().display());
    println!("  kubectl get vms -A");
    Ok(())
}
