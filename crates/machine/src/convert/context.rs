//! What a conversion needs to know beside the VMI: the node, the pod's volumes and where things lie in the container.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::spec::{Arch, DiskFormat};

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

    /// Base images of containerDisks, by volume name.
    pub container_disks: BTreeMap<String, ContainerDisk>,
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
        let mut data = data.clone();
        let extra = data.get(format!("{}_extra", arch.go_name())).cloned();
        if let (Some(fields), Some(serde_json::Value::Object(extra))) = (data.as_object_mut(), extra) {
            fields.extend(extra);
        }
        let layout = Layout::upstream();
        Ok(Self { arch, layout, as_upstream: true, ..serde_json::from_value(data)? })
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
        }
    }
}

impl Layout {
    /// Where upstream's converter tests expect things.
    pub fn upstream() -> Self {
        Self {
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
