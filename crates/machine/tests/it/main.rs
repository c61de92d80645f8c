//! One program for all tests of this crate: linking is most of their cost.

#![allow(clippy::unwrap_used, clippy::panic)]

mod container;
mod documentation;
mod libvirt;
mod machines;
mod random;
mod refusals;
mod upstream;
