//! The hypervisor-neutral machine: from a VirtualMachineInstance to a [`spec::MachineSpec`] to a hypervisor's own language.
//!
//! Pure: no I/O, no clock, no randomness, no Kubernetes client. See docs/ARCHITECTURE.md.

pub mod changes;
pub mod convert;
pub mod defaults;
pub mod features;
pub mod hypervisor;
pub mod last_words;
pub mod node_call;
pub mod node_facts;
pub mod overhead;
pub mod protocol;
pub mod spec;
pub mod xml;

pub use ferrovirt_api::chain;
