//! The root a launcher sees: the host's programs and libraries, read only, in a file system of its own. Nothing of the
//! host's `/etc`, `/var`, `/home` or data directory is in it but what is named here.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, SFlag, mknod};

use crate::init::{InitError, fail, fail_errno};
use crate::privilege;
use crate::records::InitPlan;

/// Where the launcher stands inside, in both modes.
pub const LAUNCHER_PATH: &str = "/usr/bin/ferrovirt-launcher";

/// Where the tools' image has its program.
pub const TOOLS_PATH: &str = "/usr/bin/ferrovirt";

/// Parts of the host's `/etc` that programs from its `/usr` need. Never a directory with private keys.
const ETC: &[&str] = &[
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "gnutls",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "os-release",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "qemu",
    "services",
    "ssl/certs",
];

const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/net/tun",
    "/dev/vhost-net",
];

const DEVICE_LINKS: &[(&str, &str)] = &[
    ("/dev/ptmx", "pts/ptmx"),
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// Builds the root on `plan.staging`, in the mount namespace of the caller.
pub(crate) fn assemble(plan: &InitPlan, termination_log: &Path) -> Result<(), InitError> {
    let root = Root { path: &plan.staging };
    mount_new(root.path, "tmpfs", MsFlags::MS_NOSUID | MsFlags::MS_NODEV, "mode=0755,size=64m")?;
    programs(&root, plan)?;
    writable(&root, plan)?;
    configuration(&root, plan)?;
    kernel(&root, plan)?;
    devices(&root, plan)?;
    last_words(&root, plan, termination_log)
}

/// Makes a mount unable to bring in privileges, and read only when asked.
pub(crate) fn restrict(target: &Path, read_only: bool) -> Result<(), InitError> {
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    if read_only {
        flags |= MsFlags::MS_RDONLY;
    }
    mount(None::<&str>, target, None::<&str>, flags, None::<&str>).map_err(fail_errno("restrict", target))
}

struct Root<'a> {
    path: &'a Path,
}

impl Root<'_> {
    fn at(&self, inside: impl AsRef<Path>) -> PathBuf {
        let inside = inside.as_ref();
        self.path.join(inside.strip_prefix("/").unwrap_or(inside))
    }

    fn dir(&self, inside: &str, mode: u32) -> Result<PathBuf, InitError> {
        let path = self.at(inside);
        fs::create_dir_all(&path).map_err(fail("create", &path))?;
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(fail("set the mode of", &path))?;
        Ok(path)
    }

    fn file(&self, inside: impl AsRef<Path>, content: &str) -> Result<PathBuf, InitError> {
        let path = self.at(inside);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(fail("create", parent))?;
        }
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).open(&path).map_err(fail("create", &path))?;
        file.write_all(content.as_bytes()).map_err(fail("write", &path))?;
        file.set_permissions(Permissions::from_mode(0o644)).map_err(fail("set the mode of", &path))?;
        Ok(path)
    }

    fn link(&self, inside: &str, to: impl AsRef<Path>) -> Result<(), InitError> {
        let path = self.at(inside);
        symlink(to, &path).map_err(fail("link", &path))
    }

    /// Shows something of the host: a link as the same link, the rest as a read-only bind mount.
    fn show(&self, host: &Path) -> Result<(), InitError> {
        let Ok(metadata) = fs::symlink_metadata(host) else {
            return Ok(());
        };
        if metadata.is_symlink() {
            let target = fs::read_link(host).map_err(fail("read", host))?;
            let path = self.at(host);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(fail("create", parent))?;
            }
            return symlink(target, &path).map_err(fail("link", &path));
        }
        let target = if metadata.is_dir() {
            let path = self.at(host);
            fs::create_dir_all(&path).map_err(fail("create", &path))?;
            path
        } else {
            self.file(host, "")?
        };
        bind(host, &target)?;
        restrict(&target, true)
    }
}

fn programs(root: &Root<'_>, plan: &InitPlan) -> Result<(), InitError> {
    // One more file is to appear in the host's /usr without touching it: a second, upper layer holds an empty file, and
    // the launcher is bound over it. Pages of an overlay's files are shared with the host's, so VMs share libraries.
    let layer = root.at("/.image");
    let program = plan.program_path.as_deref().unwrap_or(Path::new(LAUNCHER_PATH));
    root.file(Path::new("/.image").join(program.strip_prefix("/usr").unwrap_or(program)), "")?;
    let usr = root.dir("/usr", 0o755)?;
    let options = format!("lowerdir={}:/usr", escape_overlay(&layer));
    mount_new(&usr, "overlay", MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV, &options)?;
    let launcher = root.at(program);
    bind(&plan.launcher, &launcher)?;
    restrict(&launcher, true)?;
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        root.show(&Path::new("/").join(name))?;
    }
    Ok(())
}

fn writable(root: &Root<'_>, plan: &InitPlan) -> Result<(), InitError> {
    for (path, mode) in [("/tmp", 0o1777), ("/var", 0o755), ("/var/tmp", 0o1777), ("/var/lib", 0o755)] {
        root.dir(path, mode)?;
    }
    let (uid, gid) = plan.host_user();
    for path in ["/run", "/home/qemu", "/var/log", "/var/cache"] {
        let path = root.dir(path, 0o755)?;
        chown(&path, Some(uid), Some(gid)).map_err(fail("hand over", &path))?;
    }
    // Relative, so that it means the same before and after the root changes.
    root.link("/var/run", "../run")
}

fn configuration(root: &Root<'_>, plan: &InitPlan) -> Result<(), InitError> {
    root.dir("/etc", 0o755)?;
    for name in ETC {
        root.show(&Path::new("/etc").join(name))?;
    }
    for (path, content) in &plan.files {
        root.file(path, content)?;
    }
    Ok(())
}

fn kernel(root: &Root<'_>, plan: &InitPlan) -> Result<(), InitError> {
    let hardened = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let proc = root.dir("/proc", 0o555)?;
    mount_new(&proc, "proc", hardened, "")?;
    // The kernel gives a container's user namespace a /proc of its own only where nothing of ours is covered.
    let covered: &[&str] = if plan.privileged { &[] } else { &["sys", "sysrq-trigger", "irq", "bus"] };
    for name in covered {
        let path = proc.join(name);
        if path.exists() {
            bind(&path, &path)?;
            restrict(&path, true)?;
        }
    }
    let sys = root.dir("/sys", 0o555)?;
    // For the same reason it must not be read only there; what a guest sees is its driver's to restrict.
    let writable = if plan.privileged { MsFlags::empty() } else { MsFlags::MS_RDONLY };
    mount_new(&sys, "sysfs", hardened | writable, "")?;
    if plan.privileged { privilege::mount_cgroups(&root.at("/sys/fs/cgroup")) } else { Ok(()) }
}

fn devices(root: &Root<'_>, plan: &InitPlan) -> Result<(), InitError> {
    let dev = root.dir("/dev", 0o755)?;
    mount_new(&dev, "tmpfs", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, "mode=0755,size=64k")?;
    let granted = plan.devices.iter().map(PathBuf::as_path);
    let privileged = privilege::DEVICES.iter().filter(|_| plan.privileged).map(Path::new);
    for host in DEVICES.iter().map(Path::new).chain(privileged).chain(granted) {
        // A node of our own, not a bind mount: the host's may be closed to uid 107.
        let Ok(metadata) = fs::metadata(host) else {
            continue;
        };
        let path = root.at(host);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(fail("create", parent))?;
        }
        let kind = SFlag::from_bits_truncate(metadata.mode()) & SFlag::S_IFMT;
        if !matches!(kind, SFlag::S_IFCHR | SFlag::S_IFBLK) || path.exists() {
            continue;
        }
        mknod(&path, kind, Mode::empty(), metadata.rdev()).map_err(fail_errno("create", &path))?;
        fs::set_permissions(&path, Permissions::from_mode(0o666)).map_err(fail("set the mode of", &path))?;
    }
    for (path, to) in DEVICE_LINKS {
        root.link(path, to)?;
    }
    let pts = root.dir("/dev/pts", 0o755)?;
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount_new(&pts, "devpts", quiet, "newinstance,ptmxmode=0666,mode=0620")?;
    let shm = root.dir("/dev/shm", 0o1777)?;
    mount_new(&shm, "tmpfs", quiet | MsFlags::MS_NODEV, "mode=1777,size=64m")
}

/// A file of the host in which the container says why it ends; what is in there outlives it.
fn last_words(root: &Root<'_>, plan: &InitPlan, host: &Path) -> Result<(), InitError> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(host).map_err(fail("create", host))?;
    file.set_permissions(Permissions::from_mode(0o600)).map_err(fail("set the mode of", host))?;
    let (uid, gid) = plan.host_user();
    chown(host, Some(uid), Some(gid)).map_err(fail("hand over", host))?;
    let inside = root.file("/dev/termination-log", "")?;
    bind(host, &inside)?;
    restrict(&inside, false)
}

fn mount_new(target: &Path, kind: &'static str, flags: MsFlags, options: &str) -> Result<(), InitError> {
    let options = Some(options).filter(|options| !options.is_empty());
    mount(Some(kind), target, Some(kind), flags, options).map_err(fail_errno("mount a file system on", target))
}

fn bind(source: &Path, target: &Path) -> Result<(), InitError> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(fail_errno("show", source))
}

/// Colons separate layers and commas options; a data directory may contain either.
fn escape_overlay(path: &Path) -> String {
    let mut out = String::new();
    for character in path.to_string_lossy().chars() {
        if matches!(character, ':' | ',' | '\\') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_paths_are_escaped() {
        for (input, expected) in [("/a/b", "/a/b"), ("/a:b,c", "/a\\:b\\,c"), ("/a\\b", "/a\\\\b")] {
            assert_eq!(escape_overlay(Path::new(input)), expected);
        }
    }
}
