//! Block devices by the label of the file system on them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    Ext,
    Iso9660,
    Vfat,
}

impl FileSystem {
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext => "ext4",
            FileSystem::Iso9660 => "iso9660",
            FileSystem::Vfat => "vfat",
        }
    }
}

/// The first device with one of these labels, compared without case, as cloud-init does.
pub fn find(labels: &[&str]) -> Option<(PathBuf, FileSystem, String)> {
    let mut names: Vec<_> =
        std::fs::read_dir("/sys/class/block").ok()?.filter_map(|e| Some(e.ok()?.file_name())).collect();
    names.sort();
    names.into_iter().find_map(|name| {
        let device = Path::new("/dev").join(name);
        let (kind, label) = label(&File::open(&device).ok()?)?;
        labels.iter().any(|l| l.eq_ignore_ascii_case(&label)).then_some((device, kind, label))
    })
}

fn label(device: &File) -> Option<(FileSystem, String)> {
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).trim_end().to_string()
    };
    let read = |at: u64, size: usize| {
        let mut buffer = vec![0u8; size];
        device.read_exact_at(&mut buffer, at).ok().map(|()| buffer)
    };
    if let Some(iso) = read(16 * 2048, 72)
        && &iso[..6] == b"\x01CD001"
    {
        return Some((FileSystem::Iso9660, text(&iso[40..72])));
    }
    let ext = read(1024, 136)?;
    if ext[56..58] == [0x53, 0xef] {
        return Some((FileSystem::Ext, text(&ext[120..136])));
    }
    let fat = read(0, 90)?;
    for (at, kind) in [(54, 43), (82, 71)] {
        if &fat[at..at + 3] == b"FAT" {
            return Some((FileSystem::Vfat, text(&fat[kind..kind + 11])));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.iso");
        ferrovirt_disks::iso::write_iso(&path, "cidata", &[("meta-data".into(), vec![])]).unwrap();
        assert_eq!(label(&File::open(&path).unwrap()), Some((FileSystem::Iso9660, "cidata".into())));
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        assert_eq!(label(&File::open(&path).unwrap()), None);
        let mut fat = vec![0; 4096];
        fat[43..54].copy_from_slice(b"CIDATA     ");
        fat[54..62].copy_from_slice(b"FAT16   ");
        std::fs::write(&path, fat).unwrap();
        assert_eq!(label(&File::open(&path).unwrap()), Some((FileSystem::Vfat, "CIDATA".into())));
    }
}
