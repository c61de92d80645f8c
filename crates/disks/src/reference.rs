//! Image references as users write them, and their one canonical form.
//!
//! `demo`, `demo:latest`, `library/demo` and `docker.io/library/demo:latest` are the same image; the store knows only the last form.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    pub domain: String,
    pub path: String,
    /// `latest` where neither tag nor digest was given.
    pub tag: Option<String>,
    pub digest: Option<Digest>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an image reference")]
pub struct BadReference(pub String);

const DEFAULT_DOMAIN: &str = "docker.io";
const DEFAULT_TAG: &str = "latest";

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(s: &str) -> Result<Self, BadReference> {
        let bad = || BadReference(s.to_string());
        let (name, digest) = match s.split_once('@') {
            Some((name, digest)) => (name, Some(digest.parse().map_err(|_| bad())?)),
            None => (s, None),
        };
        // A colon after the last slash starts a tag; one before it belongs to a port.
        let (name, tag) = match name.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag.to_string())),
            _ => (name, None),
        };
        let (domain, path) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
            _ => (DEFAULT_DOMAIN, name),
        };
        let domain = if domain == "index.docker.io" { DEFAULT_DOMAIN } else { domain };
        let path = match path {
            p if domain == DEFAULT_DOMAIN && !p.contains('/') => format!("library/{p}"),
            p => p.to_string(),
        };
        let good_part = |p: &str| {
            !p.is_empty()
                && p.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'))
                && p.starts_with(|c: char| c.is_ascii_alphanumeric())
        };
        let good_domain = domain.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
            && domain.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']'));
        let good_tag = |t: &String| {
            !t.is_empty()
                && t.len() <= 128
                && t.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
                && !t.starts_with(['.', '-'])
        };
        if !good_domain || path.len() > 255 || !path.split('/').all(good_part) || !tag.as_ref().is_none_or(good_tag) {
            return Err(bad());
        }
        let tag = match (tag, &digest) {
            (None, None) => Some(DEFAULT_TAG.to_string()),
            (tag, _) => tag,
        };
        Ok(Reference { domain: domain.to_string(), path, tag, digest })
    }
}

impl Reference {
    /// The name that a tag is kept under: the digest, if any, says which content, not which name.
    pub fn tagged(&self) -> String {
        format!("{}/{}:{}", self.domain, self.path, self.tag.as_deref().unwrap_or(DEFAULT_TAG))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_forms() {
        let d = format!("sha256:{}", "a".repeat(64));
        for (given, wanted) in [
            ("demo", "docker.io/library/demo:latest"),
            ("demo:1", "docker.io/library/demo:1"),
            ("library/demo", "docker.io/library/demo:latest"),
            ("docker.io/demo", "docker.io/library/demo:latest"),
            ("index.docker.io/library/demo", "docker.io/library/demo:latest"),
            ("ferrovirt/demo-guest:latest", "docker.io/ferrovirt/demo-guest:latest"),
            ("localhost/a/b/c:x_Y.z", "localhost/a/b/c:x_Y.z"),
            ("registry:5000/a", "registry:5000/a:latest"),
            ("registry.example.com/a/b:v1", "registry.example.com/a/b:v1"),
            (&format!("demo@{d}"), &format!("docker.io/library/demo@{d}")),
            (&format!("demo:1@{d}"), &format!("docker.io/library/demo:1@{d}")),
        ] {
            assert_eq!(given.parse::<Reference>().unwrap().to_string(), wanted);
        }
        for bad in
            ["", ":", "/", "a b", "A", "a//b", "../a", "a/..", "a:", "a:-x", "a@sha256:1", "a/b:c/d", "localhost/"]
        {
            assert!(bad.parse::<Reference>().is_err(), "{bad}");
        }
    }
}
