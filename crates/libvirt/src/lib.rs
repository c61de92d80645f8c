//! libvirt for async Rust: the functions Ferrovirt uses, and no more.
//!
//! This is the one crate with `unsafe`. The declarations in `ffi` are kept by hand against the public headers; what
//! leaves the crate is safe, typed and asynchronous:
//!
//! - [`Connection`] and [`Domain`] run each call on tokio's blocking pool, because every libvirt call is a round trip.
//! - [`Events`] is a channel of what libvirt reports on its own: lifecycle, reboots, disk errors, the guest agent, and
//!   the end of the connection.
//! - [`Error`] carries libvirt's code and message.
//!
//! Nothing here knows of machines, XML content or daemons: the launcher does.
#![allow(unsafe_code)]

mod connection;
mod domain;
mod error;
mod event;
mod ffi;
mod inspect;

pub use connection::{Connection, Versions};
pub use domain::{Domain, DomainState, ShutdownMode, Start};
pub use error::{Error, ErrorCode, Result};
pub use event::{Event, EventKind, Events, Lifecycle, StopDetail, SuspendDetail, deafness};
pub use inspect::{Counter, Screenshot};
