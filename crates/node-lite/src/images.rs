//! Where image volumes come from. The store itself belongs to the `disks` crate; `up` connects the two.

use std::path::PathBuf;

pub trait Images: Send + Sync {
    /// The directory with the file tree of an image that is on this node. Must not block on a download.
    fn resolve(&self, reference: &str) -> Result<PathBuf, ImageError>;
}

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("the image {0:?} is not on this node; bring it in with: ferrovirt image import")]
    NotFound(String),
    #[error("the image {reference:?} cannot be used: {reason}")]
    Unusable { reference: String, reason: String },
}

/// A node without images.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoImages;

impl Images for NoImages {
    fn resolve(&self, reference: &str) -> Result<PathBuf, ImageError> {
        Err(ImageError::NotFound(reference.to_owned()))
    }
}
