//! Where the disk is in a containerDisk image: the one file in `/disk`, or the path that the VM names.

use std::path::{Component, Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("the image has no directory /disk")]
    NoDirectory,
    #[error("the image has no file in /disk")]
    Empty,
    #[error("the image has more than one file in /disk ({0}); name one with `path`")]
    Many(String),
    #[error("the image has no file {0}")]
    Missing(String),
    #[error("{0} is not an absolute path inside the image")]
    BadPath(String),
    #[error("{0} is not a regular file")]
    NotAFile(String),
    #[error("cannot read {path}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

/// The disk file under `rootfs`. Symbolic links are not followed: an image must not be able to name a file of the host.
pub fn find_disk(rootfs: &Path, path: Option<&str>) -> Result<PathBuf, DiskError> {
    match path {
        Some(path) => named(rootfs, path),
        None => only(rootfs),
    }
}

fn named(rootfs: &Path, path: &str) -> Result<PathBuf, DiskError> {
    let mut at = rootfs.to_path_buf();
    for part in Path::new(path).components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => {
                if at != rootfs && at.symlink_metadata().is_ok_and(|m| !m.is_dir()) {
                    return Err(DiskError::NotAFile(path.to_string()));
                }
                at.push(name);
            }
            Component::ParentDir | Component::Prefix(_) => {
                return Err(DiskError::BadPath(path.to_string()));
            }
        }
    }
    match at.symlink_metadata() {
        Ok(m) if m.is_file() => Ok(at),
        Ok(_) => Err(DiskError::NotAFile(path.to_string())),
        Err(_) => Err(DiskError::Missing(path.to_string())),
    }
}

fn only(rootfs: &Path) -> Result<PathBuf, DiskError> {
    let dir = rootfs.join("disk");
    if !dir.symlink_metadata().is_ok_and(|m| m.is_dir()) {
        return Err(DiskError::NoDirectory);
    }
    let wrap = |source| DiskError::Read { path: dir.clone(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&dir).map_err(wrap)? {
        let entry = entry.map_err(wrap)?;
        if entry.file_type().map_err(wrap)?.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    match files.len() {
        0 => Err(DiskError::Empty),
        1 => Ok(files.remove(0)),
        _ => {
            let names: Vec<_> = files.iter().filter_map(|f| f.file_name()?.to_str()).collect();
            Err(DiskError::Many(names.join(", ")))
        }
    }
}
