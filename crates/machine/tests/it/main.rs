//! One program for all tests of this crate: linking is most of their cost.

#![allow(clippy::unwrap_used, clippy::panic)]

mod cloud_hypervisor;
mod container;
mod documentation;
mod example_driver;
mod frames;
mod libvirt;
mod machines;
mod random;
mod refusals;
mod upstream;
