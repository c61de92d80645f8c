//! `kubevirt.io/v1`: the types of upstream's API, with its JSON names.
//!
//! A Go pointer is an `Option`; any other Go field is plain and its zero value means "not set". `omitempty` fields are left
//! out of the JSON when they have their zero value, others are always written. `null` reads as the zero value everywhere.
//! Fields of Go's inlined structs stand in the struct that inlines them.

mod devices;
mod domain;
mod kubevirt;
mod migration;
mod network;
mod options;
mod preset;
mod replicaset;
pub mod values;
mod vm;
mod vmi;
mod volumes;

pub use devices::*;
pub use domain::*;
pub use kubevirt::*;
pub use migration::*;
pub use network::*;
pub use options::*;
pub use preset::*;
pub use replicaset::*;
pub use vm::*;
pub use vmi::*;
pub use volumes::*;
