//! What the guest is told of its host.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostMetrics {
    /// What the host is called.
    pub host_name: String,
    /// What runs the guest.
    pub product: String,
    /// A disk that is written anew every few seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// The socket of a channel on which the guest asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
}
