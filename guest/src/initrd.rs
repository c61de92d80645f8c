//! The first process: finds the root file system by its label and hands over to the init on it.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, mount, mount_move};

use crate::devices::{self, FileSystem};
use crate::modules::{self, Scope};
use crate::say;

/// Has to agree with scripts/guest-image.sh.
const ROOT_LABEL: &str = "ferrovirt-root";
const WAIT: Duration = Duration::from_secs(20);

pub fn run() -> Result<()> {
    // The exact line that benchmarks wait for. Firmware and boot loader may have left the cursor in the middle of another one.
    println!();
    say("user space is up");
    if let Err(error) = switch() {
        say(format_args!("cannot start: {error:#}"));
        // The end of the first process is a kernel panic, which the kernel's command line turns into a reset or a halt.
        return Err(error);
    }
    Ok(())
}

fn switch() -> Result<()> {
    for (kind, target) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        std::fs::create_dir_all(target)?;
        mount(kind, target, kind, MountFlags::empty(), None).with_context(|| format!("cannot mount {target}"))?;
    }
    let deadline = Instant::now() + WAIT;
    let (device, kind, _) = loop {
        modules::load_for_devices(Scope::Disks)?;
        if let Some(found) = devices::find(&[ROOT_LABEL]) {
            break found;
        }
        if Instant::now() > deadline {
            bail!("no disk with the label {ROOT_LABEL}; this guest knows virtio disks only");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    if kind == FileSystem::Ext {
        // Not all kernels have it built in, nor what it computes checksums with.
        ["crc32c_generic", "ext4"].into_iter().try_for_each(modules::load)?;
    }
    let root = Path::new("/root");
    std::fs::create_dir_all(root)?;
    mount(&device, root, kind.name(), MountFlags::NOATIME, None)
        .with_context(|| format!("cannot mount {}", device.display()))?;
    for name in ["dev", "proc", "sys"] {
        mount_move(Path::new("/").join(name), root.join(name)).with_context(|| format!("cannot move /{name}"))?;
    }
    // The initrd's memory is given back by deleting its files.
    for path in ["/init", "/lib/modules/flat"] {
        let path = Path::new(path);
        let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
    std::env::set_current_dir(root)?;
    mount_move(".", "/").context("cannot make the disk the root")?;
    rustix::process::chroot(".").context("cannot change to the root")?;
    std::env::set_current_dir("/")?;
    Err(Command::new("/sbin/init").env_clear().env("PATH", PATH).exec()).context("cannot run /sbin/init")
}

pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
