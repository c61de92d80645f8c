//! `ferrovirt fsck`, `backup` and `restore`: the stored objects of an embedded host.
//!
//! A backup is a directory with `store/` (every object of the API) and `pki/` (the authority and the keys, so that
//! credentials and tokens stay valid). Disks of VMs are not in it.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use ferrovirt_store::FsckReport;

use crate::{
    HostArgs, next, root,
    up::{control, paths::Paths, pki},
};

#[derive(Args)]
pub struct BackupArgs {
    /// A new or empty directory
    directory: PathBuf,
    #[command(flatten)]
    host: HostArgs,
}

#[derive(Args)]
pub struct RestoreArgs {
    /// The directory of a backup
    directory: PathBuf,
    #[command(flatten)]
    host: HostArgs,
    /// Put the objects that are there aside, also damaged ones
    #[arg(long)]
    replace: bool,
}

pub fn fsck(arguments: &HostArgs) -> Result<()> {
    let paths = Paths::new(&arguments.data_dir)?;
    root::needed_for(&paths.store())?;
    if !paths.store().is_dir() {
        bail!("{} has no stored objects: is it the data directory of a host?", paths.data_dir.display());
    }
    let report = ferrovirt_store::fsck(&paths.store())?;
    println!("{} is whole: {}", paths.store().display(), summary(&report));
    if report.torn_bytes > 0 {
        println!("an unfinished last write of {} bytes is cut off by the next start", report.torn_bytes);
    }
    for name in &report.leftovers {
        println!("{name} is left over and is removed by the next start");
    }
    Ok(())
}

fn summary(report: &FsckReport) -> String {
    let FsckReport { objects, bytes, records, revision, .. } = report;
    format!("{objects} objects, {bytes} bytes, in {records} records up to revision {revision}")
}

pub async fn backup(arguments: BackupArgs) -> Result<()> {
    let paths = Paths::new(&arguments.host.data_dir)?;
    let directory = std::path::absolute(&arguments.directory).context("cannot resolve the directory of the backup")?;
    root::needed_for(&paths.store())?;
    if !paths.store().is_dir() {
        bail!("{} has no stored objects: is it the data directory of a host?", paths.data_dir.display());
    }
    let used = fs::read_dir(&directory).is_ok_and(|mut entries| entries.next().is_some());
    if used {
        bail!("{} is not empty", directory.display());
    }
    make_private(&directory)?;
    let store = directory.join(ferrovirt_apiserver::STORE_DIR);
    if !control::backup(&paths.control_socket(), &store).await? {
        ferrovirt_store::copy(&paths.store(), &store)?;
    }
    copy_keys(&paths.pki(), &directory.join("pki"))?;
    let report = ferrovirt_store::fsck(&store)?;
    println!("{} holds {}", directory.display(), summary(&report));
    println!("the disks of VMs are not in it");
    Ok(())
}

pub async fn restore(arguments: RestoreArgs) -> Result<()> {
    let paths = Paths::new(&arguments.host.data_dir)?;
    root::needed_for(&paths.store())?;
    let source = arguments.directory.join(ferrovirt_apiserver::STORE_DIR);
    if !source.is_dir() {
        bail!("{} is not a backup: it has no {}", arguments.directory.display(), source.display());
    }
    if let Some(status) = control::status(&paths.control_socket()).await {
        let down = next::ferrovirt("down");
        bail!("the host of {} is running (pid {}): `{down}` first", paths.data_dir.display(), status.pid);
    }
    // Nothing is put aside for a backup that cannot be read.
    ferrovirt_store::fsck(&source).context("the backup cannot be read")?;
    make_private(&paths.data_dir)?;
    let store = paths.store();
    let used = fs::read_dir(&store).is_ok_and(|mut entries| entries.next().is_some());
    if used && !arguments.replace {
        bail!("{} has objects already: --replace puts them aside", paths.data_dir.display());
    }
    if used {
        let aside = free_name(&store);
        fs::rename(&store, &aside).with_context(|| format!("cannot put {} aside", store.display()))?;
        println!("what was there is in {}", aside.display());
    }
    let report = ferrovirt_store::restore(&source, &store)?;
    copy_keys(&arguments.directory.join("pki"), &paths.pki())?;
    println!("{} holds {}", paths.data_dir.display(), summary(&report));
    println!("start it with `{}`", next::ferrovirt("up"));
    Ok(())
}

/// `store.old`, `store.old.2` and so on, whichever is free.
fn free_name(store: &Path) -> PathBuf {
    let name = |n: u32| store.with_extension(if n == 1 { "old".to_owned() } else { format!("old.{n}") });
    (1..).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(1))
}

fn make_private(directory: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| format!("cannot create {}", directory.display()))
}

fn copy_keys(from: &Path, to: &Path) -> Result<()> {
    make_private(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            pki::write_private(&to.join(entry.file_name()), &fs::read(entry.path())?)?;
        }
    }
    Ok(())
}
