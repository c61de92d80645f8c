//! A guest that shares the node's kernel: a tree of files and an init, with user ids of its own.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// Where a [`Preparation::RootTree`](super::Preparation) puts the root file system.
    pub root: String,
    /// The first program and its arguments.
    pub init: Vec<String>,
    pub ids: IdRange,
    pub mounts: Vec<ContainerMount>,
}

/// The node's user and group ids that stand for the guest's `0..count`. No other guest of the node has any of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IdRange {
    pub first: u32,
    pub count: u32,
}

/// A directory of the launcher's container that the guest sees. It is the guest's own: inside a user namespace the driver
/// cannot make it read only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerMount {
    pub source: String,
    pub target: String,
}
