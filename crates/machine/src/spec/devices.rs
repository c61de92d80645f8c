//! Devices other than disks.

use serde::{Deserialize, Serialize};

use super::{ControllerKind, Disk, Filesystem, WatchdogAction};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Devices {
    /// Program that runs the machine; `None` leaves it to the management daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulator: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Channel>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_devices: Vec<HostDevice>,
    /// Models of panic devices; `None` for the architecture's default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub panics: Vec<Option<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub controllers: Vec<Controller>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub video: Option<Video>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graphics: Option<Graphics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balloon: Option<Balloon>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<SerialConsole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watchdog>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rng: Option<Rng>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filesystems: Vec<Filesystem>,
    /// Sockets through which clients lend USB devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub usb_redirections: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sound: Option<Sound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<Tpm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsock: Option<Vsock>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// Name of the VMI's interface; the device's alias.
    pub name: String,
    pub attachment: Attachment,
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Queue pairs; implies the vhost backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_order: Option<u32>,
    /// Unplug the cable.
    pub link_down: bool,
    /// Leave out the device's boot ROM.
    pub rom_disabled: bool,
    /// Stable number from which the guest derives the interface's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acpi_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<PciAddress>,
    pub iommu: bool,
}

/// What the interface is plugged into.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Attachment {
    /// A tap device in the launcher's network namespace, made by the node agent for the launcher's user.
    Tap {
        /// `None`: the hypervisor makes one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// Not plugged in by us at all.
    Nothing {},
    /// A passt process that speaks vhost-user.
    Passt {
        #[serde(default)]
        device: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        log_file: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        forwards: Vec<PortForward>,
    },
}

impl Default for Attachment {
    fn default() -> Self {
        Self::Tap { device: None }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PortForward {
    pub protocol: String,
    /// `None` forwards every port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Channel {
    /// Name of the port in the guest, such as `org.qemu.guest_agent.0`.
    pub name: String,
    /// Socket on our side; `None` leaves the place to the management daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A device of the host that becomes the guest's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostDevice {
    pub alias: String,
    pub source: HostDeviceSource,
    /// `no`: the device is already bound to the driver that passes it through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// `vfio-pci`, `vfio-ap`, `vfio-ccw` for mediated devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ram_framebuffer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_order: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_address: Option<PciAddress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommufd: Option<String>,
    /// Memory nodes of the device, for the guest's ACPI tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_set: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HostDeviceSource {
    Pci { address: PciAddress },
    Mediated { uuid: String },
    Usb { bus: String, device: String },
}

impl Default for HostDeviceSource {
    fn default() -> Self {
        Self::Pci { address: PciAddress::default() }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Controller {
    #[serde(rename = "type")]
    pub kind: ControllerKind,
    pub index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_thread: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<u32>,
    pub iommu: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<PciAddress>,
    /// Size of the 64 bit PCI hole in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_hole64_kib: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hotplug: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Video {
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<u32>,
    /// Video memory in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vram_kib: Option<u32>,
}

/// A VNC server on a unix socket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Graphics {
    pub socket: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Balloon {
    /// `none` takes the balloon away, which some hypervisors add by themselves.
    pub model: String,
    /// Seconds between two readings of the guest's memory statistics; 0 is never.
    pub stats_period: u32,
    /// Let the guest hand back free pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_page_reporting: Option<bool>,
    pub iommu: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<PciAddress>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Input {
    /// `tablet` or `keyboard`.
    #[serde(rename = "type")]
    pub kind: String,
    pub bus: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<PciAddress>,
}

/// The first serial port, which is the machine's console.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SerialConsole {
    /// Unix socket that the hypervisor listens on.
    pub socket: String,
    /// Everything the guest writes is also appended here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// `serial`, or what the architecture has instead (`sclp`).
    pub target: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Watchdog {
    pub alias: String,
    pub model: String,
    pub action: WatchdogAction,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<PciAddress>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rng {
    pub model: String,
    /// Where the randomness comes from.
    pub source: String,
    pub iommu: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<PciAddress>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Sound {
    pub alias: String,
    pub model: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tpm {
    pub model: String,
    pub version: String,
    /// Keep the state after the machine stops.
    pub persistent: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Vsock {
    pub model: String,
    pub cid: u32,
}

/// Place of a device on the guest's PCI buses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PciAddress {
    pub domain: u16,
    pub bus: u8,
    pub slot: u8,
    pub function: u8,
}
