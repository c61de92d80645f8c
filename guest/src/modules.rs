//! Kernel modules, from one flat directory: each file says in its `.modinfo` section what it needs.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::io::Errno;

const DIR: &str = "/lib/modules/flat";

/// The driver for each virtio device id that the guest knows.
const VIRTIO: &[(&str, &[&str])] = &[
    ("0x0001", &["virtio_net"]),
    ("0x0002", &["virtio_blk"]),
    ("0x0004", &["virtio_rng"]),
    ("0x0005", &["virtio_balloon"]),
    ("0x0008", &["virtio_scsi", "sd_mod", "sr_mod"]),
    ("0x001a", &["virtiofs"]),
];

/// What to drive now: the initrd wants disks only, and quickly.
#[derive(Clone, Copy, PartialEq)]
pub enum Scope {
    Disks,
    All,
}

/// Loads the drivers of the virtio devices that are present. Says nothing about those that have no driver here.
pub fn load_for_devices(scope: Scope) -> Result<()> {
    load("virtio_pci")?;
    let Ok(devices) = std::fs::read_dir("/sys/bus/virtio/devices") else {
        return Ok(());
    };
    let mut ids: Vec<String> = devices
        .filter_map(|d| std::fs::read_to_string(d.ok()?.path().join("device")).ok())
        .map(|id| id.trim().to_string())
        .collect();
    ids.sort();
    ids.dedup();
    for (id, drivers) in VIRTIO {
        let wanted = scope == Scope::All || matches!(*id, "0x0002" | "0x0008");
        if wanted && ids.iter().any(|i| i == id) {
            for driver in *drivers {
                load(driver)?;
            }
        }
    }
    Ok(())
}

/// Loads a module after those it depends on. One that is already there, or built in, is fine.
pub fn load(name: &str) -> Result<()> {
    if Path::new("/sys/module").join(name).exists() {
        return Ok(());
    }
    let path = Path::new(DIR).join(format!("{name}.ko"));
    if !path.exists() {
        return Ok(());
    }
    let image = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    for dependency in depends(&image) {
        load(&dependency)?;
    }
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    match rustix::system::finit_module(&file, c"", 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e).with_context(|| format!("cannot load the module {name}")),
    }
}

/// The `depends=` of a module image, with the names as `/sys/module` spells them.
fn depends(image: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = image.windows(KEY.len()).position(|w| w == KEY) else {
        return Vec::new();
    };
    let value: Vec<u8> = image[at + KEY.len()..].iter().copied().take_while(|&b| b != 0).collect();
    let text = String::from_utf8_lossy(&value).replace('-', "_");
    text.split(',').filter(|n| !n.is_empty()).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::depends;

    #[test]
    fn dependencies_are_read_from_the_image() {
        assert_eq!(depends(b"ELF..license=GPL\0depends=rng-core,virtio\0name=x"), ["rng_core", "virtio"]);
        assert_eq!(depends(b"ELF..license=GPL\0depends=\0name=x"), [""; 0]);
        assert_eq!(depends(b"ELF"), [""; 0]);
    }
}
