//! `ferrovirt start|stop|restart`.

use anyhow::{Result, bail};
use clap::Args;
use ferrovirt_api::v1::VirtualMachine;
use kube::{Api, core::ApiResource, discovery::Scope};

use crate::{
    client::{ClientArgs, dynamic},
    wait,
};

#[derive(Args)]
pub struct PowerArgs {
    /// The VM, optionally with the word `vm` before it
    #[arg(required = true, num_args = 1..=2, value_name = "NAME")]
    words: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Wait until it is done
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    wait: bool,
}

pub async fn run(verb: &str, arguments: PowerArgs) -> Result<()> {
    let name = name(&arguments.words)?;
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let before = Api::<VirtualMachine>::namespaced(client.clone(), &namespace).get(name).await?;
    let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}/{verb}");
    client.request_text(http::Request::put(path).body(b"{}".to_vec())?).await?;
    if arguments.wait {
        let resource = ApiResource::erase::<VirtualMachine>(&());
        let vms = dynamic(&client, &resource, &Scope::Namespaced, &namespace);
        let label = format!("vm/{name}");
        match verb {
            "stop" => wait::until_status(&vms, name, &label, "Stopped").await?,
            "restart" if before.status.ready => {
                wait::until_status(&vms, name, &label, "Stopping").await?;
                wait::until_ready(&vms, name, &label).await?;
            }
            _ => wait::until_ready(&vms, name, &label).await?,
        }
    }
    println!(
        "vm/{name} {}",
        match (verb, arguments.wait) {
            ("start", true) => "is running",
            ("stop", true) => "is stopped",
            ("restart", true) => "was restarted",
            ("start", false) => "was scheduled to start",
            ("stop", false) => "was scheduled to stop",
            _ => "was scheduled to restart",
        }
    );
    Ok(())
}

/// `NAME`, or `vm NAME`.
fn name(words: &[String]) -> Result<&str> {
    match words {
        [name] => Ok(name),
        [kind, name] if ["vm", "vms", "virtualmachine", "virtualmachines"].contains(&kind.as_str()) => Ok(name),
        [kind, _] => bail!("{kind} cannot be started or stopped; a vm can"),
        _ => bail!("which VM? Give its name"),
    }
}
