//! SHA-256 digests as image formats write them (`sha256:<hex>`), and a reader that checks one on the way.

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    hex: String,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a sha256 digest")]
pub struct BadDigest(pub String);

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        Self::finish(Sha256::new_with_prefix(bytes))
    }

    pub fn hex(&self) -> &str {
        &self.hex
    }

    fn finish(hasher: Sha256) -> Self {
        let hex = hasher.finalize().iter().map(|b| format!("{b:02x}")).collect();
        Digest { hex }
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(s: &str) -> Result<Self, BadDigest> {
        match s.strip_prefix("sha256:") {
            Some(hex) if hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) => {
                Ok(Digest { hex: hex.to_string() })
            }
            _ => Err(BadDigest(s.to_string())),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex)
    }
}

/// Hashes what passes through, in either direction.
pub struct Hashing<T> {
    inner: T,
    hasher: Sha256,
    bytes: u64,
}

impl<T> Hashing<T> {
    pub fn new(inner: T) -> Self {
        Hashing { inner, hasher: Sha256::new(), bytes: 0 }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn finish(self) -> (Digest, T) {
        (Digest::finish(self.hasher), self.inner)
    }
}

impl<T: Read> Hashing<T> {
    /// Reads to the end, so that the digest covers everything and not only what a parser wanted.
    pub fn drain(mut self) -> io::Result<(Digest, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        let bytes = self.bytes;
        Ok((self.finish().0, bytes))
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.hasher.update(&buf[..n]);
        self.bytes += n as u64;
        Ok(n)
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(buf)?;
        self.hasher.update(&buf[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
