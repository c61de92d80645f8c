//! How the machine boots, and what it tells of itself.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Firmware {
    /// Machine type such as `q35`.
    pub machine_type: String,
    /// Hand the [`SystemInfo`] to the guest through SMBIOS.
    pub smbios: bool,
    pub boot: Boot,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelBoot>,
    /// Show the firmware's boot menu for this many milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_menu_ms: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acpi_tables: Vec<AcpiTable>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Boot {
    Bios {
        /// Write the firmware's messages to the serial console.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        use_serial: Option<bool>,
    },
    Efi {
        /// Firmware code, read only.
        code: String,
        /// What a fresh variable store is copied from.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        vars_template: String,
        /// The machine's own variable store. Empty for encrypted guests, whose firmware is measured and keeps nothing.
        nvram: String,
        secure: bool,
    },
    /// The hypervisor picks EFI firmware itself by these features (name, enabled).
    EfiAuto {
        features: Vec<(String, bool)>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nvram: Option<String>,
    },
}

impl Default for Boot {
    fn default() -> Self {
        Self::Bios { use_serial: None }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KernelBoot {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub initrd: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub arguments: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AcpiTable {
    /// `slic` or `msdm`.
    #[serde(rename = "type")]
    pub kind: String,
    pub path: String,
}

/// SMBIOS strings as (name, value), in the order in which they are printed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SystemInfo {
    pub system: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bios: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub base_board: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chassis: Vec<(String, String)>,
}
