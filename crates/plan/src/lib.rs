//! Reconcile decisions: what was observed goes in, actions and a status come out.
//!
//! Pure: no client, no clock (the caller passes the time), no randomness. Everything here is tested from plain objects.

pub mod auto_limits;
pub mod cluster_defaults;
pub mod conditions;
pub mod consumer;
mod container_disks;
mod credentials;
pub mod defaults;
pub mod identity;
pub mod installation;
pub mod kept_state;
mod log_filters;
pub mod migration;
pub mod network;
pub mod pod;
pub mod presets;
mod probes;
pub mod replicaset;
mod resources;
pub mod selector;
pub mod storage;
pub mod unsupported;
pub mod vm;
pub mod vm_instance;
pub mod vm_status;
mod vm_volumes;
pub mod vmi;
pub mod vsock;

/// What a controller tells people about an object, as an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub kind: NoteKind,
    pub reason: &'static str,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoteKind {
    Normal,
    Warning,
}

impl Note {
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: NoteKind::Normal, reason, message: message.into() }
    }

    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: NoteKind::Warning, reason, message: message.into() }
    }
}
