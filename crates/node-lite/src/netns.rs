//! Named network namespaces: a namespace kept alive by a bind mount, so that it exists before the pod's first process
//! and until the plugins have released it.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} the network namespace {path}")]
pub struct NetnsError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Makes a new, empty namespace at `path`. One that exists is kept: it may be in use.
pub fn create(path: &Path) -> Result<(), NetnsError> {
    let fail = |action| move |source| NetnsError { action, path: path.to_owned(), source };
    if is_namespace(path) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(fail("prepare"))?;
    }
    OpenOptions::new().append(true).create(true).open(path).map_err(fail("prepare"))?;
    // Namespaces belong to threads. This one ends at once; the bind mount keeps what it made.
    let target = path.to_owned();
    let made = std::thread::Builder::new()
        .name("netns".to_owned())
        .spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            // There is nobody on a pod's cable who could have its address; waiting for an objection would delay it.
            let _ = fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
            mount(Some("/proc/thread-self/ns/net"), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        })
        .map_err(fail("create"))?
        .join();
    match made {
        Ok(result) => result.map_err(|errno| fail("create")(errno.into())),
        Err(_) => Err(fail("create")(io::ErrorKind::Other.into())),
    }
}

/// Lets go of the namespace. Missing is fine.
pub fn remove(path: &Path) -> Result<(), NetnsError> {
    let fail = |action| move |source| NetnsError { action, path: path.to_owned(), source };
    while is_namespace(path) {
        umount2(path, MntFlags::MNT_DETACH).map_err(|errno| fail("unmount")(errno.into()))?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fail("remove")(error)),
        _ => Ok(()),
    }
}

pub fn is_namespace(path: &Path) -> bool {
    const NSFS_MAGIC: i64 = 0x6e73_6673;
    nix::sys::statfs::statfs(path).is_ok_and(|stat| stat.filesystem_type() == nix::sys::statfs::FsType(NSFS_MAGIC))
}
