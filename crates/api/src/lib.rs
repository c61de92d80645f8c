//! Resource types of the groups that Ferrovirt serves, quantities, CRDs and well-known names.
//!
//! Pure: no I/O, no clock, no randomness, no Kubernetes client. See docs/ARCHITECTURE.md.

pub mod cdi;
mod chain;
pub mod cpu_list;
mod crds;
mod diff;
pub mod fnv;
mod folded;
mod go;
mod kind;
pub mod names;
pub mod quantity;
mod said;
pub mod storage;
pub mod v1;

pub use chain::chain;
pub use crds::crds;
pub use diff::merge_patch;
pub use folded::Folded;
pub use quantity::Quantity;
pub use said::Said;
