//! `ferrovirt image-upload`: a disk image from this machine into a volume, by the protocol that virtctl speaks.

mod bar;
mod target;
mod transfer;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

pub use target::{Kind, NewVolume, Target};
pub use transfer::{Proxy, send};

use crate::{amounts, client::ClientArgs};

#[derive(Args)]
pub struct ImageUploadArgs {
    /// `dv` or `pvc` and its name; the name alone means a DataVolume
    #[arg(required = true, num_args = 1..=2)]
    target: Vec<String>,
    /// The image: raw, qcow2, vmdk, vdi or vhdx, also compressed with gzip, xz or zstd
    #[arg(long)]
    image_path: PathBuf,
    /// Size of the disk, such as 10Gi
    #[arg(long, value_parser = amounts::disk, allow_hyphen_values = true)]
    size: Option<String>,
    /// Storage class of the new volume [default: the cluster's]
    #[arg(long)]
    storage_class: Option<String>,
    /// `filesystem` or `block`
    #[arg(long)]
    volume_mode: Option<String>,
    /// How nodes may use the new volume, such as ReadWriteOnce
    #[arg(long)]
    access_mode: Option<String>,
    /// Fill a DataVolume or a claim that exists
    #[arg(long)]
    no_create: bool,
    /// Where uploads go [default: what the CDIConfig says]
    #[arg(long)]
    uploadproxy_url: Option<String>,
    /// For the sake of virtctl's users: volumes are bound at once
    #[arg(long, hide = true)]
    force_bind: bool,
    /// Do not check the upload proxy's certificate
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub async fn run(arguments: ImageUploadArgs) -> Result<()> {
    let (kind, name) = match arguments.target.as_slice() {
        [name] => (Kind::DataVolume, name),
        [kind, name] if ["dv", "datavolume"].contains(&kind.as_str()) => (Kind::DataVolume, name),
        [kind, name] if ["pvc", "persistentvolumeclaim"].contains(&kind.as_str()) => (Kind::Claim, name),
        [kind, _] => bail!("cannot upload to {kind:?}; say dv NAME for a DataVolume or pvc NAME for a claim"),
        _ => bail!("name the DataVolume"),
    };
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let target = Target { kind, name: name.clone(), namespace, client };
    let title = target.title();
    if arguments.no_create {
        target.adopt().await?;
    } else {
        let size = arguments.size.as_deref().context("give the size of the disk with --size, such as --size 10Gi")?;
        let volume = NewVolume {
            size,
            storage_class: arguments.storage_class.as_deref(),
            volume_mode: arguments.volume_mode.as_deref(),
            access_mode: arguments.access_mode.as_deref(),
        };
        match target.create(&volume).await? {
            true => println!("{title} created"),
            false => println!("{title} waits for an upload already"),
        }
    }
    let proxy = Proxy { url: arguments.uploadproxy_url.as_deref(), insecure: arguments.insecure };
    send(target, &arguments.client, &arguments.image_path, proxy).await?;
    println!("{title} is filled");
    Ok(())
}
