//! Files of secret, configMap, downwardAPI and projected volumes, replaced all at once: the visible names link into
//! `..data`, which links to a directory that is complete before the link moves. The kubelet does it the same way, so
//! programs that watch for `..data` work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;

/// Content and mode by path inside the volume.
pub type Payload = BTreeMap<String, (Vec<u8>, u32)>;

#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    #[error("{0:?} is not a relative path without '..'")]
    Path(String),
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// Writes `payload` below `dir`. Nothing changes when it is there already.
pub fn write(dir: &Path, payload: &Payload, group: Option<u32>) -> Result<(), PayloadError> {
    if let Some(bad) = payload.keys().find(|path| !is_plain(path)) {
        return Err(PayloadError::Path(bad.clone()));
    }
    if is_current(dir, payload) {
        return Ok(());
    }
    let version = format!("..{}", Timestamp::now().as_nanosecond());
    let fresh = dir.join(&version);
    fs::create_dir_all(&fresh).map_err(fail("create", &fresh))?;
    fs::set_permissions(&fresh, Permissions::from_mode(0o755)).map_err(fail("set the mode of", &fresh))?;
    for (path, (content, mode)) in payload {
        let file = fresh.join(path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).map_err(fail("create", parent))?;
        }
        fs::write(&file, content).map_err(fail("write", &file))?;
        if group.is_some() {
            chown(&file, None, group).map_err(fail("hand over", &file))?;
        }
        // With a group for the pod, its members can always read.
        let mode = if group.is_some() { mode | 0o440 } else { *mode };
        fs::set_permissions(&file, Permissions::from_mode(mode)).map_err(fail("set the mode of", &file))?;
    }
    let data = dir.join("..data");
    let next = dir.join("..data_tmp");
    let old = fs::read_link(&data).ok();
    remove(&next)?;
    symlink(&version, &next).map_err(fail("link", &next))?;
    fs::rename(&next, &data).map_err(fail("replace", &data))?;
    let wanted: BTreeSet<&str> = payload.keys().filter_map(|path| path.split('/').next()).collect();
    for name in &wanted {
        let link = dir.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new("..data").join(name), &link).map_err(fail("link", &link))?;
        }
    }
    for entry in fs::read_dir(dir).map_err(fail("list", dir))?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("..") && !wanted.contains(name.as_ref()) {
            remove(&entry.path())?;
        }
    }
    if let Some(old) = old.filter(|old| old != Path::new(&version)) {
        let old = dir.join(old);
        fs::remove_dir_all(&old).map_err(fail("remove", &old))?;
    }
    Ok(())
}

fn is_plain(path: &str) -> bool {
    !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

fn is_current(dir: &Path, payload: &Payload) -> bool {
    let visible = fs::read_dir(dir).map(|entries| {
        entries.flatten().filter(|entry| !entry.file_name().to_string_lossy().starts_with("..")).count()
    });
    let tops: BTreeSet<&str> = payload.keys().filter_map(|path| path.split('/').next()).collect();
    dir.join("..data").exists()
        && visible.is_ok_and(|count| count == tops.len())
        && payload.iter().all(|(path, (content, _))| fs::read(dir.join(path)).is_ok_and(|found| found == *content))
}

fn remove(path: &Path) -> Result<(), PayloadError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fail("remove", path)(error)),
        _ => Ok(()),
    }
}

fn fail(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PayloadError {
    let path = path.to_owned();
    move |source| PayloadError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        files.iter().map(|(path, text)| ((*path).to_owned(), (text.as_bytes().to_vec(), 0o644))).collect()
    }

    fn shown(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with("..") || name == "..data_tmp")
            .collect();
        names.sort();
        names
    }

    #[test]
    fn content_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &payload(&[("userdata", "one"), ("sub/x", "2")]), None).unwrap();
        assert_eq!(shown(dir.path()), ["sub", "userdata"]);
        let first = fs::read_link(dir.path().join("..data")).unwrap();
        write(dir.path(), &payload(&[("userdata", "one"), ("sub/x", "2")]), None).unwrap();
        assert_eq!(fs::read_link(dir.path().join("..data")).unwrap(), first, "rewritten without need");
        write(dir.path(), &payload(&[("userdata", "three")]), None).unwrap();
        assert_eq!(shown(dir.path()), ["userdata"]);
        assert_eq!(fs::read_to_string(dir.path().join("userdata")).unwrap(), "three");
        assert!(!dir.path().join(first).exists());
        write(dir.path(), &payload(&[]), None).unwrap();
        assert_eq!(shown(dir.path()), Vec::<String>::new());
    }

    #[test]
    fn paths_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["/etc/x", "../x", "a/../../x", "", "..data"] {
            assert!(matches!(write(dir.path(), &payload(&[(path, "")]), None), Err(PayloadError::Path(_))), "{path}");
        }
    }
}
