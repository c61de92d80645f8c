//! `ferrovirt image`: images on this host.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use ferrovirt_disks::store::ImageStore;

use crate::{HostArgs, root, table, up::images::confined, up::paths::Paths};

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Take an image archive (OCI layout or docker-archive tar) into the host's image store
    Import(ImportArgs),
    /// List the images in the store
    List(HostArgs),
    /// Remove an image
    Remove(RemoveArgs),
}

#[derive(Args)]
pub struct ImportArgs {
    /// The archive
    file: PathBuf,
    /// Name of the image [default: the one in the archive]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    host: HostArgs,
}

#[derive(Args)]
pub struct RemoveArgs {
    /// Name of the image, as `list` prints it
    name: String,
    #[command(flatten)]
    host: HostArgs,
}

pub fn run(command: ImageCommand) -> Result<()> {
    match command {
        ImageCommand::Import(arguments) => {
            let image = open(&arguments.host)?
                .import(&arguments.file, arguments.name.as_deref())
                .with_context(|| format!("cannot import {}", arguments.file.display()))?;
            println!("{} {}", image.reference, image.digest);
        }
        ImageCommand::List(host) => {
            let rows = open(&host)?.list()?.into_iter().map(|image| {
                let digest: String = image.digest.chars().take(19).collect();
                vec![image.reference, digest, format!("{} MiB", image.size.div_ceil(1 << 20))]
            });
            table::print(&["IMAGE".into(), "DIGEST".into(), "SIZE".into()], &rows.collect::<Vec<_>>());
        }
        ImageCommand::Remove(arguments) => {
            open(&arguments.host)?.remove(&arguments.name)?;
            println!("{} removed", arguments.name);
        }
    }
    Ok(())
}

fn open(host: &HostArgs) -> Result<ImageStore> {
    let paths = Paths::new(&host.data_dir)?;
    root::needed_for(&paths.data_dir)?;
    paths.create()?;
    ImageStore::open(&paths.images(), confined(vec![]))
        .with_context(|| format!("cannot open {}", paths.images().display()))
}
