//! `cdi.kubevirt.io/v1beta1`: volumes that are filled before they are used, and the words around them.
//!
//! The same habits as in [`crate::v1`]: a Go pointer is an `Option`, any other field's zero value means "not set".

mod datavolume;
pub mod names;
mod upload;

pub use datavolume::*;
pub use upload::*;
