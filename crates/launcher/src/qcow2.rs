//! Fresh qcow2 images, written directly.
//!
//! A new image is three tables and a header; starting `qemu-img` for that costs more than writing them. The layout is the
//! published one (version 3, 64 KiB clusters): header, refcount table, one refcount block, L1 table.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const MAGIC: u32 = 0x5146_49fb;
const CLUSTER_BITS: u32 = 16;
const CLUSTER: u64 = 1 << CLUSTER_BITS;
/// An L2 table is one cluster of 8-byte entries, each for one cluster.
const BYTES_PER_L1_ENTRY: u64 = CLUSTER / 8 * CLUSTER;
const HEADER_LENGTH: u32 = 104;
const EXTENSION_END: u32 = 0;
const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;
/// The longest name the format allows.
const MAX_BACKING_NAME: usize = 1023;
/// Refcounts are 16 bits, so one block counts this many clusters: far more than a fresh image has.
const CLUSTERS_PER_BLOCK: u64 = CLUSTER / 2;

#[derive(Debug, thiserror::Error)]
pub enum Qcow2Error {
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("a qcow2 image of {0} bytes is too large")]
    TooLarge(u64),
    #[error("the path of the backing file is longer than {MAX_BACKING_NAME} bytes")]
    LongName,
    #[error("the path of the backing file, {}, is not absolute", .0.display())]
    Relative(PathBuf),
}

/// What a new image lies on.
#[derive(Debug, Clone, Copy)]
pub struct Backing<'a> {
    pub path: &'a Path,
    pub format: &'a str,
}

/// Writes a new image, replacing what was there.
pub fn create(path: &Path, size: u64, backing: Option<Backing<'_>>) -> Result<(), Qcow2Error> {
    let image = build(size, backing)?;
    File::create(path)
        .and_then(|mut file| file.write_all(&image))
        .map_err(|source| Qcow2Error::Write { path: path.into(), source })
}

fn build(size: u64, backing: Option<Backing<'_>>) -> Result<Vec<u8>, Qcow2Error> {
    let l1_entries = size.div_ceil(BYTES_PER_L1_ENTRY);
    let l1_clusters = (l1_entries * 8).div_ceil(CLUSTER);
    let clusters = 3 + l1_clusters;
    if clusters > CLUSTERS_PER_BLOCK {
        return Err(Qcow2Error::TooLarge(size));
    }
    let l1_entries = u32::try_from(l1_entries).map_err(|_| Qcow2Error::TooLarge(size))?;

    let mut header = Vec::with_capacity(usize::try_from(CLUSTER).unwrap_or(0));
    let name = backing.map_or(&[][..], |backing| backing.path.as_os_str().as_encoded_bytes());
    if name.len() > MAX_BACKING_NAME {
        return Err(Qcow2Error::LongName);
    }
    // Anything else could be a protocol or a `json:` object to QEMU.
    if let Some(backing) = backing.filter(|backing| !backing.path.is_absolute()) {
        return Err(Qcow2Error::Relative(backing.path.into()));
    }
    let mut extensions = Vec::new();
    if let Some(backing) = backing {
        extension(&mut extensions, EXTENSION_BACKING_FORMAT, backing.format.as_bytes());
    }
    extension(&mut extensions, EXTENSION_END, &[]);
    let name_offset = if name.is_empty() { 0 } else { u64::from(HEADER_LENGTH) + extensions.len() as u64 };

    put32(&mut header, MAGIC);
    put32(&mut header, 3);
    put64(&mut header, name_offset);
    put32(&mut header, u32::try_from(name.len()).unwrap_or(0));
    put32(&mut header, CLUSTER_BITS);
    put64(&mut header, size);
    put32(&mut header, 0); // no encryption
    put32(&mut header, l1_entries);
    put64(&mut header, 3 * CLUSTER); // L1 table
    put64(&mut header, CLUSTER); // refcount table
    put32(&mut header, 1); // clusters of the refcount table
    put32(&mut header, 0); // no snapshots
    put64(&mut header, 0);
    put64(&mut header, 0); // incompatible, compatible and autoclear features
    put64(&mut header, 0);
    put64(&mut header, 0);
    put32(&mut header, 4); // refcounts of 1 << 4 bits
    put32(&mut header, HEADER_LENGTH);
    header.extend_from_slice(&extensions);
    header.extend_from_slice(name);

    let total = usize::try_from(clusters * CLUSTER).map_err(|_| Qcow2Error::TooLarge(size))?;
    let cluster = usize::try_from(CLUSTER).map_err(|_| Qcow2Error::TooLarge(size))?;
    let mut image = header;
    image.resize(total, 0);
    // The refcount table has one entry: the block in cluster 2.
    image[cluster..cluster + 8].copy_from_slice(&(2 * CLUSTER).to_be_bytes());
    for index in 0..usize::try_from(clusters).unwrap_or(0) {
        let at = 2 * cluster + 2 * index;
        image[at..at + 2].copy_from_slice(&1u16.to_be_bytes());
    }
    Ok(image)
}

fn extension(out: &mut Vec<u8>, kind: u32, data: &[u8]) {
    put32(out, kind);
    put32(out, u32::try_from(data.len()).unwrap_or(0));
    out.extend_from_slice(data);
    // Extensions are padded to multiples of eight.
    out.resize(out.len().next_multiple_of(8), 0);
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// `qemu-img` is the judge of what is a valid image.
    fn qemu_img(arguments: &[&str]) -> String {
        let output = Command::new("qemu-img").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn images_are_valid() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base.raw");
        File::create(&base).unwrap().set_len(1 << 20).unwrap();
        for size in [0, 512, 1 << 20, 10 << 30, 3 << 40] {
            for backing in [None, Some(Backing { path: &base, format: "raw" })] {
                let path = dir.path().join("image.qcow2");
                create(&path, size, backing).unwrap();
                let path_text = path.to_str().unwrap();
                assert!(qemu_img(&["check", path_text]).contains("No errors"), "{size}");
                let info: serde_json::Value =
                    serde_json::from_str(&qemu_img(&["info", "--output=json", path_text])).unwrap();
                assert_eq!(info["virtual-size"], size);
                assert_eq!(info["backing-filename-format"].as_str(), backing.map(|b| b.format));
                assert_eq!(info["backing-filename"].as_str(), backing.and_then(|b| b.path.to_str()));
            }
        }
    }

    #[test]
    fn what_cannot_be_an_image_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        assert!(matches!(create(&path, u64::MAX, None), Err(Qcow2Error::TooLarge(_))));
        for name in ["json:{}", "nbd://localhost/x", "base.raw"] {
            let backing = Some(Backing { path: Path::new(name), format: "raw" });
            assert!(matches!(create(&path, 512, backing), Err(Qcow2Error::Relative(_))), "{name}");
        }
    }
}
