//! DataVolumes: claims that are filled before they are used.
//!
//! ```text
//! DataVolume ──controller──> claim + importer pod ──> the claim's disk
//!      ^                          │ progress over HTTP, the reason of a failure as its last line
//!      └───────── status ─────────┘
//! ```
//!
//! `plan` decides and is pure; `controller` looks at what is `followed` (and `seen`) and does what was decided, as `claims` does for
//! claims that wait for an upload without a DataVolume; `importer` is the process in the pod, which knows
//! nothing of Kubernetes and is told its job in a variable. A killed importer, or controller, goes on where it was.

pub mod cache;
mod claims;
pub mod controller;
mod followed;
pub mod importer;
pub mod job;
mod pass;
pub mod plan;
mod progress;
mod receive;
mod roles;
mod samples;
mod seen;
mod show;
mod token;
mod transfer;
pub mod upload;

pub use controller::{Settings, run};
pub use roles::user_roles;
