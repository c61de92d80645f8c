//! Credentials that the guest agent puts into the running guest.

use serde::{Deserialize, Serialize};

/// The content comes from files of the launcher's container and follows them when they change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Credential {
    /// Every file of the directory holds public keys, one a line; all of them are for each of the users.
    SshKeys { users: Vec<String>, dir: String },
    /// Every file of the directory is named after a user and holds that user's password.
    Passwords { dir: String },
}
