//! Which versions may follow which. Stored objects and running launchers go forward, never back.

use anyhow::{Result, bail};

/// What is on a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    pub version: String,
    /// Who keeps the books: `ferrovirt` or `Helm`.
    pub manager: String,
}

impl Installed {
    /// Refuses what would go back, and what is Helm's to do.
    pub fn allows(&self, next: &str) -> Result<()> {
        self.ours()?;
        forward(&self.version, next)
    }

    pub fn ours(&self) -> Result<()> {
        if self.manager == "Helm" {
            bail!(
                "this installation is Helm's; change it with `helm upgrade` or `helm uninstall ferrovirt --namespace kubevirt`"
            );
        }
        Ok(())
    }
}

/// Refuses to go back: a newer version may have stored what an older one does not know, and would lose.
pub fn forward(installed: &str, next: &str) -> Result<()> {
    let (Some(old), Some(new)) = (numbers(installed), numbers(next)) else { return Ok(()) };
    if new < old {
        bail!(
            "the cluster has Ferrovirt {installed}, and this is {next}: an older version does not know all that a newer one \
             has stored, and would drop it. Use Ferrovirt {installed} or newer; to start over, `ferrovirt uninstall --all`"
        );
    }
    Ok(())
}

fn numbers(version: &str) -> Option<(u64, u64, u64)> {
    let mut parts = version.split(['-', '+']).next()?.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_go_forward_only() {
        for (installed, next, allowed) in [
            ("0.1.0", "0.1.0", true),
            ("0.1.0", "0.2.0", true),
            ("0.9.0", "0.10.0", true),
            ("0.10.0", "0.9.9", false),
            ("1.0.0", "0.9.0", false),
            ("1.0.1-rc.1", "1.0.0", false),
            ("something else", "0.1.0", true),
        ] {
            assert_eq!(forward(installed, next).is_ok(), allowed, "{installed} -> {next}");
        }
        let helms = Installed { version: "0.1.0".into(), manager: "Helm".into() };
        assert!(helms.allows("0.2.0").unwrap_err().to_string().contains("helm upgrade"));
    }
}
