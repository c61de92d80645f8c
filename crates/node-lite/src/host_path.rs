//! Directories of the host in a pod. Our controllers write some from what a VM's owner asked for (host disks, where the cluster's
//! configuration allows them), so not every path is theirs to ask for.

use std::io;
use std::path::{Path, PathBuf};

use ferrovirt_beneath::Dir;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2, readlinkat};

use crate::makers::Trust;

/// What is of the system, with everything below.
const SYSTEM: [&str; 18] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/backups",
    "/var/cache",
    "/var/log",
    "/var/spool",
];
/// What holds things of others, but may hold a directory for disks too.
const SHARED: [&str; 8] = ["/", "/home", "/mnt", "/opt", "/srv", "/tmp", "/var", "/var/lib"];

#[derive(Debug, thiserror::Error)]
pub enum HostPathError {
    #[error("{0} is not an absolute path")]
    Relative(PathBuf),
    #[error("cannot find the directory {path} of the host")]
    Missing { path: PathBuf, source: io::Error },
    #[error("{0} is of the host's own; disks need a directory of their own")]
    System(PathBuf),
}

/// What may be mounted from the host.
#[derive(Debug, Clone, Copy)]
pub struct HostPaths<'a> {
    pub trust: Trust,
    /// Holds the API's objects, keys, and everybody's volumes.
    pub data_dir: &'a Path,
    /// What of it our controllers' pods mount.
    pub shared: &'a [PathBuf],
}

impl HostPaths<'_> {
    /// Where a path really is, if the pod may have it.
    pub fn resolve(&self, path: &Path) -> Result<PathBuf, HostPathError> {
        if !path.is_absolute() {
            return Err(HostPathError::Relative(path.to_owned()));
        }
        let real = real_path(path).map_err(|source| HostPathError::Missing { path: path.to_owned(), source })?;
        if self.trust == Trust::Host
            || self.shared.iter().any(|shared| real_path(shared).is_ok_and(|own| real.starts_with(own)))
        {
            return Ok(real);
        }
        let data_dir = real_path(self.data_dir).unwrap_or_else(|_| self.data_dir.to_owned());
        let is_system = SYSTEM.iter().any(|system| real.starts_with(system))
            || SHARED.iter().any(|shared| real == Path::new(shared))
            || real.starts_with(&data_dir)
            || data_dir.starts_with(&real);
        match is_system {
            true => Err(HostPathError::System(real)),
            false => Ok(real),
        }
    }
}

/// The path without links. Who mounts it follows none, so nothing that changes after this leads elsewhere.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    let handle = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let name = readlinkat(CWD, ferrovirt_beneath::proc_path(&handle), Vec::new())?;
    Ok(PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(name.into_bytes())))
}

/// Opens a directory by its real path, which has no links: one that is there now leads elsewhere.
pub(crate) fn open_dir(real: &Path) -> io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let direct = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Dir::from_fd(openat2(CWD, real, flags, Mode::empty(), direct)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_host_disk_is_not_a_way_to_files_of_the_host() {
        let home = tempfile::tempdir().unwrap();
        let data_dir = home.path().join("data");
        let cache = data_dir.join("images/cache");
        fs::create_dir_all(&cache).unwrap();
        fs::create_dir_all(data_dir.join("pods/u1/volumes")).unwrap();
        let disks = home.path().join("disks");
        fs::create_dir(&disks).unwrap();
        for (name, to) in [("etc", Path::new("/etc")), ("data", &data_dir), ("root", Path::new("/"))] {
            symlink(to, disks.join(name)).unwrap();
        }
        let shared = [cache.clone()];
        let paths = |trust| HostPaths { trust, data_dir: &data_dir, shared: &shared };
        for path in [
            Path::new("/"),
            Path::new("/etc"),
            Path::new("/etc/ssl"),
            Path::new("/proc/1/root"),
            Path::new("/proc/self/root/etc"),
            Path::new("/var/run"),
            Path::new("/var/lib/../../etc"),
            Path::new("//usr//lib"),
            Path::new("etc"),
            Path::new(""),
            home.path(),
            &data_dir,
            &data_dir.join("pods/u1/volumes"),
            &data_dir.join("images"),
            &disks.join("etc"),
            &disks.join("etc/ssl"),
            &disks.join("data/pods"),
            &disks.join("root"),
            &disks.join("missing"),
        ] {
            assert!(paths(Trust::Controller).resolve(path).is_err(), "{}", path.display());
        }
        let real = fs::canonicalize(&disks).unwrap();
        assert_eq!(paths(Trust::Controller).resolve(&disks).unwrap(), real);
        assert_eq!(paths(Trust::Controller).resolve(&cache).unwrap(), fs::canonicalize(&cache).unwrap());
        assert_eq!(
            paths(Trust::Host).resolve(&disks.join("data/pods")).unwrap(),
            fs::canonicalize(data_dir.join("pods")).unwrap()
        );
    }
}
