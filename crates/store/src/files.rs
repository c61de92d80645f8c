//! The file layer: the few operations the log needs, as a trait so that tests can cut the power.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A flat directory of files. Creating, renaming and removing are durable after [`Files::sync_dir`].
pub trait Files: Send + Sync + 'static {
    fn names(&self) -> io::Result<Vec<String>>;
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// A new, empty file; an existing one of that name is emptied.
    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>>;
    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    fn sync_dir(&self) -> io::Result<()>;
    /// For messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// A file open for writing. Content and length are durable after [`LogFile::sync`].
pub trait LogFile: Send {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Extends the file with zeros up to `len`, reserving the space.
    fn allocate(&mut self, from: u64, len: u64) -> io::Result<()>;
    fn set_len(&mut self, len: u64) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
}

/// A directory of the file system, locked for as long as this lives.
pub struct DirFiles {
    dir: PathBuf,
    /// The lock belongs to the open file: it ends with the process, however that ends.
    lock: Option<File>,
}

const LOCK: &str = "LOCK";

impl DirFiles {
    /// Creates the directory (mode 0700) if need be. `Ok(None)`: somebody else has it open.
    pub fn lock(dir: &Path) -> io::Result<Option<Self>> {
        create_private(dir)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(dir.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Self { dir: dir.to_owned(), lock: Some(lock) })),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// For reading only, beside a store that may have the directory open.
    pub(crate) fn unlocked(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), lock: None }
    }
}

impl Drop for DirFiles {
    fn drop(&mut self) {
        // A child between its fork and its exec has the file open, too; closing ours alone would leave the lock to it.
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

impl Files for DirFiles {
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.dir.join(name))?;
        let mut bytes = Vec::with_capacity(usize::try_from(file.metadata()?.len()).unwrap_or(0));
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(self.dir.join(name))?;
        Ok(Box::new(DiskFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        Ok(Box::new(DiskFile(OpenOptions::new().write(true).open(self.dir.join(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.dir.join(from), self.dir.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.dir.join(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(File::open(&self.dir)?)?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// The objects may be secrets: nobody else may look, also where the directory was there before.
fn create_private(dir: &Path) -> io::Result<()> {
    let missing: Vec<_> = dir.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    for path in missing {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        rustix::fs::fsync(File::open(parent)?)?;
    }
    if fs::metadata(dir)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

struct DiskFile(File);

impl LogFile for DiskFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn allocate(&mut self, from: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.0, rustix::fs::FallocateFlags::empty(), from, len.saturating_sub(from))?)
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.0)?)
    }
}
