//! What local volumes take of the disk.
//!
//! Root works here below directories of tenants: by descriptor only.

use std::path::Path;

use ferrovirt_beneath::{Dir, MAX_DEPTH};
use k8s_openapi::api::core::v1::PersistentVolume;
use rustix::fs::FileType;

use super::files::Space;
use super::plan::{PROVISIONED_BY, PROVISIONER, storage_bytes};

/// How much of a volume is looked at: a tenant who fills one with small files is told less than he has, and nobody waits.
const MAX_ENTRIES: u64 = 50_000;

/// A claim's volume, and how full it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    pub namespace: String,
    pub claim: String,
    pub capacity: u64,
    /// Bytes that its files really take: they are sparse.
    pub used: u64,
    /// What could still be written, which the disk below may limit more than the claim.
    pub available: u64,
}

/// Looks at the files of a volume that this host made for a claim.
pub fn usage(volume: &PersistentVolume) -> Option<Usage> {
    let spec = volume.spec.as_ref()?;
    let made = volume.metadata.annotations.as_ref()?.get(PROVISIONED_BY)?;
    let claim = spec.claim_ref.as_ref().filter(|_| made == PROVISIONER)?;
    let path = Path::new(&spec.local.as_ref()?.path);
    let capacity = storage_bytes(spec.capacity.as_ref())?;
    // The volume's directory has its name, and what is above is root's.
    let name = volume.metadata.name.as_deref()?;
    let own = path.ancestors().find(|at| at.file_name().is_some_and(|last| last == name))?;
    let home = own.parent()?;
    let mut left = MAX_ENTRIES;
    let used = Dir::open(home).and_then(|home| home.sub(name)).map_or(0, |own| allocated(&own, &mut left, 0));
    let left = Space::of(home).map_or(0, |space| space.available);
    Some(Usage {
        namespace: claim.namespace.clone()?,
        claim: claim.name.clone()?,
        capacity,
        used,
        available: capacity.saturating_sub(used).min(left),
    })
}

/// Bytes on the disk below a directory, without looking over links or into other mounts.
fn allocated(directory: &Dir, left: &mut u64, depth: usize) -> u64 {
    let mut sum = 0;
    for entry in directory.entries().into_iter().flatten().flatten() {
        let Some(rest) = left.checked_sub(1).filter(|_| depth < MAX_DEPTH) else { break };
        *left = rest;
        let bytes = match entry.kind {
            FileType::Directory => directory.sub(&entry.name).map_or(0, |inner| allocated(&inner, left, depth + 1)),
            FileType::RegularFile => {
                directory.stat(&entry.name).map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * 512)
            }
            _ => 0,
        };
        sum += bytes;
    }
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sparse_disk_counts_with_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("v");
        std::fs::create_dir(&home).unwrap();
        let disk = std::fs::File::create(home.join("disk.img")).unwrap();
        // What is outside does not count, and is not waited for.
        std::fs::write(dir.path().join("large"), vec![7; 8 << 20]).unwrap();
        std::os::unix::fs::symlink("../large", home.join("link")).unwrap();
        std::os::unix::fs::symlink("..", home.join("up")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, home.join("fifo"), 0o666.into()).unwrap();
        disk.set_len(64 << 20).unwrap();
        let volume = |by: &str| -> PersistentVolume {
            serde_json::from_value(json!({
                "metadata": { "name": "v", "annotations": { "pv.kubernetes.io/provisioned-by": by } },
                "spec": {
                    "capacity": { "storage": "64Mi" }, "local": { "path": home },
                    "claimRef": { "namespace": "a", "name": "c" },
                },
            }))
            .unwrap()
        };
        assert_eq!(usage(&volume("another")), None);
        let empty = usage(&volume(PROVISIONER)).unwrap();
        assert_eq!((empty.capacity, empty.used), (64 << 20, 0));
        std::os::unix::fs::FileExt::write_all_at(&disk, &[7; 1 << 20], 8 << 20).unwrap();
        disk.sync_all().unwrap();
        let filled = usage(&volume(PROVISIONER)).unwrap();
        assert!(filled.used >= 1 << 20 && filled.used < 4 << 20, "{filled:?}");
        assert_eq!((filled.namespace.as_str(), filled.claim.as_str()), ("a", "c"));
    }
}
