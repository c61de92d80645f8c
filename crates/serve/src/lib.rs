//! The one way in which this product listens on TCP: accept, limits, TLS, HTTP, time-outs, and an orderly end.
//!
//! ```text
//!  accept ──> door: how many in all, of one address, of strangers ──> TLS ──> HTTP/1.1 or HTTP/2 ──> handler
//!    │          └─ full: the stranger that was quiet for longest goes                        │
//!    └─ out of descriptors: a spare one is used, quiet strangers go, then back-off            └─ says who is known
//! ```
//!
//! A client is a *stranger* until its certificate was verified or its handler said [`Guest::known`]. What strangers can hold is
//! small and taken away from them when others come; what somebody with a name can hold is counted by that name.
//!
//! **Invariant:** this crate knows nothing of what is served.

mod accept;
mod activity;
mod body;
mod door;
mod held;
mod http;
mod limits;

pub use accept::serve;
pub use body::{Body, BoxError, Counted, Patient, Stalled};
pub use door::{Guest, TooMany, WeakGuest};
pub use http::{Handler, Peer, Reception};
pub use limits::{Limits, raise_descriptor_limit};
