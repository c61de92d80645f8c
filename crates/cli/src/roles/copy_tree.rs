//! `ferrovirt copy-tree`: copies files in a container that may have nothing but them. It runs in images of others, so it asks
//! nothing of its surroundings.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::Args;

#[derive(Args)]
pub struct CopyTreeArgs {
    /// A file, or a directory whose file system alone is copied
    from: PathBuf,
    to: PathBuf,
}

pub fn run(arguments: &CopyTreeArgs) -> Result<()> {
    let (from, to) = (&arguments.from, &arguments.to);
    let metadata = fs::metadata(from).with_context(|| format!("cannot look at {}", from.display()))?;
    if metadata.is_file() {
        return fs::copy(from, to).map(drop).with_context(|| format!("cannot write {}", to.display()));
    }
    tree(from, to, metadata.dev())
}

/// Files, directories and links; devices and the like are no part of an image. Other file systems are the container's own.
fn tree(from: &Path, to: &Path, device: u64) -> Result<()> {
    let entries = fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for entry in entries {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let metadata = entry.metadata()?;
        if metadata.dev() != device {
            continue;
        }
        let kind = metadata.file_type();
        if kind.is_dir() {
            match fs::create_dir(&to) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("cannot make {}", to.display()));
                }
                _ => tree(&from, &to, device)?,
            }
        } else if kind.is_symlink() {
            let target = fs::read_link(&from)?;
            let _ = fs::remove_file(&to);
            symlink(target, &to).with_context(|| format!("cannot make {}", to.display()))?;
        } else if kind.is_file() {
            // What we may not read the launcher could not use either.
            match fs::copy(&from, &to) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    eprintln!("{}: {error}", from.display());
                }
                copied => drop(copied.with_context(|| format!("cannot copy {}", from.display()))?),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_copied_and_can_be_copied_again() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir_all(from.join("disk")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("disk/a.qcow2"), "content").unwrap();
        symlink("a.qcow2", from.join("disk/link")).unwrap();
        for _ in 0..2 {
            run(&CopyTreeArgs { from: from.clone(), to: to.clone() }).unwrap();
            assert_eq!(fs::read_to_string(to.join("disk/link")).unwrap(), "content");
        }
        run(&CopyTreeArgs { from: from.join("disk/a.qcow2"), to: to.join("b") }).unwrap();
        assert_eq!(fs::read_to_string(to.join("b")).unwrap(), "content");
        assert!(run(&CopyTreeArgs { from: from.join("none"), to }).is_err());
    }
}
