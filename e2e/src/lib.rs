//! Tests with real hosts and real guests.
//!
//! A test file is a [`suite`]: one host, a list of cases that run one after the other on it, and a check at the end
//! that the host left nothing on the machine. What is asked of a host goes through the programs a user has
//! (`ferrovirt`, `kubectl`) and through `/proc`; nothing here links the product, but for the feature table of hypervisors.
//!
//! There are two targets: an embedded host of the suite's own, and a Kubernetes [`cluster`] with Ferrovirt on it.
//!
//! Nothing sleeps to let things happen: [`wait::until`] polls a condition, has a deadline, and says what it saw last.

pub mod cluster;
pub mod command;
pub mod console;
pub mod figures;
pub mod host;
pub mod leftovers;
pub mod liar;
pub mod manifest;
pub mod outside;
pub mod process;
pub mod raw_qemu;
pub mod relay;
pub mod servers;
pub mod suite;
pub mod tools;
pub mod wait;

pub use console::Console;
pub use host::{Host, Options, container_archive, has_ipv6};
pub use suite::{Case, suite};
