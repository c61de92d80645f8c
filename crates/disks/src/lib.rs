//! Images and volumes as files: the ISO writer for cloud-init and content disks, image archives, and the node's image store.
//!
//! Nothing here knows of Kubernetes, libvirt or a network, and nothing links a C library: the launcher, the node agent and the CLI
//! all use it.

pub mod budget;
pub mod clone;
pub mod cloudinit;
pub mod containerdisk;
pub mod digest;
pub mod image;
pub mod iso;
pub mod oci;
pub mod ownership;
pub mod reference;
pub mod store;
mod unpack;
pub mod unpacker;
