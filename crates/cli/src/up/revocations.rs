//! Certificates of this host that are not believed any more, in `<data-dir>/pki/revoked.json`.

use std::{fs, io, path::PathBuf};

use anyhow::{Context, Result, bail};
use ferrovirt_apiserver::RevocationList;

use super::{control, paths::Paths, pki::write_private};

fn file(paths: &Paths) -> PathBuf {
    paths.pki().join("revoked.json")
}

/// A list that cannot be read is no empty list: whoever is on it would come in again.
pub fn read(paths: &Paths) -> Result<RevocationList> {
    let path = file(paths);
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(RevocationList::default()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Revokes, and makes a running host know of it. Says what was done.
pub async fn revoke(paths: &Paths, whom: &str) -> Result<String> {
    let now = time::OffsetDateTime::now_utc().unix_timestamp();
    let mut list = read(paths)?;
    let what = match whom.strip_prefix("serial:") {
        Some(serial) if list.add_serial(serial) => format!("the certificate with the serial number {serial}"),
        Some(serial) => bail!("--revoke serial:{serial}: a serial number has hexadecimal digits"),
        None if whom == "admin" => {
            bail!("--revoke admin: this is the host itself; revoke a lost copy by its serial number (serial:HEX)")
        }
        None => {
            list.add_user(whom, now);
            format!("all certificates that {whom} was given so far")
        }
    };
    let mut text = serde_json::to_vec_pretty(&list)?;
    text.push(b'\n');
    write_private(&file(paths), &text)?;
    let told = control::reload(&paths.control_socket()).await.context("the running host could not be told")?;
    let since = if told { "from now on" } else { "from the next start of the host on" };
    Ok(format!("{what}: not believed {since}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_revoked_stays_revoked() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path()).unwrap();
        fs::create_dir_all(paths.pki()).unwrap();
        assert!(revoke(&paths, "bob").await.unwrap().contains("from the next start"));
        revoke(&paths, "serial:0xAB").await.unwrap();
        let list = read(&paths).unwrap();
        assert_eq!((list.users[0].name.as_str(), list.serials.as_slice()), ("bob", &["ab".to_owned()][..]));
        for bad in ["serial:bob", "admin"] {
            assert!(revoke(&paths, bad).await.is_err(), "{bad}");
        }
        fs::write(file(&paths), "{").unwrap();
        assert!(read(&paths).is_err() && revoke(&paths, "ann").await.is_err(), "a damaged list is not an empty one");
    }
}
