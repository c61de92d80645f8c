//! Ed25519 keys in OpenSSH's own format.

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ring::signature::{Ed25519KeyPair, KeyPair as _};

const KIND: &[u8] = b"ssh-ed25519";
const MAGIC: &[u8] = b"openssh-key-v1\0";
const BEGIN: &str = "-----BEGIN OPENSSH PRIVATE KEY-----";
const END: &str = "-----END OPENSSH PRIVATE KEY-----";

/// A key pair. Its private half has no way into a message: this type is not `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    seed: [u8; 32],
    public: [u8; 32],
}

impl Key {
    pub fn generate() -> Result<Self> {
        let mut seed = [0; 32];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        Self::from_seed(seed)
    }

    fn from_seed(seed: [u8; 32]) -> Result<Self> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| anyhow::anyhow!("cannot make a key"))?;
        Ok(Self { seed, public: pair.public_key().as_ref().try_into()? })
    }

    /// `ssh-ed25519 AAAA…`, without a comment.
    pub fn public(&self) -> String {
        format!("ssh-ed25519 {}", BASE64.encode(self.public_blob()))
    }

    fn public_blob(&self) -> Vec<u8> {
        [string(KIND), string(&self.public)].concat()
    }

    /// The file that ssh and sshd read. It has no passphrase.
    pub fn private(&self, comment: &str) -> Result<String> {
        let mut check = [0; 4];
        rustix::rand::getrandom(&mut check, rustix::rand::GetRandomFlags::empty())?;
        let both = [self.seed, self.public].concat();
        let mut secret = [&check[..], &check[..]].concat();
        for part in [KIND, &self.public[..], &both[..], comment.as_bytes()] {
            secret.extend(string(part));
        }
        // Filled up to whole blocks of the cipher, also if there is none.
        secret.extend((1_u8..).take((8 - secret.len() % 8) % 8));
        let mut blob = MAGIC.to_vec();
        for part in [&b"none"[..], &b"none"[..], &b""[..]] {
            blob.extend(string(part));
        }
        blob.extend(1_u32.to_be_bytes());
        blob.extend(string(&self.public_blob()));
        blob.extend(string(&secret));
        let encoded = BASE64.encode(blob);
        let lines: Vec<&str> =
            encoded.as_bytes().chunks(70).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        Ok(format!("{BEGIN}\n{}\n{END}\n", lines.join("\n")))
    }

    /// Reads what [`Key::private`] wrote.
    pub fn parse(text: &str) -> Result<Self> {
        let inner = text.trim().strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END));
        let inner = inner.context("it is not an OpenSSH private key")?;
        let packed: String = inner.split_whitespace().collect();
        let blob = BASE64.decode(packed).context("it is damaged")?;
        let mut rest = blob.strip_prefix(MAGIC).context("it is not an OpenSSH private key")?;
        let (cipher, _, _) = (take(&mut rest)?, take(&mut rest)?, take(&mut rest)?);
        ensure!(cipher == b"none", "it has a passphrase");
        rest = rest.get(4..).context("it is damaged")?;
        take(&mut rest)?;
        let secret = take(&mut rest)?;
        let mut secret = secret.get(8..).context("it is damaged")?;
        if take(&mut secret)? != KIND {
            bail!("it is not an Ed25519 key");
        }
        take(&mut secret)?;
        let both = take(&mut secret)?;
        Self::from_seed(both.get(..32).context("it is damaged")?.try_into()?)
    }
}

fn string(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], bytes].concat()
}

fn take<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<4>().context("it is damaged")?;
    let length = usize::try_from(u32::from_be_bytes(*length))?;
    let (part, after) = after.split_at_checked(length).context("it is damaged")?;
    *rest = after;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first test of RFC 8032.
    const SEED: [u8; 32] = [
        0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c, 0xc4, 0x44, 0x49,
        0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae, 0x7f, 0x60,
    ];

    #[test]
    fn keys_are_as_openssh_writes_them() {
        let key = Key::from_seed(SEED).unwrap();
        assert_eq!(key.public(), "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINdamAGCsQq31Uv+08lkBzoO4XLz2qYjJa8CGmj3B1Ea");
        let file = key.private("me").unwrap();
        assert!(file.starts_with("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU"), "{file}");
        assert!(file.ends_with("-----END OPENSSH PRIVATE KEY-----\n"));
        assert!(Key::parse(&file).unwrap() == key);
        assert!(Key::generate().unwrap() != Key::generate().unwrap());
        for bad in ["", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----", &file[..200]] {
            assert!(Key::parse(bad).is_err());
        }
    }
}
