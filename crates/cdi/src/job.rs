//! What the controller tells an importer, and what an importer answers. Both are ours alone, so they change together.

use serde::{Deserialize, Serialize};

/// The variable that holds the job, as JSON.
pub const VARIABLE: &str = "FERROVIRT_IMPORT";
/// Where an importer answers about itself.
pub const PORT: u16 = 8080;

/// A header in which a client names its file, so that it can go on with it after a broken connection.
pub const UPLOAD_FILE: &str = "ferrovirt-upload-file";
/// A header in which an importer says how many bytes of that file it has.
pub const UPLOAD_OFFSET: &str = "ferrovirt-upload-offset";

/// Where a claim is shown to another importer, encrypted.
pub const CLONE_PORT: u16 = 8443;
pub const DISK_PATH: &str = "/disk";
/// Where an importer takes an upload, encrypted.
pub const UPLOAD_PORT: u16 = 8443;

/// Paths inside the importer's container.
pub mod paths {
    /// The claim, when it is a file system.
    pub const TARGET: &str = "/data";
    /// The claim, when it is a block device.
    pub const TARGET_DEVICE: &str = "/dev/cdi-target";
    pub const SOURCE: &str = "/source";
    pub const SOURCE_DEVICE: &str = "/dev/cdi-source";
    /// The file tree of an image.
    pub const IMAGE: &str = "/image";
    pub const SECRET: &str = "/secret";
    pub const CERTIFICATES: &str = "/certificates";
    /// What the node has of this image. Read-only.
    pub const CACHE: &str = "/cache";
    /// The importer's own, as long as its pod.
    pub const SCRATCH: &str = "/scratch";
    /// What was fetched, and what the origin said of it: for the node to keep, in the scratch directory.
    pub const LEFT_IMAGE: &str = "image";
    pub const LEFT_IDENTITY: &str = "identity";
    pub const DISK: &str = "disk.img";
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    pub from: From,
    pub block: bool,
    /// Bytes of the disk.
    pub size: u64,
    /// The node may have the image, and keeps it if it has not.
    #[serde(default)]
    pub cache: bool,
    /// There is a scratch directory.
    #[serde(default)]
    pub scratch: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum From {
    Blank,
    Http {
        url: String,
        #[serde(default)]
        headers: Vec<String>,
        #[serde(default)]
        checksum: String,
        #[serde(default)]
        insecure: bool,
        /// A secret with `accessKeyId` and `secretKey` is mounted.
        #[serde(default)]
        login: bool,
        #[serde(default)]
        certificates: bool,
    },
    /// The one disk in the mounted image.
    Image,
    /// The mounted claim.
    Claim {
        block: bool,
    },
    /// A claim of another namespace, from the pod that shows it there. Its secret is mounted.
    Clone {
        url: String,
    },
    /// Fill nothing: show the mounted claim to an importer in another namespace. Its secret is mounted.
    Serve {
        block: bool,
    },
    /// Wait for somebody with a token for this claim. A job can be read by whoever may look at pods, so it has no secret: the key
    /// is the public one of those who give out tokens, and the certificate's is in the mounted secret.
    Upload {
        key: String,
        /// The claim's uid.
        claim: String,
        /// What the importer shows to the proxy. Empty for importers of earlier versions, which take uploads in clear.
        #[serde(default)]
        certificate: String,
    },
}

/// How far an importer is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    pub done: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Bytes in the last second.
    #[serde(default)]
    pub rate: u64,
    /// How often the transfer began again.
    #[serde(default)]
    pub restarts: u32,
    /// Why it waits, if it does.
    #[serde(default)]
    pub trouble: String,
}

/// The last line of an importer that failed for good.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub reason: String,
    pub message: String,
}

impl Progress {
    /// As upstream writes it: two digits after the point.
    pub fn percent(&self) -> String {
        match self.total {
            Some(total) if total > 0 => {
                let hundredths = u128::from(self.done.min(total)) * 10_000 / u128::from(total);
                format!("{}.{:02}%", hundredths / 100, hundredths % 100)
            }
            _ => "N/A".to_owned(),
        }
    }

    /// For people.
    pub fn describe(&self) -> String {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let amount = match self.total {
            Some(total) => format!("{} of {} MiB", mib(self.done.min(total)), mib(total)),
            None => format!("{} MiB", mib(self.done)),
        };
        match self.trouble.is_empty() {
            true => format!("{amount} transferred, {} MiB/s", mib(self.rate)),
            false => format!("{amount} transferred; {}", self.trouble),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_in_percent_and_in_words() {
        let half = Progress { done: 1 << 20, total: Some(2 << 20), rate: 3 << 20, ..Progress::default() };
        assert_eq!(half.percent(), "50.00%");
        assert_eq!(half.describe(), "1 of 2 MiB transferred, 3 MiB/s");
        for (done, total, expected) in
            [(0, Some(0), "N/A"), (5, None, "N/A"), (9, Some(3), "100.00%"), (1, Some(3), "33.33%")]
        {
            assert_eq!(Progress { done, total, ..Progress::default() }.percent(), expected);
        }
    }
}
