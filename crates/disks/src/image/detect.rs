//! What an image is, told by its first bytes and never by its name.

/// How much of the beginning [`format`] wants to see.
pub(super) const HEAD: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Raw,
    Qcow2,
    Vmdk,
    Vdi,
    Vhdx,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Xz,
    Zstd,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
            Self::Vdi => "vdi",
            Self::Vhdx => "vhdx",
        }
    }
}

pub(super) fn format(head: &[u8]) -> Format {
    const VDI_SIGNATURE: [u8; 4] = 0xbeda_107f_u32.to_le_bytes();
    if head.starts_with(b"QFI\xfb") {
        Format::Qcow2
    } else if head.starts_with(b"KDMV") || head.starts_with(b"# Disk DescriptorFile") {
        Format::Vmdk
    } else if head.starts_with(b"vhdxfile") {
        Format::Vhdx
    } else if head.get(64..68) == Some(&VDI_SIGNATURE) {
        Format::Vdi
    } else {
        Format::Raw
    }
}

pub(super) fn compression(head: &[u8]) -> Option<Compression> {
    if head.starts_with(&[0x1f, 0x8b]) {
        Some(Compression::Gzip)
    } else if head.starts_with(b"\xfd7zXZ\0") {
        Some(Compression::Xz)
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Some(Compression::Zstd)
    } else {
        None
    }
}

/// Disk formats that we do not read and QEMU does.
pub(super) fn container(head: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 7] = [
        (b"COWD", "vmdk"),
        (b"conectix", "VHD (vpc)"),
        (b"QED\0", "QED"),
        (b"WithoutFreeSpace", "Parallels"),
        (b"WithouFreSpacExt", "Parallels"),
        (b"OOOh", "COW"),
        (b"LUKS\xba\xbe", "LUKS"),
    ];
    KNOWN.iter().find(|(mark, _)| head.starts_with(mark)).map(|(_, name)| *name)
}

/// Something that is surely no disk, and what to do about it. Raw disks have no mark, so all the rest counts as one.
pub(super) fn foreign(head: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 10] = [
        (b"BZh", "bzip2; unpack it, or compress it with xz, gzip or zstd"),
        (b"\x04\x22\x4d\x18", "lz4; unpack it, or compress it with xz, gzip or zstd"),
        (b"LZIP", "lzip; unpack it, or compress it with xz, gzip or zstd"),
        (b"PK\x03\x04", "a zip archive; take the disk out of it"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive; take the disk out of it"),
        (b"conectix", "VHD (vpc); make a vhdx or qcow2 of it with qemu-img convert"),
        (b"QED\0", "QED; make a qcow2 of it with qemu-img convert"),
        (b"WithoutFreeSpace", "Parallels; make a qcow2 of it with qemu-img convert"),
        (b"WithouFreSpacExt", "Parallels; make a qcow2 of it with qemu-img convert"),
        (b"OOOh", "COW; make a qcow2 of it with qemu-img convert"),
    ];
    let known = KNOWN.iter().find(|(mark, _)| head.starts_with(mark)).map(|(_, what)| *what);
    let text = head.trim_ascii_start();
    let page = [&b"<!doctype html"[..], b"<html", b"<?xml"];
    let page = page.iter().any(|mark| text.get(..mark.len()).is_some_and(|start| start.eq_ignore_ascii_case(mark)));
    known.or(page.then_some("a web page instead of a disk; check the address, and whether it wants a login"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_beginning() {
        let mut vdi = [0u8; HEAD];
        vdi[64..68].copy_from_slice(&[0x7f, 0x10, 0xda, 0xbe]);
        for (head, expected) in [
            (&b"QFI\xfb\0\0\0\x03"[..], Format::Qcow2),
            (b"KDMV", Format::Vmdk),
            (b"# Disk DescriptorFile\n", Format::Vmdk),
            (b"vhdxfile", Format::Vhdx),
            (&vdi, Format::Vdi),
            (b"", Format::Raw),
            (b"QFI", Format::Raw),
        ] {
            assert_eq!(format(head), expected, "{head:?}");
        }
        assert_eq!(compression(b"\x1f\x8b\x08"), Some(Compression::Gzip));
        assert_eq!(compression(b"\xfd7zXZ\0\0"), Some(Compression::Xz));
        assert_eq!(compression(b"\x28\xb5\x2f\xfd"), Some(Compression::Zstd));
        assert_eq!(compression(b"QFI\xfb"), None);
        for (head, what) in [
            (&b"BZh91AY"[..], "bzip2"),
            (b"conectix\0", "VHD"),
            (b"\n <!DOCTYPE HTML>", "web page"),
            (b"PK\x03\x04", "zip"),
        ] {
            assert!(foreign(head).is_some_and(|said| said.contains(what)), "{head:?}");
        }
        for disk in [&b"\xeb\x63\x90"[..], b"", &[0; HEAD], b"#!", b"<"] {
            assert_eq!(foreign(disk), None, "{disk:?}");
        }
    }
}
