//! `ferrovirt delete`: removes objects and waits until they are gone.

use anyhow::{Context, Result, bail};
use clap::Args;
use ferrovirt_api::v1::{StopOptions, VirtualMachine, VirtualMachineInstance};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject},
};

use crate::{
    apply::read_files,
    client::{ClientArgs, dynamic, find_gvk, find_kind},
    each, get, socket,
    target::Kind,
    wait,
};

#[derive(Args)]
pub struct DeleteArgs {
    /// What to delete, such as `vm demo`, `vm/demo` or `vm a b c`
    #[arg(value_name = "KIND NAME|KIND/NAME")]
    words: Vec<String>,
    /// Delete what this file holds
    #[arg(short, long = "filename")]
    file: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Wait until the objects are gone
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    wait: bool,
    /// End running guests at once instead of asking them to shut down; what they have not written to disk is lost
    #[arg(long)]
    force: bool,
    /// Missing objects are no failure
    #[arg(long)]
    ignore_not_found: bool,
}

struct Target {
    api: Api<DynamicObject>,
    resource: ApiResource,
    name: String,
}

impl Target {
    fn label(&self) -> String {
        format!("{}/{}", self.resource.kind.to_lowercase(), self.name)
    }
}

pub async fn run(arguments: DeleteArgs) -> Result<()> {
    if arguments.words.is_empty() && arguments.file.is_empty() {
        bail!("what to delete? Give a kind and a name, or a file with -f");
    }
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let mut targets = vec![];
    for (kind, names) in get::kinds_and_names(&arguments.words)? {
        if names.is_empty() {
            bail!("which {kind}? Give a name");
        }
        let (resource, capabilities) = find_kind(&client, &kind).await?;
        for name in names {
            let api = dynamic(&client, &resource, &capabilities.scope, &namespace);
            targets.push(Target { api, resource: resource.clone(), name });
        }
    }
    for object in read_files(&arguments.file)? {
        let (resource, capabilities) = find_gvk(&client, &object.gvk).await?;
        let namespace = object.namespace.as_deref().unwrap_or(&namespace);
        let api = dynamic(&client, &resource, &capabilities.scope, namespace);
        targets.push(Target { api, resource, name: object.name });
    }
    let mut deleted = vec![];
    let refused = each::of(targets, async |target| match delete(&client, &target, &arguments).await {
        Err(error) if arguments.ignore_not_found && is_missing(&error) => Ok(()),
        outcome => {
            deleted.push((target, outcome?));
            Ok(())
        }
    });
    let refused = refused.await;
    let failed = each::of(deleted, async |(target, uid)| {
        let label = target.label();
        if arguments.wait {
            wait::until_gone(&target.api, &target.name, uid.as_deref(), &label).await?;
        }
        println!("{label} deleted");
        Ok(())
    });
    each::both(refused, failed.await)
}

/// Answers the uid of what goes.
async fn delete(client: &Client, target: &Target, arguments: &DeleteArgs) -> Result<Option<String>> {
    // Its owner is there until what it owns is gone, so whoever waits for the one waits for the other.
    let mut parameters = if arguments.wait { DeleteParams::foreground() } else { DeleteParams::default() };
    if arguments.force {
        parameters = parameters.grace_period(0);
        let namespace = target.api.namespace().unwrap_or_default();
        hurry(client, namespace, target).await.with_context(|| format!("cannot end {} at once", target.label()))?;
    }
    Ok(match target.api.delete(&target.name, &parameters).await? {
        either::Either::Left(object) => object.metadata.uid,
        either::Either::Right(_) => None,
    })
}

/// Lets a running guest end at once. Its processes are ended in order all the same, and only then is the object gone: that is what
/// keeps a disk from being open twice.
async fn hurry(client: &Client, namespace: &str, target: &Target) -> Result<()> {
    if target.resource.group != VirtualMachine::group(&()) {
        return Ok(());
    }
    match target.resource.kind.as_str() {
        "VirtualMachine" => {}
        "VirtualMachineInstance" => {
            bail!("an instance has the grace period that it was made with; delete its VM instead")
        }
        _ => return Ok(()),
    }
    // A VM that does not run has nothing to hurry.
    if Api::<VirtualMachineInstance>::namespaced(client.clone(), namespace).get_opt(&target.name).await?.is_none() {
        return Ok(());
    }
    let path = socket::path(namespace, Kind::Machine.resource(), &target.name, "stop");
    let options = serde_json::to_vec(&StopOptions { grace_period: Some(0), dry_run: vec![] })?;
    match client.request_text(http::Request::put(path).body(options)?).await {
        // It has ended meanwhile, or ends already.
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(()),
        outcome => Ok(outcome.map(drop)?),
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<kube::Error>());
    causes.any(|cause| matches!(cause, kube::Error::Api(status) if status.code == 404))
}
