//! The hypervisor-neutral machine.
