//! Layers of foreign origin, unpacked into a directory that they cannot leave.
//!
//! Whatever a layer says, nothing is written outside the root: paths are resolved one component at a time, as if the root were `/`.
//! What is written is also safe to read with plain file operations afterwards: symbolic links are rewritten to relative ones whose `..`
//! come first and stay inside, device nodes are left out, and there are no set-uid bits. Everything is readable by any uid, because
//! the reader is the hypervisor's user.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use tar::EntryType;

use crate::budget::Spent;
use crate::ownership::{self, Owner};

/// How many symbolic links a path may pass.
const LINK_LIMIT: usize = 40;
const BLOCK: usize = 64 * 1024;

/// Applies one layer (an uncompressed tar stream) on top of what `root` already holds.
pub(crate) fn layer(root: &Path, tar: impl Read, owners: &mut ownership::List, spent: &Spent) -> io::Result<()> {
    let mut archive = tar::Archive::new(tar);
    // Opaque markers hide what lower layers had, not what this layer brings.
    let mut own: HashSet<PathBuf> = HashSet::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = plain(&entry.path()?)?;
        spent.entry(&path)?;
        let Some(name) = path.file_name() else {
            continue;
        };
        let parent = directory(root, path.parent().unwrap_or(Path::new("")), spent)?;
        let bytes = name.as_encoded_bytes();
        if bytes == b".wh..wh..opq" {
            for child in fs::read_dir(root.join(&parent))? {
                let child = parent.join(child?.file_name());
                if !own.contains(&child) {
                    remove(&root.join(&child))?;
                }
            }
            continue;
        }
        if bytes.starts_with(b".wh.") {
            let hidden = name.to_str().map(|n| &n[4..]).unwrap_or_default();
            if !hidden.is_empty() && hidden != "." && hidden != ".." {
                remove(&root.join(&parent).join(hidden))?;
            }
            continue;
        }
        let place = parent.join(name);
        spent.depth(&place)?;
        let stored = write_entry(root, &place, &mut entry, spent)?;
        if let Some(stored_mode) = stored {
            owners.add(&place, owner(entry.header()), stored_mode);
        }
        // With all that it lies in. Where one is known, so are those above it.
        let mut known = Some(place.as_path());
        while let Some(path) = known.filter(|path| own.insert(path.to_path_buf())) {
            known = path.parent();
        }
    }
    Ok(())
}

/// Returns the mode that a file or directory got.
fn write_entry<R: Read>(
    root: &Path,
    place: &Path,
    entry: &mut tar::Entry<'_, R>,
    spent: &Spent,
) -> io::Result<Option<u32>> {
    let target = root.join(place);
    let mode = entry.header().mode().unwrap_or(0o755);
    match entry.header().entry_type() {
        EntryType::Directory => {
            if !target.symlink_metadata().is_ok_and(|m| m.is_dir()) {
                remove(&target)?;
                fs::create_dir(&target)?;
            }
            let mode = mode & 0o755 | 0o755;
            fs::set_permissions(&target, fs::Permissions::from_mode(mode)).map(|()| Some(mode))
        }
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            remove(&target)?;
            let file = File::create_new(&target)?;
            copy_sparse(entry, &file, spent)?;
            let mode = mode & 0o755 | 0o444;
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.sync_data().map(|()| Some(mode))
        }
        EntryType::Symlink => {
            let link = entry.link_name()?.ok_or_else(|| bad("a symbolic link without a target"))?;
            remove(&target)?;
            symlink(confined(place, &link), &target).map(|()| None)
        }
        EntryType::Link => {
            let link = entry.link_name()?.ok_or_else(|| bad("a hard link without a target"))?;
            hard_link(root, place, &plain(&link)?, spent).map(|()| None)
        }
        other => {
            tracing::debug!(path = %place.display(), kind = ?other, "left out of the image");
            Ok(None)
        }
    }
}

fn owner(header: &tar::Header) -> Owner {
    let id = |id: io::Result<u64>| id.ok().and_then(|id| u32::try_from(id).ok()).unwrap_or(0);
    Owner { uid: id(header.uid()), gid: id(header.gid()), mode: header.mode().unwrap_or(0o755) & 0o7777 }
}

fn hard_link(root: &Path, place: &Path, link: &Path, spent: &Spent) -> io::Result<()> {
    let name = link.file_name().ok_or_else(|| bad("a hard link to the root"))?;
    let source = directory(root, link.parent().unwrap_or(Path::new("")), spent)?.join(name);
    let (from, to) = (root.join(&source), root.join(place));
    let kind = from.symlink_metadata()?.file_type();
    if source == place {
        return Ok(());
    }
    if kind.is_symlink() {
        // The same link text means another place in another directory, so it is confined anew.
        let text = resolve_link(&source, &fs::read_link(&from)?);
        remove(&to)?;
        return symlink(confined(place, &Path::new("/").join(text)), &to);
    }
    if !kind.is_file() {
        return Err(bad("a hard link to something that is not a file"));
    }
    remove(&to)?;
    fs::hard_link(from, to)
}

/// A path of the archive, relative to the root and without `.`; one with `..` has no business in a layer.
fn plain(path: &Path) -> io::Result<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(bad(&format!("the path {} leaves the image", path.display())));
            }
        }
    }
    Ok(out)
}

/// The real directory (no symbolic links in it) for a path of the archive, made if need be.
fn directory(root: &Path, path: &Path, spent: &Spent) -> io::Result<PathBuf> {
    let mut at = PathBuf::new();
    let mut todo: Vec<PathBuf> = path.iter().rev().map(PathBuf::from).collect();
    let mut links = 0;
    while let Some(name) = todo.pop() {
        if name == Path::new("..") {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        // Links may lead deeper than any path of the archive does.
        spent.depth(&next)?;
        match root.join(&next).symlink_metadata() {
            Ok(m) if m.is_dir() => at = next,
            Ok(m) if m.is_symlink() => {
                links += 1;
                if links > LINK_LIMIT {
                    return Err(bad("too many symbolic links"));
                }
                let resolved = resolve_link(&next, &fs::read_link(root.join(&next))?);
                at = PathBuf::new();
                todo.extend(resolved.iter().rev().map(PathBuf::from));
            }
            Ok(_) => {
                fs::remove_file(root.join(&next))?;
                make_directory(&root.join(&next))?;
                at = next;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make_directory(&root.join(&next))?;
                at = next;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(at)
}

fn make_directory(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Where a link at `place` points to, from the root and without `..`; climbing past the root stays there, as in a chroot.
fn resolve_link(place: &Path, link: &Path) -> PathBuf {
    let mut out = place.parent().unwrap_or(Path::new("")).to_path_buf();
    for part in link.components() {
        match part {
            Component::RootDir => out = PathBuf::new(),
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out
}

/// The text of a link that cannot leave the root: up to the root first, then down. A `..` after a name would be relative to whatever
/// that name links to, which a lexical check cannot know.
fn confined(place: &Path, link: &Path) -> PathBuf {
    let depth = place.components().count().saturating_sub(1);
    let mut out: PathBuf = std::iter::repeat_n("..", depth).collect();
    out.push(resolve_link(place, link));
    if out.as_os_str().is_empty() { PathBuf::from(".") } else { out }
}

fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(m) if m.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Disk images are mostly holes; blocks of zeros stay holes.
fn copy_sparse(from: &mut impl Read, mut to: &File, spent: &Spent) -> io::Result<()> {
    let mut buffer = vec![0u8; BLOCK];
    let mut size = 0u64;
    loop {
        let mut filled = 0;
        while filled < BLOCK {
            match from.read(&mut buffer[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        if filled == 0 {
            break;
        }
        spent.write(filled as u64, to)?;
        size += filled as u64;
        if buffer[..filled].iter().all(|&b| b == 0) {
            to.seek(SeekFrom::Start(size))?;
        } else {
            to.write_all(&buffer[..filled])?;
        }
    }
    to.set_len(size)
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}
