//! Who may have an image that is on this host: whoever brought it with a login, and whom its registry gives it to.
//!
//! One file for each image that was pulled, with a line for each login that it was given for. Logins are not kept, only what tells
//! that one was seen before. An image without a file was imported by an administrator, and is for all.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use ferrovirt_disks::digest::Digest;

/// Given to somebody without a login.
const ANYBODY: &str = "anybody";

#[derive(Debug, Clone)]
pub struct Access {
    directory: PathBuf,
}

impl Access {
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        Ok(Self { directory: directory.to_owned() })
    }

    pub fn allows(&self, image: &Digest, login: Option<&str>) -> bool {
        match fs::read_to_string(self.file(image)) {
            Ok(known) => {
                let own = line(image, login);
                known.lines().any(|line| line == ANYBODY || line == own)
            }
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Remembers that the image was given for this login, or without one.
    pub fn record(&self, image: &Digest, login: Option<&str>) {
        let own = line(image, login);
        let known = fs::read_to_string(self.file(image)).unwrap_or_default();
        if known.lines().any(|line| line == own) {
            return;
        }
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let new = self.directory.join(format!(".new-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let written = fs::write(&new, format!("{known}{own}\n")).and_then(|()| fs::rename(&new, self.file(image)));
        if let Err(error) = written {
            // The image exists, so without a record it would be for all.
            tracing::warn!(%error, %image, "cannot keep who may have an image");
        }
    }

    fn file(&self, image: &Digest) -> PathBuf {
        self.directory.join(format!("sha256-{}", image.hex()))
    }
}

/// Different for each image, so that equal logins do not show.
fn line(image: &Digest, login: Option<&str>) -> String {
    match login {
        None => ANYBODY.to_owned(),
        Some(login) => Digest::of(format!("{image}\0{login}").as_bytes()).hex().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_image_is_not_for_those_without_its_login() {
        let dir = tempfile::tempdir().unwrap();
        let access = Access::open(&dir.path().join("access")).unwrap();
        let (private, public, imported) = (Digest::of(b"private"), Digest::of(b"public"), Digest::of(b"imported"));
        access.record(&private, Some("alice"));
        access.record(&public, None);
        assert!(access.allows(&private, Some("alice")));
        assert!(!access.allows(&private, Some("mallory")) && !access.allows(&private, None));
        access.record(&private, Some("bob"));
        assert!(access.allows(&private, Some("alice")) && access.allows(&private, Some("bob")));
        assert!(!access.allows(&private, None));
        assert!(access.allows(&public, None) && access.allows(&public, Some("mallory")));
        assert!(access.allows(&imported, None));
        let kept = fs::read_to_string(access.file(&private)).unwrap();
        assert!(!kept.contains("alice") && !kept.contains("bob"), "logins are not kept: {kept}");
    }
}
