//! The launcher: runs one virtual machine and knows nothing of Kubernetes.
//!
//! ```text
//!   node agent --unix socket--> server --requests--> owner --actions--> domain (Backend) --> libvirt daemon --> QEMU
//!                                  ^                  |  ^                  |
//!                                  +----- state ------+  +----- events -----+
//! ```
//!
//! | room | what it is for |
//! |---|---|
//! | [`lifecycle`] | the state machine, pure |
//! | [`owner`] | the one task that owns the machine's state; decides when the process exits |
//! | [`server`] | the protocol on the unix socket |
//! | [`domain`] | deeds and events of the domain; libvirt behind a trait |
//! | [`guest`] | the guest from inside: its agent |
//! | [`runtime`] | how libvirt is started, per hypervisor |
//! | [`prepare`], [`qcow2`] | disks that must exist before the start |
//! | [`chain`] | what the hypervisor may open: nothing that an image or a link names |
//! | [`cgroups`] | where libvirt finds the cgroups of its processes |
//! | [`rootfs`] | a container's root file system, with its own user ids |
//! | `console`, `init_signal` | what a machine's hypervisor does and a container's does not: serve the console, pass the power button on |
//! | [`console_log`] | a copy of the console in a file that stays small, and the program that shows it |
//! | `filesystems` | directories that the guest mounts, each served by a daemon |
//! | `host_metrics` | what the guest is told of its host |
//! | [`process`] | children and zombies: this process is PID 1 |
//! | `last_words` | how the machine ended, for whoever finds only the pod |
//! | [`logs`] | the hypervisor's output in the pod's log |
//! | [`capabilities`], [`probe`] | what this node's hypervisors can do, found out once |
//! | [`ask`] | a probe's way to the guest |
//! | [`screen`] | the guest's screen as PNG |
//! | [`selftest`] | a tiny domain, timed step by step |

mod addresses;
pub mod ask;
pub mod capabilities;
pub mod cgroups;
pub mod chain;
pub mod confinement;
mod console;
pub mod console_log;
pub mod domain;
mod filesystems;
pub mod guest;
mod host_metrics;
mod init_signal;
mod last_words;
pub mod lifecycle;
pub mod logs;
pub mod owner;
pub mod prepare;
pub mod probe;
pub mod process;
pub mod qcow2;
pub mod rootfs;
pub mod run;
pub mod runtime;
pub mod screen;
pub mod selftest;
pub mod server;
