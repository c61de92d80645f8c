//! Who unpacks images: a child that can touch nothing but the directory that it fills.
//!
//! ```text
//! store ── task (JSON) ──> child: opens what it is to read, shuts itself in, unpacks below `/`, which is the image's directory
//!    <── answer (JSON) ──
//!    └── looks at every entry, gives it to root, and only then is the tree an image
//! ```
//!
//! The child's user owns the tree while it is made, and nothing else on the machine. The parent never parses what is foreign.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferrovirt_confine::child::Helper;
use ferrovirt_confine::{Jail, Limits, files_only};
use serde::{Deserialize, Serialize};

use crate::budget::{Budget, OverBudget, Spent};
use crate::digest::Digest;
use crate::oci::{Archive, OciError, unpack_blobs};

/// The subcommand of our program that [`main`] is.
pub const SUBCOMMAND: &str = "unpack-image";
/// Address space. Layers are streamed; the largest thing in memory is a window of a decoder.
const MEMORY: u64 = 1 << 30;
const DESCRIPTORS: u64 = 512;
const MAX_TASK: u64 = 1 << 20;
const MAX_MESSAGE: usize = 2000;
const MAX_NAME: usize = 500;

/// An image of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name the archive gives it, as written there.
    pub name: Option<String>,
    pub digest: Digest,
}

/// Unpacks images within a budget.
#[derive(Debug, Clone)]
pub struct Unpacker {
    helper: Option<Helper>,
    budget: Budget,
}

#[derive(Serialize, Deserialize)]
struct Task {
    work: Work,
    budget: Budget,
}

#[derive(Serialize, Deserialize)]
enum Work {
    List { archive: PathBuf },
    Archive { archive: PathBuf, digest: String, root: PathBuf },
    Layers { layers: Vec<(String, PathBuf)>, root: PathBuf },
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Images(Vec<(Option<String>, String)>),
    Done,
    Failed(String),
}

impl Unpacker {
    /// Unpacks in children that this helper starts.
    pub fn confined(helper: Helper, budget: Budget) -> Self {
        Self { helper: Some(helper), budget }
    }

    /// Unpacks in this very process. For tests, and for images that are our own.
    pub fn here(budget: Budget) -> Self {
        Self { helper: None, budget }
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The images of an archive, for this machine's architecture.
    pub fn list(&self, archive: &Path) -> Result<Vec<Listed>, OciError> {
        let file = open(archive)?;
        match self.run(Work::List { archive: ours(&file) }, || list(file.try_clone().map_err(OciError::Read)?))? {
            Answer::Images(images) => images.into_iter().map(listed).collect(),
            _ => Err(OciError::Lie("it lists nothing".into())),
        }
    }

    /// Unpacks the image of an archive that has this digest into an empty directory.
    pub fn archive(&self, archive: &Path, digest: &Digest, root: &Path) -> Result<(), OciError> {
        let file = open(archive)?;
        let work = Work::Archive { archive: ours(&file), digest: digest.to_string(), root: root.into() };
        let here = || from_archive(file.try_clone().map_err(OciError::Read)?, digest, root, self.budget);
        self.run(work, here)?;
        self.settle(root)
    }

    /// Unpacks layers that lie in files of their own, lowest first, into an empty directory. Whoever brought them has compared
    /// their digests; the child does so again.
    pub fn layers(&self, layers: &[(Digest, File)], root: &Path) -> Result<(), OciError> {
        let places = layers.iter().map(|(digest, file)| (digest.to_string(), ours(file))).collect();
        let work = Work::Layers { layers: places, root: root.into() };
        self.run(work, || unpack_blobs(root, layers, &Spent::new(self.budget)).map(|()| Answer::Done))?;
        self.settle(root)
    }

    fn run(&self, work: Work, here: impl FnOnce() -> Result<Answer, OciError>) -> Result<Answer, OciError> {
        let Some(helper) = &self.helper else { return here() };
        let task = serde_json::to_vec(&Task { work, budget: self.budget })
            .map_err(|source| OciError::Document { what: "the task".into(), source })?;
        let answer = helper.ask(&task, Duration::from_secs(self.budget.seconds))?;
        match serde_json::from_slice(&answer) {
            Ok(Answer::Failed(message)) => Err(OciError::Refused(printable(&message, MAX_MESSAGE))),
            Ok(answer) => Ok(answer),
            Err(error) => Err(OciError::Lie(error.to_string())),
        }
    }

    /// Makes what the child left root's own, after a look at each entry. The child has ended, so nothing changes meanwhile.
    fn settle(&self, root: &Path) -> Result<(), OciError> {
        if self.helper.is_none() {
            return Ok(());
        }
        let mut left = self.budget.entries.saturating_mul(2);
        take_over(root, self.budget.depth, &mut left)
    }
}

fn take_over(path: &Path, depth: usize, left: &mut u64) -> Result<(), OciError> {
    const SPECIAL_BITS: u32 = 0o7000;
    let wrap = |source| OciError::File { path: path.into(), source };
    let found = path.symlink_metadata().map_err(wrap)?;
    *left = left.checked_sub(1).ok_or(OverBudget::Entries(0))?;
    let kind = found.file_type();
    if !(kind.is_dir() || kind.is_file() || kind.is_symlink())
        || (!kind.is_symlink() && found.mode() & SPECIAL_BITS != 0)
    {
        return Err(OciError::Lie(format!("{} is no file of an image", path.display())));
    }
    if kind.is_dir() {
        let deeper = depth.checked_sub(1).ok_or(OverBudget::Depth(depth))?;
        for entry in fs::read_dir(path).map_err(wrap)? {
            take_over(&entry.map_err(wrap)?.path(), deeper, left)?;
        }
    }
    // Who started the child may not be root, and then owns it already.
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own || found.gid() != rustix::process::getegid().as_raw() {
        lchown(path, Some(own), Some(rustix::process::getegid().as_raw())).map_err(wrap)?;
    }
    Ok(())
}

fn listed((name, digest): (Option<String>, String)) -> Result<Listed, OciError> {
    Ok(Listed { name: name.map(|name| printable(&name, MAX_NAME)), digest: digest.parse()? })
}

/// What a foreign process says, fit for a terminal and a log.
fn printable(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A file that this process holds, for the child: its name may be gone by then.
fn ours(file: &File) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
}

fn open(path: &Path) -> Result<File, OciError> {
    File::open(path).map_err(|source| OciError::File { path: path.into(), source })
}

/// The child, from its first to its last line. Returns the exit code.
pub fn main() -> i32 {
    let answer = work().unwrap_or_else(|error| Answer::Failed(printable(&chain(&error), MAX_MESSAGE)));
    let said = serde_json::to_vec(&answer).map_err(io::Error::from).and_then(|text| io::stdout().write_all(&text));
    i32::from(said.and_then(|()| io::stdout().flush()).is_err())
}

fn work() -> Result<Answer, OciError> {
    let mut text = Vec::new();
    io::stdin().take(MAX_TASK).read_to_end(&mut text).map_err(OciError::Read)?;
    let Task { work, budget } =
        serde_json::from_slice(&text).map_err(|source| OciError::Document { what: "the task".into(), source })?;
    // All that it will ever open outside its root; it does not look into any of it yet.
    match work {
        Work::List { archive } => {
            let archive = open(&archive)?;
            shut_in(None, &budget)?;
            list(archive)
        }
        Work::Archive { archive, digest, root } => {
            let archive = open(&archive)?;
            let root = shut_in(Some(root), &budget)?;
            from_archive(archive, &digest.parse()?, &root, budget)
        }
        Work::Layers { layers, root } => {
            let opened = |(digest, path): (String, PathBuf)| Ok((digest.parse()?, open(&path)?));
            let layers = layers.into_iter().map(opened).collect::<Result<Vec<_>, OciError>>()?;
            let root = shut_in(Some(root), &budget)?;
            unpack_blobs(&root, &layers, &Spent::new(budget))?;
            Ok(Answer::Done)
        }
    }
}

/// Answers where the root is from inside.
fn shut_in(root: Option<PathBuf>, budget: &Budget) -> Result<PathBuf, OciError> {
    let limits = Limits { memory: MEMORY, cpu: budget.seconds, file: budget.bytes, descriptors: DESCRIPTORS };
    let inside = match (&root, rustix::process::geteuid().is_root()) {
        (Some(root), false) => root.clone(),
        _ => PathBuf::from("/"),
    };
    let syscalls = files_only().map_err(OciError::Read)?;
    Jail { root, limits, syscalls }.enter().map_err(|error| OciError::Refused(chain(&error)))?;
    Ok(inside)
}

fn list(archive: File) -> Result<Answer, OciError> {
    let images = Archive::open(archive)?.images()?;
    Ok(Answer::Images(images.into_iter().map(|image| (image.name, image.digest.to_string())).collect()))
}

fn from_archive(archive: File, digest: &Digest, root: &Path, budget: Budget) -> Result<Answer, OciError> {
    let archive = Archive::open(archive)?;
    let image = archive.images()?.into_iter().find(|image| image.digest == *digest);
    let image = image.ok_or_else(|| OciError::Missing(digest.to_string()))?;
    archive.unpack(&image, root, &Spent::new(budget))?;
    Ok(Answer::Done)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
