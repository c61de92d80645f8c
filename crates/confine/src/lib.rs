//! How a process that may turn hostile gives up everything but what it needs.
//!
//! **Pods and guests** ([`container`], [`guest`]): lists of the system calls that a pod's container or a system container may make,
//! compiled here, and [`install`]ed by whoever becomes it; and [`map_ids`], by which it sees its files with ids of its own. Kernel
//! interfaces that no library wraps have their `unsafe` in [`kernel`].
//!
//! **Children of ours that read foreign bytes** ([`Jail`], [`child`]).
//! Two halves. A child of ours, started from our own program, shuts itself in ([`Jail::enter`]) before it looks at the first byte: a
//! root directory with nothing but its work in it, namespaces without a network, a user that owns nothing else, limits, no way to
//! new privileges, and a list of system calls. Its parent ([`child`]) feeds it, waits no longer than it said, believes no more of the
//! answer than its length, and kills it.
//!
//! There is no `fork` with code in between here: that would be unsafe with threads. The child starts as its parent's user, and is
//! trusted until it has confined itself, since it has read nothing yet but what its parent told it.

mod bpf;
mod calls;
pub mod child;
mod compat;
mod jail;
mod kernel;
mod profile;
mod status;
mod syscalls;

pub use bpf::Program;
pub use jail::{ConfineError, Jail, Limits};
pub use kernel::{install, map_ids};
pub use profile::{Extra, container, guest};
pub use status::{Confinement, devices_need_bpf, of_process};
pub use syscalls::{Syscalls, files_only};
