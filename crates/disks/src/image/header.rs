//! Whether an image that a hypervisor is about to open stands alone.
//!
//! A qcow2 header can name other files: one that it lies on, one that holds its data, one with a key. Whoever opens the image opens
//! those too, with all that a name can mean to QEMU (`json:{…}`, `nbd://…`). An image that a tenant brings therefore has to be
//! *closed*: it names nothing, and it asks for nothing that we do not know. The parser is ours and bounded: it reads the first
//! [`AREA`] bytes, follows no offset and keeps nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::detect::{self, Format};
use super::layout::{be32, be64};

/// As much of an image as is looked at. Header extensions that go on behind it are refused.
pub const AREA: usize = 64 << 10;
/// More than any disk has; QEMU's own limit for clusters of 64 KiB is near it.
const MAX_DISK: u64 = 64 << 40;
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;

const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;
/// What changes how the image is read and nothing else.
const HARMLESS: u64 = DIRTY | COMPRESSION_TYPE | EXTENDED_L2;

const END: u32 = 0;
const DATA_FILE: u32 = 0x4441_5441;
const ENCRYPTION: u32 = 0x0537_be77;

#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("cannot read the image")]
    Read(#[source] io::Error),
    #[error(
        "the image builds on another file ({0:?}), which is not part of it; flatten it first, such as with qemu-img convert"
    )]
    BackingFile(String),
    #[error(
        "the image keeps its data in another file, which is not part of it; flatten it first, such as with qemu-img convert"
    )]
    DataFile,
    #[error("the image is encrypted, which is not supported")]
    Encrypted,
    #[error("the image asks for what is not supported: {0}")]
    Unsupported(String),
    #[error("the image is damaged: {0}")]
    Damaged(&'static str),
    #[error("the image is {found}, not {wanted}; make a raw or qcow2 image of it with qemu-img convert")]
    Other { found: &'static str, wanted: &'static str },
}

/// An image that stands alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    pub format: Format,
    /// Bytes of the disk in it.
    pub virtual_size: u64,
}

impl Closed {
    /// Looks at an open image. Formats that name their parts in the image (vmdk and the like) never go to a hypervisor.
    pub fn inspect(file: &File) -> Result<Self, HeaderError> {
        let length = length(file).map_err(HeaderError::Read)?;
        parse(&head(file)?, length)
    }

    /// Looks at an image that is to be opened as this format, whatever its first bytes say.
    pub fn inspect_as(file: &File, wanted: Format) -> Result<Self, HeaderError> {
        let found = Self::inspect(file)?;
        match found.format == wanted {
            true => Ok(found),
            false => Err(HeaderError::Other { found: found.format.name(), wanted: wanted.name() }),
        }
    }
}

fn head(file: &File) -> Result<Vec<u8>, HeaderError> {
    let mut head = vec![0; AREA];
    let mut filled = 0;
    while let Some(rest) = head.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(HeaderError::Read(error)),
        }
    }
    head.truncate(filled);
    Ok(head)
}

/// A block device says 0; its end says how long it is.
fn length(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => Ok(metadata.len()),
        false => io::Seek::seek(&mut &*file, io::SeekFrom::End(0)),
    }
}

/// What the first bytes of an image of this length say.
pub fn parse(head: &[u8], length: u64) -> Result<Closed, HeaderError> {
    match detect::format(head) {
        Format::Qcow2 => qcow2(head),
        Format::Raw => match detect::container(head) {
            Some(found) => Err(HeaderError::Other { found, wanted: "raw or qcow2" }),
            None => Ok(Closed { format: Format::Raw, virtual_size: length }),
        },
        other => Err(HeaderError::Other { found: other.name(), wanted: "raw or qcow2" }),
    }
}

fn qcow2(head: &[u8]) -> Result<Closed, HeaderError> {
    let version = be32(head, 4);
    if !(2..=3).contains(&version) {
        return Err(HeaderError::Unsupported(format!("qcow2 version {version}")));
    }
    let shortest = if version == 2 { 72 } else { 104 };
    if head.len() < shortest {
        return Err(HeaderError::Damaged("it ends within its header"));
    }
    let (backing, backing_length) = (be64(head, 8), be32(head, 16));
    if backing != 0 || backing_length != 0 {
        return Err(HeaderError::BackingFile(name(head, backing, backing_length)));
    }
    if be32(head, 32) != 0 {
        return Err(HeaderError::Encrypted);
    }
    let features = if version >= 3 { be64(head, 72) } else { 0 };
    if features & EXTERNAL_DATA != 0 {
        return Err(HeaderError::DataFile);
    }
    if features & CORRUPT != 0 {
        return Err(HeaderError::Damaged("it is marked as corrupt"));
    }
    if features & !HARMLESS != 0 {
        return Err(HeaderError::Unsupported(format!("qcow2 features {:#x}", features & !HARMLESS)));
    }
    let cluster_bits = be32(head, 20);
    if !CLUSTER_BITS.contains(&cluster_bits) {
        return Err(HeaderError::Damaged("its cluster size"));
    }
    let header_length = if version >= 3 { u64::from(be32(head, 100)) } else { 72 };
    let cluster = 1_u64 << cluster_bits;
    if header_length < shortest as u64 || header_length > cluster {
        return Err(HeaderError::Damaged("the length of its header"));
    }
    extensions(head, header_length, cluster)?;
    let virtual_size = be64(head, 24);
    if virtual_size > MAX_DISK {
        return Err(HeaderError::Unsupported(format!("a disk of {virtual_size} bytes")));
    }
    Ok(Closed { format: Format::Qcow2, virtual_size })
}

/// Extensions end with one of kind 0, or with the first cluster. Those that are unknown open nothing, by their definition.
fn extensions(head: &[u8], from: u64, cluster: u64) -> Result<(), HeaderError> {
    let mut at = from;
    while at < cluster {
        let place = usize::try_from(at).unwrap_or(usize::MAX);
        if place.saturating_add(8) > AREA {
            return Err(HeaderError::Damaged("its header does not end"));
        }
        if place.saturating_add(8) > head.len() {
            // The image ends here: what lies behind reads as an end.
            return Ok(());
        }
        let (kind, length) = (be32(head, place), u64::from(be32(head, place + 4)));
        match kind {
            END => return Ok(()),
            DATA_FILE => return Err(HeaderError::DataFile),
            ENCRYPTION => return Err(HeaderError::Encrypted),
            _ if length > cluster => return Err(HeaderError::Damaged("an extension of its header")),
            _ => at += 8 + length.next_multiple_of(8),
        }
    }
    Ok(())
}

/// The name of the file below, as far as it lies in the area: only for the message.
fn name(head: &[u8], at: u64, length: u32) -> String {
    let start = usize::try_from(at).unwrap_or(usize::MAX);
    let end = start.saturating_add(length.min(1023) as usize).min(head.len());
    String::from_utf8_lossy(head.get(start..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A version 3 header of a disk of 1 MiB without extensions.
    fn image() -> Vec<u8> {
        let mut head = vec![0; AREA];
        put(&mut head, 0, b"QFI\xfb");
        put(&mut head, 4, &3_u32.to_be_bytes());
        put(&mut head, 20, &16_u32.to_be_bytes());
        put(&mut head, 24, &(1_u64 << 20).to_be_bytes());
        put(&mut head, 100, &104_u32.to_be_bytes());
        head
    }

    fn put(head: &mut [u8], at: usize, bytes: &[u8]) {
        head[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn refused(change: impl FnOnce(&mut Vec<u8>)) -> HeaderError {
        let mut head = image();
        change(&mut head);
        parse(&head, AREA as u64).unwrap_err()
    }

    #[test]
    fn an_image_that_stands_alone_is_taken() {
        let qcow2 = Closed { format: Format::Qcow2, virtual_size: 1 << 20 };
        assert_eq!(parse(&image(), 1 << 30).unwrap(), qcow2);
        let mut with_table = image();
        put(&mut with_table, 104, &0x6803_f857_u32.to_be_bytes());
        put(&mut with_table, 108, &100_u32.to_be_bytes());
        put(&mut with_table, 72, &(DIRTY | COMPRESSION_TYPE | EXTENDED_L2).to_be_bytes());
        assert_eq!(parse(&with_table, 0).unwrap(), qcow2);
        let mut old = image();
        put(&mut old, 4, &2_u32.to_be_bytes());
        old[72..].fill(0);
        assert_eq!(parse(&old, 0).unwrap(), qcow2);
        assert_eq!(parse(&[0; 512], 4096).unwrap(), Closed { format: Format::Raw, virtual_size: 4096 });
        assert_eq!(parse(b"", 0).unwrap().format, Format::Raw);
    }

    #[test]
    fn an_image_cannot_name_a_backing_file() {
        for name in [&b"/etc/shadow"[..], b"json:{\"driver\":\"nbd\"}", b"nbd://169.254.169.254/x", b"../../x"] {
            let error = refused(|head| {
                put(head, 8, &1024_u64.to_be_bytes());
                put(head, 16, &(name.len() as u32).to_be_bytes());
                put(head, 1024, name);
            });
            let HeaderError::BackingFile(said) = &error else { panic!("{error}") };
            assert_eq!(said.as_bytes(), name);
        }
        // A name out of sight is a name.
        let far = refused(|head| put(head, 8, &u64::MAX.to_be_bytes()));
        assert!(matches!(far, HeaderError::BackingFile(_)), "{far}");
        // The same in version 2, whose header is shorter.
        let old = refused(|head| {
            put(head, 4, &2_u32.to_be_bytes());
            put(head, 8, &72_u64.to_be_bytes());
        });
        assert!(matches!(old, HeaderError::BackingFile(_)), "{old}");
    }

    #[test]
    fn an_image_cannot_name_a_data_file() {
        let by_feature = refused(|head| put(head, 72, &EXTERNAL_DATA.to_be_bytes()));
        assert!(matches!(by_feature, HeaderError::DataFile), "{by_feature}");
        let by_name = refused(|head| {
            // Behind an extension that is unknown and harmless.
            put(head, 104, &0x1234_5678_u32.to_be_bytes());
            put(head, 108, &3_u32.to_be_bytes());
            put(head, 120, &DATA_FILE.to_be_bytes());
        });
        assert!(matches!(by_name, HeaderError::DataFile), "{by_name}");
    }

    #[test]
    fn an_image_cannot_ask_for_what_is_unknown() {
        for error in [
            refused(|head| put(head, 72, &(1_u64 << 5).to_be_bytes())),
            refused(|head| put(head, 72, &(1_u64 << 63).to_be_bytes())),
            refused(|head| put(head, 4, &4_u32.to_be_bytes())),
            refused(|head| put(head, 24, &u64::MAX.to_be_bytes())),
        ] {
            assert!(matches!(error, HeaderError::Unsupported(_)), "{error}");
        }
        for error in [
            refused(|head| put(head, 32, &2_u32.to_be_bytes())),
            refused(|head| put(head, 104, &ENCRYPTION.to_be_bytes())),
        ] {
            assert!(matches!(error, HeaderError::Encrypted), "{error}");
        }
        for error in [
            refused(|head| put(head, 20, &63_u32.to_be_bytes())),
            refused(|head| put(head, 100, &u32::MAX.to_be_bytes())),
            refused(|head| put(head, 100, &8_u32.to_be_bytes())),
            refused(|head| put(head, 72, &CORRUPT.to_be_bytes())),
            refused(|head| head.truncate(80)),
            refused(|head| {
                put(head, 104, &7_u32.to_be_bytes());
                put(head, 108, &u32::MAX.to_be_bytes());
            }),
            // Extensions without end, in the largest cluster there is.
            refused(|head| {
                put(head, 20, &21_u32.to_be_bytes());
                (104..AREA - 8).step_by(8).for_each(|at| put(head, at, &[0, 0, 0, 9, 0, 0, 0, 0]));
                put(head, AREA - 8, &[0, 0, 0, 9, 0, 0, 0, 0]);
            }),
        ] {
            assert!(matches!(error, HeaderError::Damaged(_)), "{error}");
        }
    }

    #[test]
    fn formats_with_parts_of_their_own_never_reach_a_hypervisor() {
        let mut vdi = vec![0; 512];
        put(&mut vdi, 64, &[0x7f, 0x10, 0xda, 0xbe]);
        for head in [&b"KDMV"[..], b"# Disk DescriptorFile\n", b"vhdxfile", b"conectix", b"QED\0", b"COWD", &vdi] {
            let error = parse(head, 512).unwrap_err();
            assert!(matches!(error, HeaderError::Other { .. }), "{head:?}: {error}");
        }
    }

    proptest! {
        /// Whatever the bytes, the answer is an image that names nothing, or an error; never a panic.
        #[test]
        fn no_bytes_make_an_open_image(noise in proptest::collection::vec(any::<u8>(), 0..600), at in 0_usize..600) {
            let mut head = image();
            let end = (at + noise.len()).min(head.len());
            head[at..end].copy_from_slice(&noise[..end - at]);
            if let Ok(Closed { format: Format::Qcow2, .. }) = parse(&head, 0) {
                prop_assert_eq!(be64(&head, 8), 0);
                prop_assert_eq!(be32(&head, 16), 0);
                prop_assert_eq!(be32(&head, 32), 0);
            }
        }
    }
}
