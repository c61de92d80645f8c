//! What a conversion needs to know beside the VMI: the node, the pod's volumes and where things lie in the container.

use std::collections::BTreeMap;

use ferrovirt_api::v1::{VirtualMachineInstance, VolumeStatus};
use serde::{Deserialize, Deserializer, Serialize};

use super::upstream;
use crate::spec::{Arch, DiskFormat, HostDevice, IdRange};

/// Field names are those of upstream's converter context, so that its test data reads as is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Context {
    /// Architecture of the guest.
    #[serde(deserialize_with = "one_arch")]
    pub arch: Arch,
    /// The cluster allows machines without hardware virtualization.
    pub allow_emulation: bool,
    /// The node has a usable device of the hypervisor, such as `/dev/kvm`.
    pub hypervisor_device_available: bool,
    /// Volumes whose claim is a block device, by volume name.
    #[serde(rename = "isBlockPVC")]
    pub is_block_pvc: BTreeMap<String, bool>,
    #[serde(rename = "isBlockDV")]
    pub is_block_dv: BTreeMap<String, bool>,
    /// SMBIOS strings of the cluster configuration.
    pub smbios: Option<Smbios>,
    /// Seconds between two readings of guest memory statistics; 0 is never.
    pub mem_balloon_stats_period: u32,
    pub free_page_reporting: bool,
    /// Keep a log of what the guest writes to its serial console.
    pub serial_console_log: bool,
    /// `tap` or `managedTap` or `none` by interface name.
    pub domain_attachment_by_interface_name: BTreeMap<String, String>,
    pub efi_configuration: Option<EfiConfiguration>,
    pub bochs_for_efi_guests: bool,
    /// Overrides [`Layout::ephemeral`].
    pub ephemeral_disk_base_dir: Option<String>,
    /// Images of volumes, by volume name, as upstream's launcher finds them.
    pub disks_info: BTreeMap<String, DiskInfo>,
    /// Volumes that must not see discards, because they were preallocated.
    pub volumes_discard_ignore: Vec<String>,
    pub use_launch_security_sev: bool,
    pub use_launch_security_tdx: bool,
    #[serde(rename = "useLaunchSecurityPV")]
    pub use_launch_security_pv: bool,
    /// CPUs of the host that are the machine's alone.
    pub cpu_set: Vec<u32>,
    /// NUMA cells of the host.
    pub topology: Option<HostTopology>,
    /// Devices of the host that were given to the machine, by what asked for them.
    pub generic_host_devices: Vec<HostDevice>,
    pub gpu_host_devices: Vec<HostDevice>,
    pub sriov_devices: Vec<HostDevice>,
    /// Volumes that were plugged into the running machine, with their status.
    pub hotplug_volumes: BTreeMap<String, VolumeStatus>,
    /// The other volumes of a running machine; empty while it is not running.
    pub permanent_volumes: BTreeMap<String, VolumeStatus>,
    /// Overlays that track changed blocks, by volume name.
    #[serde(rename = "applyCBT")]
    pub apply_cbt: BTreeMap<String, String>,
    /// Model of virtio disks, which upstream takes from here and not from the VMI.
    pub use_virtio_transitional: bool,
    /// Emulate guests of another architecture than the host's.
    pub allow_cross_arch_emulation: bool,
    /// Architecture of the host, as Kubernetes spells it.
    pub host_architecture: String,
    /// Upstream's name of the cluster's hypervisor.
    pub hypervisor_name: String,
    /// Pass host devices through the kernel's newer interface.
    #[serde(rename = "iommuFDEnabled")]
    pub iommufd_enabled: bool,

    /// Base images of containerDisks, by volume name.
    pub container_disks: BTreeMap<String, ContainerDisk>,
    /// File trees of containerDisks that a container starts from, by volume name.
    pub container_trees: BTreeMap<String, String>,
    /// User ids for a container, from the node's.
    pub guest_ids: IdRange,
    /// What the node agent made for each interface, by interface name.
    pub interfaces: BTreeMap<String, InterfaceInfo>,
    /// Files of the kernel boot image.
    pub kernel_boot: Option<KernelFiles>,
    /// Bound of the translation cache when emulating, in MiB.
    pub translation_cache_mib: Option<u32>,
    pub layout: Layout,
    /// Do just what upstream does, even where its machine would not start. For comparing, not for running.
    pub as_upstream: bool,
}

impl Context {
    /// From upstream's test data for its converter: its layout, and its ways without our corrections. What stands under
    /// `<arch>_extra` is for that architecture only.
    pub fn upstream(data: &serde_json::Value, arch: Arch) -> Result<Self, serde_json::Error> {
        upstream::context(data, arch)
    }

    /// The guest's architecture is not the host's.
    pub(crate) fn emulates_foreign(&self, vmi: &VirtualMachineInstance) -> bool {
        let (guest, host) = (&vmi.spec.architecture, &self.host_architecture);
        self.allow_cross_arch_emulation && !guest.is_empty() && !host.is_empty() && guest != host
    }

    /// The machine will be emulated, and what emulation lacks is to be left out.
    pub(crate) fn adapts_to_emulation(&self) -> bool {
        !self.hypervisor_device_available && !self.as_upstream
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Smbios {
    pub manufacturer: String,
    pub product: String,
    pub version: String,
    pub sku: String,
    pub family: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EfiConfiguration {
    pub efi_code: String,
    pub efi_vars: String,
    pub secure_loader: bool,
    pub uses_firmware_auto_selection: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DiskInfo {
    pub format: DiskFormat,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerDisk {
    /// The image file inside the container, such as `/var/run/kubevirt/container-disks/root/disk/disk.img`.
    pub path: String,
    pub format: DiskFormat,
    /// Virtual size in bytes, if it is known.
    pub size: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InterfaceInfo {
    /// Tap device in the launcher's network namespace.
    pub tap: Option<String>,
    /// MAC address of the guest, where the VMI names none.
    pub mac: Option<String>,
    pub mtu: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KernelFiles {
    pub kernel: String,
    pub initrd: String,
}

/// The host's NUMA cells.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostTopology {
    pub numa_cells: Vec<HostCell>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostCell {
    pub id: u32,
    pub cpus: Vec<HostCpu>,
    pub distances: Vec<HostDistance>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostCpu {
    pub id: u32,
    /// All threads of its core, itself among them; empty if it is alone.
    pub siblings: Vec<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostDistance {
    /// The other cell.
    pub id: u32,
    pub value: u64,
}

/// Where things lie inside the launcher's container. The default is docs/ARCHITECTURE.md's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Layout {
    /// `<private>/<uid>/virt-serial0`, `virt-vnc`, content disks and their sources.
    pub private: String,
    /// `<vmi_disks>/<volume>/disk.img`.
    pub vmi_disks: String,
    /// `<block>/<volume>`.
    pub block: String,
    /// `<ephemeral>/<volume>/disk.qcow2`.
    pub ephemeral: String,
    /// `<cloud_init>/<namespace>/<name>/noCloud.iso`.
    pub cloud_init: String,
    /// `<empty_disks>/<volume>.qcow2`.
    pub empty_disks: String,
    /// `<nvram>/<name>_VARS.fd`.
    pub nvram: String,
    /// Images and kernel files that the context does not place itself.
    pub container_disks: String,
    /// `<ignition>/<namespace>/<name>/data.ign`.
    pub ignition: String,
    /// Where the service account's token is mounted.
    pub service_account: String,
    /// `<hotplug>/<volume>.img`, or `<hotplug>/<volume>` for block devices.
    pub hotplug: String,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            private: "/var/run/kubevirt-private".into(),
            vmi_disks: "/var/run/kubevirt-private/vmi-disks".into(),
            block: "/dev".into(),
            ephemeral: "/var/run/kubevirt-ephemeral-disks/disk-data".into(),
            cloud_init: "/var/run/kubevirt-ephemeral-disks/cloud-init-data".into(),
            empty_disks: "/var/run/kubevirt-ephemeral-disks/empty-disks".into(),
            nvram: "/var/run/kubevirt-private/nvram".into(),
            container_disks: "/var/run/kubevirt/container-disks".into(),
            ignition: "/var/run/kubevirt-ephemeral-disks/ignition-data".into(),
            service_account: "/var/run/secrets/kubernetes.io/serviceaccount".into(),
            hotplug: "/var/run/kubevirt/hotplug-disks".into(),
        }
    }
}

impl Layout {
    /// Where upstream's converter tests expect things.
    pub fn upstream() -> Self {
        Self {
            ephemeral: "/var/run/libvirt/kubevirt-ephemeral-disk".into(),
            cloud_init: "/var/run/libvirt/cloud-init-dir".into(),
            empty_disks: "/var/run/libvirt/empty-disks".into(),
            nvram: "/var/lib/libvirt/qemu/nvram".into(),
            ignition: "/var/run/libvirt/ignition-dir".into(),
            ..Self::default()
        }
    }
}

/// A name, or a list of names of which the first counts: upstream's test data lists all architectures it is good for.
fn one_arch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arch, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    let name = match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(name) => name,
        OneOrMany::Many(names) => names.into_iter().next().unwrap_or_default(),
    };
    Arch::parse(&name).ok_or_else(|| serde::de::Error::custom(format!("unknown architecture {name:?}")))
}
