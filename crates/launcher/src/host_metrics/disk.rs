//! The disk: a header with a checksum, then the text. A reader that finds it locked, or whose sum does not fit, reads again.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const SIZE: u64 = 256 * 1024;
const HEADER: usize = 16;
const SIGNATURE: &[u8; 4] = b"mvbd";

/// Makes the disk before the machine starts, with nothing to tell yet.
pub(crate) fn create(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)?;
    file.set_len(SIZE)?;
    drop(file);
    write(path, "<metrics></metrics>")
}

pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let body = format!("{text}\n");
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    if u64::from(length) > SIZE - HEADER as u64 {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the metrics do not fit on their disk"));
    }
    let sum = body.bytes().fold(0_u32, |sum, byte| sum.wrapping_add(byte.into()));
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(&header(true, sum, length), 0)?;
    file.write_all_at(body.as_bytes(), HEADER as u64)?;
    file.sync_data()?;
    file.write_all_at(&header(false, sum, length), 0)?;
    file.sync_data()
}

fn header(locked: bool, sum: u32, length: u32) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    let fields = [*SIGNATURE, u32::from(locked).to_be_bytes(), sum.to_be_bytes(), length.to_be_bytes()];
    for (slot, field) in out.chunks_exact_mut(4).zip(fields) {
        slot.copy_from_slice(&field);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_tells_its_length_and_its_sum() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        create(&path).unwrap();
        write(&path, "ab").unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, SIZE);
        assert_eq!(&bytes[..16], b"mvbd\0\0\0\0\0\0\0\xcd\0\0\0\x03");
        assert_eq!(&bytes[16..19], b"ab\n");
        assert!(write(&path, &"x".repeat(SIZE as usize)).is_err());
    }
}
