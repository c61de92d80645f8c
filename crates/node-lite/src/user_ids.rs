//! Which of the host's ids a pod's users are: a range of its own for each pod, so that what breaks out of one finds no
//! process and no file of another's.
//!
//! The host has 32767 ranges above those of its users, of their containers and of guests that are containers. One that is
//! taken has a file with the pod's directory in it, in a place that all data directories of the machine share. A file whose
//! pod is gone, because its data directory was deleted, takes nothing from anybody.

use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// As many as systems count on.
pub(crate) const COUNT: u32 = 1 << 16;
/// Guests of the node agent have those below: see `hypervisors` there.
const FIRST_SLOT: u32 = 0x7000;
const SLOTS: u32 = 0x7fff;
/// The range after the last, for nobody: whether a mapping works is tried with it.
pub(crate) const TRIAL: u32 = (FIRST_SLOT + SLOTS) << 16;
/// Where an administrator gives ranges to users.
const GIVEN: [&str; 2] = ["/etc/subuid", "/etc/subgid"];

#[derive(Debug, Clone)]
pub(crate) struct UserIds {
    dir: PathBuf,
    given: Vec<(u32, u32)>,
}

impl UserIds {
    /// `dir` is the machine's place for files that say who has what.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let given = GIVEN.iter().filter_map(|path| fs::read_to_string(path).ok());
        Ok(Self { dir: dir.to_owned(), given: given.flat_map(|text| ranges(&text)).collect() })
    }

    /// The first id of a range that is this pod's until it is released. Asking again gives the same one.
    pub(crate) fn claim(&self, pod: &Path) -> io::Result<u32> {
        let _turn = self.turn()?;
        let mut hasher = DefaultHasher::new();
        pod.hash(&mut hasher);
        let start = u32::try_from(hasher.finish() % u64::from(SLOTS)).unwrap_or(0);
        for slot in (0..SLOTS).map(|step| FIRST_SLOT + (start + step) % SLOTS) {
            if !self.is_given(slot) && self.take(slot, pod)? {
                return Ok(slot << 16);
            }
        }
        Err(io::Error::other("every range of user ids is taken"))
    }

    pub(crate) fn release(&self, first: u32, pod: &Path) -> io::Result<()> {
        let _turn = self.turn()?;
        let file = self.file(first >> 16);
        match fs::read(&file) {
            Ok(owner) if owner == pod.as_os_str().as_bytes() => fs::remove_file(file),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn take(&self, slot: u32, pod: &Path) -> io::Result<bool> {
        let file = self.file(slot);
        match fs::read(&file) {
            Ok(owner) if owner == pod.as_os_str().as_bytes() => return Ok(true),
            Ok(owner) if Path::new(std::ffi::OsStr::from_bytes(&owner)).exists() => return Ok(false),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut new = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
        new.write_all(pod.as_os_str().as_bytes())?;
        Ok(true)
    }

    fn is_given(&self, slot: u32) -> bool {
        let (first, last) = (slot << 16, (slot << 16) + (COUNT - 1));
        self.given.iter().any(|(start, end)| *start <= last && *end >= first)
    }

    fn file(&self, slot: u32) -> PathBuf {
        self.dir.join(format!("{slot:04x}"))
    }

    fn turn(&self) -> io::Result<File> {
        let lock = OpenOptions::new().append(true).create(true).mode(0o600).open(self.dir.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }
}

/// Lines `name:first:count`, as first and last.
fn ranges(text: &str) -> Vec<(u32, u32)> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split(':').skip(1).map(|word| word.trim().parse::<u32>());
        let (first, count) = (words.next()?.ok()?, words.next()?.ok()?);
        Some((first, first.saturating_add(count.checked_sub(1)?)))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pods_share_no_user_and_a_pod_keeps_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let ids = UserIds::open(&dir.path().join("ids")).unwrap();
        let pods: Vec<PathBuf> = (0..50).map(|number| dir.path().join(format!("pod{number}"))).collect();
        for pod in &pods {
            fs::create_dir(pod).unwrap();
        }
        let mut firsts: Vec<u32> = pods.iter().map(|pod| ids.claim(pod).unwrap()).collect();
        assert_eq!(ids.claim(&pods[7]).unwrap(), firsts[7]);
        let released = firsts[3];
        ids.release(released, &pods[9]).unwrap();
        assert!(ids.file(released >> 16).exists(), "another pod's range was released");
        ids.release(released, &pods[3]).unwrap();
        assert!(!ids.file(released >> 16).exists());
        firsts.sort();
        firsts.dedup();
        assert_eq!(firsts.len(), pods.len());
        assert!(firsts.iter().all(|first| *first >= FIRST_SLOT << 16 && first.checked_add(COUNT).is_some()));
    }

    #[test]
    fn what_is_taken_or_given_is_passed_over_and_what_is_left_behind_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut ids = UserIds::open(&dir.path().join("ids")).unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        fs::create_dir(&two).unwrap();
        let first = ids.claim(&one).unwrap();
        // Nothing is at the first pod's directory: its data directory was deleted.
        assert!(ids.take(first >> 16, &two).unwrap());
        fs::create_dir(&one).unwrap();
        assert_ne!(ids.claim(&one).unwrap(), first);
        ids.given = ranges("user:100000:65536\nbig:1879048192:2147352576\nbad:x:1\n");
        assert_eq!(ids.given, [(100_000, 165_535), (0x7000_0000, 0xeffd_ffff)]);
        let last = ids.claim(&dir.path().join("three")).unwrap();
        assert_eq!(last >> 16, 0xeffe);
    }
}
