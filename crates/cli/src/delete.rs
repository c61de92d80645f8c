//! `ferrovirt delete`: removes objects and waits until they are gone.

use anyhow::{Result, bail};
use clap::Args;
use kube::api::DeleteParams;

use crate::{
    apply::read_files,
    client::{ClientArgs, dynamic, find_gvk, find_kind},
    wait,
};

#[derive(Args)]
pub struct DeleteArgs {
    /// What to delete, such as vm
    kind: Option<String>,
    /// Names of the objects
    names: Vec<String>,
    /// Delete what this file holds
    #[arg(short, long = "filename")]
    file: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Wait until the objects are gone
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    wait: bool,
}

pub async fn run(arguments: DeleteArgs) -> Result<()> {
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let mut targets = vec![];
    match &arguments.kind {
        Some(kind) if !arguments.names.is_empty() => {
            let (resource, capabilities) = find_kind(&client, kind).await?;
            for name in &arguments.names {
                targets.push((
                    dynamic(&client, &resource, &capabilities.scope, &namespace),
                    resource.kind.clone(),
                    name.clone(),
                ));
            }
        }
        Some(kind) => bail!("which {kind}? Give a name"),
        None if arguments.file.is_empty() => bail!("what to delete? Give a kind and a name, or a file with -f"),
        None => {}
    }
    for object in read_files(&arguments.file)? {
        let (resource, capabilities) = find_gvk(&client, &object.gvk).await?;
        let namespace = object.namespace.as_deref().unwrap_or(&namespace);
        targets.push((dynamic(&client, &resource, &capabilities.scope, namespace), resource.kind.clone(), object.name));
    }
    let mut deleted = vec![];
    for (api, kind, name) in targets {
        // Its owner is there until what it owns is gone, so whoever waits for the one waits for the other.
        let parameters = if arguments.wait { DeleteParams::foreground() } else { DeleteParams::default() };
        let uid = match api.delete(&name, &parameters).await? {
            either::Either::Left(object) => object.metadata.uid,
            either::Either::Right(_) => None,
        };
        deleted.push((api, kind, name, uid));
    }
    for (api, kind, name, uid) in deleted {
        let label = format!("{}/{name}", kind.to_lowercase());
        if arguments.wait {
            wait::until_gone(&api, &name, uid.as_deref(), &label).await?;
        }
        println!("{label} deleted");
    }
    Ok(())
}
