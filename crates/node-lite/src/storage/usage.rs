//! What local volumes take of the disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use k8s_openapi::api::core::v1::PersistentVolume;

use super::files::Space;
use super::plan::{PROVISIONED_BY, PROVISIONER, storage_bytes};

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
    let used = allocated(path);
    let left = Space::of(path).map_or(0, |space| space.available);
    Some(Usage {
        namespace: claim.namespace.clone()?,
        claim: claim.name.clone()?,
        capacity,
        used,
        available: capacity.saturating_sub(used).min(left),
    })
}

/// Bytes on the disk below a path.
fn allocated(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.blocks() * 512;
    }
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| allocated(&entry.path())).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sparse_disk_counts_with_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let disk = fs::File::create(dir.path().join("disk.img")).unwrap();
        disk.set_len(64 << 20).unwrap();
        let volume = |by: &str| -> PersistentVolume {
            serde_json::from_value(json!({
                "metadata": { "name": "v", "annotations": { "pv.kubernetes.io/provisioned-by": by } },
                "spec": {
                    "capacity": { "storage": "64Mi" }, "local": { "path": dir.path() },
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
