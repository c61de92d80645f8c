//! Hypervisors.
pub const DEFAULT: &str = "qemu-kvm";
