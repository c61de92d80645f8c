//! What Helm cannot do by itself, as jobs of the chart (`templates/hooks.yaml`).

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::{
    cluster::Cluster,
    manifests::{Manifests, VERSION},
    values::Chosen,
    version,
};
use crate::client::ClientArgs;

#[derive(Args)]
pub struct HookArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[arg(value_enum)]
    when: When,
}

#[derive(Clone, Copy, ValueEnum)]
enum When {
    /// Refuse to go back, and bring the definitions of our kinds up to date: Helm only makes those that are missing
    PreUpgrade,
    /// Take from nodes what their agents said about them
    PostDelete,
}

pub async fn hook(arguments: HookArgs) -> Result<()> {
    let cluster = Cluster::new(arguments.client.connect().await?);
    match arguments.when {
        When::PreUpgrade => {
            if let Some(installed) = cluster.installed().await? {
                version::forward(&installed.version, VERSION)?;
            }
            let manifests = Manifests::render(&Chosen::default())?;
            cluster.apply(&manifests.definitions).await?;
            cluster.wait_for_definitions(&manifests.definitions).await
        }
        When::PostDelete => cluster.forget_nodes().await,
    }
}
