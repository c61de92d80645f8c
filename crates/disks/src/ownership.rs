//! The owners and modes that an image's layers gave its files, where the store's copy has others.
//!
//! The store makes every file root's own and readable, without set-uid bits. Who starts a system from the tree needs the
//! truth: it is listed in [`FILE`] at the top of the tree, one entry after the other, each `<uid> <gid> <octal mode> <path>`
//! with a NUL at its end.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Name of the list in the tree. An image's own file of this name is replaced.
pub const FILE: &str = ".ferrovirt-ownership";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
    /// With set-uid, set-gid and sticky bits.
    pub mode: u32,
}

/// What is known while layers are unpacked; a later layer's word counts.
#[derive(Debug, Default)]
pub(crate) struct List(BTreeMap<String, Owner>);

impl List {
    /// Remembers an entry, unless the copy on disk, root's with this mode, is the same.
    pub(crate) fn add(&mut self, path: &Path, owner: Owner, stored_mode: u32) {
        let Some(path) = path.to_str() else {
            return;
        };
        if owner == (Owner { uid: 0, gid: 0, mode: stored_mode }) {
            self.0.remove(path);
        } else {
            self.0.insert(path.to_owned(), owner);
        }
    }

    /// Writes the list, or takes away what pretends to be one.
    pub(crate) fn write(&self, root: &Path) -> io::Result<()> {
        let file = root.join(FILE);
        match file.symlink_metadata() {
            Ok(found) if found.is_dir() => std::fs::remove_dir_all(&file)?,
            Ok(_) => std::fs::remove_file(&file)?,
            Err(_) => {}
        }
        if self.0.is_empty() {
            return Ok(());
        }
        let entries = self.0.iter().map(|(path, Owner { uid, gid, mode })| format!("{uid} {gid} {mode:o} {path}\0"));
        std::fs::write(file, entries.collect::<String>())
    }
}

/// The entries of a list; what does not read as one is left out.
pub fn parse(bytes: &[u8]) -> Vec<(String, Owner)> {
    let entry = |bytes: &[u8]| {
        let mut words = std::str::from_utf8(bytes).ok()?.splitn(4, ' ');
        let (uid, gid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let mode = u32::from_str_radix(words.next()?, 8).ok()? & 0o7777;
        Some((words.next()?.to_owned(), Owner { uid, gid, mode }))
    };
    bytes.split(|byte| *byte == 0).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "0 0 6755 forged\0").unwrap();
        let mut list = List::default();
        let (root, user) = (Owner { uid: 0, gid: 0, mode: 0o755 }, Owner { uid: 1000, gid: 5, mode: 0o4711 });
        list.add(Path::new("same"), root, 0o755);
        list.add(Path::new("changed back"), user, 0o755);
        list.add(Path::new("changed back"), root, 0o755);
        list.add(Path::new("with a space"), user, 0o755);
        list.write(dir.path()).unwrap();
        let read = parse(&std::fs::read(dir.path().join(FILE)).unwrap());
        assert_eq!(read, [("with a space".to_owned(), user)]);
        assert!(parse(b"x 1 2 y\x00001 2").is_empty());
        List::default().write(dir.path()).unwrap();
        assert!(!dir.path().join(FILE).exists(), "a forged list goes");
    }
}
