//! Files of secret, configMap, downwardAPI and projected volumes, replaced all at once: the visible names link into
//! `..data`, which links to a directory that is complete before the link moves. The kubelet does it the same way, so
//! programs that watch for `..data` work.
//! Root works here below directories of tenants: by descriptor only.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use ferrovirt_beneath::Dir;
use jiff::Timestamp;
use rustix::fs::{Gid, Mode, fchmod, fchown, readlinkat, symlinkat};

/// Content and mode by path inside the volume.
pub type Payload = BTreeMap<String, (Vec<u8>, u32)>;

#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    #[error("{0:?} is not a relative path without '..'")]
    Path(String),
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

const DATA: &str = "..data";
const NEXT: &str = "..data_tmp";

/// Writes `payload` into `dir`. Nothing changes when it is there already.
pub fn write(dir: &Dir, payload: &Payload, group: Option<u32>) -> Result<(), PayloadError> {
    if let Some(bad) = payload.keys().find(|path| !is_plain(path)) {
        return Err(PayloadError::Path(bad.clone()));
    }
    let old = current(dir);
    if old.as_ref().is_some_and(|version| is_current(dir, version, payload)) {
        return Ok(());
    }
    let version = format!("..{}", Timestamp::now().as_nanosecond());
    let (fresh, _) = dir.make_one(OsStr::new(&version), 0o755).map_err(fail("create", &version))?;
    for (path, (content, mode)) in payload {
        if let Some(parent) = Path::new(path).parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fresh.make(parent, 0o755).map_err(fail("create", parent))?;
        }
        let mut file = fresh.create_file(path, 0o600).map_err(fail("create", path))?;
        file.write_all(content).map_err(fail("write", path))?;
        if let Some(group) = group {
            fchown(&file, None, Some(Gid::from_raw(group))).map_err(|error| fail("hand over", path)(error.into()))?;
        }
        // With a group for the pod, its members can always read.
        let mode = if group.is_some() { mode | 0o440 } else { *mode };
        fchmod(&file, Mode::from_raw_mode(mode)).map_err(|error| fail("set the mode of", path)(error.into()))?;
    }
    remove(dir, NEXT)?;
    link(dir, &version, NEXT)?;
    dir.rename(NEXT, dir, DATA).map_err(fail("replace", DATA))?;
    let wanted: BTreeSet<&str> = payload.keys().filter_map(|path| path.split('/').next()).collect();
    for name in &wanted {
        if dir.stat(name).is_err() {
            link(dir, &format!("{DATA}/{name}"), name)?;
        }
    }
    for name in visible(dir).map_err(fail("list", "the volume"))? {
        if !name.to_str().is_some_and(|name| wanted.contains(name)) {
            remove(dir, &name)?;
        }
    }
    if let Some(old) = old.filter(|old| **old != *version) {
        dir.remove_tree(&old).map_err(fail("remove", &old))?;
    }
    Ok(())
}

fn is_plain(path: &str) -> bool {
    !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// The directory that `..data` names, which is one beside it.
fn current(dir: &Dir) -> Option<OsString> {
    let version = OsString::from_vec(readlinkat(dir, DATA, Vec::new()).ok()?.into_bytes());
    Some(version).filter(|name| Path::new(name).components().eq([Component::Normal(name)]))
}

fn is_current(dir: &Dir, version: &OsStr, payload: &Payload) -> bool {
    let Ok(version) = dir.sub(version) else { return false };
    let tops: BTreeSet<&str> = payload.keys().filter_map(|path| path.split('/').next()).collect();
    visible(dir).is_ok_and(|names| names.len() == tops.len())
        && payload.iter().all(|(path, (content, _))| {
            version.read_file(path, content.len() as u64).is_ok_and(|found| found == *content)
        })
}

fn visible(dir: &Dir) -> io::Result<Vec<OsString>> {
    let names = dir.entries()?.map(|entry| Ok(entry?.name)).collect::<io::Result<Vec<_>>>()?;
    Ok(names.into_iter().filter(|name| !name.as_encoded_bytes().starts_with(b"..")).collect())
}

fn link(dir: &Dir, to: &str, name: &str) -> Result<(), PayloadError> {
    symlinkat(to, dir, name).map_err(|error| fail("link", name)(error.into()))
}

fn remove(dir: &Dir, name: impl AsRef<Path>) -> Result<(), PayloadError> {
    match dir.remove_file(&name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fail("remove", name)(error)),
        _ => Ok(()),
    }
}

fn fail(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> PayloadError {
    let path = path.as_ref().to_owned();
    move |source| PayloadError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(dir: &Path, payload: &Payload, group: Option<u32>) -> Result<(), PayloadError> {
        super::write(&Dir::open(dir).unwrap(), payload, group)
    }

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

    #[test]
    fn links_that_are_there_already_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("userdata"), "theirs").unwrap();
        for (number, target) in [outside.to_str().unwrap(), "../outside", "..", "."].into_iter().enumerate() {
            let volume = dir.path().join(number.to_string());
            fs::create_dir(&volume).unwrap();
            for name in [DATA, NEXT] {
                std::os::unix::fs::symlink(target, volume.join(name)).unwrap();
            }
            write(&volume, &payload(&[("userdata", "ours")]), None).unwrap();
            assert_eq!(fs::read_to_string(volume.join("userdata")).unwrap(), "ours", "{target}");
            assert_eq!(fs::read_to_string(outside.join("userdata")).unwrap(), "theirs", "{target}");
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{target}");
        }
    }
}
