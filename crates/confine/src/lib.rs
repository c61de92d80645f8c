//! How a process that reads foreign bytes gives up everything but what that needs.
//!
//! Two halves. A child of ours, started from our own program, shuts itself in ([`Jail::enter`]) before it looks at the first byte: a
//! root directory with nothing but its work in it, namespaces without a network, a user that owns nothing else, limits, no way to
//! new privileges, and a list of system calls. Its parent ([`child`]) feeds it, waits no longer than it said, believes no more of the
//! answer than its length, and kills it.
//!
//! There is no `fork` with code in between here: that would be unsafe with threads. The child starts as its parent's user, and is
//! trusted until it has confined itself, since it has read nothing yet but what its parent told it.

pub mod child;
mod jail;
mod syscalls;

pub use jail::{ConfineError, Jail, Limits};
pub use syscalls::{Syscalls, files_only};
