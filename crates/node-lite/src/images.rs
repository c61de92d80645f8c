//! Where image volumes come from. The store itself belongs to the `disks` crate, pulls to `fetch`; `up` connects them.

use std::path::PathBuf;

use futures::future::BoxFuture;

/// An image that a pod wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub reference: String,
    /// `Always`, `IfNotPresent` or `Never`.
    pub policy: String,
    /// Contents of the pod's pull secrets.
    pub docker_configs: Vec<Vec<u8>>,
}

pub trait Images: Send + Sync {
    /// The directory with the file tree of an image that is on this node. Must not block on a download.
    fn resolve(&self, reference: &str) -> Result<PathBuf, ImageError>;

    /// Brings the image to this node, if the policy says so and it can be had.
    fn provide<'a>(&'a self, wanted: &'a Wanted) -> BoxFuture<'a, Result<PathBuf, ImageError>> {
        Box::pin(async move { self.resolve(&wanted.reference) })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("the image {0:?} is not on this node; bring it in with: ferrovirt image import")]
    NotFound(String),
    #[error("the image {reference:?} cannot be used: {reason}")]
    Unusable { reference: String, reason: String },
    #[error("cannot pull the image {reference:?}: {reason}")]
    Pull { reference: String, reason: String },
}

/// A node without images.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoImages;

impl Images for NoImages {
    fn resolve(&self, reference: &str) -> Result<PathBuf, ImageError> {
        Err(ImageError::NotFound(reference.to_owned()))
    }
}
