//! A cluster without machines: the real API server, controllers and node agents, on nodes whose launchers only pretend.
//!
//! ```text
//!   apiserver (real) <── controllers (real)
//!        ^    ^
//!        |    └── node agent (real, one per node) ── launcher protocol ── launcher (pretends, in this process)
//!        └── kubelet and scheduler (pretend, for all nodes)
//! ```
//!
//! For tests of controllers and for scale. Nothing here ships. A [`ledger::Ledger`] notes every launcher that runs a
//! machine, so that two on one disk at any moment are seen, however short.

pub mod chaos;
pub mod cluster;
pub mod kubelet;
pub mod launcher;
pub mod ledger;
pub mod node;
pub mod writes;

pub use cluster::{Cluster, Options};
