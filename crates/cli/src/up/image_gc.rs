//! Which images go when the disk fills up: those from registries that no pod has mounted, the longest unused first.
//!
//! In use is what some process's mounts show, not what objects say: a name may have got new content since a pod took it. An image
//! that was asked for a moment ago is about to be mounted.

use std::{
    collections::{BTreeSet, HashSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use ferrovirt_disks::store::{Image, ImageStore};

const EVERY: Duration = Duration::from_secs(300);
/// How long an image is kept after somebody asked for it.
const MINIMUM_AGE: Duration = Duration::from_secs(120);
/// How long a beginning is kept for somebody to go on with.
const PARTIAL_AGE: Duration = Duration::from_secs(3600);

/// Shares of the disk that may be full, in percent.
#[derive(Debug, Clone, Copy)]
pub struct Thresholds {
    /// From here on images go,
    pub high: u8,
    /// until no more than this is full.
    pub low: u8,
}

#[derive(Debug, Clone)]
pub struct Collector {
    pub store: ImageStore,
    pub directory: PathBuf,
    pub blobs: PathBuf,
    pub thresholds: Thresholds,
}

impl Collector {
    pub async fn run(self) {
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            ticks.tick().await;
            let collector = self.clone();
            let _ = tokio::task::spawn_blocking(move || collector.collect()).await;
        }
    }

    /// Remembers that a pod wants the image.
    pub fn used(&self, image: &Image) {
        let record = image.rootfs.with_file_name("image.json");
        let touched = File::options().append(true).open(&record).and_then(|file| file.set_modified(SystemTime::now()));
        if let Err(error) = touched {
            tracing::debug!(%error, image = image.reference, "cannot note that an image is used");
        }
    }

    /// Makes room, if it is time to.
    pub fn collect(&self) {
        let full = || full_percent(&self.directory);
        self.drop_partials(PARTIAL_AGE * 24);
        match full() {
            Ok(full) if full >= u64::from(self.thresholds.high) => {}
            _ => return,
        }
        self.drop_partials(PARTIAL_AGE);
        self.drop_images(&mounted(Path::new("/proc")), || {
            full().is_ok_and(|full| full > u64::from(self.thresholds.low))
        });
    }

    /// Removes images, the longest unused first, while there is need.
    fn drop_images(&self, in_use: &BTreeSet<String>, mut need: impl FnMut() -> bool) {
        let pulled = self.pulled();
        let mut images: Vec<(SystemTime, Image)> = match self.store.list() {
            Ok(images) => images.into_iter().map(|image| (last_used(&image), image)).collect(),
            Err(error) => return tracing::warn!(%error, "cannot list images"),
        };
        images.sort_by_key(|image| image.0);
        let mut gone = HashSet::new();
        for (used, image) in &images {
            let hex = image.digest.trim_start_matches("sha256:");
            let names: Vec<&str> = images
                .iter()
                .filter(|(_, other)| other.digest == image.digest)
                .map(|(_, other)| other.reference.as_str())
                .collect();
            let young = used.elapsed().unwrap_or_default() < MINIMUM_AGE;
            // One name that was given by hand keeps it.
            let ours = self.directory.join(".access").join(format!("sha256-{hex}")).exists()
                && names.iter().all(|name| name.starts_with("sha256:") || pulled.contains(*name));
            if young || !ours || in_use.contains(hex) || gone.contains(&image.digest) {
                continue;
            }
            if !need() {
                return;
            }
            gone.insert(image.digest.clone());
            match self.store.remove(&image.digest) {
                Ok(()) => {
                    let _ = fs::remove_file(self.directory.join(".access").join(format!("sha256-{hex}")));
                    tracing::info!(
                        image = image.reference,
                        digest = image.digest,
                        "removed an unused image: the disk is filling up"
                    );
                }
                Err(error) => tracing::warn!(%error, image = image.reference, "cannot remove an image"),
            }
        }
    }

    /// Canonical names of images that came from registries.
    fn pulled(&self) -> HashSet<String> {
        let entries = fs::read_dir(self.directory.join(".pulled")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| Some(entry.file_name().to_str()?.replace("%2F", "/")));
        names.filter_map(|name| Some(name.parse::<ferrovirt_disks::reference::Reference>().ok()?.tagged())).collect()
    }

    /// Layers of pulls that did not go on.
    fn drop_partials(&self, age: Duration) {
        for entry in fs::read_dir(&self.blobs).into_iter().flatten().flatten() {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            if modified.is_ok_and(|time| time.elapsed().unwrap_or_default() > age) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn last_used(image: &Image) -> SystemTime {
    let record = image.rootfs.with_file_name("image.json");
    record.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn full_percent(directory: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(directory)?;
    let all = stat.f_blocks.max(1);
    Ok(100 - stat.f_bavail.min(all) * 100 / all)
}

/// Hex digests of the images in any mount namespace.
fn mounted(proc: &Path) -> BTreeSet<String> {
    let mut seen = HashSet::new();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(proc).into_iter().flatten().flatten() {
        let is_process = entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        if !is_process {
            continue;
        }
        // Processes come and go meanwhile.
        let Ok(namespace) = fs::read_link(entry.path().join("ns/mnt")) else { continue };
        if seen.insert(namespace) {
            found.extend(digests(&fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default()));
        }
    }
    found
}

fn digests(mounts: &str) -> impl Iterator<Item = String> + '_ {
    let hex =
        |part: &str| part.get(..64).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit())).map(str::to_owned);
    mounts.split("sha256-").skip(1).filter_map(hex)
}

#[cfg(test)]
mod tests {
    use ferrovirt_disks::{budget::Budget, digest::Digest, store::StoreError, unpacker::Unpacker};

    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
        collector: Collector,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let directory = dir.path().to_owned();
            let store = ImageStore::open(&directory, Unpacker::here(Budget::default())).unwrap();
            fs::create_dir(directory.join(".pulled")).unwrap();
            fs::create_dir(directory.join(".access")).unwrap();
            let thresholds = Thresholds { high: 0, low: 0 };
            let blobs = directory.join(".blobs");
            Self { dir, collector: Collector { store, directory, blobs, thresholds } }
        }

        fn image(&self, name: &str, pulled: bool, age: Duration) -> Image {
            let digest = Digest::of(name.as_bytes());
            let image =
                self.collector.store.install(&name.parse().unwrap(), &digest, |_| Ok::<(), StoreError>(())).unwrap();
            if pulled {
                fs::write(self.dir.path().join(".pulled").join(name.replace('/', "%2F")), "").unwrap();
                fs::write(self.dir.path().join(".access").join(format!("sha256-{}", digest.hex())), "anybody").unwrap();
            }
            let record = File::options().append(true).open(image.rootfs.with_file_name("image.json")).unwrap();
            record.set_modified(SystemTime::now() - age).unwrap();
            image
        }

        fn left(&self) -> Vec<String> {
            let images = self.collector.store.list().unwrap();
            images.iter().map(|image| image.reference.trim_start_matches("docker.io/library/").to_owned()).collect()
        }
    }

    #[test]
    fn images_of_tenants_cannot_fill_the_disk() {
        let f = Fixture::new();
        const HOUR: Duration = Duration::from_secs(3600);
        f.image("old", true, HOUR * 3);
        f.image("older", true, HOUR * 4);
        f.image("young", true, Duration::ZERO);
        f.image("imported", false, HOUR * 9);
        let mounted = f.image("mounted", true, HOUR * 9);
        let in_use = BTreeSet::from([mounted.digest.trim_start_matches("sha256:").to_owned()]);
        let mut rounds = 0;
        f.collector.drop_images(&in_use, || {
            rounds += 1;
            rounds == 1
        });
        assert_eq!(
            f.left(),
            ["imported:latest", "mounted:latest", "old:latest", "young:latest"],
            "the longest unused goes first"
        );
        f.collector.drop_images(&in_use, || true);
        assert_eq!(f.left(), ["imported:latest", "mounted:latest", "young:latest"]);
        f.collector.used(&mounted);
        f.collector.drop_images(&BTreeSet::new(), || true);
        assert_eq!(f.left(), ["imported:latest", "mounted:latest", "young:latest"], "it was asked for just now");
    }

    #[test]
    fn what_is_mounted_is_in_use() {
        let hex = "0123456789abcdef".repeat(4);
        let text = format!(
            "36 35 98:0 /data/images/sha256-{hex}/rootfs /mnt ro - ext4 /dev/root ro\n37 35 0:1 / /x rw - overlay o lowerdir=/i/sha256-{}/rootfs\n38 35 98:0 /sha256-short /y rw - ext4 x rw\n",
            hex.replace('0', "f")
        );
        assert_eq!(digests(&text).collect::<Vec<_>>(), [hex.clone(), hex.replace('0', "f")]);
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("12/ns")).unwrap();
        std::os::unix::fs::symlink("mnt:[1]", proc.path().join("12/ns/mnt")).unwrap();
        fs::write(proc.path().join("12/mountinfo"), text).unwrap();
        assert!(mounted(proc.path()).contains(&hex));
    }
}
