//! What the hypervisor may open: the files of the machine's own volumes, and nothing that a file names.
//!
//! The last look before the start, by the user and in the file tree that the hypervisor will have. An image's header is not believed
//! (see [`ferrovirt_disks::image::header`]), a link in a volume leads nowhere but into that volume, and what is not a regular file is
//! no disk. The format is ours to say: a raw disk stays raw, whatever its guest writes to its beginning.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use ferrovirt_disks::image::Format;
use ferrovirt_disks::image::header::{Closed, HeaderError};
use ferrovirt_machine::convert::Layout;
use ferrovirt_machine::spec::{DiskFormat, DiskSource, MachineSpec, Preparation};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;

/// Takes no format from us: it looks at the first bytes of every disk, each time it opens it.
const PROBES_FORMATS: &str = "cloud-hypervisor";

#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error("{0:?} is not an absolute path of a file")]
    Path(String),
    #[error("cannot open {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{} leads out of its volume; a disk or kernel is a file of its own volume", .0.display())]
    Outside(PathBuf),
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    #[error("{} cannot be a disk", path.display())]
    Image { path: PathBuf, source: HeaderError },
}

/// Where tenants' volumes are, each in a directory of its own.
#[derive(Debug, Clone)]
pub struct Volumes {
    pub images: PathBuf,
    pub claims: PathBuf,
}

impl Default for Volumes {
    fn default() -> Self {
        let layout = Layout::default();
        Self { images: layout.container_disks.into(), claims: layout.vmi_disks.into() }
    }
}

impl Volumes {
    /// The image that an overlay is about to be put on: the size of its disk.
    pub fn base(&self, path: &str, format: DiskFormat) -> Result<u64, ChainError> {
        let file = match fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => device(path)?,
            _ => self.opened(path)?,
        };
        match format {
            DiskFormat::Qcow2 => Ok(closed(path, &file, format)?.virtual_size),
            // Opened as raw, it opens nothing else; but a format that we do not know would be no disk to its guest either.
            DiskFormat::Raw if Path::new(path).starts_with(&self.images) => {
                Ok(closed(path, &file, format)?.virtual_size)
            }
            DiskFormat::Raw => length(&file).map_err(|source| ChainError::Open { path: path.into(), source }),
        }
    }

    /// Looks at every file that the machine's description names, after all that the launcher makes is made.
    pub fn check(&self, spec: &MachineSpec) -> Result<(), ChainError> {
        let made: BTreeSet<&str> = spec.prepare.iter().filter(|made| is_image(made)).map(Preparation::path).collect();
        for disk in &spec.devices.disks {
            let below = disk.backing.iter().chain(&disk.data_store).map(|store| (&store.source, store.format));
            for (source, format) in std::iter::once((&disk.source, disk.format)).chain(below) {
                let Some(path) = source.path().filter(|path| !made.contains(path)) else { continue };
                let file = match source {
                    DiskSource::Block { .. } => device(path)?,
                    _ => self.opened(path)?,
                };
                if format == DiskFormat::Qcow2 || spec.hypervisor == PROBES_FORMATS {
                    closed(path, &file, format)?;
                }
            }
        }
        let kernel = spec.firmware.kernel.as_ref();
        for path in kernel.iter().flat_map(|kernel| [&kernel.kernel, &kernel.initrd]).filter(|path| !path.is_empty()) {
            self.opened(path)?;
        }
        Ok(())
    }

    /// A regular file, found without leaving its volume. Never waits, as on a pipe.
    fn opened(&self, path: &str) -> Result<File, ChainError> {
        let wrap = |error: Errno| match error {
            Errno::XDEV | Errno::LOOP => ChainError::Outside(path.into()),
            error => ChainError::Open { path: path.into(), source: error.into() },
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match self.split(path)? {
            Some((volume, inside)) => {
                let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let volume = open(&volume, directory, Mode::empty()).map_err(wrap)?;
                let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                openat2(volume, inside, flags, Mode::empty(), beneath).map_err(wrap)?
            }
            None => openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS).map_err(wrap)?,
        };
        let file = File::from(file);
        match file.metadata() {
            Ok(metadata) if metadata.is_file() => Ok(file),
            Ok(_) => Err(ChainError::NotAFile(path.into())),
            Err(source) => Err(ChainError::Open { path: path.into(), source }),
        }
    }

    /// The directory of the volume that a path lies in, and the rest; none if it lies in no tenant's volume.
    fn split(&self, path: &str) -> Result<Option<(PathBuf, PathBuf)>, ChainError> {
        let bad = || ChainError::Path(path.to_owned());
        absolute(path)?;
        for base in [&self.images, &self.claims] {
            let Ok(rest) = Path::new(path).strip_prefix(base) else { continue };
            let mut parts = rest.components();
            let Some(Component::Normal(volume)) = parts.next() else { return Err(bad()) };
            return Ok(Some((base.join(volume), parts.as_path().to_owned())));
        }
        Ok(None)
    }
}

/// What the launcher wrote just now, byte by byte: its chain is the one that the description says.
fn is_image(made: &Preparation) -> bool {
    matches!(made, Preparation::Overlay { .. } | Preparation::EmptyDisk { .. })
}

fn closed(path: &str, file: &File, format: DiskFormat) -> Result<Closed, ChainError> {
    let wanted = match format {
        DiskFormat::Qcow2 => Format::Qcow2,
        DiskFormat::Raw => Format::Raw,
    };
    Closed::inspect_as(file, wanted).map_err(|source| ChainError::Image { path: path.into(), source })
}

fn device(path: &str) -> Result<File, ChainError> {
    absolute(path)?;
    File::open(path).map_err(|source| ChainError::Open { path: path.into(), source })
}

/// With a slash in front, no path is a URL, a `json:` object or an option to whoever reads it.
fn absolute(path: &str) -> Result<(), ChainError> {
    let is_plain = path.starts_with('/') && !path.contains(['\0', '\n']);
    if is_plain { Ok(()) } else { Err(ChainError::Path(path.to_owned())) }
}

fn length(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(metadata.len()) } else { io::Seek::seek(&mut &*file, io::SeekFrom::End(0)) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use ferrovirt_machine::spec::{BackingStore, Disk, KernelBoot};

    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
        volumes: Volumes,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let volumes = Volumes { images: dir.path().join("images"), claims: dir.path().join("claims") };
            fs::create_dir_all(volumes.images.join("root/disk")).unwrap();
            fs::create_dir_all(volumes.claims.join("data")).unwrap();
            fs::write(dir.path().join("secret"), "of the launcher").unwrap();
            Self { dir, volumes }
        }

        fn image(&self, name: &str) -> String {
            self.volumes.images.join("root/disk").join(name).to_str().unwrap().to_owned()
        }

        fn claim(&self) -> String {
            self.volumes.claims.join("data/disk.img").to_str().unwrap().to_owned()
        }

        fn secret(&self) -> String {
            self.dir.path().join("secret").to_str().unwrap().to_owned()
        }
    }

    fn disk(path: &str, format: DiskFormat) -> Disk {
        Disk { source: DiskSource::File { path: path.to_owned() }, format, ..Disk::default() }
    }

    fn machine(disk: Disk) -> MachineSpec {
        let mut spec = MachineSpec { hypervisor: "qemu-kvm".into(), ..MachineSpec::default() };
        spec.devices.disks = vec![disk];
        spec
    }

    /// QEMU's own tool makes what an attacker would bring.
    fn qemu_img(arguments: &[&str]) {
        let output = Command::new("qemu-img").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn said(error: &ChainError) -> String {
        ferrovirt_machine::chain(error)
    }

    #[test]
    fn an_image_cannot_name_a_backing_file() {
        let f = Fixture::new();
        let image = f.image("disk.qcow2");
        qemu_img(&["create", "-q", "-f", "qcow2", &image, "1M"]);
        assert_eq!(f.volumes.base(&image, DiskFormat::Qcow2).unwrap(), 1 << 20);
        f.volumes.check(&machine(disk(&image, DiskFormat::Qcow2))).unwrap();
        for name in [f.secret(), "json:{\"driver\":\"file\",\"filename\":\"/etc/passwd\"}".into()] {
            qemu_img(&["create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", &name, &image, "1M"]);
            let error = f.volumes.base(&image, DiskFormat::Qcow2).unwrap_err();
            assert!(said(&error).contains("builds on another file"), "{}", said(&error));
            assert!(f.volumes.check(&machine(disk(&image, DiskFormat::Qcow2))).is_err());
            let backing = BackingStore { source: DiskSource::File { path: image.clone() }, format: DiskFormat::Qcow2 };
            let mut overlaid = disk(&f.claim(), DiskFormat::Raw);
            fs::write(f.claim(), "x").unwrap();
            overlaid.backing = Some(backing);
            assert!(f.volumes.check(&machine(overlaid)).is_err(), "below an overlay");
        }
    }

    #[test]
    fn an_image_cannot_keep_its_data_in_a_file_of_the_launcher() {
        let f = Fixture::new();
        let (image, data) = (f.image("disk.qcow2"), f.dir.path().join("data"));
        let option = format!("data_file={},data_file_raw=on", data.display());
        qemu_img(&["create", "-q", "-f", "qcow2", "-o", &option, &image, "1M"]);
        let error = f.volumes.base(&image, DiskFormat::Qcow2).unwrap_err();
        assert!(said(&error).contains("keeps its data in another file"), "{}", said(&error));
    }

    #[test]
    fn other_formats_are_no_container_disks() {
        let f = Fixture::new();
        for format in ["vmdk", "vdi", "vhdx", "qed"] {
            let image = f.image(format);
            qemu_img(&["create", "-q", "-f", format, &image, "1M"]);
            assert!(f.volumes.base(&image, DiskFormat::Raw).is_err(), "{format}");
            assert!(f.volumes.base(&image, DiskFormat::Qcow2).is_err(), "{format}");
        }
    }

    #[test]
    fn a_link_in_a_volume_leads_to_no_file_of_the_launcher() {
        let f = Fixture::new();
        let (image, claim) = (f.image("disk.img"), f.claim());
        for place in [&image, &claim] {
            for target in [f.secret(), "../../secret".into(), "../../../secret".into(), "/proc/self/exe".into()] {
                symlink(&target, place).unwrap();
                let error = f.volumes.check(&machine(disk(place, DiskFormat::Raw))).unwrap_err();
                assert!(matches!(error, ChainError::Outside(_)), "{target}: {error}");
                assert!(f.volumes.base(place, DiskFormat::Raw).is_err(), "{target}");
                fs::remove_file(place).unwrap();
            }
        }
        let climbing = format!("{}/root/../../secret", f.volumes.images.display());
        assert!(f.volumes.check(&machine(disk(&climbing, DiskFormat::Raw))).is_err());
        let mut spec = machine(Disk::default());
        spec.firmware.kernel = Some(KernelBoot { kernel: climbing, ..KernelBoot::default() });
        assert!(f.volumes.check(&spec).is_err(), "a kernel is a file of its image");
        // Inside its own volume a link is an ordinary one.
        fs::write(f.image("real.img"), "x").unwrap();
        symlink("real.img", &image).unwrap();
        f.volumes.check(&machine(disk(&image, DiskFormat::Raw))).unwrap();
    }

    #[test]
    fn what_is_no_regular_file_is_no_disk() {
        let f = Fixture::new();
        let claim = f.claim();
        rustix::fs::mknodat(CWD, &claim, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let error = f.volumes.check(&machine(disk(&claim, DiskFormat::Raw))).unwrap_err();
        assert!(matches!(error, ChainError::NotAFile(_)), "{error}");
        for path in ["json:{}", "nbd://localhost/x", "disk.img", "", "/a\nb"] {
            let error = f.volumes.check(&machine(disk(path, DiskFormat::Raw))).unwrap_err();
            assert!(matches!(error, ChainError::Path(_)), "{path:?}: {error}");
        }
    }

    #[test]
    fn a_guest_cannot_turn_its_raw_disk_into_a_chain() {
        let f = Fixture::new();
        qemu_img(&["create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", "/etc/passwd", &f.claim(), "1M"]);
        let mut spec = machine(disk(&f.claim(), DiskFormat::Raw));
        // QEMU is told that it is raw, and believes us.
        f.volumes.check(&spec).unwrap();
        // One that looks for itself must not see it.
        spec.hypervisor = PROBES_FORMATS.into();
        let error = f.volumes.check(&spec).unwrap_err();
        assert!(said(&error).contains("builds on another file"), "{}", said(&error));
    }
}
