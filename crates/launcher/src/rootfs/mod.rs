//! A container's root file system: an image's tree, untouched and shared, below a layer for what this guest writes.
//!
//! The tree's files belong to root and its other users by number. An id-mapped mount shows them as belonging to the guest's
//! own range, so nothing is copied or changed, and what the guest writes is in that range. Writes go to a layer that ends
//! with the machine; a tree without one (a volume) is written itself, with the numbers mapped back. Where the tree's file
//! system cannot be mapped, as an overlay of a cluster's container runtime, a copy of the tree beside the layer is.

mod copy;
mod idmap;
mod ownership;

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use ferrovirt_machine::spec::IdRange;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::mount::{MountFlags, MoveMountFlags, mount, move_mount};

pub use idmap::hold;

#[derive(Debug, thiserror::Error)]
pub enum RootError {
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the files of {} cannot be shown with the guest's user ids; that needs Linux 5.19 and a file system such as ext4, \
         xfs, btrfs or, from Linux 6.3 on, tmpfs",
        path.display()
    )]
    Map { path: PathBuf, source: io::Error },
    #[error("{} has no /sbin/init; a container starts from the file tree of a whole system", .0.display())]
    NoInit(PathBuf),
}

/// Mounts the tree `base` on `path`, with writes to `scratch` if there is one.
pub fn assemble(path: &Path, base: &Path, scratch: Option<&Path>, ids: IdRange) -> Result<(), RootError> {
    make_dir(path)?;
    open_way(path)?;
    let tree = map(base, scratch, ids)?;
    let attach = |target: &Path| {
        move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|error| fail("mount", target)(error.into()))
    };
    let Some(scratch) = scratch else {
        attach(path)?;
        return check_init(path, base);
    };
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| scratch.join(name));
    for dir in [&lower, &upper, &work] {
        make_dir(dir)?;
    }
    attach(&lower)?;
    // The top of the layer is the top of the file system.
    own(&upper, ids)?;
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let options = std::ffi::CString::new(options).map_err(|error| fail("mount", path)(error.into()))?;
    mount("overlay", path, "overlay", MountFlags::NODEV, options.as_c_str())
        .map_err(|error| fail("mount", path)(error.into()))?;
    ownership::apply(path, ids).map_err(fail("set the owners of files in", path))?;
    check_init(path, base)
}

/// The tree, or the copy of it that an earlier start of this machine made, or a new one.
fn map(base: &Path, scratch: Option<&Path>, ids: IdRange) -> Result<OwnedFd, RootError> {
    let refused = |path: &Path| {
        let path = path.to_owned();
        move |source| RootError::Map { path, source }
    };
    let error = match idmap::map_tree(base, ids) {
        Ok(tree) => return Ok(tree),
        Err(error) => error,
    };
    let Some(scratch) = scratch.filter(|_| error.kind() == io::ErrorKind::InvalidInput) else {
        return Err(refused(base)(error));
    };
    let (copy, unfinished) = (scratch.join("copy"), scratch.join("unfinished-copy"));
    if !copy.exists() {
        tracing::info!(base = %base.display(), "copying the image, whose file system cannot show a guest's user ids");
        make_dir(scratch)?;
        match fs::remove_dir_all(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail("remove", &unfinished)(error)),
            _ => copy::tree(base, &unfinished).map_err(fail("copy the image to", &unfinished))?,
        }
        fs::rename(&unfinished, &copy).map_err(fail("rename the copy to", &copy))?;
    }
    idmap::map_tree(&copy, ids).map_err(refused(&copy))
}

/// Lets the guest's users pass through the directories on the way to `path`, without letting them look around.
pub fn open_way(path: &Path) -> Result<(), RootError> {
    for dir in path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()) {
        let mode = fs::metadata(dir).map_err(fail("examine", dir))?.permissions().mode();
        if mode & 0o001 == 0 {
            fs::set_permissions(dir, Permissions::from_mode(mode | 0o011))
                .map_err(fail("open the way through", dir))?;
        }
    }
    Ok(())
}

/// Hands a file or directory to the guest's root.
pub fn own(path: &Path, ids: IdRange) -> Result<(), RootError> {
    chown(path, Some(ids.first), Some(ids.first)).map_err(fail("hand over", path))
}

fn check_init(root: &Path, base: &Path) -> Result<(), RootError> {
    let handle = File::open(root).map_err(fail("open", root))?;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match openat2(&handle, "sbin/init", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), inside) {
        Ok(_) => Ok(()),
        Err(_) => Err(RootError::NoInit(base.into())),
    }
}

fn make_dir(path: &Path) -> Result<(), RootError> {
    fs::create_dir_all(path).map_err(fail("make", path))?;
    fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(fail("set the mode of", path))
}

fn fail(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RootError {
    let path = path.to_owned();
    move |source| RootError::Io { action, path, source }
}
