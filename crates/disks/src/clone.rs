//! Copies of disks: shared blocks where the file system can, else the data without the holes.

use std::fs::File;
use std::io;

use rustix::fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;

/// How a copy was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// At once, by sharing blocks until one side writes.
    Shared,
    /// This many bytes.
    Bytes(u64),
}

/// Whether two files can share blocks. The target's content is gone.
pub fn shares_blocks(source: &File, target: &File) -> bool {
    ioctl_ficlone(target, source).is_ok()
}

const PIECE: u64 = 16 << 20;

/// Makes `target` a copy of `source`. The target's earlier content is gone. `progress` is told the offset that was reached.
pub fn clone_file(source: &File, target: &File, mut progress: impl FnMut(u64)) -> io::Result<Copied> {
    target.set_len(0)?;
    if ioctl_ficlone(target, source).is_ok() {
        return Ok(Copied::Shared);
    }
    let length = source.metadata()?.len();
    target.set_len(length)?;
    let (mut at, mut copied) = (0, 0);
    while at < length {
        let data = match seek(source, SeekFrom::Data(at)) {
            Ok(data) => data,
            // No data until the end.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(source, SeekFrom::Hole(data))?.min(length);
        at = data;
        while at < end {
            let (mut from, mut to) = (at, at);
            let wanted = usize::try_from((end - at).min(PIECE)).unwrap_or(usize::MAX);
            let moved = copy_file_range(source, Some(&mut from), target, Some(&mut to), wanted)? as u64;
            if moved == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += moved;
            copied += moved;
            progress(at);
        }
    }
    Ok(Copied::Bytes(copied))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn a_copy_is_equal_and_keeps_its_holes() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            |name: &str| File::options().read(true).write(true).create(true).truncate(true).open(dir.path().join(name));
        let (source, target) = (open("a").unwrap(), open("b").unwrap());
        source.set_len(64 << 20).unwrap();
        source.write_all_at(b"near the start", 4096).unwrap();
        source.write_all_at(&[7; 100_000], 33 << 20).unwrap();
        target.write_all_at(b"old content", 60 << 20).unwrap();
        clone_file(&source, &target, |_| {}).unwrap();
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        assert!(read("a") == read("b"));
        assert!(target.metadata().unwrap().blocks() * 512 < 4 << 20, "the holes were filled");
    }
}
