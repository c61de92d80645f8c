//! The controllers and node agents on a simulated cluster, against the real API server.

#![allow(clippy::expect_used, reason = "tests")]

mod examples;
mod faults;
mod metrics;
mod replicas;
mod support;
mod virtual_machines;
