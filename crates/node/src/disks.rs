//! Finds the disk image inside a containerDisk's file tree and reads what it is.
//!
//! The tree comes from a foreign image. It is opened below the launcher's root with the kernel resolving every link inside
//! that root, so that a link in an image never leads to a file of the host.

use std::{
    fs::File,
    io::{self, Read},
};

use ferrovirt_api::v1::{VirtualMachineInstance, Volume};
use ferrovirt_machine::{
    convert::{ContainerDisk, FieldError},
    spec::DiskFormat,
};
use rustix::fs::OFlags;

use crate::process::Process;

const BASE: &str = "/var/run/kubevirt/container-disks";

/// The containerDisks of an instance, by volume name.
pub(crate) fn container_disks(
    vmi: &VirtualMachineInstance,
    launcher: &Process,
) -> Result<Vec<(String, ContainerDisk)>, Vec<FieldError>> {
    let mut found = vec![];
    let mut errors = vec![];
    for (index, volume) in vmi.spec.volumes.iter().enumerate() {
        let Some(disk) = &volume.container_disk else { continue };
        match find(volume, &disk.path, launcher) {
            Ok(disk) => found.push((volume.name.clone(), disk)),
            Err(error) => errors.push(FieldError {
                field: format!("spec.volumes[{index}].containerDisk"),
                message: format!("no disk image in {}: {error}", disk.image),
            }),
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// The file trees of an instance's images, by volume name: what a container starts from.
pub(crate) fn container_trees(vmi: &VirtualMachineInstance) -> Vec<(String, String)> {
    let images = vmi.spec.volumes.iter().filter(|volume| volume.container_disk.is_some());
    images.map(|volume| (volume.name.clone(), format!("{BASE}/{}", volume.name))).collect()
}

fn find(volume: &Volume, path: &str, launcher: &Process) -> io::Result<ContainerDisk> {
    let tree = format!("{BASE}/{}", volume.name);
    let path = match path {
        "" => format!("{tree}/disk/{}", only_file(launcher, &format!("{tree}/disk"))?),
        path => format!("{tree}/{}", path.trim_start_matches('/')),
    };
    let mut file = File::from(launcher.open(&path, OFlags::RDONLY)?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other(format!("{path} is not a regular file")));
    }
    let mut header = [0u8; 32];
    let length = file.read(&mut header)?;
    let (format, size) = inspect(header.get(..length).unwrap_or_default(), metadata.len());
    Ok(ContainerDisk { path, format, size: Some(size) })
}

/// A containerDisk holds one file in `/disk`.
fn only_file(launcher: &Process, directory: &str) -> io::Result<String> {
    let directory_handle = launcher.open(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = vec![];
    for entry in rustix::fs::Dir::read_from(&directory_handle)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    match names.as_slice() {
        [name] => Ok(name.clone()),
        [] => Err(io::Error::other("the image's /disk is empty")),
        _ => Err(io::Error::other(format!("the image's /disk holds several files: {}", names.join(", ")))),
    }
}

/// Format and virtual size from the first bytes of an image.
fn inspect(header: &[u8], length: u64) -> (DiskFormat, u64) {
    match header {
        [b'Q', b'F', b'I', 0xfb, ..] if header.len() >= 32 => {
            let size = header.get(24..32).and_then(|b| b.try_into().ok()).map_or(length, u64::from_be_bytes);
            (DiskFormat::Qcow2, size)
        }
        _ => (DiskFormat::Raw, length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qcow2_is_told_by_its_magic_and_its_size_by_its_header() {
        let mut header = [0u8; 32];
        header[..4].copy_from_slice(b"QFI\xfb");
        header[24..32].copy_from_slice(&(5u64 << 30).to_be_bytes());
        assert_eq!(inspect(&header, 4096), (DiskFormat::Qcow2, 5 << 30));
        assert_eq!(inspect(b"", 0), (DiskFormat::Raw, 0));
        assert_eq!(inspect(&[0; 32], 1 << 20), (DiskFormat::Raw, 1 << 20));
    }
}
