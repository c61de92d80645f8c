//! The controllers and node agents on a simulated cluster, against the real API server.

mod faults;
mod replicas;
mod support;
mod virtual_machines;
