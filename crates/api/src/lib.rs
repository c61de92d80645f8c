//! Resource types of the groups that Ferrovirt serves, quantities, CRDs and well-known names.
//!
//! Pure: no I/O, no clock, no randomness, no Kubernetes client. See docs/ARCHITECTURE.md.

mod go;
mod kind;
pub mod names;
pub mod v1;
