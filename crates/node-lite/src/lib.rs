//! Embedded mode's stand-in for kubelet, scheduler and container runtime.
pub mod cgroup;
pub mod cni;
mod config;
pub mod identity;
pub mod images;
mod init;
pub mod link;
pub mod logs;
pub mod netns;
pub mod records;
mod rootfs;
pub mod sandbox;
mod shim;
pub use config::*;
pub use init::init_main;
pub use shim::shim_main;
