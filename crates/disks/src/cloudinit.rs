//! The file sets that cloud-init looks for on a disk: NoCloud (`cidata`) and ConfigDrive (`config-2`).

use crate::iso::{IsoError, write_iso};
use std::path::Path;

/// What the guest learns about itself. Texts are passed on as they are; only the meta-data is made here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CloudInit {
    /// A new id makes cloud-init treat the boot as the first one.
    pub instance_id: String,
    pub hostname: String,
    pub user_data: Option<String>,
    pub network_config: Option<String>,
    pub ssh_keys: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataSource {
    NoCloud,
    ConfigDrive,
}

impl DataSource {
    /// The volume label that the guest searches for.
    pub fn label(self) -> &'static str {
        match self {
            DataSource::NoCloud => "cidata",
            DataSource::ConfigDrive => "config-2",
        }
    }
}

impl CloudInit {
    pub fn files(&self, source: DataSource) -> Vec<(String, Vec<u8>)> {
        let mut keys = serde_json::Map::new();
        for (i, key) in self.ssh_keys.iter().enumerate() {
            keys.insert(i.to_string(), key.as_str().into());
        }
        let mut meta = serde_json::Map::new();
        let id_key = match source {
            DataSource::NoCloud => "instance-id",
            DataSource::ConfigDrive => "instance_id",
        };
        meta.insert(id_key.into(), self.instance_id.as_str().into());
        if source == DataSource::ConfigDrive {
            meta.insert("uuid".into(), self.instance_id.as_str().into());
            meta.insert("hostname".into(), self.hostname.as_str().into());
        } else {
            meta.insert("local-hostname".into(), self.hostname.as_str().into());
        }
        if !keys.is_empty() {
            let name = if source == DataSource::ConfigDrive { "public_keys" } else { "public-keys" };
            meta.insert(name.into(), keys.into());
        }
        // JSON is YAML, so the same text serves both sources.
        let meta = serde_json::Value::Object(meta).to_string().into_bytes();

        let (meta_name, user_name, network_name) = match source {
            DataSource::NoCloud => ("meta-data", "user-data", "network-config"),
            DataSource::ConfigDrive => {
                ("openstack/latest/meta_data.json", "openstack/latest/user_data", "openstack/latest/network_data.json")
            }
        };
        // NoCloud is recognised by having both files, even if one is empty.
        let user_data = self.user_data.clone().unwrap_or_default();
        let mut files = vec![(meta_name.to_string(), meta), (user_name.to_string(), user_data.into_bytes())];
        if let Some(network) = &self.network_config {
            files.push((network_name.to_string(), network.clone().into_bytes()));
        }
        files
    }

    pub fn write(&self, path: &Path, source: DataSource) -> Result<(), IsoError> {
        write_iso(path, source.label(), &self.files(source))
    }
}
