//! The controllers and node agents on a simulated cluster, against the real API server.

mod examples;
mod faults;
mod metrics;
mod replicas;
mod support;
mod virtual_machines;
