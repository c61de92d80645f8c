//! From a VirtualMachineInstance to a [`MachineSpec`](crate::spec::MachineSpec).

mod context;

pub use context::*;

/// Something in an object that cannot be done, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Path from the object's root, such as `spec.domain.devices.disks[0].name`.
    pub field: String,
    pub message: String,
}

impl FieldError {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}
