//! The command line of ssh. A guest may be hostile: it gets what it needs for a login, and nothing of this machine. The user's own ssh
//! configuration is left aside, because it may hand an agent, a display or a port to everyone.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::{home::Trust, machine::Machine};

pub struct Login<'a> {
    pub machine: &'a Machine,
    /// Private keys, the best one first.
    pub identities: &'a [PathBuf],
    pub trust: &'a Trust,
    /// For the shell that ssh starts.
    pub proxy: &'a str,
    /// Nobody is there to be asked.
    pub batch: bool,
}

impl Login<'_> {
    /// For ssh and scp alike.
    pub fn words(&self) -> Result<Vec<String>> {
        let mut options = vec![format!("ProxyCommand={}", self.proxy)];
        options.extend(host_key(self.machine, self.trust)?);
        options.push("IdentitiesOnly=yes".to_owned());
        for path in self.identities {
            options.push(identity(path)?);
        }
        let fixed = [
            "ForwardAgent=no",
            "ForwardX11=no",
            "ClearAllForwardings=yes",
            "PermitLocalCommand=no",
            "ControlMaster=no",
            "ControlPath=none",
            "GSSAPIAuthentication=no",
            "HostbasedAuthentication=no",
            "ServerAliveInterval=30",
            "LogLevel=ERROR",
        ];
        options.extend(fixed.map(str::to_owned));
        if self.batch {
            options.push("BatchMode=yes".to_owned());
        }
        let head = ["-F", "/dev/null"].map(str::to_owned).into_iter();
        Ok(head.chain(options.into_iter().flat_map(|option| ["-o".to_owned(), option])).collect())
    }
}

/// By which key the guest is known.
pub fn host_key(machine: &Machine, trust: &Trust) -> Result<Vec<String>> {
    let mut options = vec![
        format!("HostKeyAlias={}", machine.host()),
        format!("UserKnownHostsFile={}", file(&trust.known_hosts)?),
        "GlobalKnownHostsFile=/dev/null".to_owned(),
        format!("StrictHostKeyChecking={}", if trust.promised { "yes" } else { "accept-new" }),
        "UpdateHostKeys=no".to_owned(),
        "CheckHostIP=no".to_owned(),
    ];
    if trust.promised {
        // The kind that was promised: a guest has others, too.
        options.push("HostKeyAlgorithms=ssh-ed25519".to_owned());
    }
    Ok(options)
}

pub fn identity(path: &Path) -> Result<String> {
    Ok(format!("IdentityFile={}", file(path)?))
}

/// A file's name as a value of an option: one word, with nothing to expand in it.
fn file(path: &Path) -> Result<String> {
    let text = path.to_str().unwrap_or_default();
    ensure!(
        !text.is_empty() && !text.contains(['"', '\\', '$', '\n']),
        "ssh cannot use the file {}: its name has a quote, a backslash, a dollar sign or a line break",
        path.display()
    );
    // At the beginning it would be a home.
    let text = if text.starts_with('~') { format!("./{text}") } else { text.to_owned() };
    Ok(format!("\"{}\"", text.replace('%', "%%")))
}

/// A program and its arguments as one line for the guest's shell, which makes the same arguments of it again.
pub fn line(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        match !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_=/.:@%+,".contains(c)) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Kind;

    fn words(promised: bool, batch: bool) -> String {
        let machine = Machine {
            kind: Kind::Machine,
            name: "web".into(),
            namespace: "shop".into(),
            uid: "u".into(),
            instance: "i".into(),
            user: None,
            host_key: None,
            running_for: None,
        };
        let trust = Trust { known_hosts: "/h o/100%/u".into(), promised, note: None };
        let identities = [PathBuf::from("/k")];
        let login = Login { machine: &machine, identities: &identities, trust: &trust, proxy: "p %p", batch };
        login.words().unwrap().join("\n")
    }

    #[test]
    fn a_guest_gets_a_login_and_nothing_else() {
        assert_eq!(
            words(true, true),
            "-F\n/dev/null\n-o\nProxyCommand=p %p\n-o\nHostKeyAlias=web.shop\n-o\nUserKnownHostsFile=\"/h o/100%%/u\"\n\
             -o\nGlobalKnownHostsFile=/dev/null\n-o\nStrictHostKeyChecking=yes\n-o\nUpdateHostKeys=no\n-o\nCheckHostIP=no\n\
             -o\nHostKeyAlgorithms=ssh-ed25519\n\
             -o\nIdentitiesOnly=yes\n-o\nIdentityFile=\"/k\"\n-o\nForwardAgent=no\n\
             -o\nForwardX11=no\n-o\nClearAllForwardings=yes\n-o\nPermitLocalCommand=no\n-o\nControlMaster=no\n-o\nControlPath=none\n\
             -o\nGSSAPIAuthentication=no\n-o\nHostbasedAuthentication=no\n-o\nServerAliveInterval=30\n-o\nLogLevel=ERROR\n\
             -o\nBatchMode=yes"
        );
        let first = words(false, false);
        assert!(first.contains("StrictHostKeyChecking=accept-new"), "{first}");
        assert!(!first.contains("HostKeyAlgorithms") && !first.contains("BatchMode"), "{first}");
    }

    #[test]
    fn files_are_one_word() {
        assert_eq!(file(Path::new("~x")).unwrap(), "\"./~x\"");
        for bad in ["", "a\"b", "${HOME}", "a\\b", "a\nb"] {
            assert!(file(Path::new(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_guests_shell_sees_the_same_words() {
        let line = |words: &[&str]| line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&["ls", "-l", "/tmp"]), "ls -l /tmp");
        assert_eq!(line(&["sh", "-c", "echo $HOME; ls *"]), "sh -c 'echo $HOME; ls *'");
        assert_eq!(line(&["echo", "", "it's", "~"]), r"echo '' 'it'\''s' '~'");
        let output = std::process::Command::new("sh")
            .args(["-c", &line(&["printf", "%s|", "a  b", "$x", "`id`", "\\", "'", "\"", "*", "\n"])])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a  b|$x|`id`|\\|'|\"|*|\n|");
    }
}
