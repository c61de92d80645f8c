//! Disks and file systems.

use serde::{Deserialize, Serialize};

use super::PciAddress;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Disk {
    /// Name of the VMI's volume; the device's alias.
    pub name: String,
    pub device: DiskDevice,
    pub source: DiskSource,
    pub format: DiskFormat,
    pub bus: DiskBus,
    /// Name of the device in the guest, such as `vda`. A hint to the guest, a key to us.
    pub target: String,
    /// Model of a virtio device, such as `virtio-non-transitional`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// `None`: the launcher tries direct I/O on the file and picks `none` or `writethrough`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheMode>,
    /// `None`: the launcher picks `native` for block devices and preallocated files without host cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_policy: Option<ErrorPolicy>,
    /// Pass the guest's discards on to the storage.
    pub discard: bool,
    pub read_only: bool,
    pub shareable: bool,
    /// Tray of a CD drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tray: Option<Tray>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_order: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_thread: Option<u32>,
    /// Pool of I/O threads that share the disk's queues.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub io_thread_pool: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing: Option<BackingStore>,
    /// Where the guest's data goes when the source only tracks which blocks changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_store: Option<BackingStore>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<BlockSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<DiskAddress>,
    /// Socket of the helper that answers persistent reservations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservations: Option<String>,
    /// Share of the volume that its file system keeps for itself, as a decimal fraction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem_overhead: Option<String>,
    /// Size of the volume behind the disk in bytes, the room a growing disk has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Put virtio behind the IOMMU (encrypted guests).
    pub iommu: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskDevice {
    #[default]
    Disk,
    Cdrom,
    Lun,
    Floppy,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum DiskSource {
    File {
        path: String,
    },
    Block {
        path: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// An empty drive.
    Empty {},
}

impl Default for DiskSource {
    fn default() -> Self {
        Self::Empty {}
    }
}

impl DiskSource {
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::File { path } | Self::Block { path, .. } => Some(path),
            Self::Empty {} => None,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    #[default]
    Raw,
    Qcow2,
}

impl DiskFormat {
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskBus {
    #[default]
    Virtio,
    Sata,
    Scsi,
    Usb,
}

impl DiskBus {
    pub fn name(self) -> &'static str {
        match self {
            Self::Virtio => "virtio",
            Self::Sata => "sata",
            Self::Scsi => "scsi",
            Self::Usb => "usb",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheMode {
    None,
    Writethrough,
    Writeback,
    Unsafe,
    Directsync,
}

impl CacheMode {
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Writethrough => "writethrough",
            Self::Writeback => "writeback",
            Self::Unsafe => "unsafe",
            Self::Directsync => "directsync",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IoMode {
    /// Upstream's word for saying nothing, which libvirt does not know. Only for comparing with it.
    Default,
    Threads,
    Native,
    IoUring,
}

impl IoMode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Threads => "threads",
            Self::Native => "native",
            Self::IoUring => "io_uring",
        }
    }
}

/// What happens when the storage fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorPolicy {
    Stop,
    Report,
    Ignore,
    Enospace,
}

impl ErrorPolicy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Report => "report",
            Self::Ignore => "ignore",
            Self::Enospace => "enospace",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tray {
    Open,
    Closed,
}

/// What an overlay lies on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackingStore {
    pub source: DiskSource,
    pub format: DiskFormat,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BlockSize {
    pub logical: u32,
    pub physical: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard_granularity: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DiskAddress {
    Pci(PciAddress),
    /// Place on a SCSI, SATA or IDE controller.
    Drive {
        controller: u32,
        bus: u32,
        target: u32,
        unit: u32,
    },
}

/// A directory that the guest mounts by tag.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Filesystem {
    /// Mount tag.
    pub tag: String,
    /// Socket of the virtiofs daemon, which runs outside.
    pub socket: String,
    /// The directory that the daemon serves; empty if somebody else runs it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dir: String,
    /// Show files of the daemon's own user as root's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub as_root: bool,
}
