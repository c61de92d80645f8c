//! The controllers and node agents on a simulated cluster, against the real API server.

#![allow(clippy::expect_used, reason = "tests")]

mod admission;
mod configuration;
mod consoles;
mod examples;
mod faults;
mod garbage;
mod imports;
mod metrics;
mod planted;
mod removal;
mod replicas;
mod support;
mod virtual_machines;
