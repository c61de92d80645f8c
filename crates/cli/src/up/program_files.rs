//! The directory of programs: each is a copy of its own, named by the digest of its content. Nothing is linked to the installed files:
//! who writes into one of them, or into the copy of another host, changes nothing here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use ferrovirt_node_lite::programs::{file_name, is_sha256};
use serde::{Deserialize, Serialize};

/// What is known of files, so that a start need not read them all.
const INDEX: &str = "index.json";
/// Files that were not finished.
const UNFINISHED: &str = ".new-";

pub struct ProgramFiles {
    directory: PathBuf,
    index: Index,
    /// Names of the files that this host runs.
    current: BTreeSet<String>,
}

/// A program that was installed here.
pub struct Installed {
    pub path: PathBuf,
    pub sha256: String,
}

#[derive(Default, Serialize, Deserialize)]
struct Index {
    /// It counts until the machine is started again: what was not on the disk yet is lost then, and a stamp may outlive its content.
    boot_id: String,
    /// By the path of the installed file.
    sources: BTreeMap<PathBuf, Known>,
}

#[derive(Serialize, Deserialize)]
struct Known {
    source: Stamp,
    copy: Stamp,
    sha256: String,
}

/// A file that has the same stamp as before is the same file with the same content: the kernel sets the time of the last change.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    links: u64,
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            links: metadata.nlink(),
        }
    }
}

impl ProgramFiles {
    pub fn open(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        // uid 107 must be able to reach and run the launcher, and nothing else below the data directory.
        fs::set_permissions(directory, fs::Permissions::from_mode(0o711))?;
        let text = fs::read(directory.join(INDEX)).unwrap_or_default();
        // One that is damaged costs a reading.
        let index: Index = serde_json::from_slice(&text).unwrap_or_default();
        let boot_id = ferrovirt_node_lite::identity::boot_id().context("cannot tell this boot from others")?;
        let index = if index.boot_id == boot_id { index } else { Index { boot_id, ..Index::default() } };
        Ok(Self { directory: directory.to_owned(), index, current: BTreeSet::new() })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Copies a program, unless this very content is here.
    pub fn install(&mut self, source: &Path, stem: &str) -> Result<Installed> {
        let context = || format!("cannot copy {}", source.display());
        let mut from = File::open(source).with_context(context)?;
        let stamp = Stamp::of(&from.metadata().with_context(context)?);
        let known = self.index.sources.get(source).filter(|known| known.source == stamp);
        let sha256 = match known.filter(|known| self.is_whole(stem, known)) {
            Some(known) => known.sha256.clone(),
            None => {
                let (sha256, copy) = self.copy(&mut from, stem).with_context(context)?;
                let known = Known { source: stamp, copy, sha256: sha256.clone() };
                self.index.sources.insert(source.to_owned(), known);
                sha256
            }
        };
        let name = file_name(stem, &sha256);
        let path = self.directory.join(&name);
        self.current.insert(name);
        Ok(Installed { path, sha256 })
    }

    /// Keeps what is known for the next start.
    pub fn save(&self) -> Result<()> {
        let temporary = self.directory.join(format!("{UNFINISHED}{INDEX}"));
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        serde_json::to_writer(&mut file, &self.index)?;
        Ok(fs::rename(&temporary, self.directory.join(INDEX))?)
    }

    fn is_whole(&self, stem: &str, known: &Known) -> bool {
        let found = fs::symlink_metadata(self.directory.join(file_name(stem, &known.sha256)));
        found.is_ok_and(|found| found.is_file() && Stamp::of(&found) == known.copy && known.copy.links == 1)
    }

    /// The digest is that of the copy: the installed file may be replaced meanwhile.
    fn copy(&self, from: &mut File, stem: &str) -> io::Result<(String, Stamp)> {
        let temporary = self.directory.join(format!("{UNFINISHED}{stem}"));
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut copy = File::options().read(true).write(true).create_new(true).mode(0o600).open(&temporary)?;
        // Shares the blocks until one of both is written, where the file system can.
        if rustix::fs::ioctl_ficlone(&copy, &*from).is_err() {
            io::copy(from, &mut copy)?;
        }
        let sha256 = digest(&mut copy)?;
        copy.set_permissions(fs::Permissions::from_mode(0o755))?;
        // Also in place of one that was changed, or is a link that an earlier version made.
        fs::rename(&temporary, self.directory.join(file_name(stem, &sha256)))?;
        Ok((sha256, Stamp::of(&copy.metadata()?)))
    }

    /// Removes programs that no pod has any more. `images` are those of all pods of the API; `pods` has the directories of pods here.
    pub fn collect(&self, images: &BTreeSet<String>, pods: &Path) -> io::Result<Vec<String>> {
        let plans: Vec<String> = fs::read_dir(pods)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|pod| fs::read_to_string(pod.path().join("init.json")).ok())
            .collect();
        let mut removed = vec![];
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name == INDEX || self.current.contains(&name) {
                continue;
            }
            let sha256 = name.rsplit('-').next().filter(|text| is_sha256(text));
            let wanted = sha256.is_some_and(|sha256| images.iter().any(|image| image.ends_with(sha256)))
                || plans.iter().any(|plan| plan.contains(&name));
            if !wanted {
                fs::remove_file(entry.path())?;
                removed.push(name);
            } else if entry.metadata()?.nlink() > 1 {
                // An earlier version linked to the installed file. Who runs it keeps what it runs.
                let temporary = self.directory.join(format!("{UNFINISHED}{name}"));
                fs::copy(entry.path(), &temporary)?;
                fs::rename(&temporary, entry.path())?;
            }
        }
        Ok(removed)
    }
}

fn digest(file: &mut File) -> io::Result<String> {
    io::Seek::rewind(file)?;
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => context.update(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    struct Scene {
        root: tempfile::TempDir,
        program: PathBuf,
    }

    impl Scene {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let program = root.path().join("installed");
            fs::write(&program, "one").unwrap();
            Self { root, program }
        }

        fn open(&self, host: &str) -> ProgramFiles {
            ProgramFiles::open(&self.root.path().join(host)).unwrap()
        }

        fn install(&self, host: &str) -> Installed {
            let mut files = self.open(host);
            let installed = files.install(&self.program, "ferrovirt-launcher").unwrap();
            files.save().unwrap();
            installed
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    const ONE: &str = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";

    #[test]
    fn two_data_directories_share_no_program() {
        let scene = Scene::new();
        let (a, b) = (scene.install("a"), scene.install("b"));
        assert_eq!((a.sha256.as_str(), a.sha256 == b.sha256), (ONE, true));
        let inode = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino(), m.nlink())).unwrap();
        let all = [inode(&a.path), inode(&b.path), inode(&scene.program)];
        assert!(all.iter().all(|(_, _, links)| *links == 1), "{all:?}");
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 3, "{all:?}");
        // Not through the copy, not through the installed file, and not if it is written in place.
        File::options().append(true).open(&a.path).unwrap().write_all(b" more").unwrap();
        assert_eq!(fs::read(&b.path).unwrap(), b"one");
        assert_eq!(fs::read(&scene.program).unwrap(), b"one");
        File::options().append(true).open(&scene.program).unwrap().write_all(b" more").unwrap();
        assert_eq!(fs::read(&b.path).unwrap(), b"one");
    }

    #[test]
    fn a_program_is_what_its_name_says() {
        let scene = Scene::new();
        let first = scene.install("a");
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let before = inode(&first.path);
        assert_eq!(inode(&scene.install("a").path), before, "copied without need");
        // A copy that somebody wrote into is replaced.
        fs::write(&first.path, "evil").unwrap();
        assert_eq!(fs::read(scene.install("a").path).unwrap(), b"one");
        // One that an earlier version linked, too.
        fs::remove_file(&first.path).unwrap();
        fs::hard_link(&scene.program, &first.path).unwrap();
        assert_eq!(fs::metadata(scene.install("a").path).unwrap().nlink(), 1);
        // Another content has another name.
        fs::write(&scene.program, "two").unwrap();
        let second = scene.install("a");
        assert_ne!(second.sha256, first.sha256);
        assert_eq!(fs::read(&second.path).unwrap(), b"two");
        assert_eq!(fs::read(&first.path).unwrap(), b"one");
    }

    #[test]
    fn programs_go_when_no_pod_has_them() {
        let scene = Scene::new();
        let (pods, bin) = (scene.root.path().join("pods"), scene.root.path().join("a"));
        let waits = scene.install("a");
        fs::write(&scene.program, "two").unwrap();
        scene.install("a");
        fs::write(&scene.program, "three").unwrap();
        let mut files = scene.open("a");
        let current = files.install(&scene.program, "ferrovirt-launcher").unwrap();
        files.save().unwrap();
        // Two files of an earlier version, one of which a pod runs.
        let (old, gone) = ("ferrovirt-launcher-0.1.0-0123456789abcdef", "ferrovirt-0.1.0-0123456789abcdef");
        for name in [old, gone] {
            fs::hard_link(&scene.program, bin.join(name)).unwrap();
        }
        fs::create_dir_all(pods.join("u1")).unwrap();
        fs::write(pods.join("u1/init.json"), format!("{{\"launcher\":\"{}\"}}", bin.join(old).display())).unwrap();
        let images = [format!("ferrovirt-launcher-lxc@sha256:{}", waits.sha256)].into();
        let removed = files.collect(&images, &pods).unwrap();
        assert_eq!(removed.len(), 2, "{removed:?}");
        let name = |installed: &Installed| installed.path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut expected = vec![old.to_owned(), INDEX.to_owned(), name(&waits), name(&current)];
        expected.sort();
        assert_eq!(names(&bin), expected);
        assert_eq!(fs::metadata(bin.join(old)).unwrap().nlink(), 1, "still a link to the installed file");
        fs::remove_dir_all(&pods).unwrap();
        files.collect(&BTreeSet::new(), &pods).unwrap();
        assert_eq!(names(&bin), {
            let mut names = vec![INDEX.to_owned(), name(&current)];
            names.sort();
            names
        });
    }
}
