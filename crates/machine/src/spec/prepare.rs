//! What the launcher makes before the domain starts.

use serde::{Deserialize, Serialize};

use super::{DiskFormat, IdRange};

/// Each is idempotent in effect: the launcher runs them once, before the first start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Preparation {
    /// A qcow2 file that keeps the writes to a read-only base.
    Overlay {
        path: String,
        backing: String,
        backing_format: DiskFormat,
        /// Virtual size in bytes; the base's own when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
    },
    /// A fresh disk that ends with the machine.
    EmptyDisk { path: String, format: DiskFormat, bytes: u64 },
    /// A sparse raw file, made only if nothing is there.
    SparseFile { path: String, bytes: u64 },
    /// A volume with the files a cloud-init or sysprep client looks for.
    CloudInit {
        path: String,
        /// `cidata` or `config-2`.
        label: String,
        files: Vec<FileContent>,
    },
    /// A volume with all files of a directory (configMap, secret, service account, downward API, sysprep).
    ContentDisk { path: String, label: String, dir: String },
    /// The variable store of EFI firmware, copied from its template if nothing is there.
    Nvram { path: String, template: String },
    /// A container's root file system, mounted so that the tree's root user is the first of `ids`.
    RootTree {
        path: String,
        base: String,
        /// Where writes go, to end with the machine; without it they go to the base.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scratch: Option<String>,
        ids: IdRange,
    },
    /// Files that belong to a container's root user.
    Directory { path: String, files: Vec<FileContent>, ids: IdRange },
}

impl Preparation {
    /// What it makes.
    pub fn path(&self) -> &str {
        match self {
            Self::Overlay { path, .. }
            | Self::EmptyDisk { path, .. }
            | Self::SparseFile { path, .. }
            | Self::CloudInit { path, .. }
            | Self::ContentDisk { path, .. }
            | Self::Nvram { path, .. }
            | Self::RootTree { path, .. }
            | Self::Directory { path, .. } => path,
        }
    }
}

/// A file of a made volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FileContent {
    /// Path in the volume, without a leading slash, such as `openstack/latest/user_data`.
    pub name: String,
    pub content: Content,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Content {
    Text(String),
    /// Standard base64 with padding.
    Base64(String),
    /// The first of these files of the container that exists. Secrets travel only like this.
    /// None of them existing leaves the file out.
    FirstOf(Vec<String>),
    /// A JSON object that gets one more field: the public keys in the files of directories, numbered from 0.
    WithKeys {
        json: String,
        field: String,
        dirs: Vec<String>,
    },
}

impl Default for Content {
    fn default() -> Self {
        Self::Text(String::new())
    }
}
