//! The devices of a domain.

use serde::{Deserialize, Serialize};

use super::network::Interface;
use crate::go::{null, zero};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Devices {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_virtio_transitional: Option<bool>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub disable_hotplug: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub disks: Vec<Disk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watchdog>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub interfaces: Vec<Interface>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub inputs: Vec<Input>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_pod_interface: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_graphics_device: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_serial_console: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_serial_console: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_mem_balloon: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_input_device: Option<bool>,
    #[serde(rename = "autoattachVSOCK", skip_serializing_if = "Option::is_none")]
    pub autoattach_vsock: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rng: Option<Rng>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_multi_queue: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_interface_multiqueue: Option<bool>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub gpus: Vec<GPU>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downward_metrics: Option<DownwardMetrics>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub panic_devices: Vec<PanicDevice>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub filesystems: Vec<Filesystem>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub host_devices: Vec<HostDevice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_passthrough: Option<ClientPassthroughDevices>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sound: Option<SoundDevice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<TPMDevice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoDevice>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientPassthroughDevices {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SoundDevice {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub model: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TPMDevice {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VideoDevice {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub type_: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Input {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub bus: String,
    #[serde(deserialize_with = "null")]
    pub type_: String,
    #[serde(deserialize_with = "null")]
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Filesystem {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtiofs: Option<FilesystemVirtiofs>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesystemVirtiofs {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DownwardMetrics {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GPU {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub device_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub claim_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub request_name: String,
    #[serde(rename = "virtualGPUOptions", skip_serializing_if = "Option::is_none")]
    pub virtual_gpu_options: Option<VGPUOptions>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub tag: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VGPUOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display: Option<VGPUDisplayOptions>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VGPUDisplayOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(rename = "ramFB", skip_serializing_if = "Option::is_none")]
    pub ram_fb: Option<FeatureState>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PanicDevice {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostDevice {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub device_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub claim_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub request_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub tag: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Disk {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskTarget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lun: Option<LunTarget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<CDRomTarget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_order: Option<u64>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub serial: String,
    #[serde(rename = "dedicatedIOThread", skip_serializing_if = "Option::is_none")]
    pub dedicated_io_thread: Option<bool>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub cache: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub io: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub tag: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<BlockSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shareable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CustomBlockSize {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub logical: u64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub physical: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard_granularity: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BlockSize {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<CustomBlockSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_volume: Option<FeatureState>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DiskTarget {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub bus: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub readonly: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub pci_address: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LunTarget {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub bus: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub readonly: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub reservation: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CDRomTarget {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub bus: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readonly: Option<bool>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub tray: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FeatureState {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Watchdog {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub i6300esb: Option<I6300ESBWatchdog>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diag288: Option<Diag288Watchdog>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct I6300ESBWatchdog {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub action: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Diag288Watchdog {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub action: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rng {}
