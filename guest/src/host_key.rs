//! The ssh host key that cloud-init data brings (`ssh_keys`), as dropbear keeps it.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

pub const FILE: &str = "/etc/dropbear/dropbear_ed25519_host_key";

const MAGIC: &[u8] = b"openssh-key-v1\0";
const KIND: &[u8] = b"ssh-ed25519";

/// Puts the key where dropbear looks for it. `blob` is what stands between the first and the last line of an OpenSSH key file, decoded.
pub fn install(blob: &[u8], file: &Path) -> Result<()> {
    let key = dropbear(blob).context("ssh_keys: ed25519_private is not an Ed25519 key without a passphrase")?;
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent)?;
    }
    let new = file.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut options = fs::File::options();
    let mut out = options.write(true).create_new(true).mode(0o600).open(&new)?;
    std::io::Write::write_all(&mut out, &key)?;
    fs::rename(&new, file)?;
    Ok(())
}

/// The text between the first and the last line.
pub fn body(text: &str) -> Result<String> {
    let inner = text.trim().strip_prefix("-----BEGIN OPENSSH PRIVATE KEY-----");
    match inner.and_then(|rest| rest.strip_suffix("-----END OPENSSH PRIVATE KEY-----")) {
        Some(inner) => Ok(inner.split_whitespace().collect()),
        None => bail!("ssh_keys: ed25519_private is not an OpenSSH key"),
    }
}

/// Both formats have the kind and the two halves of the key as strings with their lengths; OpenSSH's has more around them.
fn dropbear(blob: &[u8]) -> Option<Vec<u8>> {
    let mut rest = blob.strip_prefix(MAGIC)?;
    let (cipher, _, _) = (take(&mut rest)?, take(&mut rest)?, take(&mut rest)?);
    rest = rest.get(4..)?;
    take(&mut rest)?;
    let mut secret = take(&mut rest)?.get(8..)?;
    let (kind, _, halves) = (take(&mut secret)?, take(&mut secret)?, take(&mut secret)?);
    (cipher == b"none" && kind == KIND && halves.len() == 64).then(|| [string(KIND), string(halves)].concat())
}

fn string(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], bytes].concat()
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let (part, after) = after.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    *rest = after;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn openssh(cipher: &[u8], kind: &[u8]) -> Vec<u8> {
        let secret =
            [&[7; 8][..], &string(kind), &string(&[2; 32]), &string(&[[1; 32], [2; 32]].concat()), &string(b"c")];
        let public = string(&[string(kind), string(&[2; 32])].concat());
        let head = [MAGIC, &string(cipher), &string(b"none"), &string(b""), &[0, 0, 0, 1], &public].concat();
        [head, string(&secret.concat())].concat()
    }

    #[test]
    fn a_key_is_written_as_dropbear_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dropbear/key");
        for _ in 0..2 {
            install(&openssh(b"none", KIND), &file).unwrap();
        }
        let expected = [&[0, 0, 0, 11][..], KIND, &[0, 0, 0, 64], &[1; 32], &[2; 32]].concat();
        assert_eq!(fs::read(&file).unwrap(), expected);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        let good = openssh(b"none", KIND);
        for bad in [openssh(b"aes256-ctr", KIND), openssh(b"none", b"ssh-rsa"), good[..good.len() / 2].to_vec(), vec![]]
        {
            assert!(install(&bad, &file).is_err());
        }
        let text = "-----BEGIN OPENSSH PRIVATE KEY-----\nab\ncd\n-----END OPENSSH PRIVATE KEY-----\n";
        assert_eq!(body(text).unwrap(), "abcd");
        assert!(body("-----BEGIN RSA PRIVATE KEY-----").is_err());
    }
}
