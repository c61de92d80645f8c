//! What must exist before the domain can start: overlays, empty disks, made volumes, socket directories.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrovirt_disks::iso::{IsoError, write_iso};
use ferrovirt_machine::spec::{
    CacheMode, Content, Disk, DiskFormat, DiskSource, FileContent, IdRange, IoMode, MachineSpec, Preparation,
};

use serde_json::{Map, Value};

use crate::addresses;
use crate::chain::{ChainError, Volumes};
use crate::guest::credentials;
use crate::host_metrics;
use crate::qcow2::{self, Backing, Qcow2Error};
use crate::rootfs::{self, RootError};

#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("cannot make {}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot make a disk image")]
    Image(#[from] Qcow2Error),
    #[error("a disk is refused")]
    Chain(#[from] ChainError),
    #[error("cannot make a volume")]
    Volume(#[from] IsoError),
    #[error("cannot make the root file system")]
    Root(#[from] RootError),
    #[error("cannot read public keys")]
    Keys(#[from] crate::domain::DomainError),
    #[error("the content of {0} is not base64")]
    Base64(String, #[source] base64::DecodeError),
}

/// Runs all preparations and answers what the spec left to us. Blocks.
pub fn all(mut spec: Box<MachineSpec>) -> Result<Box<MachineSpec>, PrepareError> {
    let volumes = Volumes::default();
    for preparation in &spec.prepare {
        one(preparation, &volumes)?;
    }
    let sockets = socket_paths(&spec);
    for path in sockets {
        make_parent(&path)?;
    }
    if let Some(disk) = spec.host_metrics.as_ref().and_then(|metrics| metrics.disk.as_deref()).map(Path::new) {
        make_parent(disk)?;
        host_metrics::create(disk).map_err(|source| PrepareError::Make { path: disk.into(), source })?;
    }
    addresses::serve(&spec.dhcp);
    spec.devices.disks.iter_mut().for_each(choose_source);
    volumes.check(&spec)?;
    for disk in &mut spec.devices.disks {
        choose_cache(disk);
        choose_io(disk);
    }
    Ok(spec)
}

fn one(preparation: &Preparation, volumes: &Volumes) -> Result<(), PrepareError> {
    match preparation {
        Preparation::Overlay { path, backing, backing_format, size } => {
            // Looked at even where its size is known: an overlay is opened with all that lies below it.
            let own_size = volumes.base(backing, *backing_format)?;
            let size = size.unwrap_or(own_size);
            let (path, backing) = (Path::new(path), Path::new(backing));
            make_parent(path)?;
            Ok(qcow2::create(path, size, Some(Backing { path: backing, format: backing_format.name() }))?)
        }
        Preparation::EmptyDisk { path, format, bytes } => {
            let path = Path::new(path);
            make_parent(path)?;
            match format {
                DiskFormat::Qcow2 => Ok(qcow2::create(path, *bytes, None)?),
                DiskFormat::Raw => File::create(path)
                    .and_then(|file| file.set_len(*bytes))
                    .map_err(|source| PrepareError::Make { path: path.into(), source }),
            }
        }
        Preparation::SparseFile { path, bytes } => sparse_file(Path::new(path), *bytes),
        Preparation::CloudInit { path, label, files } => {
            let mut contents = Vec::with_capacity(files.len());
            for file in files {
                if let Some(bytes) = content(file)? {
                    contents.push((file.name.clone(), bytes));
                }
            }
            make_parent(Path::new(path))?;
            Ok(write_iso(Path::new(path), label, &contents)?)
        }
        Preparation::ContentDisk { path, label, dir } => {
            let mut files = Vec::new();
            collect(Path::new(dir), "", &mut files)?;
            make_parent(Path::new(path))?;
            Ok(write_iso(Path::new(path), label, &files)?)
        }
        Preparation::Nvram { path, template } => {
            let path = Path::new(path);
            if path.exists() {
                return Ok(());
            }
            make_parent(path)?;
            let bytes = fs::read(template).map_err(|source| PrepareError::Read { path: template.into(), source })?;
            fs::write(path, bytes).map_err(|source| PrepareError::Make { path: path.into(), source })
        }
        Preparation::RootTree { path, base, scratch, ids } => {
            Ok(rootfs::assemble(Path::new(path), Path::new(base), scratch.as_deref().map(Path::new), *ids)?)
        }
        Preparation::Directory { path, files, ids } => directory(Path::new(path), files, *ids),
    }
}

/// Only the guest's root may look: there are passwords in cloud-init data.
fn directory(path: &Path, files: &[FileContent], ids: IdRange) -> Result<(), PrepareError> {
    let make = |path: &Path, mode: u32| {
        fs::create_dir_all(path)
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
            .map_err(|source| PrepareError::Make { path: path.into(), source })?;
        Ok::<(), PrepareError>(rootfs::own(path, ids)?)
    };
    make(path, 0o700)?;
    rootfs::open_way(path)?;
    for file in files {
        let Some(bytes) = content(file)? else {
            continue;
        };
        let mut place = path.to_owned();
        let mut parts = Path::new(&file.name).components().peekable();
        while let Some(part) = parts.next() {
            place.push(part);
            if parts.peek().is_some() {
                make(&place, 0o700)?;
            }
        }
        fs::write(&place, bytes)
            .and_then(|()| fs::set_permissions(&place, fs::Permissions::from_mode(0o600)))
            .map_err(|source| PrepareError::Make { path: place.clone(), source })?;
        rootfs::own(&place, ids)?;
    }
    Ok(())
}

fn sparse_file(path: &Path, bytes: u64) -> Result<(), PrepareError> {
    make_parent(path)?;
    let made = match OpenOptions::new().write(true).create_new(true).open(path) {
        // A file system has less room than its device, and a disk that cannot be filled would stop its guest.
        Ok(file) => rustix::fs::fstatvfs(&file)
            .map_err(io::Error::from)
            .and_then(|stat| file.set_len(bytes.min(stat.f_blocks * stat.f_frsize))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    };
    made.map_err(|source| PrepareError::Make { path: path.into(), source })
}

fn content(file: &FileContent) -> Result<Option<Vec<u8>>, PrepareError> {
    match &file.content {
        Content::Text(text) => Ok(Some(text.clone().into_bytes())),
        Content::Base64(text) => {
            STANDARD.decode(text.trim()).map(Some).map_err(|source| PrepareError::Base64(file.name.clone(), source))
        }
        Content::WithKeys { json, field, dirs } => {
            let mut object: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
            let mut keys = Map::new();
            for dir in dirs {
                for key in credentials::keys_in(dir)? {
                    keys.insert(keys.len().to_string(), key.into());
                }
            }
            object.insert(field.clone(), keys.into());
            Ok(Some(Value::from(object).to_string().into_bytes()))
        }
        Content::FirstOf(paths) => {
            for path in paths {
                match fs::read(path) {
                    Ok(bytes) => return Ok(Some(bytes)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(source) => {
                        return Err(PrepareError::Read { path: path.into(), source });
                    }
                }
            }
            Ok(None)
        }
    }
}

/// All files of a volume's directory. Volumes of secrets and config maps are links into a hidden directory that is swapped
/// on update; links are followed, and the names that start with `..` are that machinery.
fn collect(dir: &Path, prefix: &str, files: &mut Vec<(String, Vec<u8>)>) -> Result<(), PrepareError> {
    let wrap = |source| PrepareError::Read { path: dir.into(), source };
    let mut entries = fs::read_dir(dir).map_err(wrap)?.collect::<Result<Vec<_>, _>>().map_err(wrap)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("..") {
            continue;
        }
        let path = entry.path();
        let name = format!("{prefix}{name}");
        let wrap = |source| PrepareError::Read { path: path.clone(), source };
        if fs::metadata(&path).map_err(wrap)?.is_dir() {
            collect(&path, &format!("{name}/"), files)?;
        } else {
            files.push((name, fs::read(&path).map_err(wrap)?));
        }
    }
    Ok(())
}

/// Sockets and logs that the hypervisor makes itself, in directories that it does not.
fn socket_paths(spec: &MachineSpec) -> Vec<PathBuf> {
    let devices = &spec.devices;
    let serial = devices.serial.iter().flat_map(|serial| [Some(serial.socket.as_str()), serial.log.as_deref()]);
    let graphics = devices.graphics.iter().map(|graphics| Some(graphics.socket.as_str()));
    let channels = devices.channels.iter().map(|channel| channel.path.as_deref());
    let usb = devices.usb_redirections.iter().map(|path| Some(path.as_str()));
    serial.chain(graphics).chain(channels).chain(usb).flatten().map(PathBuf::from).collect()
}

/// Storage without block devices presents a claim in block mode as a file, which QEMU must open as such.
fn choose_source(disk: &mut Disk) {
    if let DiskSource::Block { path, .. } = &disk.source
        && fs::metadata(path).is_ok_and(|meta| meta.is_file())
    {
        disk.source = DiskSource::File { path: path.clone() };
    }
}

/// Without host cache where the storage can do that, so that memory is not used twice.
fn choose_cache(disk: &mut Disk) {
    if disk.cache.is_some() {
        return;
    }
    let Some(path) = disk.source.path() else {
        return;
    };
    let direct = OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(path);
    disk.cache = Some(if direct.is_ok() { CacheMode::None } else { CacheMode::Writethrough });
}

/// Native asynchronous I/O pays off only where a write never has to allocate.
fn choose_io(disk: &mut Disk) {
    if disk.io.is_some() || disk.cache != Some(CacheMode::None) {
        return;
    }
    let native = match &disk.source {
        DiskSource::Block { .. } => true,
        DiskSource::File { path } => {
            fs::metadata(path).is_ok_and(|meta| meta.len() > 0 && meta.blocks() * 512 >= meta.len())
        }
        DiskSource::Empty {} => false,
    };
    if native && disk.format == DiskFormat::Raw {
        disk.io = Some(IoMode::Native);
    }
}

fn make_parent(path: &Path) -> Result<(), PrepareError> {
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(|source| PrepareError::Make { path: parent.into(), source }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn everything_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("base.raw"), vec![0; 4096]).unwrap();
        fs::write(at("template"), b"vars").unwrap();
        fs::create_dir_all(at("secret/..data/sub")).unwrap();
        fs::write(at("secret/..data/key"), b"value").unwrap();
        std::os::unix::fs::symlink("..data/key", at("secret/key")).unwrap();
        fs::write(at("user"), b"#cloud-config\n").unwrap();
        let spec = MachineSpec {
            prepare: vec![
                Preparation::Overlay {
                    path: text(&at("o/overlay.qcow2")),
                    backing: text(&at("base.raw")),
                    backing_format: DiskFormat::Raw,
                    size: None,
                },
                Preparation::EmptyDisk { path: text(&at("e/raw")), format: DiskFormat::Raw, bytes: 8192 },
                Preparation::EmptyDisk { path: text(&at("e/qcow2")), format: DiskFormat::Qcow2, bytes: 8192 },
                Preparation::SparseFile { path: text(&at("s/file")), bytes: 1 << 20 },
                Preparation::CloudInit {
                    path: text(&at("c/noCloud.iso")),
                    label: "cidata".into(),
                    files: vec![
                        FileContent { name: "meta-data".into(), content: Content::Text("{}".into()) },
                        FileContent { name: "network-config".into(), content: Content::Base64("eA==".into()) },
                        FileContent {
                            name: "user-data".into(),
                            content: Content::FirstOf(vec![text(&at("absent")), text(&at("user"))]),
                        },
                        FileContent { name: "vendor".into(), content: Content::FirstOf(vec![text(&at("absent"))]) },
                    ],
                },
                Preparation::ContentDisk {
                    path: text(&at("d/secret.iso")),
                    label: "s".into(),
                    dir: text(&at("secret")),
                },
                Preparation::Nvram { path: text(&at("n/vars")), template: text(&at("template")) },
            ],
            ..MachineSpec::default()
        };
        all(Box::new(spec.clone())).unwrap();
        let virtual_size = |name: &str| u64::from_be_bytes(fs::read(at(name)).unwrap()[24..32].try_into().unwrap());
        assert_eq!(virtual_size("o/overlay.qcow2"), 4096);
        assert_eq!(virtual_size("e/qcow2"), 8192);
        assert_eq!(fs::metadata(at("e/raw")).unwrap().len(), 8192);
        assert_eq!(fs::metadata(at("s/file")).unwrap().len(), 1 << 20);
        assert_eq!(fs::read(at("n/vars")).unwrap(), b"vars");
        let iso = String::from_utf8_lossy(&fs::read(at("c/noCloud.iso")).unwrap()).into_owned();
        assert!(iso.contains("#cloud-config") && iso.contains("user-data") && !iso.contains("vendor"));
        let iso = String::from_utf8_lossy(&fs::read(at("d/secret.iso")).unwrap()).into_owned();
        assert!(iso.contains("value") && !iso.contains("..data"));

        // What the machine wrote outlives a second run where the spec says so.
        fs::write(at("n/vars"), b"changed").unwrap();
        fs::write(at("s/file"), b"changed").unwrap();
        all(Box::new(spec)).unwrap();
        assert_eq!(fs::read(at("n/vars")).unwrap(), b"changed");
        assert_eq!(fs::read(at("s/file")).unwrap(), b"changed");
    }

    #[test]
    fn open_questions_about_disks_are_answered() {
        let dir = tempfile::tempdir().unwrap();
        let sparse = dir.path().join("sparse");
        File::create(&sparse).unwrap().set_len(1 << 20).unwrap();
        let disk =
            |path: &Path, cache| Disk { source: DiskSource::File { path: text(path) }, cache, ..Disk::default() };
        let mut spec = MachineSpec::default();
        spec.devices.disks = vec![disk(&sparse, None), disk(&sparse, Some(CacheMode::Writeback)), Disk::default()];
        let disks = all(Box::new(spec)).unwrap().devices.disks;
        assert!(disks[0].cache.is_some());
        assert_eq!(disks[0].io, None, "a sparse file has to allocate");
        assert_eq!(disks[1].cache, Some(CacheMode::Writeback));
        assert_eq!(disks[2].cache, None);
    }

    #[test]
    fn an_overlay_is_not_put_on_an_image_that_names_a_backing_file() {
        let dir = tempfile::tempdir().unwrap();
        let (base, overlay) = (dir.path().join("base.qcow2"), dir.path().join("o/overlay.qcow2"));
        qcow2::create(&base, 4096, Some(Backing { path: Path::new("/etc/passwd"), format: "raw" })).unwrap();
        for size in [None, Some(4096)] {
            let spec = MachineSpec {
                prepare: vec![Preparation::Overlay {
                    path: text(&overlay),
                    backing: text(&base),
                    backing_format: DiskFormat::Qcow2,
                    size,
                }],
                ..MachineSpec::default()
            };
            let error = all(Box::new(spec)).unwrap_err();
            assert!(matches!(error, PrepareError::Chain(_)), "{error}");
            assert!(!overlay.exists());
        }
    }

    #[test]
    fn errors_name_the_file() {
        let spec = MachineSpec {
            prepare: vec![Preparation::Nvram { path: "/nonexistent-dir/x".into(), template: "/absent".into() }],
            ..MachineSpec::default()
        };
        let error = all(Box::new(spec)).unwrap_err();
        assert!(error.to_string().contains("/absent") || error.to_string().contains("/nonexistent-dir"), "{error}");
    }
}
