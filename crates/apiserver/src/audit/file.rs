//! The file of the audit log: for its owner alone, and of bounded size.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;

/// How much of the log is kept, as kube-apiserver's flags say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// Bytes of one file.
    pub max_size: u64,
    /// Files besides the current one; 0 is all.
    pub max_backups: usize,
    /// How old they may become; None is any age.
    pub max_age: Option<Duration>,
}

impl Default for Rotation {
    fn default() -> Self {
        Self { max_size: 100 << 20, max_backups: 10, max_age: None }
    }
}

pub struct LogFile {
    path: PathBuf,
    rotation: Rotation,
    file: BufWriter<File>,
    size: u64,
}

impl LogFile {
    pub fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        let file = private(path, false)?;
        let size = file.metadata()?.len();
        let log = Self { path: path.to_owned(), rotation, file: BufWriter::new(file), size };
        log.prune();
        Ok(log)
    }

    pub fn put(&mut self, line: &str) -> io::Result<()> {
        let length = line.len() as u64 + 1;
        if self.size > 0 && self.size + length > self.rotation.max_size {
            self.rotate()?;
        }
        self.file.write_all(line.as_bytes())?;
        self.file.write_all(b"\n")?;
        self.size += length;
        Ok(())
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file.flush()?;
        let mut now = jiff::Timestamp::now();
        let mut backup = self.backup(now);
        // Nothing is overwritten, however fast it grows.
        while backup.symlink_metadata().is_ok() {
            now += jiff::Span::new().milliseconds(1);
            backup = self.backup(now);
        }
        fs::rename(&self.path, backup)?;
        self.file = BufWriter::new(private(&self.path, true)?);
        self.size = 0;
        self.prune();
        Ok(())
    }

    /// `audit.log` becomes `audit-<time>.log`.
    fn backup(&self, time: jiff::Timestamp) -> PathBuf {
        let (stem, end) = self.parts();
        self.path.with_file_name(format!("{stem}{}{end}", time.strftime("%Y-%m-%dT%H-%M-%S.%3f")))
    }

    fn parts(&self) -> (String, String) {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let end = self.path.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
        (format!("{stem}-"), end)
    }

    /// Removes what is too much or too old. Trouble with that is no reason not to log.
    fn prune(&self) {
        let (stem, end) = self.parts();
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(entries) = fs::read_dir(directory) else { return };
        let mut backups: Vec<PathBuf> = entries
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                let time = name.to_str().and_then(|name| name.strip_prefix(&stem)?.strip_suffix(&end));
                time.is_some_and(is_time) && entry.file_type().is_ok_and(|kind| kind.is_file())
            })
            .map(|entry| entry.path())
            .collect();
        // Their names are in the order of their times.
        backups.sort_unstable_by(|a, b| b.cmp(a));
        for (index, backup) in backups.iter().enumerate() {
            let modified = backup.symlink_metadata().and_then(|metadata| metadata.modified());
            let age = modified.ok().and_then(|time| SystemTime::now().duration_since(time).ok()).unwrap_or_default();
            let much = self.rotation.max_backups > 0 && index >= self.rotation.max_backups;
            if (much || self.rotation.max_age.is_some_and(|most| age > most))
                && let Err(error) = fs::remove_file(backup)
            {
                tracing::warn!(%error, file = %backup.display(), "cannot remove an old audit log");
            }
        }
    }
}

/// `2026-01-02T03-04-05.678`
fn is_time(text: &str) -> bool {
    let pattern = b"0000-00-00T00-00-00.000";
    text.len() == pattern.len()
        && text
            .bytes()
            .zip(pattern)
            .all(|(byte, like)| if *like == b'0' { byte.is_ascii_digit() } else { byte == *like })
}

/// Opens a file for its owner alone: no link, nobody else's, and whatever its mode was before.
fn private(path: &Path, new: bool) -> io::Result<File> {
    let mut options = File::options();
    options.append(true).mode(0o600).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let file = if new { options.create_new(true) } else { options.create(true) }.open(path)?;
    let metadata = file.metadata()?;
    let wrong = |what: &str| {
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} {what}; give another path", path.display())))
    };
    if !metadata.is_file() {
        return wrong("is not a regular file");
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return wrong("belongs to somebody else");
    }
    if metadata.nlink() != 1 {
        return wrong("has other names");
    }
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn nobody_else_reads_the_log_whatever_its_mode_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        LogFile::open(&path, Rotation::default()).unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
        LogFile::open(&path, Rotation::default()).unwrap();
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn the_log_is_never_written_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, path) = (dir.path().join("victim"), dir.path().join("audit.log"));
        fs::write(&victim, "x").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(LogFile::open(&path, Rotation::default()).is_err());
        fs::remove_file(&path).unwrap();
        fs::hard_link(&victim, &path).unwrap();
        assert!(LogFile::open(&path, Rotation::default()).is_err());
        assert!(LogFile::open(dir.path(), Rotation::default()).is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "x");
    }

    #[test]
    fn the_log_turns_over_and_keeps_to_its_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        for other in ["audit-notes.log", "audit-2026-01-02T03-04-05.678.txt", "other-2026-01-02T03-04-05.678.log"] {
            fs::write(dir.path().join(other), "").unwrap();
        }
        let old = dir.path().join("audit-2020-01-02T03-04-05.678.log");
        let ancient = File::create(&old).unwrap();
        ancient.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let age = Some(Duration::from_secs(3600));
        let mut log = LogFile::open(&path, Rotation { max_size: 100, max_backups: 2, max_age: age }).unwrap();
        assert!(!old.exists(), "too old");
        let line = "x".repeat(40);
        for _ in 0..20 {
            log.put(&line).unwrap();
        }
        log.flush().unwrap();
        let mut sizes = Vec::new();
        for entry in fs::read_dir(dir.path()).unwrap().flatten() {
            if entry.metadata().unwrap().len() > 0 {
                assert_eq!(mode(&entry.path()), 0o600);
                sizes.push(entry.metadata().unwrap().len());
            }
        }
        assert_eq!(sizes, [82, 82, 82], "the current one and two before it");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 6, "nobody else's files are touched");
    }
}
