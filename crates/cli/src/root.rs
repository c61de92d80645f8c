//! What belongs to root: an embedded host's data and sockets. Who is not root is told so, instead of that there is nothing.

use std::{fs, io, path::Path};

use anyhow::{Result, bail};

use crate::next;

/// Whether somebody else's directory keeps us from seeing what is there.
pub fn is_closed(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Refuses where only root can look.
pub fn needed_for(path: &Path) -> Result<()> {
    if is_closed(path) || fs::File::open(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        bail!("{}", advice(path));
    }
    Ok(())
}

/// What who is not root can do.
pub fn advice(path: &Path) -> String {
    let words = std::env::args().skip(1);
    text(path, &words.collect::<Vec<_>>())
}

fn text(path: &Path, words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| next::quoted(word)).collect();
    format!(
        "root is needed to use the host of this machine ({} is root's): sudo ferrovirt {}\n  \
         For credentials of your own: sudo ferrovirt kubeconfig --user NAME > FILE, then KUBECONFIG=FILE",
        path.display(),
        words.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_root_is_told_what_to_type() {
        let words = ["get", "vms", "-l", "a b"].map(str::to_owned);
        let said = text(Path::new("/var/lib/ferrovirt/kubeconfig"), &words);
        assert!(said.contains("root is needed") && said.contains("sudo ferrovirt get vms -l 'a b'"), "{said}");
        assert!(!is_closed(Path::new("/nonexistent/file")), "what is not there is not closed");
    }
}
